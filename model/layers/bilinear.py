"""The bilinear layer that fuses the two streams of FinalMLP."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from model.layers.dense import LayerWeights, dense, layer_seed, weights_of
from model.native import NativeOperations


class Bilinear(keras.layers.Layer):
    """The multi-head bilinear fusion of two vectors (Mao et al., arXiv:2304.00902, equation 9): x `[b, d_1]`, z `[b, d_2]` -> `[b]`.

    x and z are cut into H pieces of equal width: the output is the sum over all heads h of x_h W_h z_h, W_h `[d_1 / H, d_2 / H]`. The kernels are
    initialised normal with standard deviation sqrt(2 / (n + 1)), where n is the number of their elements.

    Args:
        heads: H.
        seed: the seed of the weights, see `layer_seed`.
        dtype: Keras dtype policy.
        native: the C++ operations that add the slices' gradients; None for TensorFlow's own operations.
        name: the name of the layer, and the prefix of its weights' names.
    """

    def __init__(self, heads: int, seed: int, name: str, dtype: str = "float32", native: NativeOperations | None = None):
        super().__init__(name=name, dtype=dtype)
        self._heads, self._seed, self._native = heads, seed, native
        self.stack: list[keras.layers.Dense] = []  # they hold variables and dtypes only; `forward` computes

    def build_weights(self, left: int, right: int) -> None:
        """Create the kernels for d_1 and d_2, which H divides."""
        scale = math.sqrt(2 / (left * right // self._heads + 1))
        for head in range(self._heads):
            start = keras.initializers.RandomNormal(0.0, scale, layer_seed(self._seed, f"{self.name}/{head}/kernel"))
            layer = keras.layers.Dense(right // self._heads, use_bias=False, kernel_initializer=start, dtype=self.dtype_policy, name=f"head_{head}")
            layer.build((None, left // self._heads))
            self.stack.append(layer)
        self.built = True

    def step_weights(self, scoring: bool = False) -> list[LayerWeights]:
        """Return the current kernels."""
        return [weights_of(layer) for layer in self.stack]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return the kernels by name, `bilinear/0/kernel` for instance, in the order of `step_weights`."""
        return {f"{self.name}/{head}/kernel": layer.kernel for head, layer in enumerate(self.stack)}

    def forward(self, left: tf.Tensor, right: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Compute x `[b, d_1]`, z `[b, d_2]` -> `[b]` float32 with the given kernels; `slices` as in `dense.dense`."""
        dtype, count = weights[0].kernel.dtype, len(weights)
        pieces = tf.split(tf.cast(left, dtype), count, axis=1)
        products = [dense(piece, kernel, False, self._native, slices) for piece, kernel in zip(pieces, weights, strict=True)]
        return tf.reduce_sum(tf.cast(tf.concat(products, axis=1), tf.float32) * tf.cast(right, tf.float32), axis=1)

    def call(self, left, right):
        """Compute x `[b, d_1]`, z `[b, d_2]` -> `[b]` with the current kernels."""
        return self.forward(left, right, self.step_weights())
