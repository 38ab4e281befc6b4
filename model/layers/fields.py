"""The vectors of all features, those of numerical features among them, and the sum of the products of all their pairs."""

from collections.abc import Sequence
from typing import NamedTuple

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
            return values[:, :, tf.newaxis] * kernel, lambda upstream: self.gradient(values, upstream, slices)

        return scaled(weights[0].kernel)

    def gradient(self, values: tf.Tensor, upstream: tf.Tensor, slices: int | None) -> tf.Tensor:
        """Return the gradient by the vectors `[M, D]`, for values `[b, M]` and the gradient by their products, `[b, M, D]`."""
        parts = zip(cut(values, slices or 1), cut(upstream, slices or 1), strict=True)
        return summed([_by_vectors(*part) for part in parts], self._native)

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


class Wanted(NamedTuple):
    """The needs of a model: what it reads of the vectors of its F embedded features.

    Attributes:
        features: F.
        dim: D.
        weighs: whether a weight of each feature follows the vectors.
        pairs: whether the dot products of all pairs of vectors are summed.
        joined: the dtype of the vectors side by side; None where they are not needed.
        picks: numbers of features whose vectors are also needed side by side.
        native: the C++ operations; None for TensorFlow's own.
    """

    features: int
    dim: int
    weighs: bool = False
    pairs: bool = False
    joined: str | None = None
    picks: Sequence[int] = ()
    native: NativeOperations | None = None


class Fields(NamedTuple):
    """The vectors of all features and their sums.

    Attributes:
        joined: the vectors of the M numerical features, then those of the others: `[b, (M + F) D]` in the dtype wanted.
        sums: the dot products of all pairs of vectors, and the weights; those that are wanted: `[b]` float32.
        picked: the vectors that are also needed side by side, `[b, count D]` in the dtype of the embeddings.
    """

    joined: tf.Tensor | None
    sums: tf.Tensor
    picked: tf.Tensor | None


def fields(
    wanted: Wanted,
    numerical: tf.Tensor,
    scaled: ScaledVectors | None,
    weights: Sequence[LayerWeights],
    embeddings: tf.Tensor,
    slices: int | None = None,
) -> Fields:
    """Return the vectors of all features and their sums.

    Args:
        wanted: what is needed of them.
        numerical: `[b, M]`.
        scaled: the numerical features' vectors, with their `weights`; None without numerical features.
        weights: see `scaled`.
        embeddings: the vectors of the F features and, where there are some, their weights: `[b, F D]` or `[b, F D + F]`.
        slices: as in `dense.dense`.
    """
    values = tf.cast(numerical, tf.float32)
    if wanted.native is not None:
        by_kernel = None if scaled is None else lambda upstream: scaled.gradient(values, upstream, slices)
        kernel = tf.zeros([0, wanted.dim]) if scaled is None else weights[0].kernel
        others = {"features": wanted.features, "weighs": wanted.weighs, "pairs": wanted.pairs, "picks": list(wanted.picks)}
        found = wanted.native.vectors.fields(values[:, : kernel.shape[0]], kernel, embeddings, by_kernel, wanted.joined, **others)
        return Fields(*found)
    columns = wanted.features * wanted.dim
    of_ids = tf.reshape(embeddings[:, :columns], [-1, wanted.features, wanted.dim])
    vectors = tf.cast(of_ids, tf.float32)
    if scaled is not None:
        vectors = tf.concat([scaled.forward(numerical, weights, slices), vectors], axis=1)
    sums = [pair_sum(vectors)] if wanted.pairs else []
    sums += [tf.reduce_sum(tf.cast(embeddings[:, columns:], tf.float32), axis=1)] if wanted.weighs else []
    joined = wanted.joined and tf.cast(tf.reshape(vectors, [-1, vectors.shape[1] * wanted.dim]), wanted.joined)
    picked = tf.concat([of_ids[:, pick] for pick in wanted.picks], axis=1) if wanted.picks else None
    return Fields(joined, tf.add_n(sums) if sums else tf.zeros_like(embeddings[:, 0], tf.float32), picked)
