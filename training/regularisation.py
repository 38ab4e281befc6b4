"""Regularisation: additional terms of the loss, and dropout."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from model.layers.dense import Drop
from model.layers.dropout import Dropout, Place

SCALED_VECTORS = "numerical_vectors/kernel"  # vectors of numerical features, which are regularised like those of ids


class Regularisation(NamedTuple):
    """Terms that are minimised together with the loss, and dropout. The reported loss does not include the terms.

    The terms are `embedding_l2` / 2 times the mean over the samples of the squares of the vectors that they look up, and `mlp_l2` / 2 times the
    squares of the kernels. A row is pulled towards 0 as often as it is looked up, so rows that no batch touches do not change.
    """

    embedding_l2: float | np.ndarray = 0.0  # an array of the columns of the vectors where these differ
    mlp_l2: float = 0.0
    dropout: Dropout | None = None

    def firsts(self, first: int) -> Callable[[tf.Tensor], tf.Tensor | None]:
        """Return a function that numbers the first sample of each part of the batch.

        Call the function with any per-sample tensor of each part in turn; the first part begins at sample number `first` of the global batch. It
        returns the number of the part's first sample, an int64 scalar; None without dropout, which alone uses it.
        """
        places = [first]

        def next_first(part: tf.Tensor) -> tf.Tensor | None:
            places.append(places[-1] + part.shape[0])
            return tf.constant(places[-2], tf.int64) if self.dropout else None

        return next_first

    def drop(self, step: tf.Tensor, first: tf.Tensor | None) -> Drop | None:
        """Return the dropout of some samples in a step, as `Mlp.forward` takes it, or None; `first` is the result of the function of `firsts`."""
        if not self.dropout:
            return None
        return self.dropout.at(Place(step, first))

    def by_vectors(self, gradients: tf.Tensor, vectors: tf.Tensor, weights: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """Add the L2 term's gradients to those with respect to the vectors, `[b, …]`; samples are weighted by `weights` `[b]` times `scale`.

        `scale` includes the division by the number of samples in the global batch.
        """
        if not np.any(self.embedding_l2):
            return gradients
        if isinstance(self.embedding_l2, np.ndarray):
            return gradients + tf.cast((scale * weights)[:, tf.newaxis] * self.embedding_l2, vectors.dtype) * vectors
        factors = tf.cast(self.embedding_l2 * scale * weights, vectors.dtype)
        return gradients + tf.reshape(factors, [-1] + [1] * (len(vectors.shape) - 1)) * vectors

    def by_weights(self, gradients: Mapping[str, tf.Tensor], values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Add the L2 term's gradients to those of the dense weights, by name."""
        factors = {name: self._of_kernel(name) for name in gradients if name.endswith("/kernel")}
        return {name: gradient + factors[name] * values[name] if factors.get(name) else gradient for name, gradient in gradients.items()}

    def _of_kernel(self, name: str) -> float:
        return float(np.ravel(self.embedding_l2)[0]) if name == SCALED_VECTORS else self.mlp_l2


NO_REGULARISATION = Regularisation()
