"""The bilinear layer that fuses the two streams of FinalMLP."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from model.layers.dense import LayerWeights, layer_seed, weights_of
from model.native import NativeOperations
from model.ordered_sums import summed


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
        return [weights_of(layer) for layer in self.stack]  # without the forms for matrix tiles, which `forward` does not use

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return the kernels by name, `bilinear/0/kernel` for instance, in the order of `step_weights`."""
        return {f"{self.name}/{head}/kernel": layer.kernel for head, layer in enumerate(self.stack)}

    def forward(self, left: tf.Tensor, right: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Compute x `[b, d_1]`, z `[b, d_2]` -> `[b]` float32 with the given kernels; `slices` as in `dense.dense`."""
        kernels = tf.stack([one.kernel for one in weights])
        dtype, heads, parts = kernels.dtype, len(weights), slices or 1

        def by_head(values: tf.Tensor) -> tf.Tensor:
            of_slices = tf.reshape(values, [parts, -1, heads, values.shape[1] // heads])
            return tf.reshape(tf.transpose(of_slices, [0, 2, 1, 3]), [parts * heads, -1, values.shape[1] // heads])

        def by_sample(values: tf.Tensor) -> tf.Tensor:
            of_slices = tf.reshape(values, [parts, heads, -1, values.shape[2]])
            return tf.reshape(tf.transpose(of_slices, [0, 2, 1, 3]), [-1, heads * values.shape[2]])

        @tf.custom_gradient
        def projected(left, kernels):
            # A kernel for each product: with [parts, heads, …] times [1, heads, …] oneDNN reads past a tensor's end where heads is 1 (2.21).
            inputs, of_all = by_head(left), tf.tile(kernels, [parts, 1, 1])

            def gradient(upstream):
                of_heads = by_head(upstream)
                by_kernels = tf.split(tf.matmul(inputs, of_heads, transpose_a=True), parts)
                by_inputs = by_sample(tf.matmul(of_heads, of_all, transpose_b=True))
                return by_inputs, by_kernels[0] if slices is None else summed(by_kernels, self._native)

            return by_sample(tf.matmul(inputs, of_all)), gradient

        products = projected(tf.cast(left, dtype), kernels)
        return tf.reduce_sum(tf.cast(products, tf.float32) * tf.cast(right, tf.float32), axis=1)

    def call(self, left, right):
        """Compute x `[b, d_1]`, z `[b, d_2]` -> `[b]` with the current kernels."""
        return self.forward(left, right, self.step_weights())
