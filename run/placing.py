"""Placement of a run's tables. Imports no TensorFlow."""

from collections.abc import Sequence

from model.embedding.placement import Placement
from model.embedding.plan import build_placement
from model.embedding.table import Feature, Storage, Table
from training.optimizers.table import table_rule
from utils.config.config import Config
from utils.config.options import PLAN, TRAIN


def place_tables(
    config: Config, tables: Sequence[Table], num_workers: int, memory: float, host_memory: float = 0, features: Sequence[Feature] = ()
) -> Placement:
    """Place the tables on the workers; see `plan.build_placement`."""
    return build_placement(config, tables, features, num_workers, memory, host_memory, storage_of(config))


def storage_of(config: Config) -> Storage:
    """Return what the tables' optimizer stores beside them in this run."""
    trained = config.run.mode in (TRAIN, PLAN) and config.model.embedding_trainable
    return table_rule(config.optimizer, 1).storage if trained else Storage()
