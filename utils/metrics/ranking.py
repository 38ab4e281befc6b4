"""Ranking metrics of the rows of each group: MAP, NDCG, MRR, recall and AUC, averaged over groups. NumPy only.

The metrics are exact over all rows. Rows of a group with the same score can be ranked in any order: a group's metric is the mean over all these
orders, computed in closed form and not by sampling (McSherry and Najork, "Computing information retrieval performance measures efficiently in the
presence of tied scores", ECIR 2008), as in scikit-learn's `ndcg_score`. So it depends neither on the sort nor on the order of the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from utils.metrics.keys import chunks, descending
from utils.metrics.ranking_metric import GAUC, GROUP_AUC, MAP, MRR, NDCG, RECALL, RankingMetric, figure_names
from utils.metrics.weighted import correct_pairs, counted, of_ties

_GROUP = np.uint64(33)  # the first bit of a key's group
_LABEL = np.uint64(1)  # the mask of a key's label
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


class _Weights(NamedTuple):
    """The weights of G groups, and their AUCs, which depend on the weights of the rows."""

    total: np.ndarray  # [G] float64, the sum of the rows' weights
    auc: np.ndarray  # [G] float64, 0 where the labels are all the same


class _Ties(NamedTuple):
    """T ties that hold a positive, best first within each group; a tie is the rows of one group with the same score, perhaps a single row."""

    group: np.ndarray  # [T] index into `_Groups`
    size: np.ndarray  # [T] rows
    positives: np.ndarray  # [T] positive rows, at least 1
    above: np.ndarray  # [T] rows of the group with a higher score
    positives_above: np.ndarray  # [T] positive rows among them


def rank(
    scores: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    metrics: Sequence[RankingMetric],
    chunk: int = CHUNK,
    weights: np.ndarray | None = None,
) -> Ranking:
    """Compute metrics of each group's rows, ranked by descending score.

    Every group with a positive has the same weight, whatever its size, except for GAUC; groups without a positive are left out, and for the AUC those
    without a negative, too. With P positives in a group, and `k` the metric's cut:

    map@k: sum of the precision at rank over the positives at ranks up to k, divided by min(P, k).
    ndcg@k: sum of 1 / log2(1 + rank) over the positives at ranks up to k, divided by that of the best order.
    mrr, mrr@k: 1 / rank of the first positive; 0 where that is beyond k.
    recall@k: share of the P positives at ranks up to k.
    group_auc: share of the pairs of a positive and a negative in which the positive is higher, ties counting half.
    gauc: the same, each group weighted by its rows (Zhou et al., "Deep Interest Network", KDD 2018).

    With weights, rows of weight 0 are left out. A group's AUC weights a pair by the product of both weights. GAUC weights a group by the sum of its
    rows' weights; map, ndcg, mrr and recall by the mean, as `ndcg_score(sample_weight=)` of scikit-learn does, so equal weights of all rows have no
    effect. Ranks still count rows.

    Args:
        scores: `[n]` float32. If any is NaN, all metrics are None.
        labels: `[n]`, 0 and 1 of any type.
        groups: `[n]` int32 or int64, any numbers; rows with equal numbers are a group. At most 2^31 groups.
        metrics: the metrics to compute.
        chunk: rows processed at a time, but at least a whole group: memory for intermediate results does not grow with the rows.
        weights: `[n]` float32, finite, at least 0; None where rows have none. They cost 12 bytes a row more, and three times the time.

    Returns:
        the metrics, bit for bit the same for the rows in any order.
    """
    if weights is not None:
        scores, labels, groups, weights = counted(np.asarray(weights, np.float32), scores, labels, groups)
    keys = _keys(scores, labels, groups, chunk)
    if weights is None:
        keys.sort()
    else:  # equal keys in the order of their weights, for sums with the same bits
        order = np.lexsort((weights, keys))
        keys, weights = keys[order], weights[order]
    defined = not np.isnan(scores).any()
    totals = {metric: 0.0 for metric in metrics}
    shares = {metric: 0 for metric in metrics}
    count = with_positive = 0
    for rows in chunks(keys, int(_GROUP), chunk):
        found, ties = _counted(keys[rows])
        weighted = None if weights is None else _weighted(keys[rows], weights[rows])
        count += len(found.size)
        with_positive += np.count_nonzero(found.positives)
        for metric in metrics if defined else ():
            total, share = _summed(metric, found, ties, weighted)
            totals[metric] += total
            shares[metric] += share
    return Ranking({metric: totals[metric] / shares[metric] if shares[metric] else None for metric in metrics}, count, int(with_positive))


def _keys(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, chunk: int) -> np.ndarray:
    """Return keys `[n]` uint64, one a row: the group (31 bits), the score in descending order (32 bits), the label (1 bit)."""
    keys = _numbered(groups).view(np.uint64)
    for start in range(0, len(keys), chunk):  # in chunks, to avoid copies of all rows
        rows = slice(start, start + chunk)
        keys[rows] <<= _GROUP
        keys[rows] |= descending(scores[rows]).astype(np.uint64) << np.uint64(1)
        keys[rows] |= labels[rows].astype(bool)
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


def _counted(keys: np.ndarray) -> tuple[_Groups, _Ties]:
    """Count the groups of sorted keys and their ties."""
    starts, tie_starts = _starts(keys)
    before = np.concatenate([[0], np.cumsum(keys & _LABEL, dtype=np.int64)])  # positives in the rows before
    found = _Groups(*_spans(starts, before))
    size, positives = _spans(tie_starts, before)
    hit = positives > 0
    first = tie_starts[hit]
    group = np.searchsorted(starts, first, "right") - 1
    return found, _Ties(group, size[hit], positives[hit], first - starts[group], before[first] - before[starts[group]])


def _weighted(keys: np.ndarray, weights: np.ndarray) -> _Weights:
    """Sum the weights of the groups of sorted keys, and compute their AUCs."""
    starts, tie_starts = _starts(keys)
    positives, negatives = of_ties(weights, (keys & _LABEL).astype(bool), tie_starts)
    first = np.searchsorted(tie_starts, starts)  # tie of each group
    place = np.arange(len(tie_starts)) - np.repeat(first, np.diff(first, append=len(tie_starts)))
    right, higher, lower = (np.add.reduceat(values, first) for values in (correct_pairs(positives, negatives, place), positives, negatives))
    both = (higher > 0) & (lower > 0)
    return _Weights(higher + lower, np.divide(right, higher * lower, out=np.zeros(len(starts)), where=both).clip(0, 1))


def _starts(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each group and that of each tie in sorted keys."""
    changed = keys[1:] ^ keys[:-1]
    return np.flatnonzero(np.concatenate([[True], changed >= 1 << 33])), np.flatnonzero(np.concatenate([[True], changed > 1]))


def _spans(starts: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the rows and the positives from each start to the next one."""
    return np.diff(starts, append=len(before) - 1), np.diff(before[starts], append=before[-1])


def _summed(metric: RankingMetric, groups: _Groups, ties: _Ties, weighted: _Weights | None) -> tuple[float, float]:
    """Return the sum of a metric over the groups that count, and their total weight."""
    if not len(ties.size):
        return 0.0, 0
    if metric.name in (GROUP_AUC, GAUC):
        negatives = groups.size - groups.positives
        counts = (groups.positives > 0) & (negatives > 0)
        if weighted is None:
            size, values = groups.size, _correct_pairs(groups, ties)[counts] / (2 * groups.positives * negatives)[counts]
        else:
            size, values = weighted.total, weighted.auc[counts]
        share = (size if metric.name == GAUC else counts)[counts]
        return float((values * share).sum()), share.sum().item()
    largest = int(groups.size.max())
    cut = min(metric.cut or largest, largest)
    values = {MAP: _average_precision, NDCG: _discounted_gain, RECALL: _recall, MRR: _reciprocal_rank}[metric.name](groups, ties, cut)
    counts = groups.positives > 0
    if weighted is None:
        return float(values.sum()), int(np.count_nonzero(counts))
    share = (weighted.total / groups.size)[counts]  # the mean weight of the group's rows, so weights of 1 change nothing
    return float(((values if metric.name == MRR else values[counts]) * share).sum()), float(share.sum())


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
