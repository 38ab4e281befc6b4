"""The dot-product feature interaction of DLRM."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from model.native import NativeOperations
from model.shapes import pair_count


def pair_indices(num_vectors: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of each pair in the flattened `[F+1, F+1]` product, and the inverse mapping.

    Returns:
        forward: `[P]`, the flat index of each pair of the strict lower triangle, in the order (1,0), (2,0), (2,1), …
        inverse: `[(F+1)²]`, the pair's number at (i, j) and at (j, i), and P on the diagonal.
    """
    row, column = np.tril_indices(num_vectors, -1)
    forward = row * num_vectors + column
    inverse = np.full((num_vectors, num_vectors), len(forward), np.int32)
    inverse[row, column] = inverse[column, row] = np.arange(len(forward), dtype=np.int32)
    return forward.astype(np.int32), inverse.reshape(-1)


def lower_triangle_dots(vectors: tf.Tensor) -> tf.Tensor:
    """Return the dot products of all pairs of vectors: `[b, F+1, D] -> [b, P]`.

    The gradient is explicit: with S = G + Gᵀ, dZ = S Z. TensorFlow's automatic gradient would scatter the `[b, P]` gradient and multiply twice; a
    gather by the inverse index and one product suffice.
    """
    num_vectors = vectors.shape[1]
    forward, inverse = (tf.constant(places, tf.int64) for places in pair_indices(num_vectors))  # with a GPU, int32 would lie in host memory

    @tf.custom_gradient
    def dots(z):
        products = tf.matmul(z, z, transpose_b=True)
        out = tf.gather(tf.reshape(products, [-1, num_vectors * num_vectors]), forward, axis=1)

        def gradient(upstream):
            padded = tf.pad(upstream, [[0, 0], [0, 1]])  # `inverse` points to this zero on the diagonal, which is no output
            symmetric = tf.reshape(tf.gather(padded, inverse, axis=1), [-1, num_vectors, num_vectors])
            return tf.matmul(symmetric, z)

        return out, gradient

    return dots(vectors)


class DotInteraction(keras.layers.Layer):
    """Second-order feature interaction (Naumov et al., arXiv:1906.00091, section 2.1).

    With Z = [bottom MLP output, embeddings] `[b, F+1, D]`, the output is [bottom MLP output, strict lower triangle of Z Zᵀ], `[b, D+P]`,
    P = (F+1)F/2, with pairs in the order (1,0), (2,0), (2,1), … Without a bottom MLP, Z is the embeddings, and the output is only their products,
    `[b, F(F-1)/2]`.

    Raises:
        ValueError: the bottom MLP's output and the embeddings differ in width.
    """

    def __init__(self, dtype: str = "float32", name: str = "interaction", native: NativeOperations | None = None):
        super().__init__(name=name, dtype=dtype)
        self._native = native

    def compute_output_shape(self, bottom_shape, embeddings_shape):
        """Return the output's shape, `[b, D+P]`; `bottom_shape` is None without a bottom MLP."""
        if bottom_shape is None:
            return (embeddings_shape[0], pair_count(embeddings_shape[1]))
        return (bottom_shape[0], bottom_shape[1] + pair_count(embeddings_shape[1] + 1))

    def build_weights(self, bottom_shape, embeddings_shape) -> None:
        """Do nothing: the layer has no weights."""

    def step_weights(self, scoring: bool = False) -> list:
        """Return an empty list: the layer has no weights."""
        return []

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return an empty mapping: the layer has no weights."""
        return {}

    def forward(self, bottom: tf.Tensor | None, embeddings: tf.Tensor, weights: Sequence, slices: int | None = None) -> tf.Tensor:
        """Return the result of `call`; `weights` and `slices` are ignored."""
        return self(bottom, embeddings)

    def call(self, bottom, embeddings):
        """Return the interaction of bottom `[b, D]` (or None) and embeddings `[b, F, D]`: `[b, D+P]`."""
        if bottom is None and self._native is not None:  # the first embedding replaces the bottom output, which is cut off again
            return self._native.interact(embeddings[:, 0], embeddings[:, 1:])[:, embeddings.shape[2] :]
        if bottom is None:
            return lower_triangle_dots(embeddings)
        if bottom.shape[-1] != embeddings.shape[-1]:
            raise ValueError(f"bottom output is {bottom.shape[-1]} wide, embeddings {embeddings.shape[-1]}; the interaction needs equal widths")
        if self._native is not None:
            return self._native.interact(bottom, embeddings)
        # Joined as rows of numbers, not as vectors, because XLA's code for that is faster on a GPU.
        count, width = embeddings.shape[1:]
        vectors = tf.concat([bottom, tf.reshape(embeddings, [-1, count * width])], axis=1)
        return tf.concat([bottom, lower_triangle_dots(tf.reshape(vectors, [-1, count + 1, width]))], axis=1)
