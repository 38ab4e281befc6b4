"""Multi-layer perceptrons, and the dense layer they are made of."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import keras
import tensorflow as tf

from model.native import Mask, NativeOperations
from model.ordered_sums import summed


def layer_seed(seed: int, name: str) -> int:
    """Return a weight's own seed, the same on every worker: 31 bits of a hash of (seed, name)."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little") >> 1


class Drop(Protocol):
    """Dropout of some samples in a step; called with a layer's outputs and name."""

    def __call__(self, values: tf.Tensor, layer: str) -> tf.Tensor:
        """Apply dropout to a layer's outputs, `[b, units]`."""

    def mask(self, layer: str) -> Mask:
        """Return a layer's mask for the C++ operations."""


class LayerWeights(NamedTuple):
    """A layer's weights as a step uses them, prepared once for all slices of the batch."""

    kernel: tf.Tensor  # [in, out] in the compute dtype
    bias: tf.Tensor | None  # [out] float32
    transposed: tf.Tensor | None  # [out, in], the transposed kernel if it is float32, else None

    @property
    def trained(self) -> tuple[tf.Tensor, ...]:
        """The weights that have a gradient: the kernel, and the bias if there is one."""
        return (self.kernel,) if self.bias is None else (self.kernel, self.bias)


def weights_of(layer: keras.layers.Dense) -> LayerWeights:
    """Return a layer's current weights."""
    kernel = tf.cast(layer.kernel.value, layer.compute_dtype)
    bias = None if layer.bias is None else tf.convert_to_tensor(layer.bias.value)
    return LayerWeights(kernel, bias, tf.transpose(kernel) if kernel.dtype == tf.float32 else None)


def dense(
    inputs: tf.Tensor, weights: LayerWeights, relu: bool, native: NativeOperations | None, slices: int | None = None, mask: Mask | None = None
) -> tf.Tensor:
    """Compute a dense layer, `[b, in] -> [b, out]`; outputs and gradients are bit-identical for any number of threads.

    Gradients: with respect to the inputs, in the compute dtype; to the kernel, in the compute dtype or, with `slices`, in float32; to the bias, in
    float32. In float32 the gradient with respect to the inputs is a product with a transposed copy of the kernel. Where oneDNN transposes by itself,
    it splits the sum over `out` between threads as soon as `out` is above 512 or so (seen with 1, 2, 4 and 8 threads): workers that share a machine's
    cores would get other last bits than a single worker that has them all. In 16 bits it does not, and is faster than with a copy.

    Args:
        inputs: `[b, in]`.
        weights: the layer's weights.
        relu: whether a ReLU follows, which needs a bias.
        native: the C++ operations for the elementwise passes; None for TensorFlow's own operations.
        slices: the number of equal slices that the inputs consist of. A sample's bits depend on its slice's shape only; the gradients of the weights
            are computed slice by slice and summed pairwise. None for one sum over all samples.
        mask: the mask of the dropout that follows the ReLU, with `native` only.
    """

    @tf.custom_gradient
    def layer(inputs, kernel, *biases):
        products = _product(inputs, kernel, slices)
        outputs = _activated(products, *biases, relu, native, mask) if biases else products

        def gradient(upstream):
            second = kernel if weights.transposed is None else weights.transposed
            scale = mask.scale if mask else 1.0
            masked, by_bias = (
                _before_activation(upstream, outputs, relu, native, slices or 1, scale) if biases else (_slices(upstream, slices or 1), [])
            )
            by_inputs = _product(_whole(masked), second, slices, transpose=weights.transposed is None)
            by_kernel = [tf.matmul(x, y, transpose_a=True) for x, y in zip(_slices(inputs, len(masked)), masked, strict=True)]
            return by_inputs, by_kernel[0] if slices is None else summed(by_kernel, native), *([summed(by_bias, native)] if biases else [])

        return outputs, gradient

    return layer(inputs, *weights.trained)


def _product(inputs: tf.Tensor, kernel: tf.Tensor, slices: int | None, transpose: bool = False) -> tf.Tensor:
    """Multiply inputs by the kernel, `[b, in] -> [b, out]`.

    oneDNN splits the sum over `in` depending on the number of rows, too (in float32 with 1024 columns, from 128 rows on). In a batch of one product
    for each slice, a product's bits depend on its slice only; and a batch of eight small products takes two thirds of the time of eight single ones.
    """
    if slices is None:
        return tf.matmul(inputs, kernel, transpose_b=transpose)
    by_slice = tf.reshape(inputs, [slices, inputs.shape[0] // slices, inputs.shape[1]])
    products = tf.matmul(by_slice, kernel[tf.newaxis], transpose_b=transpose)
    return tf.reshape(products, [inputs.shape[0], products.shape[2]])


def _activated(products: tf.Tensor, bias: tf.Tensor, relu: bool, native: NativeOperations | None, mask: Mask | None) -> tf.Tensor:
    if mask is not None:
        return native.bias_relu_dropout(products, bias, mask)
    if relu and native is not None:
        return native.bias_relu(products, bias)
    outputs = tf.nn.bias_add(products, tf.cast(bias, products.dtype))
    return tf.maximum(outputs, 0) if relu else outputs  # not tf.nn.relu: TensorFlow fuses it into the product, which then turns NaN into 0


def _before_activation(
    upstream: tf.Tensor, outputs: tf.Tensor, relu: bool, native: NativeOperations | None, slices: int, scale: float
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Return, slice by slice, the gradients with respect to the activation's input and, in float32, with respect to the bias."""
    parts = _slices(upstream, slices)
    if relu and native is not None:
        pairs = [native.relu_gradient(part, y, scale) for part, y in zip(parts, _slices(outputs, slices), strict=True)]
        return [masked for masked, _ in pairs], [by_bias for _, by_bias in pairs]
    if relu:
        parts = _slices(tf.raw_ops.ReluGrad(gradients=upstream, features=outputs), slices)
    return parts, [tf.cast(tf.raw_ops.BiasAddGrad(out_backprop=part), tf.float32) for part in parts]


def _slices(values: tf.Tensor, count: int) -> list[tf.Tensor]:
    return [values] if count == 1 else tf.split(values, count)


def _whole(parts: list[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


class Start(NamedTuple):
    """Initializers of a layer's weights: functions of a seed; the bias initializer also takes the layer's width."""

    kernel: Callable[[int], keras.Initializer]
    bias: Callable[[int, int], keras.Initializer]


GLOROT_NORMAL = Start(keras.initializers.GlorotNormal, lambda seed, width: keras.initializers.RandomNormal(0.0, math.sqrt(1 / width), seed))


class Mlp(keras.layers.Layer):
    """Dense layers with ReLU between them (Naumov et al., arXiv:1906.00091, section 2.1).

    `[b, in] -> [b, units[-1]]`. By default kernels are initialised Glorot normal, and biases normal with standard deviation sqrt(1/out).

    Args:
        units: the width of each layer.
        final_activation: "relu", or None for logits; a final layer without activation computes in float32, because
            bfloat16 logits tie with each other.
        seed: the seed of the weights, see `layer_seed`.
        name: "bottom_mlp" or "top_mlp" for instance; the weights' seeds depend on it.
        dtype: Keras dtype policy, "float32" or "mixed_bfloat16" for instance.
        native: the C++ operations for the elementwise passes; None for TensorFlow's own operations.
        start: the initializers of the weights.

    Attributes:
        beside: number of columns that the last layer reads before the hidden layers' output, see `forward`; set it before `build`.

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
        start: Start = GLOROT_NORMAL,
    ):
        super().__init__(name=name, dtype=dtype)
        if not units or min(units) < 1:
            raise ValueError(f"units: expected one or more positive layer widths, received {list(units)}")
        self._native, self.beside = native, 0
        self.stack: list[keras.layers.Dense] = []  # they hold variables and dtypes only; `forward` computes
        for i, width in enumerate(units):
            last = i == len(units) - 1
            activation = final_activation if last else "relu"
            self.stack.append(
                keras.layers.Dense(
                    width,
                    activation=activation,
                    kernel_initializer=start.kernel(layer_seed(seed, f"{name}/{i}/kernel")),
                    bias_initializer=start.bias(layer_seed(seed, f"{name}/{i}/bias"), width),
                    dtype="float32" if last and activation is None else dtype,
                    name=f"dense_{i}",
                )
            )

    def build(self, input_shape):
        """Create the weights for inputs `[b, in]`."""
        for layer in self.stack:
            if layer is self.stack[-1]:
                input_shape = (*input_shape[:-1], self.beside + input_shape[-1])
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def compute_output_shape(self, input_shape):
        """Return the output's shape, `[b, units[-1]]`."""
        return (*input_shape[:-1], self.stack[-1].units)

    def step_weights(self) -> list[LayerWeights]:
        """Return the current weights of every layer."""
        return [weights_of(layer) for layer in self.stack]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return every weight by name, `bottom_mlp/0/kernel` for instance, in the order of `step_weights`."""
        return {f"{self.name}/{i}/{kind}": getattr(layer, kind) for i, layer in enumerate(self.stack) for kind in ("kernel", "bias")}

    def forward(
        self,
        inputs: tf.Tensor,
        weights: Sequence[LayerWeights],
        slices: int | None = None,
        drop: Drop | None = None,
        beside: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Compute `[b, in] -> [b, units[-1]]` with the given weights.

        Args:
            inputs: `[b, in]`.
            weights: the layers' weights.
            slices: as in `dense`.
            drop: the dropout of each hidden layer's outputs.
            beside: columns `[b, w]` that the last layer reads before the hidden layers' output; w is the attribute `beside`.
        """
        for i, (layer, values) in enumerate(zip(self.stack, weights, strict=True)):
            if beside is not None and layer is self.stack[-1]:
                inputs = tf.concat([beside, tf.cast(inputs, beside.dtype)], axis=1)
            dropped, name = drop is not None and i < len(self.stack) - 1, f"{self.name}/{i}"
            mask = drop.mask(name) if dropped and self._native is not None else None
            inputs = dense(tf.cast(inputs, values.kernel.dtype), values, layer.activation is keras.activations.relu, self._native, slices, mask)
            if dropped and mask is None:
                inputs = drop(inputs, name)
        return inputs

    def call(self, inputs):
        """Compute `[b, in] -> [b, units[-1]]` with the current weights."""
        return self.forward(inputs, self.step_weights())
