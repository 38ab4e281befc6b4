"""The lines that a run prints about itself before it begins."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from model.compilation import compilation_described
from model.embedding.placement import Placement
from model.native import operations_description
from run.table_storage import held_described
from training.gradient_slices import DEPENDS, gradient_slices_described
from utils.config.config import Config
from utils.config.options import TRAIN
from utils.memory import GIB

_WORKERS = 8  # workers that `--verbose` lists
_STEPS = 100  # steps an epoch that the proposed batch size aims at


def announcement(
    config: Config, device: str, dtype: str, placement: Placement, samples: Mapping[str, int], table_memory: float = math.inf
) -> Iterator[str]:
    """Yield the lines.

    Args:
        config: configuration of the run.
        device: "CPU" or "GPU".
        dtype: dtype in which dense layers compute.
        placement: placement of the tables.
        samples: number of samples of each split, by the split's name.
        table_memory: bytes for the rows of lazy tables on one worker.
    """
    mode, workers = config.run.mode, len(placement.workers)
    size = config.data.batch_size if mode == TRAIN else config.data.valid_batch_size
    parameters = sum(table.rows * table.dim for table in placement.tables)
    fullest = max(placement.stored(worker) for worker in range(workers))
    computed = f"{device}, {dtype}{compilation_described(config, workers)}, {operations_description()}"
    lazy = held_described(placement, table_memory)
    yield (
        f"{mode} on {workers} worker{'s' if workers > 1 else ''} ({computed}): "
        f"batch {size} global, {size // workers} local; {len(placement.rows)} tables, {parameters:,} embedding parameters "
        f"({4 * parameters / GIB:.1f} GiB{f', {fullest / GIB:.1f} GiB on the fullest worker' if workers > 1 else ''}){f', {lazy}' if lazy else ''}; "
        + ", ".join(f"{name} {count:,} samples" for name, count in samples.items())
    )
    if mode == TRAIN and not config.run.verbose:  # with --verbose, `details` says it
        bits = gradient_slices_described(config, workers, device)
        if "gradient_slices" in config.given or (workers > 1 and bits.startswith(DEPENDS)):
            yield bits


def details(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that `--verbose` adds, from the data of the log's line about the run."""
    if about["bits"]:
        yield about["bits"]
    yield f"run {about['id']}: {about['processor']}; {about['operations']}"
    yield f"model {about['model']}: {len(about['numerical'])} numerical and {len(about['features'])} looked-up features, " + (
        f"{about['parameters']['dense']:,} dense parameters"
    )
    if about["steps"] is not None:
        yield f"{_counted(about['steps'], 'step')}, {about['steps_per_epoch']:,} an epoch" + (
            f"; {about['chosen_by']} chooses" if about["chosen_by"] else ""
        )
    for one in about["placement"][:_WORKERS]:
        yield (
            f"worker {one['worker']}: {_counted(len(one['tables']), 'shard')}, {one['bytes'] / GIB:.2f} GiB with optimizer slots; looks up "
            f"{one['ids_per_step']:,} ids a step, sends {one['sent_bytes_per_step'] / 1e6:,.1f} MB"
        )
    if (more := len(about["placement"]) - _WORKERS) > 0:
        yield f"and {more:,} more workers (--mode plan shows all)"
    if about["replicated"]:
        yield f"replicated on every worker: {', '.join(about['replicated'])}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def too_large_batch(config: Config, workers: int, rows: int) -> str | None:
    """Return a warning where a batch is larger than the training split, else None. The proposed batch size gives about a hundred steps an epoch."""
    if config.data.batch_size <= rows:
        return None
    smaller = workers
    while 2 * smaller * _STEPS <= rows:
        smaller *= 2
    steps = "" if config.training.steps_per_epoch else ": an epoch is one step"
    return (
        f"--batch_size {config.data.batch_size}: the training split has only {rows:,} rows, so a step takes all of them{steps}; "
        f"try --batch_size {smaller}, {math.ceil(rows / smaller):,} steps for all rows, and a learning rate to match"
    )
