"""Distances between the distributions of a feature in two splits, from counts: population stability index, Kolmogorov-Smirnov distance."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from report.rows.dataset import most_frequent

_ALONE = 20  # ids that are groups of their own, the most frequent ones
_TAIL = 10  # groups of the other ids
_UNSEEN, _NOTHING = _ALONE + _TAIL, _ALONE + _TAIL + 1
_DECILES = 10
_EDGES = 1024  # of a column and a split at most
_MAX_EDGES = 1 << 22  # of all columns
_SAMPLED = 1 << 16  # rows of a split that edges are taken from
_MAX_SAMPLED = 1 << 26  # values of all columns
_BLOCK = 1 << 20

Ranges = Sequence[tuple[int, int]]


class Distance(NamedTuple):
    """A distance of two distributions, beside the one that samples of a single distribution have by chance."""

    value: float
    by_chance: float


def stability_index(reference: np.ndarray, counts: np.ndarray) -> Distance:
    """Return the sum of (p - q) log(p / q) over groups. Half a value is added to each group, so that an empty one keeps the index finite.

    Its mean for two samples of one distribution is (g - 1) (1 / n + 1 / m) for large n and m; groups that are empty in both do not count.

    Args:
        reference, counts: `[g]` values of each group in either split, n and m in all.
    """
    groups = (reference + counts) > 0
    reference, counts = reference[groups], counts[groups]
    p, q = ((some + 0.5) / (some.sum() + 0.5 * len(some)) for some in (reference, counts))
    by_chance = sum((len(some) - 1) / max(some.sum(), 1) for some in (reference, counts))
    return Distance(float(((p - q) * np.log(p / q)).sum()), max(0.0, float(by_chance)))


class CategoryBins:
    """Groups of the ids of a categorical feature, and the reference split's values in each.

    The 20 most frequent ids stand alone; the others are 10 groups by frequency, with about as many values each; ids that were not seen are one more.
    Half of the reference rows make the groups and the other half fills them: rows that made the groups would differ from any new rows of the same
    distribution, in which some ids are new and the rare ones that occurred occur less.

    Args:
        made_of, filled_by: `[V]` counts of the ids in either half.
        nothing: ids and rows of both halves that name no row of the table.
    """

    def __init__(self, made_of: np.ndarray, filled_by: np.ndarray, nothing: int):
        self._group = _groups(made_of)
        self._reference = self._filled(filled_by, nothing / 2)

    def stability_index(self, counts: np.ndarray, nothing: int) -> Distance:
        """Return the index of another split's counts."""
        return stability_index(self._reference, self._filled(counts, nothing))

    def _filled(self, counts: np.ndarray, nothing: float) -> np.ndarray:
        found = np.zeros(_NOTHING + 1)
        for block in _blocks(len(counts)):
            found += np.bincount(self._group[block], weights=counts[block], minlength=len(found))
        found[_NOTHING] = nothing
        return found


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, count, _BLOCK))


def _groups(counts: np.ndarray) -> np.ndarray:
    """Return the group of each id, `[V]` uint8."""
    group = np.full(len(counts), _UNSEEN, np.uint8)
    top = most_frequent(counts, _ALONE)
    group[top] = np.arange(len(top))
    rest = counts.copy()
    rest[top] = 0
    levels, ids = np.unique(rest[rest > 0], return_counts=True)  # ids of one count are in one group
    if not len(levels):
        return group
    mass = np.cumsum((levels.astype(np.int64) * ids)[::-1])[::-1]  # values of ids that occur so often or more
    of_level = (_ALONE + np.minimum(_TAIL - 1, (mass[0] - mass) * _TAIL // mass[0])).astype(np.uint8)
    for block in _blocks(len(counts)):
        there = rest[block] > 0
        group[block][there] = of_level[np.searchsorted(levels, rest[block][there])]
    return group


class NumberBins:
    """Counts of a column's values between edges, the same for all splits.

    Args:
        counts: `[k + 1]` values up to each of the k edges, and above the last.
        nothing: values that are not finite.
    """

    def __init__(self, counts: np.ndarray, nothing: int):
        self.counts, self.nothing = counts, nothing

    def distance(self, other: "NumberBins") -> Distance | None:
        """Return the largest difference of the shares of values up to an edge; None where a split has no finite value.

        By chance it exceeds 1.36 √(1 / n + 1 / m) in 5% of pairs of samples (Smirnov 1948).
        """
        here, there = (np.cumsum(one.counts) for one in (self, other))
        if not (here[-1] and there[-1]):
            return None
        return Distance(float(np.abs(here / here[-1] - there / there[-1]).max()), float(1.36 * (1 / here[-1] + 1 / there[-1]) ** 0.5))

    def stability_index(self, other: "NumberBins") -> Distance:
        """Return the index over ten ranges with about as many values of this split each, and the values that are not finite."""
        ends = np.cumsum(self.counts)
        deciles = np.unique(np.searchsorted(ends, ends[-1] * np.arange(1, _DECILES) / _DECILES, "left"))
        # Bins up to the first decile are one range, and so on. A frequent value can be several deciles; then there are fewer ranges.
        cuts = np.unique(np.minimum(deciles + 1, len(ends) - 1))
        here, there = (np.array([*(part.sum() for part in np.split(one.counts, cuts)), one.nothing], np.float64) for one in (self, other))
        return stability_index(here, there)


def edges_of(splits: Sequence[tuple[Callable[[int, int], np.ndarray], Ranges]], columns: int) -> list[np.ndarray]:
    """Choose the edges of each column at which distributions are compared: quantiles of some rows of every split.

    Args:
        splits: of each split a function that reads rows `[n, M]`, and the ranges of rows that count.
        columns: M.

    Returns:
        for each column its edges, rising, float32.
    """
    number = max(16, min(_EDGES, _MAX_EDGES // columns))
    rows = max(number, min(_SAMPLED, _MAX_SAMPLED // columns))
    chosen: list[list[np.ndarray]] = [[] for _ in range(columns)]
    for read, ranges in splits:
        for values, edges in zip(np.ascontiguousarray(_some(read, ranges, rows).T), chosen, strict=True):
            ordered = np.sort(values[np.isfinite(values)].astype(np.float32))
            places = np.linspace(0, len(ordered) - 1, number).round().astype(np.int64) if len(ordered) else []
            edges.append(ordered[places] if len(ordered) else ordered)
    return [np.unique(np.concatenate(edges)) for edges in chosen]


def _some(read: Callable[[int, int], np.ndarray], ranges: Ranges, wanted: int) -> np.ndarray:
    """Read about `wanted` rows, spread evenly over the ranges."""
    total = sum(stop - start for start, stop in ranges)
    if total <= wanted:
        return np.concatenate([read(start, stop) for start, stop in ranges])
    run = max(1, wanted // 64)  # consecutive rows
    parts, step, skipped = [], total * run // wanted, 0
    for start, stop in ranges:
        for first in range(start + skipped, stop, step):
            parts.append(read(first, min(first + run, stop)))
        skipped = (skipped - (stop - start)) % step
    return np.concatenate(parts)
