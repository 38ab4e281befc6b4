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
    """Samples whose predicted probabilities are next to each other."""

    samples: int
    positives: int
    probability: float  # the sum of the predicted probabilities
    lowest: float | None  # predicted probability; None in a decile without samples
    highest: float | None


@dataclass(frozen=True)
class Summary:
    """The distribution of the scores of an evaluation."""

    deciles: tuple[Decile, ...]  # 10, of equal counts, by rising predicted probability
    low: float  # lowest logit
    high: float  # highest logit, above `low` also where all logits are the same
    negative: tuple[int, ...]  # counts of the negatives' logits in 200 bins of equal width from `low` to `high`
    positive: tuple[int, ...]  # of the positives'


@dataclass(frozen=True)
class FullMetrics(Metrics):
    """The result of an evaluation with a summary of its scores, which is None where a score is not finite."""

    summary: Summary | None = None


def evaluate_in_full(logits: np.ndarray, labels: np.ndarray, auc_thresholds: int | None = None, weights: np.ndarray | None = None) -> FullMetrics:
    """Compute all metrics of logits against labels, with a summary of the scores; see `binary.evaluate`. The scores are sorted once for both.

    The summary counts each row once, with weights as well: it is the distribution of the scores.
    """
    classes = classes_of(logits, labels.astype(bool))
    return FullMetrics(**vars(evaluate(logits, labels, auc_thresholds, classes, weights)), summary=summarize(classes))


def summarize(classes: Classes) -> Summary | None:
    """Summarize scores; return None where there are none or a score is not finite.

    Samples with equal scores can be on both sides of a boundary between deciles: their positives are then shared out in proportion.
    """
    ends = [float(values[i]) for values in classes if len(values) for i in (0, -1)]  # NaN is sorted to the end
    if not ends or not np.isfinite(ends).all():
        return None
    low, high = min(ends), max(ends)
    if low == high:
        low, high = low - 0.5, high + 0.5
    negative, positive = (_histogram(values, low, high) for values in classes)
    return Summary(tuple(_deciles(classes)), low, high, negative, positive)


def _histogram(values: np.ndarray, low: float, high: float) -> tuple[int, ...]:
    """Count sorted values in bins of equal width; a value on the boundary of two bins is in the upper one, the highest value in the last."""
    inner = low + (high - low) * (np.arange(1, BINS) / BINS)
    edges = inner.astype(values.dtype)  # a search for float64 would copy the values to float64
    edges = np.where(edges < inner, np.nextafter(edges, np.inf, dtype=values.dtype), edges)  # the values below are the same
    below = np.searchsorted(values, edges, "left")
    return tuple(np.diff(below, prepend=0, append=len(values)).tolist())


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
        | {"deciles": summary and [list(decile) for decile in summary.deciles], "histogram": histogram}
    )
