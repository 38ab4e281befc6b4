"""A compact summary of an evaluation's scores: calibration by decile, and the distribution of each class. NumPy only.

A log keeps it, so that curves (ROC, precision and recall, calibration) can be drawn long after the scores are gone.
"""

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from utils.metrics.binary import Classes, Metrics, classes_of, evaluate, probability_sum, sigmoid

EVALUATION = "EVALUATION"  # the step of the log's lines with summaries
BINS = 200
DECILES = 10


class Decile(NamedTuple):
    """Samples whose predicted probabilities are next to each other. Where samples have weights, each counts by its weight."""

    samples: float
    positives: float
    probability: float  # the sum of the predicted probabilities
    lowest: float | None  # predicted probability; None in a decile without samples
    highest: float | None
    effective: float | None = None  # samples of equal weight that would say as much (Kish, "Survey Sampling", 1965); None without weights


@dataclass(frozen=True)
class Summary:
    """The distribution of the scores of an evaluation."""

    deciles: tuple[Decile, ...]  # 10, of equal counts or weights, by rising predicted probability
    low: float  # lowest logit
    high: float  # highest logit, above `low` also where all logits are the same
    negative: tuple[float, ...]  # counts or weights of the negatives' logits in 200 bins of equal width from `low` to `high`
    positive: tuple[float, ...]  # of the positives'


@dataclass(frozen=True)
class FullMetrics(Metrics):
    """The result of an evaluation with a summary of its scores, which is None where a score is not finite."""

    summary: Summary | None = None


def evaluate_in_full(logits: np.ndarray, labels: np.ndarray, auc_thresholds: int | None = None, weights: np.ndarray | None = None) -> FullMetrics:
    """Compute all metrics of logits against labels, with a summary of the scores; see `binary.evaluate`. The scores are sorted once for both.

    With weights a row counts by its weight in the summary, too.
    """
    positive = labels.astype(bool)
    classes = classes_of(logits, positive)
    metrics = evaluate(logits, labels, auc_thresholds, classes, weights)
    return FullMetrics(**vars(metrics), summary=summarize(classes) if weights is None else summarize_weighted(logits, positive, weights))


def summarize(classes: Classes) -> Summary | None:
    """Summarize scores; return None where there are none or a score is not finite.

    Samples with equal scores can be on both sides of a boundary between deciles: their positives are then shared out in proportion.
    """
    ends = [float(values[i]) for values in classes if len(values) for i in (0, -1)]  # NaN is sorted to the end
    if not ends or not np.isfinite(ends).all():
        return None
    low, high = _limits(min(ends), max(ends))
    negative, positive = (tuple(np.diff(_places(values, low, high)).tolist()) for values in classes)
    return Summary(tuple(_deciles(classes)), low, high, negative, positive)


def summarize_weighted(logits: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> Summary | None:
    """Summarize scores with weights; return None where no row has weight or a score is not finite.

    A row, or the rows of equal scores, can be on both sides of a boundary between deciles: it is then shared out in proportion.

    Args:
        logits: `[n]` float32.
        positive: `[n]` bool.
        weights: `[n]` float32, finite, at least 0.
    """
    from utils.metrics.weighted import counted, sorted_keys, unpacked  # imported here, because a server needs none of it

    logits, positive, weights = counted(weights, logits, positive)
    if not len(logits) or not np.isfinite(logits).all():
        return None
    scores, weights, positive = unpacked(sorted_keys(logits.astype(np.float32), positive, weights.astype(np.float32))[::-1])
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))  # of each score
    up_to = np.cumsum(weights)
    ends = up_to[last]
    cuts = ends[-1] * (np.arange(DECILES + 1) / DECILES)

    def sums(values: np.ndarray) -> list[float]:
        return np.diff(np.interp(cuts, np.append(0.0, ends), np.append(0.0, np.cumsum(values)[last]))).tolist()

    squares = sums(weights * weights)
    lowest = sigmoid(scores[last[np.minimum(np.searchsorted(ends, cuts[:-1], "right"), len(last) - 1)]]).tolist()
    highest = sigmoid(scores[last[np.searchsorted(ends, cuts[1:], "left")]]).tolist()
    of_weights, of_positives = np.diff(cuts).tolist(), sums(weights * positive)
    effective = [weight * weight / square for weight, square in zip(of_weights, squares, strict=True)]
    deciles = map(Decile, of_weights, of_positives, sums(weights * sigmoid(scores.astype(np.float64))), lowest, highest, effective)
    low, high = _limits(float(scores[0]), float(scores[-1]))
    places = _places(scores, low, high)
    negative, positive = (tuple(np.diff(np.append(0.0, np.cumsum(values))[places]).tolist()) for values in (weights * ~positive, weights * positive))
    return Summary(tuple(deciles), low, high, negative, positive)


def _limits(low: float, high: float) -> tuple[float, float]:
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _places(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the places where bins of equal width begin in sorted values, and the number of values.

    A value on the boundary of two bins is in the upper one, the highest value in the last.
    """
    inner = low + (high - low) * (np.arange(1, BINS) / BINS)
    edges = inner.astype(values.dtype)  # a search for float64 would copy the values to float64
    edges = np.where(edges < inner, np.nextafter(edges, np.inf, dtype=values.dtype), edges)  # the values below are the same
    below = np.searchsorted(values, edges, "left")
    return np.concatenate([[0], below, [len(values)]])


def _deciles(classes: Classes) -> Iterator[Decile]:
    """Yield the deciles. A cut `(i, j)` has the i lowest negatives and the j lowest positives before it."""
    samples = len(classes.negatives) + len(classes.positives)
    cuts = [_cut(classes, samples * number // DECILES) for number in range(DECILES + 1)]
    for (i, j), (to_i, to_j) in itertools.pairwise(cuts):
        parts = [part for part in (classes.negatives[i:to_i], classes.positives[j:to_j]) if len(part)]
        ends = [min(part[0] for part in parts), max(part[-1] for part in parts)] if parts else []
        lowest, highest = sigmoid(np.array(ends, np.float32)).tolist() if parts else (None, None)
        yield Decile(to_i - i + to_j - j, to_j - j, sum(map(probability_sum, parts)), lowest, highest)


def _cut(classes: Classes, rank: int) -> tuple[int, int]:
    """Return how many negatives and how many positives are among the `rank` lowest samples."""
    negatives, positives = classes
    if rank == len(negatives) + len(positives):
        return len(negatives), len(positives)
    # The score of this rank is the lowest one with more than `rank` samples that are not above it.
    candidates = []
    for values in classes:
        place = bisect.bisect_right(range(len(values)), rank, key=lambda at: _not_above(classes, values[at]))
        candidates += [values[place]] if place < len(values) else []
    score = min(candidates)
    i, j = (int(np.searchsorted(values, score, "left")) for values in classes)
    tied_positives = int(np.searchsorted(positives, score, "right")) - j
    before, tied = rank - i - j, _not_above(classes, score) - i - j
    share = round(before * tied_positives / tied)
    return i + before - share, j + share


def _not_above(classes: Classes, score: np.float32) -> int:
    return sum(int(np.searchsorted(values, score, "right")) for values in classes)


def entry(split: str, metrics: Metrics, weights: tuple[int, int], final: bool = False) -> dict[str, Any]:
    """Return the data of the log's line "EVALUATION".

    Args:
        split: the split that was scored.
        metrics: its metrics; the figures that they lack are null. Those that count every sample once are added where the samples have weights,
            those as logged where features are for training only.
        weights: the epoch and the step that the weights were trained to.
        final: true for the test at the end of training and for an evaluation alone.
    """
    summary = metrics.summary if isinstance(metrics, FullMetrics) else None
    names = ("samples", "positives", "auc", "auc_variance", "log_loss", "log_loss_variance", "normalized_entropy", "calibration")
    histogram = summary and {"low": summary.low, "high": summary.high, "negative": list(summary.negative), "positive": list(summary.positive)}
    return (
        {"split": split, "epoch": weights[0], "step": weights[1], "final": final}
        | {name: getattr(metrics, name) for name in names}
        | metrics.other_figures()
        | {
            "deciles": summary and [[*decile[:5], *([] if decile.effective is None else [decile.effective])] for decile in summary.deciles],
            "histogram": histogram,
        }
    )
