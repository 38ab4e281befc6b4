"""Scores of a trained model: every row of a split exactly once."""

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from model.dlrm import DLRM
from model.trainer import TensorBatch


class Evaluator:
    """Computes logits batch by batch.

    Args:
        model: built.
        xla: compile the dense part.
    """

    def __init__(self, model: DLRM, xla: bool = False):
        self._model = model
        self._dense = tf.function(model.dense, jit_compile=True if xla else None)
        self._logits = tf.function(self._forward)

    def _forward(self, batch: TensorBatch) -> tf.Tensor:
        return self._dense(batch.numerical, self._model.embedding(batch.ids))

    def logits(self, batch: TensorBatch) -> np.ndarray:
        """Logits `[b]` of a batch, padding included, on the host: the device has finished when this returns."""
        return self._logits(batch).numpy()

    def score(
        self, batches: Iterable[TensorBatch], num_samples: int, seen: Callable[[int], None] = lambda count: None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits `[n]` float32 and labels `[n]` uint8 of every real sample, in the order of the batches.

        Args:
            batches: the split's batches.
            num_samples: n.
            seen: called with the number of samples after each batch.

        Raises:
            ValueError: the batches do not hold n samples.
        """
        logits, labels = np.empty(num_samples, np.float32), np.empty(num_samples, np.uint8)
        done = 0
        for batch in batches:
            real = int(batch.num_samples)
            scores = self.logits(batch)[:real]
            if done + real > num_samples:
                raise ValueError(f"the batches hold more than the {num_samples} samples of the split")
            logits[done : done + real] = scores
            labels[done : done + real] = batch.labels.numpy()[:real]
            done += real
            seen(real)
        if done != num_samples:
            raise ValueError(f"the batches hold {done} samples, the split {num_samples}")
        return logits, labels
