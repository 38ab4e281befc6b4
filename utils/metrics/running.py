"""Running metrics of samples that are added in parts; adding a part does not sort all samples again."""

import numpy as np

from utils.metrics.binary import log_loss


class RunningMetrics:
    """Loss, accuracy and exact AUC of the samples added so far; the definitions are those of `binary.evaluate`."""

    def __init__(self):
        self._negatives = self._positives = np.empty(0, np.float32)  # sorted logits
        self._twice_below = 0  # twice the number of pairs whose negative scores lower, ties counting half
        self._loss, self._right = 0.0, 0

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Add samples: logits `[k]` float32, labels `[k]` of 0 and 1."""
        positive = labels.astype(bool)
        negatives, positives = np.sort(logits[~positive]), np.sort(logits[positive])
        self._twice_below += _twice_below(self._negatives, positives) + _twice_below(negatives, positives)
        self._twice_below += 2 * len(self._positives) * len(negatives) - _twice_below(self._positives, negatives)
        # A stable sort merges two sorted runs in one pass.
        self._negatives = np.sort(np.concatenate([self._negatives, negatives]), kind="stable")
        self._positives = np.sort(np.concatenate([self._positives, positives]), kind="stable")
        self._loss += log_loss(logits, positive) * len(logits) if len(logits) else 0.0
        self._right += int(((logits > 0) == positive).sum())

    def figures(self) -> dict[str, float | None]:
        """Return the metrics by their names in `binary.Metrics`."""
        return {"log_loss": self.log_loss, "auc": self.auc, "binary_accuracy": self.binary_accuracy}

    @property
    def samples(self) -> int:
        """The number of samples added."""
        return len(self._negatives) + len(self._positives)

    @property
    def auc(self) -> float | None:
        """The exact AUC; None while the labels are all the same."""
        pairs = len(self._negatives) * len(self._positives)
        return self._twice_below / (2 * pairs) if pairs else None

    @property
    def log_loss(self) -> float:
        """The mean binary cross-entropy, in nats."""
        return self._loss / self.samples

    @property
    def binary_accuracy(self) -> float:
        """The share of the samples on the correct side of probability 1/2."""
        return self._right / self.samples


def _twice_below(lower: np.ndarray, upper: np.ndarray) -> int:
    """Return twice the number of pairs in which a value of `lower` (sorted) is below one of `upper`, ties counting half."""
    return int(np.searchsorted(lower, upper, "left").sum()) + int(np.searchsorted(lower, upper, "right").sum())
