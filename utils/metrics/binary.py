"""Quality of predictions: ROC AUC, log loss, normalised entropy, calibration. NumPy only; scores are logits."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from utils.metrics.delong import area

if TYPE_CHECKING:
    from utils.metrics.ranking import Ranking

_BLOCK = 1 << 20  # samples


@dataclass(frozen=True)
class Metrics:
    """The result of an evaluation; `auc` is None where the labels are all the same."""

    auc: float | None
    log_loss: float
    normalized_entropy: float | None
    calibration: float | None
    samples: int
    ranking: "Ranking | None" = None  # metrics by group, where they are wanted and the rows have groups
    binary_accuracy: float | None = None  # share of the samples on the correct side of probability 1/2
    positives: int | None = None
    auc_variance: float | None = None  # of the exact AUC
    log_loss_variance: float | None = None  # of the mean loss


class Classes(NamedTuple):
    """The logits of each class, sorted."""

    negatives: np.ndarray
    positives: np.ndarray


def evaluate(logits: np.ndarray, labels: np.ndarray, auc_thresholds: int | None = None, classes: Classes | None = None) -> Metrics:
    """Compute all metrics of logits `[n]` against labels `[n]` of 0 and 1.

    Args:
        logits: float32.
        labels: 0 and 1, of any type.
        auc_thresholds: approximate the AUC with so many thresholds; None for the exact AUC.
        classes: the sorted logits of each class, where they exist already. They are needed for the variance of an approximate AUC.

    Returns:
        the metrics. `normalized_entropy` is the log loss divided by that of always predicting the click rate (He et al., ADKDD 2014); it is below 1
        for a useful model. `calibration` is the mean prediction divided by the click rate, ideally 1.
    """
    positive = labels.astype(bool)
    rate = float(positive.mean())
    loss, loss_variance = loss_and_variance(logits, positive)
    single = rate in (0.0, 1.0)
    entropy = None if single else -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
    auc = auc_variance = None
    if not single and (classes or auc_thresholds is None):
        auc, auc_variance = area(*(classes or classes_of(logits, positive)))
    if not single and auc_thresholds is not None:
        auc = thresholded_auc(logits, positive, auc_thresholds)
    return Metrics(
        auc=auc,
        log_loss=loss,
        normalized_entropy=None if single else loss / float(entropy),
        calibration=probability_sum(logits) / len(logits) / rate if rate > 0 else None,
        samples=len(logits),
        binary_accuracy=float(((logits > 0) == positive).mean()),
        positives=int(np.count_nonzero(positive)),
        auc_variance=auc_variance,
        log_loss_variance=loss_variance,
    )


def exact_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Compute the exact AUC, see `delong.area`. Both classes must be present."""
    return area(*classes_of(scores, positive)).auc


def classes_of(scores: np.ndarray, positive: np.ndarray) -> Classes:
    """Return the sorted scores of each class."""
    return Classes(np.sort(scores[~positive]), np.sort(scores[positive]))


def thresholded_auc(scores: np.ndarray, positive: np.ndarray, thresholds: int) -> float:
    """Compute the AUC by the trapezoidal rule over evenly spaced probability thresholds, as `keras.metrics.AUC` does."""
    inner = np.arange(1, thresholds - 1) / (thresholds - 1)
    edges = np.concatenate([[-1e-7], inner, [1 + 1e-7]]).astype(np.float32)
    probabilities = sigmoid(scores)
    # above[k]: share of a class whose probability exceeds threshold k
    rates = []
    for values in (probabilities[positive], probabilities[~positive]):
        place = np.searchsorted(edges, values, "left")  # thresholds strictly below the value
        counts = np.bincount(place, minlength=thresholds + 1)
        rates.append(counts[::-1].cumsum()[::-1][1:] / len(values))
    true_positive, false_positive = rates
    return float(np.sum((false_positive[:-1] - false_positive[1:]) * (true_positive[:-1] + true_positive[1:]) / 2))


def log_loss(logits: np.ndarray, positive: np.ndarray) -> float:
    """Compute the mean binary cross-entropy from logits, in nats."""
    return loss_and_variance(logits, positive)[0]


def loss_and_variance(logits: np.ndarray, positive: np.ndarray) -> tuple[float, float | None]:
    """Compute the mean binary cross-entropy and the variance of that mean; the variance is None for a single sample."""
    total = squares = 0.0
    for i in range(0, len(logits), _BLOCK):  # in blocks, to avoid a float64 copy of all samples
        z, y = logits[i : i + _BLOCK].astype(np.float64), positive[i : i + _BLOCK]
        with np.errstate(invalid="ignore", over="ignore"):  # infinite logits give a NaN loss, which needs no warning
            losses = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
            total += float(losses.sum())
            squares += float(losses @ losses)
    count = len(logits)
    if count < 2 or not np.isfinite(squares):
        return total / count, None
    return total / count, max(0.0, squares / count - (total / count) ** 2) / (count - 1)


def probability_sum(logits: np.ndarray) -> float:
    """Compute the sum of the probabilities of logits, in blocks."""
    return sum(float(sigmoid(logits[i : i + _BLOCK]).sum(dtype=np.float64)) for i in range(0, len(logits), _BLOCK))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Compute the probabilities of logits, float32 to float32, without overflow and with full precision near 0, where click rates are."""
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1, small).astype(logits.dtype) / (1 + small)
