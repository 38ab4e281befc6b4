"""Permutation importance: the metrics that a model loses when the values of a feature are permuted among the rows of a sample."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from run.explain_units import Inputs, Places

_Z = 1.959964  # of a 95% interval
_FEWEST = 10  # rows, for the AUC of each class, from which on there is an interval

Score = Callable[[Inputs], np.ndarray]  # returns the logits `[n]` of inputs


class Estimate(NamedTuple):
    """A mean and its 95% interval; the bounds are None where it is undefined."""

    mean: float
    low: float | None
    high: float | None

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.high is None else self.high - self.mean


class Importance(NamedTuple):
    """The metrics that a model loses without a unit of features; the AUC is None where all labels are the same."""

    auc_lost: Estimate | None
    log_loss_lost: Estimate


class Scored(NamedTuple):
    """Metrics of scored rows, and the influence of each row on them: its share of the metric's deviation, times n.

    The squared influences, summed and divided by n², estimate the variance of a metric; for the AUC this is DeLong's estimate.
    """

    auc: float | None
    log_loss: float
    auc_influence: np.ndarray  # [n]
    log_loss_influence: np.ndarray  # [n]


def scored(logits: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> Scored:
    """Return the metrics of finite logits `[n]` against labels `[n]`, with the influence of each row; `weights` `[n]` float64, None for 1 each."""
    if weights is not None:
        return _scored_by_weight(logits, positive, weights)
    z = logits.astype(np.float64)
    losses = np.maximum(z, 0) - z * positive + np.log1p(np.exp(-np.abs(z)))
    influence, auc = np.zeros(len(z)), None
    if positive.any() and not positive.all():
        values = {True: np.sort(z[positive]), False: np.sort(z[~positive])}
        for label, mine in ((True, positive), (False, ~positive)):
            others, some = values[not label], z[mine]
            below, not_above = (np.searchsorted(others, some, side) for side in ("left", "right"))
            right = (below + not_above) / (2 * len(others))  # share of the other class that the row is ordered correctly with
            right = right if label else 1 - right
            auc = float(right.mean())
            influence[mine] = (right - auc) * (len(z) / len(some))
    return Scored(auc, float(losses.mean()), influence, losses - losses.mean())


def _scored_by_weight(logits: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> Scored:
    """Return `scored` of rows that count by their weights, of which one at least is positive.

    The influences are those of a quotient of weighted sums (a ratio estimator, linearised).
    """
    z, count = logits.astype(np.float64), len(logits)
    losses = np.maximum(z, 0) - z * positive + np.log1p(np.exp(-np.abs(z)))
    total = float(weights.sum())
    loss = float((weights * losses).sum() / total)
    influence, auc = np.zeros(count), None
    if weights[positive].any() and weights[~positive].any():
        for label, mine in ((True, positive), (False, ~positive)):
            order = np.argsort(z[~mine], kind="stable")
            others, behind = z[~mine][order], np.concatenate([[0.0], np.cumsum(weights[~mine][order])])
            below, not_above = (behind[np.searchsorted(others, z[mine], side)] for side in ("left", "right"))
            right = (below + not_above) / (2 * behind[-1])  # share of the other class, by weight, that the row is ordered correctly with
            right, own = right if label else 1 - right, weights[mine]
            auc = float((own * right).sum() / own.sum())
            influence[mine] = (right - auc) * own * (count / own.sum())
    return Scored(auc, loss, influence, (losses - loss) * weights * (count / total))


def importances(
    score: Score,
    inputs: Inputs,
    positive: np.ndarray,
    units: Sequence[Places],
    permutations: Sequence[np.ndarray],
    advance: Callable[[], None],
    weights: np.ndarray | None = None,
) -> tuple[Scored, list[Importance]]:
    """Return the metrics of a sample, and the importance of each unit of columns.

    An interval covers both the choice of the rows and that of the permutations. A permuted row takes the labels and other values of one row and the
    unit's values of another (its donor), so the metric lost is a statistic of pairs of rows. Its variance is that of a sum over the rows of each
    row's influence as itself and as a donor (the projection of a V-statistic). The chance of single pairs counts in both, so intervals are rather too
    wide than too narrow, least with many permutations.

    Args:
        score: function that scores inputs; raises where a logit is not finite.
        inputs: the sample.
        positive: its labels, `[n]` bool.
        units: the columns that move together.
        permutations: permutations of n rows; each unit is measured with each of them.
        advance: called after each scoring of the sample.
        weights: the rows' weights, `[n]`; None for 1 each. A permuted row has the weight of the row whose label it has.
    """
    whole = scored(score(inputs), positive, weights)
    advance()
    return whole, [_importance(score, inputs, positive, unit, permutations, advance, whole, weights) for unit in units]


def _importance(
    score: Score,
    inputs: Inputs,
    positive: np.ndarray,
    unit: Places,
    permutations: Sequence[np.ndarray],
    advance: Callable[[], None],
    whole: Scored,
    weights: np.ndarray | None,
) -> Importance:
    count, counted = len(positive), np.ones(len(positive), bool) if weights is None else weights > 0
    aucs, losses = [], []  # lost with each permutation
    of_auc, of_loss = np.zeros(count), np.zeros(count)
    for permutation in permutations:
        found = scored(score(inputs.with_values(unit, inputs.taken(permutation))), positive, weights)
        advance()
        aucs.append(None if whole.auc is None else whole.auc - found.auc)
        losses.append(found.log_loss - whole.log_loss)
        for total, lost in ((of_auc, found.auc_influence - whole.auc_influence), (of_loss, found.log_loss_influence - whole.log_loss_influence)):
            total += lost / len(permutations)
            total[permutation] += lost / len(permutations)  # row `permutation[i]` gave row i its values
    positives, rows = int((positive & counted).sum()), int(counted.sum())
    auc = None if whole.auc is None else _estimate(float(np.mean(aucs)), of_auc, min(positives, rows - positives))
    return Importance(auc, _estimate(float(np.mean(losses)), of_loss, rows))


def _estimate(mean: float, influence: np.ndarray, fewest: int) -> Estimate:
    """Return a mean with the interval that the rows' influences give it; without one where too few rows tell."""
    count = len(influence)
    if fewest < _FEWEST:
        return Estimate(mean, None, None)
    half = _Z * math.sqrt(float((influence**2).sum()) / (count * (count - 1)))
    return Estimate(mean, mean - half, mean + half)
