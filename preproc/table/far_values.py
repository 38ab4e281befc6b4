"""Numbers that lie far from the others of their column after the transform; they dominate a training."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from preproc.table.columns import Plan
from preproc.table.splits import TRAIN
from utils.encoding.recipe import STANDARDISE

FAR = 100  # standard deviations
_VALUES_AT_ONCE = 1 << 22


def far_lines(plan: Plan, names: Sequence[str], dtype: str, files: Mapping[str, Path]) -> Iterator[str]:
    """Yield a warning for each split and feature that has values more than 100 standard deviations from the mean of the training rows.

    Args:
        plan: the fitted plan.
        names: the features of numbers.
        dtype: of the values in the files.
        files: the file of each split, `[n, M]`, filled.
    """
    known = np.array([plan.features[name].transform == STANDARDISE for name in names])
    means, deviations = np.zeros(len(names)), np.ones(len(names))
    if TRAIN in files and not known.all():
        count, sums, first = 0, np.zeros((2, len(names))), None
        for block in _blocks(files[TRAIN], dtype, len(names)):
            first = block[0] if first is None else first
            shifted = block - first  # squares of numbers far from zero would swallow the deviations
            count += len(block)
            sums += shifted.sum(0), (shifted**2).sum(0)
        means, squares = sums / count
        deviations = np.where(known, 1, np.sqrt(np.maximum(squares - means**2, 0)))
        means = np.where(known, 0, first + means)
    elif TRAIN not in files:
        deviations = np.where(known, 1, np.inf)
    for split, path in files.items():
        far, rows = np.zeros(len(names), np.int64), 0
        for block in _blocks(path, dtype, len(names)):
            far += (np.abs(block - means) > FAR * np.where(deviations, deviations, np.inf)).sum(0)
            rows += len(block)
        for place in np.flatnonzero(far):
            yield (
                f"{split} split, feature {names[place]}: {far[place]:,} of {rows:,} values are more than {FAR} standard deviations from the mean of "
                "the training rows; are they right? --numerical_transform log1p, or clip in columns.yaml, brings them nearer"
            )


def _blocks(path: Path, dtype: str, width: int) -> Iterator[np.ndarray]:
    """Yield blocks of a file's rows, `[n, M]` float64."""
    rows = np.memmap(path, dtype, "r").reshape(-1, width) if path.stat().st_size else np.empty((0, width))
    step = max(_VALUES_AT_ONCE // width, 1)
    for start in range(0, len(rows), step):
        yield rows[start : start + step].astype(np.float64)
