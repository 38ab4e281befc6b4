"""Ranking metrics of the rows of each group: MAP, NDCG, MRR, recall and AUC, averaged over groups. NumPy only.

The metrics are exact over all rows. Rows of a group with the same score can be ranked in any order: a group's metric is the mean over all these
orders, computed in closed form and not by sampling (McSherry and Najork, "Computing information retrieval performance measures efficiently in the
presence of tied scores", ECIR 2008), as in scikit-learn's `ndcg_score`. So it depends neither on the sort nor on the order of the rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from utils.metrics.ranking_metric import GAUC, GROUP_AUC, MAP, MRR, NDCG, RECALL, RankingMetric, figure_names

_GROUP = np.uint64(33)  # the first bit of a key's group
_MAX_GROUPS = 1 << 31
CHUNK = 1 << 20  # rows


@dataclass(frozen=True)
class Ranking:
    """The result of `rank`."""

    values: Mapping[RankingMetric, float | None]  # in the order of `rank`'s `metrics`; None where no group counts
    groups: int  # distinct groups of the rows
    with_positive: int  # groups with a positive: the metrics are averages over them, the AUC over those that have a negative as well

    def figures(self) -> dict[str, float | int | None]:
        """Return the metrics and the counts of groups, by their keys in the log."""
        return dict(zip(figure_names(self.values), (*self.values.values(), self.groups, self.with_positive), strict=True))


class _Groups(NamedTuple):
    """G consecutive groups, in the order of their numbers."""

    size: np.ndarray  # [G] rows
    positives: np.ndarray  # [G] rows with label 1


class _Ties(NamedTuple):
    """T ties that hold a positive, best first within each group; a tie is the rows of one group with the same score, perhaps a single row."""

    group: np.ndarray  # [T] index into `_Groups`
    size: np.ndarray  # [T] rows
    positives: np.ndarray  # [T] positive rows, at least 1
    above: np.ndarray  # [T] rows of the group with a higher score
    positives_above: np.ndarray  # [T] positive rows among them


def rank(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, metrics: Sequence[RankingMetric], chunk: int = CHUNK) -> Ranking:
    """Compute metrics of each group's rows, ranked by descending score.

    Every group with a positive has the same weight, whatever its size, except for GAUC; groups without a positive are left out, and for the AUC those
    without a negative, too. With P positives in a group, and `k` the metric's cut:

    map@k: sum of the precision at rank over the positives at ranks up to k, divided by min(P, k).
    ndcg@k: sum of 1 / log2(1 + rank) over the positives at ranks up to k, divided by that of the best order.
    mrr, mrr@k: 1 / rank of the first positive; 0 where that is beyond k.
    recall@k: share of the P positives at ranks up to k.
    group_auc: share of the pairs of a positive and a negative in which the positive is higher, ties counting half.
    gauc: the same, each group weighted by its rows (Zhou et al., "Deep Interest Network", KDD 2018).

    Args:
        scores: `[n]` float32. If any is NaN, all metrics are None.
        labels: `[n]`, 0 and 1 of any type.
        groups: `[n]` int32 or int64, any numbers; rows with equal numbers are a group. At most 2^31 groups.
        metrics: the metrics to compute.
        chunk: rows processed at a time, but at least a whole group: memory for intermediate results does not grow with the rows.

    Returns:
        the metrics, bit for bit the same for the rows in any order.
    """
    keys = _sorted_keys(scores, labels, groups, chunk)
    defined = not np.isnan(scores).any()
    totals = {metric: 0.0 for metric in metrics}
    weights = {metric: 0 for metric in metrics}
    count = with_positive = 0
    for some in _chunks(keys, chunk):
        found, ties = _counted(some)
        count += len(found.size)
        with_positive += np.count_nonzero(found.positives)
        for metric in metrics if defined else ():
            total, weight = _summed(metric, found, ties)
            totals[metric] += total
            weights[metric] += weight
    return Ranking({metric: totals[metric] / weights[metric] if weights[metric] else None for metric in metrics}, count, int(with_positive))


def _sorted_keys(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, chunk: int) -> np.ndarray:
    """Return sorted keys `[n]` uint64, one a row: the group (31 bits), the score in descending order (32 bits), the label (1 bit).

    One sort of integers orders the rows by group and descending score; it is three times as fast as sorting the rows' indices.
    """
    keys = _numbered(groups).view(np.uint64)
    for start in range(0, len(keys), chunk):  # in chunks, to avoid copies of all rows
        rows = slice(start, start + chunk)
        keys[rows] <<= _GROUP
        keys[rows] |= _descending(scores[rows]).astype(np.uint64) << np.uint64(1)
        keys[rows] |= labels[rows].astype(bool)
    keys.sort()
    return keys


def _numbered(groups: np.ndarray) -> np.ndarray:
    """Renumber groups as `[n]` int64 from 0 to below 2^31, keeping the order of their numbers. Raises ValueError for more than 2^31 groups."""
    low, high = (int(groups.min()), int(groups.max())) if len(groups) else (0, 0)
    if high - low < _MAX_GROUPS:
        return np.subtract(groups, low, dtype=np.int64)
    order = np.argsort(groups)
    new = np.zeros(len(groups), bool)
    new[1:] = np.diff(groups[order]) != 0
    numbers = np.empty(len(groups), np.int64)
    numbers[order] = np.cumsum(new)
    if numbers[order[-1]] >= _MAX_GROUPS:
        raise ValueError(f"{numbers[order[-1]] + 1} groups: expected at most {_MAX_GROUPS}")
    return numbers


def _descending(scores: np.ndarray) -> np.ndarray:
    """Map scores to uint32 in reverse order; equal scores give equal numbers."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0 becomes 0
    return np.where(bits >> 31, bits, 0x7FFFFFFF - bits)


def _chunks(keys: np.ndarray, chunk: int) -> Iterator[np.ndarray]:
    """Yield chunks of consecutive keys that split no group."""
    start, end = 0, len(keys)
    while start < end:
        stop = min(start + chunk, end)
        if stop < end:
            group = keys[stop] >> _GROUP
            stop = int(np.searchsorted(keys, group << _GROUP))
            if stop == start:
                stop = int(np.searchsorted(keys, group << _GROUP | np.uint64((1 << 33) - 1), "right"))
        yield keys[start:stop]
        start = stop


def _counted(keys: np.ndarray) -> tuple[_Groups, _Ties]:
    """Count the groups of sorted keys and their ties."""
    changed = keys[1:] ^ keys[:-1]
    starts = np.flatnonzero(np.concatenate([[True], changed >= 1 << 33]))
    tie_starts = np.flatnonzero(np.concatenate([[True], changed > 1]))
    before = np.concatenate([[0], np.cumsum(keys & np.uint64(1), dtype=np.int64)])  # positives in the rows before
    found = _Groups(*_spans(starts, before))
    size, positives = _spans(tie_starts, before)
    hit = positives > 0
    first = tie_starts[hit]
    group = np.searchsorted(starts, first, "right") - 1
    return found, _Ties(group, size[hit], positives[hit], first - starts[group], before[first] - before[starts[group]])


def _spans(starts: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the rows and the positives from each start to the next one."""
    return np.diff(starts, append=len(before) - 1), np.diff(before[starts], append=before[-1])


def _summed(metric: RankingMetric, groups: _Groups, ties: _Ties) -> tuple[float, int]:
    """Return the sum of a metric over the groups that count, and their total weight."""
    if not len(ties.size):
        return 0.0, 0
    if metric.name in (GROUP_AUC, GAUC):
        negatives = groups.size - groups.positives
        counts = (groups.positives > 0) & (negatives > 0)
        weight = groups.size if metric.name == GAUC else counts
        values = _correct_pairs(groups, ties)[counts] / (2 * groups.positives * negatives)[counts]
        return float((values * weight[counts]).sum()), int(weight[counts].sum())
    largest = int(groups.size.max())
    cut = min(metric.cut or largest, largest)
    values = {MAP: _average_precision, NDCG: _discounted_gain, RECALL: _recall, MRR: _reciprocal_rank}[metric.name](groups, ties, cut)
    return float(values.sum()), int(np.count_nonzero(groups.positives))


def _correct_pairs(groups: _Groups, ties: _Ties) -> np.ndarray:
    """Return `[G]`: the pairs of a positive and a negative, counted twice where the positive is higher and once where they tie."""
    negatives = ties.size - ties.positives
    below = (groups.size - groups.positives)[ties.group] - (ties.above - ties.positives_above) - negatives
    return _by_group(ties.group, ties.positives * (2 * below + negatives), groups)


def _average_precision(groups: _Groups, ties: _Ties, cut: int) -> np.ndarray:
    """Return MAP by group, `[G]`, 0 where there is no positive."""
    tie, place = _places(ties, cut)
    others = (ties.positives - 1)[tie] / np.maximum(ties.size - 1, 1)[tie]  # chance of a positive for a row of the tie, given that another one is
    precision = (ties.positives_above[tie] + 1 + place * others) / (ties.above[tie] + place + 1)
    values = _by_group(ties.group[tie], (ties.positives / ties.size)[tie] * precision, groups)
    return values / np.clip(groups.positives, 1, cut)


def _discounted_gain(groups: _Groups, ties: _Ties, cut: int) -> np.ndarray:
    """Return NDCG by group, `[G]`, 0 where there is no positive."""
    discounts = 1 / np.log2(np.arange(2, cut + 2))
    tie, place = _places(ties, cut)
    values = _by_group(ties.group[tie], (ties.positives / ties.size)[tie] * discounts[ties.above[tie] + place], groups)
    best = np.concatenate([[1], np.cumsum(discounts)])
    return values / best[np.minimum(groups.positives, cut)]


def _recall(groups: _Groups, ties: _Ties, cut: int) -> np.ndarray:
    """Return recall by group, `[G]`, 0 where there is no positive."""
    found = ties.positives * np.clip(cut - ties.above, 0, ties.size) / ties.size
    return _by_group(ties.group, found, groups) / np.maximum(groups.positives, 1)


def _reciprocal_rank(groups: _Groups, ties: _Ties, cut: int) -> np.ndarray:
    """Return MRR `[G']` of the groups with a positive: the mean of 1 / rank over the possible places of the first positive in its tie."""
    first = ties.positives_above == 0
    size, positives, above = ties.size[first], ties.positives[first], ties.above[first]
    values = np.where(above < cut, 1 / (above + 1), 0.0)
    tied = np.flatnonzero(size > positives)
    tied = tied[np.lexsort((positives[tied], size[tied]))]
    changes = np.flatnonzero((np.diff(size[tied]) != 0) | (np.diff(positives[tied]) != 0)) + 1
    for some in np.split(tied, changes) if len(tied) else ():
        rows, hits = size[some[0]], positives[some[0]]
        place = np.arange(min(rows - hits + 1, cut))
        # the probability that the rows of the tie before a place are all negatives and the one at it is a positive
        chance = np.concatenate([[1.0], np.cumprod((rows - hits - place) / (rows - place))[:-1]]) * hits / (rows - place)
        ranks = above[some, np.newaxis] + place + 1
        values[some] = np.where(ranks <= cut, chance / ranks, 0.0).sum(axis=1)
    return values


def _places(ties: _Ties, cut: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all ranks up to `cut` that ties cover, as the index of the tie and the place in it, from 0."""
    counts = np.clip(cut - ties.above, 0, ties.size)
    tie = np.repeat(np.arange(len(counts)), counts)
    return tie, np.arange(len(tie)) - np.repeat(np.cumsum(counts) - counts, counts)


def _by_group(group: np.ndarray, values: np.ndarray, groups: _Groups) -> np.ndarray:
    """Sum values by group, `[G]`; the values are in the order of their ranks."""
    return np.bincount(group, values, len(groups.size))
