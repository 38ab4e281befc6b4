"""Placement of a run's tables. Imports no TensorFlow."""

from collections.abc import Sequence
from typing import NamedTuple

from model.embedding.placement import Placement
from model.embedding.plan import build_placement
from model.embedding.table import Feature, Storage, Table
from training.optimizers.table import table_rule
from utils.config.config import Config
from utils.config.options import PLAN, TRAIN
from utils.distributed import World
from utils.errors import UserError
from utils.memory import available_bytes, device_bytes, limit_note


class WorkerMemory(NamedTuple):
    """Bytes for tables on one worker: on its device, and in host memory in addition where the device is a GPU.

    `free` is what the host has, which is the first of them on a CPU.
    """

    device: int
    host: int
    free: int


def agreed_memory(world: World, device: str) -> WorkerMemory:
    """Return the memory of the worker that has the least, so that all workers compute the same placement. Every worker calls this."""
    free = available_bytes() // world.local_size
    own = device_bytes(world.local_rank) if device == "GPU" else free
    own, free = (min(values) for values in zip(*world.everyone((own, free), "memory"), strict=True))
    return WorkerMemory(own, free if device == "GPU" else 0, free)


def place_in(config: Config, tables: Sequence[Table], features: Sequence[Feature], num_workers: int, memory: WorkerMemory) -> Placement:
    """Place the tables in the memory of workers. Raises UserError where they do not fit."""
    try:
        return place_tables(config, tables, num_workers, memory.device, memory.host, features)
    except UserError as error:
        error.args = (f"{error}{limit_note()}",)
        raise


def place_tables(
    config: Config, tables: Sequence[Table], num_workers: int, memory: float, host_memory: float = 0, features: Sequence[Feature] = ()
) -> Placement:
    """Place the tables on the workers; see `plan.build_placement`."""
    return build_placement(config, tables, features, num_workers, memory, host_memory, storage_of(config))


def storage_of(config: Config) -> Storage:
    """Return what the tables' optimizer stores beside them in this run."""
    trained = config.run.mode in (TRAIN, PLAN) and config.model.embedding_trainable
    return table_rule(config.optimizer, 1).storage if trained else Storage()
