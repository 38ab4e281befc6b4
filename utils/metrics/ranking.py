"""How well scores rank the rows of each group: MAP, NDCG, MRR, recall and AUC, averaged over groups. NumPy only.

Exact over all rows given, in whatever order they stand. Rows of one group that have the same score could be ranked in any order: a group's figure is
the mean over all these orders, by counting and not by drawing (McSherry and Najork, "Computing information retrieval performance measures efficiently
in the presence of tied scores", ECIR 2008), as scikit-learn's `ndcg_score` has it. So it depends on no sorting and on no order of the rows.
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
    """What `rank` says."""

    values: Mapping[RankingMetric, float | None]  # in the order they were asked for; None where no group counts
    groups: int  # distinct groups of the rows
    with_positive: int  # those that the metrics are averaged over; the AUC's: those with a negative as well

    def figures(self) -> dict[str, float | int | None]:
        """By the keys of the log."""
        return dict(zip(figure_names(self.values), (*self.values.values(), self.groups, self.with_positive), strict=True))


class _Groups(NamedTuple):
    """Some groups, G of them, in the order of their numbers."""

    size: np.ndarray  # [G] rows
    positives: np.ndarray  # [G] rows with label 1


class _Ties(NamedTuple):
    """Those runs of rows of one group and one score that hold a positive, best first within each group: T of them."""

    group: np.ndarray  # [T] place among `_Groups`
    size: np.ndarray  # [T] rows
    positives: np.ndarray  # [T] of them, at least 1
    above: np.ndarray  # [T] rows of the group with a higher score
    positives_above: np.ndarray  # [T] of them


def rank(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, metrics: Sequence[RankingMetric], chunk: int = CHUNK) -> Ranking:
    """Metrics of the order into which the scores bring the rows of each group, highest first.

    Every group with a positive counts the same, whatever its size, but for GAUC; a group without a positive is left out, and for the AUC one without
    a negative, too. With P positives in a group, and `k` the metric's cut:

    map@k: sum over the positives at ranks up to k of the precision at their rank, over min(P, k).
    ndcg@k: sum of 1 / log2(1 + rank) over the positives at ranks up to k, over that of the best order.
    mrr, mrr@k: 1 / rank of the first positive; 0 where that is beyond k.
    recall@k: share of the P positives at ranks up to k.
    group_auc: share of the pairs of a positive and a negative in which the positive is higher, ties counting half.
    gauc: the same, each group weighted by its rows (Zhou et al., "Deep Interest Network", KDD 2018).

    Args:
        scores: `[n]` float32. Where one is not a number, nothing is defined.
        labels: `[n]`, any type of 0 and 1.
        groups: `[n]` int32 or int64, any numbers; equal ones are a group. At most 2^31 of them.
        metrics: which.
        chunk: rows looked at together, at least a group: what is held beside the rows does not grow with them.

    Returns:
        the same bits for the same rows in any order.
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
    """`[n]` uint64, a number a row: the group (31 bits), the score from high to low (32), the label (1).

    One sort of whole numbers brings rows together by group and, in a group, the best first: three times as fast as a sort of places of rows.
    """
    keys = _numbered(groups).view(np.uint64)
    for start in range(0, len(keys), chunk):  # no copies of everything
        rows = slice(start, start + chunk)
        keys[rows] <<= _GROUP
        keys[rows] |= _descending(scores[rows]).astype(np.uint64) << np.uint64(1)
        keys[rows] |= labels[rows].astype(bool)
    keys.sort()
    return keys


def _numbered(groups: np.ndarray) -> np.ndarray:
    """`[n]` int64 from 0, below 2^31, in the order of the groups' numbers."""
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
    """uint32 that grow where the scores fall, equal for equal scores."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0 becomes 0
    return np.where(bits >> 31, bits, 0x7FFFFFFF - bits)


def _chunks(keys: np.ndarray, chunk: int) -> Iterator[np.ndarray]:
    """Consecutive keys to look at together, so that no group is cut."""
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
    """The groups of sorted keys, and what their scores tie."""
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
    """Rows, and positives, from each start to the next one."""
    return np.diff(starts, append=len(before) - 1), np.diff(before[starts], append=before[-1])


def _summed(metric: RankingMetric, groups: _Groups, ties: _Ties) -> tuple[float, int]:
    """The sum of a metric over the groups that count, and their weight."""
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
    """`[G]`: twice the pairs of a positive and a negative in which the positive is higher, and once those that tie."""
    negatives = ties.size - ties.positives
    below = (groups.size - groups.positives)[ties.group] - (ties.above - ties.positives_above) - negatives
    return _by_group(ties.group, ties.positives * (2 * below + negatives), groups)


def _average_precision(groups: _Groups, ties: _Ties, cut: int) -> np.ndarray:
    """`[G]`, 0 where there is no positive."""
    tie, place = _places(ties, cut)
    others = (ties.positives - 1)[tie] / np.maximum(ties.size - 1, 1)[tie]  # chance that another row of the tie is a positive, where one is
    precision = (ties.positives_above[tie] + 1 + place * others) / (ties.above[tie] + place + 1)
    values = _by_group(ties.group[tie], (ties.positives / ties.size)[tie] * precision, groups)
    return values / np.clip(groups.positives, 1, cut)


def _discounted_gain(groups: _Groups, ties: _Ties, cut: int) -> np.ndarray:
    """`[G]`, 0 where there is no positive."""
    discounts = 1 / np.log2(np.arange(2, cut + 2))
    tie, place = _places(ties, cut)
    values = _by_group(ties.group[tie], (ties.positives / ties.size)[tie] * discounts[ties.above[tie] + place], groups)
    best = np.concatenate([[1], np.cumsum(discounts)])
    return values / best[np.minimum(groups.positives, cut)]


def _recall(groups: _Groups, ties: _Ties, cut: int) -> np.ndarray:
    """`[G]`, 0 where there is no positive."""
    found = ties.positives * np.clip(cut - ties.above, 0, ties.size) / ties.size
    return _by_group(ties.group, found, groups) / np.maximum(groups.positives, 1)


def _reciprocal_rank(groups: _Groups, ties: _Ties, cut: int) -> np.ndarray:
    """`[G']` of the groups with a positive: the mean over where the first positive of the tie that has it may stand."""
    first = ties.positives_above == 0
    size, positives, above = ties.size[first], ties.positives[first], ties.above[first]
    values = np.where(above < cut, 1 / (above + 1), 0.0)
    tied = np.flatnonzero(size > positives)
    tied = tied[np.lexsort((positives[tied], size[tied]))]
    changes = np.flatnonzero((np.diff(size[tied]) != 0) | (np.diff(positives[tied]) != 0)) + 1
    for some in np.split(tied, changes) if len(tied) else ():
        rows, hits = size[some[0]], positives[some[0]]
        place = np.arange(min(rows - hits + 1, cut))
        # that the rows of the tie before a place are all negatives, and the one at it is a positive
        chance = np.concatenate([[1.0], np.cumprod((rows - hits - place) / (rows - place))[:-1]]) * hits / (rows - place)
        ranks = above[some, np.newaxis] + place + 1
        values[some] = np.where(ranks <= cut, chance / ranks, 0.0).sum(axis=1)
    return values


def _places(ties: _Ties, cut: int) -> tuple[np.ndarray, np.ndarray]:
    """Every rank up to `cut` that the rows of a tie may have, as the number of the tie and the place in it, from 0."""
    counts = np.clip(cut - ties.above, 0, ties.size)
    tie = np.repeat(np.arange(len(counts)), counts)
    return tie, np.arange(len(tie)) - np.repeat(np.cumsum(counts) - counts, counts)


def _by_group(group: np.ndarray, values: np.ndarray, groups: _Groups) -> np.ndarray:
    """`[G]`: sums by group, of values in the order of their ranks."""
    return np.bincount(group, values, len(groups.size))
