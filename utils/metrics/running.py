"""Running metrics of samples that are added in parts; adding a part does not sort all samples again."""

import numpy as np

from utils.metrics.binary import Sums, log_loss, weighted_sums
from utils.metrics.weighted import area, counted, sorted_keys


class RunningMetrics:
    """Loss, accuracy and exact AUC of the samples added so far; the definitions are those of `binary.evaluate`, with weights as well."""

    def __init__(self):
        self._negatives = self._positives = np.empty(0, np.float32)  # sorted logits of samples without weights
        self._twice_below = 0  # twice the number of pairs whose negative scores lower, ties counting half
        self._keys = np.empty(0, np.uint64)  # sorted, of samples with weights
        self._weighted: bool | None = None  # None before the first part
        self._sums = Sums(0, 0, 0.0, 0.0, 0)
        self.samples = 0  # rows added

    def add(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add samples: logits `[k]` float32, labels `[k]` of 0 and 1, weights `[k]` float32, finite, at least 0.

        Raises:
            ValueError: some parts have weights and some have none.
        """
        weighted, positive = weights is not None, labels.astype(bool)
        if self._weighted not in (None, weighted):
            raise ValueError(f"weights for {'this part' if weighted else 'the parts before'} only; give weights for all parts or for none")
        self._weighted = weighted
        added = self._merge(logits, positive, np.asarray(weights, np.float32)) if weighted else self._count(logits, positive)
        self._sums = Sums(*(before + new for before, new in zip(self._sums, added, strict=True)))
        self.samples += len(logits)

    def _merge(self, logits: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> Sums:
        """Merge samples with weights into the sorted keys; return their sums."""
        logits, positive, weights = counted(weights, logits.astype(np.float32), positive)
        # A stable sort merges two sorted runs in one pass.
        self._keys = np.sort(np.concatenate([self._keys, sorted_keys(logits, positive, weights)]), kind="stable")
        return weighted_sums(logits, positive, weights)

    def _count(self, logits: np.ndarray, positive: np.ndarray) -> Sums:
        """Count the pairs of samples without weights and those so far; return their sums, with no probability."""
        negatives, positives = np.sort(logits[~positive]), np.sort(logits[positive])
        self._twice_below += _twice_below(self._negatives, positives) + _twice_below(negatives, positives)
        self._twice_below += 2 * len(self._positives) * len(negatives) - _twice_below(self._positives, negatives)
        self._negatives = np.sort(np.concatenate([self._negatives, negatives]), kind="stable")
        self._positives = np.sort(np.concatenate([self._positives, positives]), kind="stable")
        loss = log_loss(logits, positive) * len(logits) if len(logits) else 0.0
        return Sums(len(positives), len(negatives), loss, 0.0, int(((logits > 0) == positive).sum()))

    def figures(self) -> dict[str, float | None]:
        """Return the metrics by their names in `binary.Metrics`."""
        return {"log_loss": self.log_loss, "auc": self.auc, "binary_accuracy": self.binary_accuracy}

    @property
    def auc(self) -> float | None:
        """The exact AUC; None while the labels are all the same or one class has no weight."""
        if self._weighted:
            return area(self._keys)
        pairs = len(self._negatives) * len(self._positives)
        return self._twice_below / (2 * pairs) if pairs else None

    @property
    def log_loss(self) -> float:
        """The mean binary cross-entropy, in nats; NaN while there is no weight."""
        return self._sums.log_loss

    @property
    def binary_accuracy(self) -> float | None:
        """The share of the samples on the correct side of probability 1/2; None while there is no weight."""
        return self._sums.binary_accuracy


def _twice_below(lower: np.ndarray, upper: np.ndarray) -> int:
    """Return twice the number of pairs in which a value of `lower` (sorted) is below one of `upper`, ties counting half."""
    return int(np.searchsorted(lower, upper, "left").sum()) + int(np.searchsorted(lower, upper, "right").sum())
