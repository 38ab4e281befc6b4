"""What keeps weights from following few samples too closely: terms of the loss, and dropout."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from model.layers.dropout import Dropout, Place
from model.layers.mlp import Drop


class Regularisation(NamedTuple):
    """Terms that the loss is minimised with, and that the reported loss leaves out.

    `embedding_l2` / 2 times the mean over the samples of the squares of the vectors they look up: rows are drawn to 0 as often as they are looked up,
    so nothing happens to a row that no batch touches. `mlp_l2` / 2 times the squares of the kernels.
    """

    embedding_l2: float = 0.0
    mlp_l2: float = 0.0
    dropout: Dropout | None = None

    def firsts(self, first: int) -> Callable[[tf.Tensor], tf.Tensor | None]:
        """Called with something of the samples of each part of the batch in turn; the first of all has the number `first` in the global batch.

        Gives the number of the part's first sample, an int64 scalar; None where nothing goes by it.
        """
        places = [first]

        def next_first(part: tf.Tensor) -> tf.Tensor | None:
            places.append(places[-1] + part.shape[0])
            return tf.constant(places[-2], tf.int64) if self.dropout else None

        return next_first

    def drop(self, step: tf.Tensor, first: tf.Tensor | None) -> Drop | None:
        """Dropout of some samples in a step, as `Mlp.forward` takes it; `first` as `firsts` gives it."""
        if not self.dropout:
            return None
        return self.dropout.at(Place(step, first))

    def by_vectors(self, gradients: tf.Tensor, vectors: tf.Tensor, weights: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """The gradients by vectors `[b, …]`, with the term's: the samples count with `weights` `[b]`, each with `scale` over all samples."""
        if not self.embedding_l2:
            return gradients
        factors = tf.cast(self.embedding_l2 * scale * weights, vectors.dtype)
        return gradients + tf.reshape(factors, [-1] + [1] * (len(vectors.shape) - 1)) * vectors

    def by_weights(self, gradients: Mapping[str, tf.Tensor], values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The gradients by dense weights, by name, with the term's."""
        if not self.mlp_l2:
            return dict(gradients)
        return {name: gradient + self.mlp_l2 * values[name] if name.endswith("/kernel") else gradient for name, gradient in gradients.items()}


NO_REGULARISATION = Regularisation()
