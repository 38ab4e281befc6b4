"""The multi-layer perceptrons of DLRM."""

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from model.native import NativeOperations


def layer_seed(seed: int, name: str) -> int:
    """A seed of a weight of its own, the same on every worker: 31 bits of a hash of (seed, name)."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little") >> 1


class LayerWeights(NamedTuple):
    """A layer's weights as a step uses them, made once for all slices of the batch."""

    kernel: tf.Tensor  # [in, out] in the compute dtype
    bias: tf.Tensor  # [out] float32
    transposed: tf.Tensor | None  # [out, in], the float32 kernel's


def dense(inputs: tf.Tensor, weights: LayerWeights, relu: bool, native: NativeOperations | None) -> tf.Tensor:
    """`[b, in] -> [b, out]`; the same bits, and gradients of the same bits, whatever the number of threads.

    Gradients: of the inputs and the kernel in the compute dtype, of the bias in float32. In float32 the gradient by the inputs is a product
    with a transposed copy of the kernel. Asked to transpose itself, oneDNN cuts the sum over `out` where the threads are cut as soon as `out`
    is above 512 or so (seen with 1, 2, 4 and 8 threads): workers that share a machine's cores would get other last bits than one worker
    that has them all. In 16 bits it does not, and is faster so.
    """

    @tf.custom_gradient
    def layer(inputs, kernel, bias):
        products = tf.matmul(inputs, kernel)
        if relu and native is not None and kernel.dtype != tf.float32:
            outputs = native.bias_relu(products, bias)
        else:
            outputs = tf.nn.bias_add(products, tf.cast(bias, kernel.dtype))
            outputs = tf.nn.relu(outputs) if relu else outputs

        def gradient(upstream):
            by_bias = None
            if relu and native is not None:
                upstream, by_bias = native.relu_gradient(upstream, outputs)
            elif relu:
                upstream = tf.raw_ops.ReluGrad(gradients=upstream, features=outputs)
            if by_bias is None:
                by_bias = tf.cast(tf.raw_ops.BiasAddGrad(out_backprop=upstream), tf.float32)
            second = kernel if weights.transposed is None else weights.transposed
            by_inputs = tf.matmul(upstream, second, transpose_b=weights.transposed is None)
            return by_inputs, tf.matmul(inputs, upstream, transpose_a=True), by_bias

        return outputs, gradient

    return layer(inputs, weights.kernel, weights.bias)


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
        native: makes the elementwise passes of the backward pass; None for TensorFlow's own operations.

    Raises:
        ValueError: `units` is empty or holds a width below 1.
    """

    def __init__(
        self,
        units: Sequence[int],
        final_activation: str | None,
        seed: int,
        name: str,
        dtype: str = "float32",
        native: NativeOperations | None = None,
    ):
        super().__init__(name=name, dtype=dtype)
        if not units or min(units) < 1:
            raise ValueError(f"units: expected one or more positive layer widths, received {list(units)}")
        self._native = native
        self.stack: list[keras.layers.Dense] = []  # their variables and dtypes; `forward` computes
        for i, width in enumerate(units):
            last = i == len(units) - 1
            activation = final_activation if last else "relu"
            self.stack.append(
                keras.layers.Dense(
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

    def step_weights(self) -> list[LayerWeights]:
        """The weights of every layer as they are now."""
        weights = []
        for layer in self.stack:
            kernel = tf.cast(layer.kernel.value, layer.compute_dtype)
            transposed = tf.transpose(kernel) if kernel.dtype == tf.float32 else None
            weights.append(LayerWeights(kernel, tf.convert_to_tensor(layer.bias.value), transposed))
        return weights

    def forward(self, inputs: tf.Tensor, weights: Sequence[LayerWeights]) -> tf.Tensor:
        """`[b, in] -> [b, units[-1]]` with the given weights."""
        for layer, values in zip(self.stack, weights, strict=True):
            inputs = dense(tf.cast(inputs, values.kernel.dtype), values, layer.activation is keras.activations.relu, self._native)
        return inputs

    def call(self, inputs):
        """`[b, in] -> [b, units[-1]]`."""
        return self.forward(inputs, self.step_weights())
