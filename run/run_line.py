"""The log's line about a run: its model, data, machine and placement, for reports that have nothing but the log. Imports no TensorFlow itself."""

import os
import platform
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.architectures import architecture_of
from model.embedding.placement import Placement
from model.embedding.plan import traffic
from model.embedding.table import NO_SLOTS
from model.native import operations_description
from training.gradient_slices import gradient_slices_described
from training.optimizers.table import table_rule
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.options import TRAIN

_ID = re.compile(r"[0-9a-f]{16}")


def run_id(checkpoint: Checkpoint | None) -> str:
    """Return the id of the run that wrote a checkpoint, or a new one where there is no checkpoint or it names none."""
    return saved_id(checkpoint) or secrets.token_hex(8)


def saved_id(checkpoint: Checkpoint | None) -> str:
    """Return the id of the run that wrote a checkpoint; empty where there is no checkpoint or it names none, as older ones do."""
    log = checkpoint.manifest.get("log") if checkpoint else None
    found = log.get("run") if isinstance(log, Mapping) else None
    return found if isinstance(found, str) and _ID.fullmatch(found) else ""


def of_placement(config: Config, placement: Placement, dtype: str, num_numerical: int) -> dict[str, Any]:
    """Return the line's entries about tables, features and their placement."""
    training = config.run.mode == TRAIN
    size = config.data.batch_size if training else config.data.valid_batch_size
    workers, names = len(placement.workers), [table.name for table in placement.tables]
    storage = placement.storage if training else NO_SLOTS
    architecture = architecture_of(config.model)
    dense = architecture.dense_elements(config.model, num_numerical, placement.widths)
    normalised = sum(architecture.normalised(config.model, num_numerical))
    squares = training and bool(placement.widths) and table_rule(config.optimizer, placement.widths[0]).needs_squares
    vector_bytes = 4 if dtype == "float32" else 2
    on_all = {names[table] for table in placement.replicated}
    local_ids = size // workers * sum(feature.hotness for feature in placement.features if feature.table in on_all)

    def on(worker: int) -> dict[str, Any]:
        sends = traffic(placement, worker, size, vector_bytes, dense, squares, normalised)
        return {
            "worker": worker,
            "bytes": placement.stored(worker),
            "tables": [[names[shard.table], shard.first, shard.last] for shard in placement.workers[worker]],
            "ids_per_step": size * sum(placement.features[feature].hotness for feature, _ in placement.lookups[worker]) + local_ids,
            "sent_bytes_per_step": sends.total if training else sends.vectors,
        }

    return {
        "parameters": {"embedding": sum(table.rows * table.dim for table in placement.tables), "dense": dense},
        "tables": [
            {"name": table.name, "rows": table.rows, "dim": table.dim, "bytes": storage.bytes(table.rows, table.dim)} for table in placement.tables
        ],
        "features": [
            {
                **{"name": one.name, "table": one.table, "source": one.source, "hotness": one.hotness, "pooling": one.pooling},
                **({"weights": True} if one.weights else {}),
            }
            for one in placement.features
        ],
        "placement": [on(worker) for worker in range(workers)],
        "replicated": [names[table] for table in placement.replicated],
    }


def of_machine(config: Config, workers: int, device: str, dtype: str) -> dict[str, Any]:
    """Return the line's entries about the machine and the arithmetic."""
    return {
        "workers": workers,
        "device": device,
        "dtype": dtype,
        "operations": operations_description(),
        "processor": _processor(),
        "bits": gradient_slices_described(config, workers, device) if config.run.mode == TRAIN else None,
    }


def _processor() -> str:
    """Return the processor's name, and the number of its cores that this process may use."""
    try:
        found = re.search(r"^model name\s*:\s*(.*\S)", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    cores = len(os.sched_getaffinity(0))
    return f"{found[1] if found else platform.processor() or platform.machine()}, {cores} core{'s' * (cores > 1)}"
