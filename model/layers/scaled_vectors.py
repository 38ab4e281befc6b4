"""Vectors of numerical features, and the sum of the products of all pairs of vectors."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from model.layers.dense import LayerWeights, cut, layer_seed
from model.native import NativeOperations
from model.ordered_sums import summed


class ScaledVectors(keras.layers.Layer):
    """A vector for each numerical feature, multiplied by the feature's value: `[b, M] -> [b, M, D]`, in float32.

    Args:
        dim: D.
        scale: the standard deviation of the initial values.
        seed: the seed of the weights, see `layer_seed`.
        name: the name of the layer, and the prefix of its weight's name.
        native: the C++ operations that add the slices' gradients; None for TensorFlow's own operations.
    """

    def __init__(self, dim: int, scale: float, seed: int, name: str, native: NativeOperations | None = None):
        super().__init__(name=name, dtype="float32")
        self._dim, self._native = dim, native
        self._start = keras.initializers.RandomNormal(0.0, scale, layer_seed(seed, f"{name}/kernel"))

    def build(self, input_shape):
        """Create the vectors `[M, D]` for inputs `[b, M]`."""
        self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1], self._dim), initializer=self._start)

    def step_weights(self, scoring: bool = False) -> list[LayerWeights]:
        """Return the current vectors."""
        return [LayerWeights(tf.convert_to_tensor(self.kernel.value), None, None)]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return the vectors by name."""
        return {f"{self.name}/kernel": self.kernel}

    def forward(self, numerical: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Compute `[b, M] -> [b, M, D]` with the given vectors; `slices` as in `dense.dense`."""
        values = tf.cast(numerical, tf.float32)

        @tf.custom_gradient
        def scaled(kernel):
            def gradient(upstream):
                parts = zip(cut(values, slices or 1), cut(upstream, slices or 1), strict=True)
                return summed([_by_vectors(*part) for part in parts], self._native)

            return values[:, :, tf.newaxis] * kernel, gradient

        return scaled(weights[0].kernel)

    def call(self, numerical):
        """Compute `[b, M] -> [b, M, D]` with the current vectors."""
        return self.forward(numerical, self.step_weights())


def _by_vectors(values: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """Return the gradient by the vectors `[M, D]`, for values `[n, M]` and the gradient by their products, `[n, M, D]`.

    It is the diagonal of a product of matrices, whose bits do not depend on the number of threads as those of a sum over the samples do.
    """
    count, dim = upstream.shape[1:]
    products = tf.matmul(values, tf.reshape(upstream, [-1, count * dim]), transpose_a=True)
    return tf.reduce_sum(tf.reshape(products, [count, count, dim]) * np.eye(count, dtype=np.float32)[:, :, np.newaxis], axis=1)


def pair_sum(vectors: tf.Tensor) -> tf.Tensor:
    """Return the sum of the dot products of all pairs of n vectors, `[b, n, D]` float32 -> `[b]`.

    Half of the square of the sum less the sum of the squares (Rendle 2010, lemma 3.1) takes n D operations in place of n^2 D.
    """
    return 0.5 * tf.reduce_sum(tf.square(tf.reduce_sum(vectors, axis=1)) - tf.reduce_sum(tf.square(vectors), axis=1), axis=1)
