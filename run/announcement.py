"""The lines that a run prints about itself before it begins."""

import math
from collections.abc import Iterator, Mapping

from model.compilation import compilation_described
from model.embedding.placement import Placement
from model.native import operations_description
from training.gradient_slices import gradient_slices_described
from utils.config.config import Config
from utils.config.options import TRAIN
from utils.memory import GIB

_STEPS = 100  # steps an epoch that the proposed batch size aims at


def announcement(config: Config, workers: int, device: str, dtype: str, placement: Placement, samples: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines.

    Args:
        config: configuration of the run.
        workers: N.
        device: "CPU" or "GPU".
        dtype: dtype in which dense layers compute.
        placement: placement of the tables.
        samples: number of samples of each split, by the split's name.
    """
    mode = config.run.mode
    size = config.data.batch_size if mode == TRAIN else config.data.valid_batch_size
    parameters = sum(table.rows * table.dim for table in placement.tables)
    fullest = max(placement.stored(worker) for worker in range(workers))
    yield (
        f"{mode} on {workers} worker{'s' if workers > 1 else ''} ({device}, {dtype}{compilation_described(config)}, {operations_description()}): "
        f"batch {size} global, {size // workers} local; {len(placement.rows)} tables, {parameters:,} embedding parameters "
        f"({4 * parameters / GIB:.1f} GiB{f', {fullest / GIB:.1f} GiB on the fullest worker' if workers > 1 else ''}); "
        + ", ".join(f"{name} {count:,} samples" for name, count in samples.items())
    )
    if mode == TRAIN:
        yield gradient_slices_described(config, workers, device)


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
