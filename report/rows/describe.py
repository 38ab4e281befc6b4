"""The rows of a tf_raw dataset in figures: of each split and feature, and how far the features drift from split to split."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataloading.feature_spec import Categorical
from dataloading.id_weights import check_id_weights, ids_and_weights
from dataloading.ranges import NO_ID, check_labels
from dataloading.tf_raw import TfRawSplit
from report.rows.dataset import MISSING, Meaning, add_counts, block_rows, known_ids, meaning_of, open_dataset, open_split, splits_of
from report.rows.drift import CategoryBins, NumberBins, edges_of
from utils.console import Console, Progress

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
MAX_ROWS = 20_000_000  # of a split that are all read
MAX_COUNTED = 1 << 25  # ids counted one by one: 4 bytes each, three times
_SAMPLED = 1 << 16  # consecutive rows of a sample
_FEW = 1 << 16  # distinct numbers that are counted
CATEGORICAL, NUMERICAL = "categorical", "numerical"


@dataclass(frozen=True)
class SplitFigures:
    """The figures of a split. `read` is the number of its rows that all figures are of.

    `click_rate` is weighted where rows have weights; None without labels, rows or weight.
    """

    split: str
    rows: int
    read: int
    click_rate: float | None


class WeightFigures(NamedTuple):
    """The weights of the ids of a feature: mean, least, greatest, and the share of 0, which leaves the id out."""

    mean: float
    low: float
    high: float
    zeros: float


@dataclass(frozen=True)
class FeatureFigures:
    """The figures of a feature in a split that has rows; None where one does not apply or is not known.

    Shares are of the ids of a categorical feature (`missing`, of a list: of the rows), and of the rows of a numerical one.
    """

    feature: str
    kind: str  # categorical or numerical
    split: str
    missing: float | None  # id 0 where it stands for a missing value; an empty list; NaN
    unknown: float | None  # id 0 where it stands for values that the vocabulary lacks, missing ones among them
    out_of_range: float  # ids outside the table; infinite numbers
    distinct: int | None  # values seen; None beyond 33,554,432 rows of a table, or 65,536 numbers
    cardinality: int | None = None  # rows of the table
    length: float | None = None  # ids a row, of a feature with lists
    zeros: float | None = None  # share of the value 0, of a numerical feature; these figures are of finite numbers as they are stored
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    deviation: float | None = None
    quantiles: tuple[tuple[float, float], ...] = ()  # share of the rows, and the number that they do not exceed
    weights: WeightFigures | None = None  # of the ids of a categorical feature, where they have weights and there are any


@dataclass(frozen=True)
class Drift:
    """The drift of a feature between two splits.

    `stability_index` is the population stability index: the sum of (p - q) log(p / q) over groups of values. Below 0.1 it is usually taken as none,
    above 0.25 as large. `distance` is that of Kolmogorov and Smirnov, of a numerical feature: the largest difference of the two distributions.
    Samples of one distribution differ, too: `index_by_chance` is the mean index of such samples of this size, and their distance exceeds
    `distance_by_chance` in one case of twenty.
    """

    feature: str
    kind: str
    reference: str
    split: str
    stability_index: float
    index_by_chance: float
    distance: float | None = None
    distance_by_chance: float | None = None


@dataclass(frozen=True)
class Description:
    """The figures of a dataset. `drift` has the largest first, by stability index; `notes` says where only a sample was read, and weights of ids."""

    splits: tuple[SplitFigures, ...]
    features: tuple[FeatureFigures, ...]
    drift: tuple[Drift, ...]
    notes: tuple[str, ...]


class _Scan(NamedTuple):
    """A split with rows, the ranges of its rows to read, and their number."""

    split: TfRawSplit
    ranges: list[tuple[int, int]]
    rows: int

    @property
    def name(self) -> str:
        """The name of the split."""
        return self.split.name

    def blocks(self, read: Callable[[int, int], np.ndarray], width: int, progress: Progress) -> Iterator[np.ndarray]:
        """Yield blocks of the values of these rows, of about 16 MiB; a row has `width` bytes."""
        step, parts, waiting = block_rows(width), [], 0
        for first, last in self.ranges:
            for start in range(first, last, step):
                stop = min(start + step, last)
                parts.append(read(start, stop))
                waiting += stop - start
                if waiting >= step or stop == self.ranges[-1][1]:  # short ranges are joined
                    yield parts[0] if len(parts) == 1 else np.concatenate(parts)
                    progress.advance(waiting)
                    parts, waiting = [], 0


def describe(dataset: str | Path, max_rows: int = MAX_ROWS) -> Description:
    """Describe the rows of a tf_raw dataset, with bounded memory.

    Args:
        dataset: its folder.
        max_rows: rows of a split that are read; of a larger one, blocks drawn with a fixed seed, about so many rows in all.

    Raises:
        UserError: it is no tf_raw dataset, a file cannot be read, a label is neither 0 nor 1, or a weight of an id is not what it must be.
    """
    spec = open_dataset(Path(dataset))
    names = splits_of(spec)
    with ExitStack() as stack:
        opened = {name: split for name in names if (split := open_split(spec, name)) is not None}
        for split in opened.values():
            stack.callback(split.close)
        scans = [_scan(split, max_rows) for split in opened.values()]
        total = sum(scan.rows * (len(spec.categorical) + bool(spec.numerical) + scan.split.labelled) for scan in scans)
        with Console("report").progress(total, "statistics of the dataset", "values") as progress:
            splits = {scan.name: _split_figures(scan, progress) for scan in scans}
            found = [_of_ids(scans, i, feature, meaning_of(spec, feature.name), progress) for i, feature in enumerate(spec.categorical)]
            found += _of_numbers(scans, spec.numerical, progress) if spec.numerical else []
    drift = sorted((one for _, drifts in found for one in drifts), key=lambda one: (-one.stability_index, one.feature, one.split))
    notes = [
        f"{scan.name}: {scan.rows:,} of {scan.split.num_samples:,} rows, in {len(scan.ranges):,} blocks drawn with a fixed seed"
        for scan in scans
        if scan.rows < scan.split.num_samples
    ]
    figures = tuple(one for of_feature, _ in found for one in of_feature)
    notes += [_said_of_weights(one) for one in figures if one.weights is not None]
    if spec.weight is not None:
        notes.append(f"The click rates are weighted by {spec.weight}; in all other figures every row counts once")
    return Description(tuple(splits.get(name) or SplitFigures(name, 0, 0, None) for name in names), figures, tuple(drift), tuple(notes))


def _said_of_weights(figures: FeatureFigures) -> str:
    mean, low, high, zeros = figures.weights
    idle = f"; {100 * zeros:.4g}% are 0: such an id is counted here and has no part in a prediction" if zeros else ""
    return f"{figures.split}: the weights of the ids of {figures.feature} have the mean {mean:.4g} and lie between {low:.4g} and {high:.4g}{idle}"


def _scan(split: TfRawSplit, max_rows: int) -> _Scan:
    """Return the ranges of a split to read: all of it, or blocks drawn with a fixed seed."""
    count = split.num_samples
    if count <= max_rows:
        return _Scan(split, [(0, count)], count)
    size = min(_SAMPLED, max(1, max_rows))
    blocks = -(-count // size)
    drawn = np.sort(np.random.default_rng(count).choice(blocks, max(1, min(blocks, max_rows // size)), replace=False))
    ranges = [(int(block) * size, min((int(block) + 1) * size, count)) for block in drawn]
    return _Scan(split, ranges, sum(stop - start for start, stop in ranges))


def _split_figures(scan: _Scan, progress: Progress) -> SplitFigures:
    if not scan.split.labelled:
        return SplitFigures(scan.name, scan.split.num_samples, scan.rows, None)
    label, weighted = scan.split.spec.label, scan.split.spec.weight is not None
    positives = total = 0.0

    def read(start: int, stop: int) -> np.ndarray:
        labels = scan.split.read_labels(start, stop)
        check_labels(labels, label, start, scan.split.file(label))
        weights = scan.split.read_weights(start, stop) if weighted else np.ones(stop - start, np.float32)
        return np.stack([weights * (labels != 0), weights], axis=1)

    for rows in scan.blocks(read, 8, progress):
        positive, every = rows.sum(axis=0, dtype=np.float64).tolist()
        positives, total = positives + positive, total + every
    return SplitFigures(scan.name, scan.split.num_samples, scan.rows, positives / total if total else None)


_Found = tuple[list[FeatureFigures], list[Drift]]


def _of_ids(scans: Sequence[_Scan], index: int, feature: Categorical, meaning: Meaning, progress: Progress) -> _Found:
    """Return the figures of a categorical feature in each split, and its drift from the first one. One split's counts are in memory at a time."""
    figures, drift, bins = [], [], None
    for scan in scans:
        # The first split's rows are drawn into two halves: see `CategoryBins`.
        counts = [np.zeros(min(feature.cardinality, MAX_COUNTED), np.uint32) for _ in range(1 if bins else 2)]
        seen = _count_ids(scan, index, feature, counts, progress)
        figures.append(_id_figures(scan, feature, meaning, counts, seen))
        if bins is None:
            bins = CategoryBins(*counts, seen.nothing)
            continue
        drift.append(Drift(feature.name, CATEGORICAL, scans[0].name, scan.name, *bins.stability_index(counts[0], seen.nothing)))
    return figures, drift


@dataclass
class _Seen:
    """Counts over the rows of a categorical feature."""

    ids: int = 0  # ids, without the -1 of lists
    outside: int = 0
    empty: int = 0  # rows without an id
    idle: int = 0  # ids of weight 0, where ids have weights
    weight: float = 0.0  # the sum of the weights
    low: float = np.inf
    high: float = -np.inf

    @property
    def nothing(self) -> int:
        """Ids and rows that name no row of the table."""
        return self.outside + self.empty

    @property
    def weights(self) -> WeightFigures | None:
        """The figures of the weights; None if none were added."""
        return WeightFigures(self.weight / self.ids, self.low, self.high, self.idle / self.ids) if self.low <= self.high else None

    def add_weights(self, weights: np.ndarray) -> None:
        """Add the weights of some ids, `[n]`."""
        if weights.size:
            self.idle += weights.size - int(np.count_nonzero(weights))
            self.weight += float(weights.sum(dtype=np.float64))
            self.low, self.high = min(self.low, float(weights.min())), max(self.high, float(weights.max()))


def _count_ids(scan: _Scan, index: int, feature: Categorical, counts: list[np.ndarray], progress: Progress) -> _Seen:
    """Add the ids of a split to `counts`, each row to one of them by a draw with a fixed seed, and return the other counts."""
    seen, draw = _Seen(), np.random.default_rng(0)
    width = 4 * feature.columns if feature.weights else np.dtype(feature.dtype).itemsize * feature.hotness

    def read(start: int, stop: int) -> np.ndarray:
        values = scan.split.read_ids(index, start, stop)
        if feature.weights:
            check_id_weights(values, feature, start, scan.split.file(feature.name))
        return values

    for ids in scan.blocks(read, width, progress):
        if feature.weights:
            ids, weights = ids_and_weights(ids)
            seen.add_weights(weights[ids != NO_ID])
        known = known_ids(ids, feature)
        outside = int(np.count_nonzero(known.outside))
        seen.ids += int(np.count_nonzero(known.inside)) + outside
        seen.outside += outside
        if feature.is_list:
            seen.empty += int(np.count_nonzero(~(known.inside | known.outside).any(axis=1)))
        half = draw.integers(0, len(counts), len(ids), np.uint8)
        for number, into in enumerate(counts):
            there = ids[known.inside & (half == number).reshape(-1, *[1] * (ids.ndim - 1))] if len(counts) > 1 else ids[known.inside]
            add_counts(into, there % len(into) if feature.cardinality > len(into) else there)
    return seen


def _id_figures(scan: _Scan, feature: Categorical, meaning: Meaning, counts: list[np.ndarray], seen: _Seen) -> FeatureFigures:
    folded = feature.cardinality > len(counts[0])
    zero = None if not meaning.zero or folded or not seen.ids else sum(int(one[0]) for one in counts) / seen.ids
    missing = zero if meaning.zero == MISSING else None
    return FeatureFigures(
        feature=feature.name,
        kind=CATEGORICAL,
        split=scan.name,
        missing=seen.empty / scan.rows if feature.is_list else missing,
        unknown=None if meaning.zero == MISSING else zero,
        out_of_range=seen.outside / seen.ids if seen.ids else 0.0,
        distinct=None if folded else sum(_distinct(parts) for parts in _parts(counts)),
        cardinality=feature.cardinality,
        length=seen.ids / scan.rows if feature.is_list else None,
        weights=seen.weights,
    )


def _parts(counts: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield the counts in blocks of ids."""
    for start in range(0, len(counts[0]), 1 << 20):
        yield [one[start : start + (1 << 20)] for one in counts]


def _distinct(parts: list[np.ndarray]) -> int:
    return int(np.count_nonzero(np.maximum.reduce(parts)))


def _of_numbers(scans: Sequence[_Scan], names: Sequence[str], progress: Progress) -> list[_Found]:
    """Return the figures of the numerical features in each split, and their drift from the first one."""
    found: list[_Found] = [([], []) for _ in names]
    if not scans:
        return found
    edges = edges_of([(scan.split.read_numerical, scan.ranges) for scan in scans], len(names))
    bins: list[NumberBins] = []
    for scan in scans:
        columns = [_Numbers(one) for one in edges]
        width = np.dtype(scan.split.spec.numerical_dtype).itemsize * len(names)
        for block in scan.blocks(scan.split.read_numerical, width, progress):
            for column, values in zip(columns, np.ascontiguousarray(block.T), strict=True):
                column.add(values)
        for name, column, (figures, _) in zip(names, columns, found, strict=True):
            figures.append(column.figures(name, scan))
        here = [NumberBins(column.counts, column.infinite + column.missing) for column in columns]
        for name, one, first, (_, drift) in zip(names, here, bins or here, found, strict=True):
            if bins:
                drift.append(Drift(name, NUMERICAL, scans[0].name, scan.name, *first.stability_index(one), *(first.distance(one) or ())))
        bins = bins or here
    return found


class _Numbers:
    """Running figures of a column of numbers. `counts[k]` is the number of values above `edges[k - 1]` and not above `edges[k]`."""

    def __init__(self, edges: np.ndarray):
        self.edges, self.counts = edges, np.zeros(len(edges) + 1, np.int64)
        self.missing = self.infinite = self._zeros = self._count = 0
        self._mean = self._squares = 0.0
        self._low, self._high = np.inf, -np.inf
        self._distinct: np.ndarray | None = np.zeros(0, np.float32)  # None where there are too many

    def add(self, values: np.ndarray) -> None:
        """Add a block `[n]`."""
        values = values.astype(np.float32)
        finite = np.isfinite(values)
        if not finite.all():
            missing = int(np.count_nonzero(np.isnan(values)))
            self.missing, self.infinite = self.missing + missing, self.infinite + int(np.count_nonzero(~finite)) - missing
            values = values[finite]
        if not values.size:
            return
        values.sort()  # then all that follows is quick
        below = np.searchsorted(values, self.edges, "right")
        self.counts += np.diff(below, prepend=0, append=len(values))
        self._low, self._high = min(self._low, float(values[0])), max(self._high, float(values[-1]))
        self._zeros += values.size - int(np.count_nonzero(values))
        self._merge(values.size, float(values.mean(dtype=np.float64)), float(values.var(dtype=np.float64)))
        if self._distinct is not None:
            new = values[np.concatenate([[True], values[1:] != values[:-1]])]
            both = np.union1d(self._distinct, new) if len(new) <= _FEW else new
            self._distinct = both if len(both) <= _FEW else None

    def _merge(self, count: int, mean: float, variance: float) -> None:
        """Merge the moments of a block into those so far (Chan, Golub and LeVeque 1983)."""
        total, delta = self._count + count, mean - self._mean
        self._squares += variance * count + delta * delta * self._count * count / total
        self._mean += delta * count / total
        self._count = total

    def figures(self, name: str, scan: _Scan) -> FeatureFigures:
        """Return the figures of the values added."""
        some, ends = self._count > 0, np.cumsum(self.counts)
        ranks = [int(np.searchsorted(ends, np.ceil(share * self._count), "left")) for share in QUANTILES] if some else []
        values = [float(self.edges[rank]) if rank < len(self.edges) else self._high for rank in ranks]
        return FeatureFigures(
            feature=name,
            kind=NUMERICAL,
            split=scan.name,
            missing=self.missing / scan.rows,
            unknown=None,
            out_of_range=self.infinite / scan.rows,
            distinct=None if self._distinct is None else len(self._distinct),
            zeros=self._zeros / self._count if some else None,
            low=self._low if some else None,
            high=self._high if some else None,
            mean=self._mean if some else None,
            deviation=(self._squares / self._count) ** 0.5 if some else None,
            quantiles=tuple(zip(QUANTILES, values, strict=False)),
        )
