"""The multi-layer perceptrons of DLRM."""

import hashlib
import math
from collections.abc import Sequence

import keras
import tensorflow as tf

_COLUMNS_SUMMED_AT_ONCE = 512


def layer_seed(seed: int, name: str) -> int:
    """A seed of a weight of its own, the same on every worker: 31 bits of a hash of (seed, name)."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little") >> 1


@tf.custom_gradient
def product(inputs: tf.Tensor, kernel: tf.Tensor):
    """`[b, in] x [in, out] -> [b, out]`; the same bits whatever the number of threads.

    TensorFlow's gradient by the inputs is one product over `out`. In float32, oneDNN cuts that sum where the threads are cut as soon as
    `out` is above 512 or so (seen with 1, 2, 4 and 8 threads), so workers that share a machine's cores would get other last
    bits than one worker that has them all. Sums over at most 512 columns do not depend on the threads.
    """

    def gradient(upstream):
        width = kernel.shape[1]
        starts = range(0, width, _COLUMNS_SUMMED_AT_ONCE if inputs.dtype == tf.float32 else width)
        parts = [
            tf.matmul(upstream[:, i : i + _COLUMNS_SUMMED_AT_ONCE], kernel[:, i : i + _COLUMNS_SUMMED_AT_ONCE], transpose_b=True)
            if len(starts) > 1
            else tf.matmul(upstream, kernel, transpose_b=True)
            for i in starts
        ]
        return tf.add_n(parts), tf.matmul(inputs, upstream, transpose_a=True)

    return tf.matmul(inputs, kernel), gradient


class ReproducibleDense(keras.layers.Dense):
    """`keras.layers.Dense` on `[b, in]` with `product` for its matrix product."""

    def call(self, inputs):
        """`[b, in] -> [b, units]`."""
        outputs = tf.nn.bias_add(product(inputs, tf.convert_to_tensor(self.kernel)), tf.convert_to_tensor(self.bias))
        return outputs if self.activation is None else self.activation(outputs)


class Mlp(keras.layers.Layer):
    """Dense layers with ReLU between them (Naumov et al., arXiv:1906.00091, section 2.1).

    `[b, in] -> [b, units[-1]]`. Kernels start Glorot normal, biases normal with standard deviation sqrt(1/out).

    Args:
        units: width of each layer.
        final_activation: "relu", or None for logits; a final layer without activation computes in float32, because
            bfloat16 logits tie with each other.
        seed: of the weights, see `layer_seed`.
        name: "bottom_mlp" or "top_mlp"; the weights' seeds depend on it.
        dtype: Keras dtype policy, "float32" or "mixed_bfloat16" for instance.

    Raises:
        ValueError: `units` is empty or holds a width below 1.
    """

    def __init__(self, units: Sequence[int], final_activation: str | None, seed: int, name: str, dtype: str = "float32"):
        super().__init__(name=name, dtype=dtype)
        if not units or min(units) < 1:
            raise ValueError(f"units: expected one or more positive layer widths, received {list(units)}")
        self.stack = []
        for i, width in enumerate(units):
            last = i == len(units) - 1
            activation = final_activation if last else "relu"
            self.stack.append(
                ReproducibleDense(
                    width,
                    activation=activation,
                    kernel_initializer=keras.initializers.GlorotNormal(layer_seed(seed, f"{name}/{i}/kernel")),
                    bias_initializer=keras.initializers.RandomNormal(0.0, math.sqrt(1 / width), layer_seed(seed, f"{name}/{i}/bias")),
                    dtype="float32" if last and activation is None else dtype,
                    name=f"dense_{i}",
                )
            )

    def build(self, input_shape):
        """Create the weights for inputs `[b, in]`."""
        for layer in self.stack:
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def compute_output_shape(self, input_shape):
        """`[b, units[-1]]`."""
        return (*input_shape[:-1], self.stack[-1].units)

    def call(self, inputs):
        """`[b, in] -> [b, units[-1]]`."""
        for layer in self.stack:
            inputs = layer(inputs)
        return inputs
