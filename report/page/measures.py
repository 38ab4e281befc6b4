"""Figures that follow from an evaluation's summary: intervals, calibration by decile, ROC and precision-recall from the histograms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from report.log.thinning import finite
from report.rows.predictions import NORMAL, wilson


@dataclass(frozen=True)
class Decile:
    """A tenth of the rows, by predicted probability.

    Attributes:
        samples: the number of rows, or their weight.
        positives: that of the positive ones.
        predicted: the mean predicted probability.
        observed: the share of positive rows.
        low: lower limit of Wilson's interval of 95% of that share.
        high: its upper limit.
        lowest: the lowest predicted probability.
        highest: the highest.
    """

    samples: float
    positives: float
    predicted: float
    observed: float
    low: float
    high: float
    lowest: float | None
    highest: float | None


@dataclass(frozen=True)
class Bins:
    """The counts of the logits by class, and the curves that follow from them.

    Attributes:
        edges: the edges of the bins, one more than bins.
        negative: the negative rows of each bin, or their weight.
        positive: the positive ones.
        false_positive: the share of negative rows at or above each edge, from the highest edge down.
        true_positive: the same of positive rows, which is the recall.
        precision: the share of positive rows among all at or above each edge; None where there is none.
        resolution: the most by which the curve's area can differ from the exact one.
    """

    edges: Sequence[float]
    negative: Sequence[float]
    positive: Sequence[float]
    false_positive: Sequence[float]
    true_positive: Sequence[float]
    precision: Sequence[float | None]
    resolution: float


def normal_interval(value: Any, variance: Any) -> tuple[float, float] | tuple[None, None]:
    """Return the interval of 95% of a figure with a variance; Nones where one of them is not known."""
    value, variance = finite(value), finite(variance)
    if value is None or variance is None or variance < 0:
        return None, None
    spread = NORMAL * math.sqrt(variance)
    return value - spread, value + spread


def auc_interval(auc: Any, variance: Any) -> tuple[float, float] | tuple[None, None]:
    """Return DeLong's interval of an AUC, inside 0 to 1."""
    low, high = normal_interval(auc, variance)
    return (None, None) if low is None else (max(0.0, low), min(1.0, high))


def deciles(summary: Mapping[str, Any]) -> list[Decile]:
    """Return the tenths of an evaluation's rows; those without rows are left out."""
    found = []
    for part in summary.get("deciles") or ():
        samples, positives, total, lowest, highest, *effective = part
        if samples > 0:
            rate = wilson(positives, samples, *effective)
            found.append(Decile(samples, positives, (total or 0.0) / samples, rate.value, rate.low, rate.high, lowest, highest))
    return found


def bins(summary: Mapping[str, Any]) -> Bins | None:
    """Return the histogram of an evaluation's logits; None where it has none, or rows of one class only."""
    found = summary.get("histogram") or {}
    low, high = finite(found.get("low")), finite(found.get("high"))
    negative, positive = found.get("negative") or (), found.get("positive") or ()
    total_negative, total_positive = sum(negative), sum(positive)
    if low is None or high is None or not total_negative or not total_positive:
        return None
    count = len(negative)
    edges = [low + (high - low) * place / count for place in range(count + 1)]
    false, true, precision = [0.0], [0.0], [None]
    seen_negative = seen_positive = 0
    for place in reversed(range(count)):
        seen_negative, seen_positive = seen_negative + negative[place], seen_positive + positive[place]
        false.append(seen_negative / total_negative)
        true.append(seen_positive / total_positive)
        precision.append(seen_positive / (seen_negative + seen_positive) if seen_negative + seen_positive else None)
    mixed = sum(one * other for one, other in zip(negative, positive, strict=True))
    return Bins(edges, negative, positive, false, true, precision, mixed / 2 / total_negative / total_positive)
