"""Quality of predictions: ROC AUC, log loss, normalised entropy, calibration. NumPy only; scores are logits."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from utils.metrics.delong import area

if TYPE_CHECKING:
    from utils.metrics.ranking import Ranking

_BLOCK = 1 << 20  # samples


@dataclass(frozen=True)
class Metrics:
    """The result of an evaluation; `auc` is None where the labels are all the same, or one class has no weight."""

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
    unweighted: "Metrics | None" = None  # the same with every sample counted once; None where the samples have no weights
    weight: float | None = None  # sum of the weights; None where there are none
    as_logged: "Metrics | None" = None  # the same with the logged values of features for training only; None where there are none

    @property
    def scored(self) -> int:
        """The number of rows that were scored for these metrics."""
        return self.samples + (self.as_logged.samples if self.as_logged else 0)

    def other_figures(self) -> dict[str, float | None]:
        """Return the metrics that count every sample once, and those as logged, under their keys in the log; empty where there are none."""
        return _renamed(self.unweighted, "unweighted") | _renamed(self.as_logged, "as_logged")


def _renamed(metrics: Metrics | None, suffix: str) -> dict[str, float | None]:
    if metrics is None:
        return {}
    figures = {name: getattr(metrics, name) for name in ("auc", "log_loss", "normalized_entropy", "calibration")}
    by_group = {metric.key: value for metric, value in metrics.ranking.values.items()} if metrics.ranking else {}
    return {f"{name}_{suffix}": value for name, value in (figures | by_group).items()}


class Classes(NamedTuple):
    """The logits of each class, sorted."""

    negatives: np.ndarray
    positives: np.ndarray


class Sums(NamedTuple):
    """Sums over samples, in float64, of their weights and of values times their weights."""

    positives: float  # weights of the positives
    negatives: float  # weights of the negatives
    loss: float  # binary cross-entropy, in nats, times weight
    probability: float  # times weight
    right: float  # weights of the samples on the correct side of probability 1/2

    @property
    def weight(self) -> float:
        """The sum of all weights."""
        return self.positives + self.negatives

    @property
    def log_loss(self) -> float:
        """The weighted mean of the losses; NaN where there is no weight."""
        return self.loss / self.weight if self.weight else math.nan

    @property
    def binary_accuracy(self) -> float | None:
        """The weighted share of the samples on the correct side; None where there is no weight."""
        return self.right / self.weight if self.weight else None


def evaluate(
    logits: np.ndarray,
    labels: np.ndarray,
    auc_thresholds: int | None = None,
    classes: Classes | None = None,
    weights: np.ndarray | None = None,
) -> Metrics:
    """Compute all metrics of logits `[n]` against labels `[n]` of 0 and 1.

    Args:
        logits: float32.
        labels: 0 and 1, of any type.
        auc_thresholds: approximate the AUC with so many thresholds; None for the exact AUC.
        classes: the sorted logits of each class, where they exist already. They are needed for the variance of an approximate AUC.
        weights: `[n]` float32, finite, at least 0: a sample with weight 2 counts as two samples, one with weight 0 not at all. None counts each once.

    Returns:
        the metrics. `normalized_entropy` is the log loss divided by that of always predicting the click rate (He et al., ADKDD 2014); it is below 1
        for a useful model. `calibration` is the mean prediction divided by the click rate, ideally 1.

        With weights all of these and `binary_accuracy` are weighted, and `unweighted` has them without; `samples` and `positives` count rows in both.
        The variances are None: they are estimates for samples that count the same. Where all weights are 0, the loss is NaN and the rest None.
    """
    positive = labels.astype(bool)
    plain = _unweighted(logits, positive, auc_thresholds, classes)
    return plain if weights is None else _weighted(logits, positive, auc_thresholds, np.asarray(weights, np.float32), plain)


def _unweighted(logits: np.ndarray, positive: np.ndarray, auc_thresholds: int | None, classes: Classes | None) -> Metrics:
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


def _weighted(logits: np.ndarray, positive: np.ndarray, auc_thresholds: int | None, weights: np.ndarray, plain: Metrics) -> Metrics:
    # imported here, because a server needs none of it
    from utils.metrics.weighted import area as weighted_area
    from utils.metrics.weighted import counted, sorted_keys

    scores, of_scores, weights = counted(weights, logits, positive)
    sums = weighted_sums(scores, of_scores, weights)
    auc = normalized_entropy = None
    if sums.positives and sums.negatives:
        normalized_entropy = sums.log_loss / _entropy(sums)
        if auc_thresholds is None:
            auc = weighted_area(sorted_keys(scores, of_scores, weights))
        else:
            auc = thresholded_auc(scores, of_scores, auc_thresholds, weights)
    return Metrics(
        auc=auc,
        log_loss=sums.log_loss,
        normalized_entropy=normalized_entropy,
        calibration=sums.probability / sums.positives if sums.positives else None,
        samples=plain.samples,
        binary_accuracy=sums.binary_accuracy,
        positives=plain.positives,
        unweighted=plain,
        weight=sums.weight,
    )


def weighted_sums(logits: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> Sums:
    """Sum losses, probabilities and more over samples `[n]`, in blocks. Probabilities are float64 here: float32 has half of the digits of a sum."""

    blocks = [[0.0] * len(Sums._fields)]
    for i in range(0, len(logits), _BLOCK):
        z, y, weight = logits[i : i + _BLOCK].astype(np.float64), positive[i : i + _BLOCK], weights[i : i + _BLOCK].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # infinite logits give a NaN loss, which needs no warning
            blocks.append([float((weight * values).sum()) for values in (y, ~y, _losses(z, y), sigmoid(z), (z > 0) == y)])
    return Sums(*map(math.fsum, zip(*blocks, strict=True)))


def _entropy(sums: Sums) -> float:
    """Return the loss of always predicting the click rate. The smaller of the rate and its complement decides: the other one may round to 1."""
    small = min(sums.positives, sums.negatives) / sums.weight
    return -(small * math.log(small) + max(sums.positives, sums.negatives) / sums.weight * math.log1p(-small))


def exact_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Compute the exact AUC, see `delong.area`. Both classes must be present."""
    return area(*classes_of(scores, positive)).auc


def classes_of(scores: np.ndarray, positive: np.ndarray) -> Classes:
    """Return the sorted scores of each class."""
    return Classes(np.sort(scores[~positive]), np.sort(scores[positive]))


def thresholded_auc(scores: np.ndarray, positive: np.ndarray, thresholds: int, weights: np.ndarray | None = None) -> float:
    """Compute the AUC by the trapezoidal rule over evenly spaced probability thresholds, as `keras.metrics.AUC` does with `sample_weight`."""
    inner = np.arange(1, thresholds - 1) / (thresholds - 1)
    edges = np.concatenate([[-1e-7], inner, [1 + 1e-7]]).astype(np.float32)
    probabilities = sigmoid(scores)
    # above[k]: share of a class whose probability exceeds threshold k
    rates = []
    for side in (positive, ~positive):
        place = np.searchsorted(edges, probabilities[side], "left")  # thresholds strictly below the value
        counts = np.bincount(place, None if weights is None else weights[side], minlength=thresholds + 1)
        rates.append(counts[::-1].cumsum()[::-1][1:] / counts.sum())
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
            losses = _losses(z, y)
            total += float(losses.sum())
            squares += float(losses @ losses)
    count = len(logits)
    if count < 2 or not np.isfinite(squares):
        return total / count, None
    return total / count, max(0.0, squares / count - (total / count) ** 2) / (count - 1)


def _losses(logits: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Compute the binary cross-entropy of each sample, in nats."""
    return np.maximum(logits, 0) - logits * positive + np.log1p(np.exp(-np.abs(logits)))


def probability_sum(logits: np.ndarray) -> float:
    """Compute the sum of the probabilities of logits, in blocks."""
    return sum(float(sigmoid(logits[i : i + _BLOCK]).sum(dtype=np.float64)) for i in range(0, len(logits), _BLOCK))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Compute the probabilities of logits, float32 to float32, without overflow and with full precision near 0, where click rates are."""
    return np.exp(np.minimum(logits, 0)) / (1 + np.exp(-np.abs(logits)))
