"""The exact AUC and its variance, from the sorted scores of the two classes, and the variance of the difference of two AUCs on the same rows.

The variance is the estimate of DeLong, DeLong and Clarke-Pearson ("Comparing the areas under two or more correlated receiver operating characteristic
curves", Biometrics 1988): that of the mean, over the positives, of the share of negatives below each one, plus the same over the negatives. All the
shares come from one pass over sorted scores (Sun and Xu, "Fast implementation of DeLong's algorithm", IEEE Signal Processing Letters 2014).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

CHUNK = 1 << 20  # scores


class Area(NamedTuple):
    """An AUC with its variance, which is None where a class has a single sample."""

    auc: float
    variance: float | None


def area(negatives: np.ndarray, positives: np.ndarray, chunk: int = CHUNK) -> Area:
    """Compute the AUC, the probability that a random positive scores above a random negative, ties counting half, and its variance.

    The pairs are counted in whole numbers, so the AUC depends neither on the order of the samples nor on `chunk`.

    Args:
        negatives: `[n]` scores of the negatives, sorted, at least 1.
        positives: `[m]` scores of the positives, sorted, at least 1.
        chunk: positives processed at a time: memory for intermediate results does not grow with the samples.
    """
    n, m = len(negatives), len(positives)
    twice = 0  # twice the number of pairs whose negative is lower, ties counting half
    of_positives = of_negatives = 0.0  # sums of squares of twice the share of the other class that a sample is on the wrong side of
    negatives_seen = positives_seen = 0  # samples up to the last score of the chunks before
    for start, end in _chunks(positives, chunk):
        part = positives[start:end]
        first = np.flatnonzero(np.concatenate([[True], part[1:] != part[:-1]]))  # of each score that differs from the one before
        size = np.diff(first, append=len(part))
        below, not_above = (np.searchsorted(negatives, part[first], side) for side in ("left", "right"))
        twice += int((size * (below + not_above)).sum())
        of_positives += float((size * _square((2 * n - below - not_above) / n)).sum())
        before = positives_seen + first  # positives below each score
        between = below - np.concatenate([[negatives_seen], not_above[:-1]])  # negatives between each score and the one before
        of_negatives += float((between * _square(2 * before / m)).sum() + ((not_above - below) * _square((2 * before + size) / m)).sum())
        negatives_seen, positives_seen = int(not_above[-1]), end
    of_negatives += float((n - negatives_seen) * 4.0)  # these are above all positives
    pairs = 2 * m * n
    auc = twice / pairs
    if min(n, m) < 2:
        return Area(auc, None)
    wrong = (pairs - twice) / pairs
    # The shares are of the wrong pairs because these are few where a model is good: their squares then lose no digits to the square of the mean.
    variances = (max(0.0, (total / 4 - count * wrong**2) / (count - 1)) / count for total, count in ((of_positives, m), (of_negatives, n)))
    return Area(auc, sum(variances))


def difference_spreads(
    first: np.ndarray, second: np.ndarray, positive: np.ndarray, chunk: int = CHUNK, weights: np.ndarray | None = None
) -> tuple[float | None, float | None]:
    """Return the parts of the variance of the difference of two AUCs on the same rows: that of the positives and that of the negatives.

    The variance is their sum. A part is None where its class has a single row. With weights, the means are weighted, and the variance is that of a
    weighted mean of independent rows, times n / (n - 1) with the effective number of rows n (Kish, "Survey Sampling", 1965); equal weights give
    DeLong's.

    Args:
        first, second: `[n]` scores of either model.
        positive: `[n]` bool; both classes must be present.
        chunk: rows processed at a time.
        weights: `[n]`, above 0; None where every row counts once.
    """
    return _spread(first, second, positive, chunk, weights), _spread(first, second, ~positive, chunk, weights)


def _spread(first: np.ndarray, second: np.ndarray, side: np.ndarray, chunk: int, weights: np.ndarray | None) -> float | None:
    """Return the variance of the mean, over the rows of one side, of the difference of the shares of the other side's rows that are below."""
    if weights is not None:
        return _weighted_spread(first, second, side, chunk, weights.astype(np.float64))
    both = [(scores[side], np.sort(scores[~side])) for scores in (first, second)]
    count, total, squares = len(both[0][0]), 0.0, 0.0
    if count < 2:
        return None
    for start in range(0, count, chunk):
        before, after = (_placements(scores[start : start + chunk], others) for scores, others in both)
        change = after - before
        total, squares = total + float(change.sum()), squares + float(change @ change)
    return max(0.0, squares - total * total / count) / (count - 1) / count


def _weighted_spread(first: np.ndarray, second: np.ndarray, side: np.ndarray, chunk: int, weights: np.ndarray) -> float | None:
    """Return the variance of the weighted mean, over the rows of one side, of the difference of the weights of the other side's rows below."""
    others = []
    for scores in (first, second):
        order = np.argsort(scores[~side], kind="stable")
        others.append((scores[~side][order], np.append(0.0, np.cumsum(weights[~side][order]))))
    of_side, weight = [scores[side] for scores in (first, second)], weights[side]
    moments = WeightedMoments()
    for start in range(0, len(weight), chunk):
        rows = slice(start, start + chunk)
        before, after = (
            (up_to[np.searchsorted(other, scores[rows], "left")] + up_to[np.searchsorted(other, scores[rows], "right")]) / (2 * up_to[-1])
            for scores, (other, up_to) in zip(of_side, others, strict=True)
        )
        moments.add(after - before, weight[rows])
    return moments.variance


class WeightedMoments:
    """The weighted mean of independent values, and the variance of that mean."""

    def __init__(self) -> None:
        self._weight = self._squares = self._total = self._of_squares = self._square_total = 0.0

    def add(self, values: np.ndarray, weights: np.ndarray) -> None:
        """Add values `[n]` with float64 weights `[n]`, of which one is above 0."""
        square = weights * weights
        self._weight += float(weights.sum())
        self._squares += float(square.sum())
        self._total += float(weights @ values)
        self._of_squares += float(square @ values)
        self._square_total += float(square @ (values * values))

    @property
    def mean(self) -> float:
        """The weighted mean."""
        return self._total / self._weight

    @property
    def effective(self) -> float:
        """The number of values of equal weight that would say as much (Kish, "Survey Sampling", 1965)."""
        return self._weight**2 / self._squares

    @property
    def variance(self) -> float | None:
        """The variance of the mean; None where one value has all the weight."""
        count, mean = self.effective, self.mean
        if count <= 1 + 1e-9:
            return None
        squares = self._square_total - 2 * mean * self._of_squares + mean * mean * self._squares
        return max(0.0, squares) / self._weight**2 * count / (count - 1)


def _placements(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the share of the sorted `others` that is below each score, ties counting half."""
    return (np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")) / (2 * len(others))


def _square(values: np.ndarray) -> np.ndarray:
    return values * values


def _chunks(positives: np.ndarray, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of about `chunk` positives that do not cut equal scores apart."""
    start = 0
    while start < len(positives):
        end = min(start + chunk, len(positives))
        end = int(np.searchsorted(positives, positives[end - 1], "right"))
        yield start, end
        start = end
