"""A scan of one tf_raw file, in one pass with bounded memory: statistics for a table, and every fault."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dataloading.feature_spec import Categorical
from dataloading.features import MEAN, WEIGHT_DTYPE
from dataloading.id_weights import expected_weights
from dataloading.ranges import NO_ID, position
from dataloading.tf_raw import ColumnFile

BLOCK_BYTES = 16 << 20
MAX_COUNTED_ROWS = 100_000_000  # rows of a table; counting distinct ids takes a byte of memory per row

Progress = Callable[[int], object]  # called with the bytes of each block


@dataclass
class Figures:
    """The statistics of one feature's column. `distinct` is None if counting would take too much memory, the last two if there are no lists."""

    feature: str
    samples: int
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    distinct: int | None = None
    zero_share: float | None = None  # share of id 0 or value 0
    faults: list[str] = field(default_factory=list)
    mean_length: float | None = None  # ids per sample
    empty_share: float | None = None  # share of samples without an id


@dataclass
class _Bad:
    """The bad rows of one kind: the first one and their number."""

    count: int = 0
    place: str = ""
    value: float = 0

    def add(self, bad: np.ndarray, values: np.ndarray, first_row: int) -> None:
        """Add a block: a mask `[n]` or `[n, h]` of its bad values, and the values."""
        found = int(np.count_nonzero(bad if bad.ndim == 1 else bad.any(axis=1)))
        if found and not self.count:
            row, *place = (int(index) for index in np.unravel_index(int(np.argmax(bad)), bad.shape))
            self.place, self.value = position(first_row + row, *place), values[(row, *place)].item()
        self.count += found

    def fault(self, path: Path, feature: str, what: str) -> list[str]:
        if not self.count:
            return []
        rows = "1 bad row" if self.count == 1 else f"{self.count} bad rows"
        return [f"{path}: feature {feature}, {self.place}: {what.format(self.value)}; {rows}"]


def _blocks(path: Path, dtype: str, width: int, samples: int, progress: Progress, itemsize: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """Yield blocks and their first rows. A block has as many rows as one of values of `itemsize` bytes; 0 for that of the file's own."""
    file = ColumnFile(path, np.dtype(dtype), width)
    rows = max(1, BLOCK_BYTES // ((itemsize or file.dtype.itemsize) * width))
    try:
        for start in range(0, samples, rows):
            block = file.read(start, min(start + rows, samples))
            yield start, block
            progress(block.nbytes)
    finally:
        file.close()


def scan_ids(path: Path, feature: Categorical, samples: int, progress: Progress) -> Figures:
    """Check the ids of a categorical file against [0, cardinality); lists may also hold -1 for no id.

    Args:
        path: the file.
        feature: the feature of the ids.
        samples: rows of the file.
        progress: called with the bytes of each block.
    """
    figures, bad, cardinality = Figures(feature.name, samples), _Bad(), feature.cardinality
    seen = np.zeros(cardinality, np.bool_) if cardinality <= MAX_COUNTED_ROWS else None
    count, zeros, empty, low, high = 0, 0, 0, None, None
    for start, ids in _blocks(path, feature.dtype, feature.hotness, samples, progress):
        there = ids = ids.reshape(len(ids), -1) if feature.is_list else ids
        if feature.is_list:
            known = ids != NO_ID
            empty += len(ids) - int(np.count_nonzero(known.any(axis=1)))
            there = ids[known]
        if not there.size:
            continue
        block_low, block_high = int(there.min()), int(there.max())
        low = block_low if low is None else min(low, block_low)
        high = block_high if high is None else max(high, block_high)
        count, zeros = count + len(there), zeros + len(there) - int(np.count_nonzero(there))
        if block_low < 0 or block_high >= cardinality:
            outside = (ids < (NO_ID if feature.is_list else 0)) | (ids > cardinality - 1)
            bad.add(outside, ids, start)
            there = there[(there >= 0) & (there < cardinality)]
        if seen is not None:
            seen[there] = True
    figures.low, figures.high, figures.zero_share = low, high, zeros / count if count else None
    figures.distinct = int(np.count_nonzero(seen)) if seen is not None else None
    figures.faults = bad.fault(path, feature.name, f"id {{}} is not in [0, {cardinality})")
    if feature.is_list and samples:
        figures.mean_length, figures.empty_share = count / samples, empty / samples
    return figures


def scan_labels(path: Path, feature: str, samples: int, progress: Progress) -> Figures:
    """Check the labels of a label file against {0, 1}; `mean` is the click rate."""
    counts, bad = np.zeros(256, np.int64), _Bad()
    for start, labels in _blocks(path, "uint8", 1, samples, progress):
        counts += np.bincount(labels, minlength=256)
        if labels.max() > 1:
            bad.add(labels > 1, labels, start)
    figures = Figures(feature, samples, faults=bad.fault(path, feature, "label {} is not 0 or 1"))
    values = np.flatnonzero(counts)
    if len(values):
        figures.low, figures.high, figures.distinct = int(values[0]), int(values[-1]), len(values)
        figures.mean, figures.zero_share = float(counts @ np.arange(256)) / samples, int(counts[0]) / samples
    return figures


def scan_group(path: Path, feature: str, dtype: str, samples: int, progress: Progress) -> Figures:
    """Collect the range of the group file's values; every integer is valid."""
    figures = Figures(feature, samples)
    for _, groups in _blocks(path, dtype, 1, samples, progress):
        low, high = int(groups.min()), int(groups.max())
        figures.low = low if figures.low is None else min(figures.low, low)
        figures.high = high if figures.high is None else max(figures.high, high)
    return figures


def scan_weights(path: Path, feature: str, dtype: str, samples: int, progress: Progress) -> Figures:
    """Check that weights are finite and at least 0."""
    (figures,) = scan_numerical(path, (feature,), dtype, samples, progress)
    bad = _Bad()
    for start, weights in _blocks(path, dtype, 1, samples, lambda _: None):  # the progress counts the file once
        below = (weights < 0) & np.isfinite(weights)
        if below.any():
            bad.add(below, weights, start)
    figures.faults += bad.fault(path, feature, "weight {} is below 0")
    return figures


def scan_id_weights(path: Path, feature: Categorical, samples: int, progress: Progress, ids: Path | None = None) -> Figures:
    """Check the weights of a feature's ids, see `id_weights.check_id_weights`, and that there is none without an id.

    Args:
        path: the file of the weights.
        feature: the feature.
        samples: rows of the file.
        progress: called with the bytes of each block.
        ids: the file of as many rows of ids; None where it cannot be read. The statistics are of the finite weights of ids, without it of all.
    """
    figures, bad, needless, total, count, zeros = Figures(f"{feature.name} (weights)", samples), _Bad(), _Bad(), 0.0, 0, 0
    others = _blocks(ids, feature.dtype, feature.hotness, samples, lambda _: None, 4) if ids else None  # the progress counts the file once
    for start, block in _blocks(path, WEIGHT_DTYPE, feature.hotness, samples, progress):
        weights = block.reshape(len(block), -1)
        known = np.isfinite(weights)
        good = known & (weights >= 0) if feature.pooling == MEAN else known
        if not good.all():
            bad.add(~good, weights, start)
        if others is not None:
            there = next(others)[1].reshape(weights.shape) != NO_ID
            without = known & ~there & (weights != 0)
            if without.any():
                needless.add(without, weights, start)
            known = known & there
        values = weights[known]
        if values.size:
            low, high = float(values.min()), float(values.max())
            figures.low = low if figures.low is None else min(figures.low, low)
            figures.high = high if figures.high is None else max(figures.high, high)
            total, count, zeros = (
                total + float(values.sum(dtype=np.float64)),
                count + values.size,
                zeros + values.size - int(np.count_nonzero(values)),
            )
    if count:
        figures.mean, figures.zero_share = total / count, zeros / count
    figures.faults = bad.fault(path, feature.name, f"weight {{:g}} is not {expected_weights(feature.pooling)}")
    figures.faults += needless.fault(path, feature.name, "weight {:g} where there is no id, expected 0")
    return figures


def scan_numerical(path: Path, features: tuple[str, ...], dtype: str, samples: int, progress: Progress) -> list[Figures]:
    """Check that the values of the numerical file are finite; the statistics exclude NaN and infinities."""
    width = len(features)
    bad = [_Bad() for _ in features]
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    total, zeros, finite = np.zeros(width), np.zeros(width, np.int64), np.zeros(width, np.int64)
    for start, block in _blocks(path, dtype, width, samples, progress):
        columns = np.ascontiguousarray(block.reshape(-1, width).T)
        for i, column in enumerate(columns):
            infinite = ~np.isfinite(column)
            if infinite.any():
                bad[i].add(infinite, column, start)
                column = column[~infinite]
            if column.size:
                values = column.astype(np.float32)
                low[i], high[i] = min(low[i], float(values.min())), max(high[i], float(values.max()))
                total[i] += float(values.sum(dtype=np.float64))
                zeros[i] += values.size - np.count_nonzero(values)
                finite[i] += values.size
    result = []
    for i, feature in enumerate(features):
        figures = Figures(feature, samples, faults=bad[i].fault(path, feature, "value {} is not finite"))
        if finite[i]:
            figures.low, figures.high, figures.mean = float(low[i]), float(high[i]), float(total[i] / finite[i])
            figures.zero_share = float(zeros[i] / samples)
        result.append(figures)
    return result
