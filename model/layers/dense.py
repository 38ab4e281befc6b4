"""The dense layer that MLPs and cross layers are made of, and its weights as a step uses them."""

import hashlib
from typing import NamedTuple, Protocol

import keras
import tensorflow as tf

from model.native import NativeOperations, narrowed
from model.native_layers import Mask, PackedKernel
from model.ordered_sums import is_small, summed


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
    bias: tf.Tensor | None  # [out] float32; with batch normalisation, its beta
    transposed: tf.Tensor | None  # [out, in], the transposed kernel where products with it need a copy, else None
    gamma: tf.Tensor | None = None  # [out] float32, of the batch normalisation that follows; None without it
    epsilon: float = 0.0  # of the batch normalisation
    packed: PackedKernel | None = None  # the kernel for the processor's matrix tiles; None where TensorFlow computes the products

    @property
    def trained(self) -> tuple[tf.Tensor, ...]:
        """The weights that have a gradient, in the order of a layer's `dense_weights`: kernel, gamma, and bias or beta; only those there are."""
        return tuple(weight for weight in (self.kernel, self.gamma, self.bias) if weight is not None)


def weights_of(layer: keras.layers.Dense, native: NativeOperations | None = None) -> LayerWeights:
    """Return a layer's current weights."""
    bias = None if layer.bias is None else tf.convert_to_tensor(layer.bias.value)
    return prepared(layer.kernel.value, bias, layer.compute_dtype, native=native)


def prepared(
    kernel: tf.Tensor,
    bias: tf.Tensor | None,
    dtype: str,
    gamma: tf.Tensor | None = None,
    epsilon: float = 0.0,
    native: NativeOperations | None = None,
) -> LayerWeights:
    """Return weights as a step uses them, the kernel in the compute dtype; `native` casts it faster to 16 bits than TensorFlow."""
    by_tiles = native is not None and native.tiles and dtype != "float16"
    kernel = tf.convert_to_tensor(kernel)
    packed = native.products.packed(kernel, dtype) if by_tiles else None
    kernel = tf.cast(kernel, dtype) if native is None or dtype == "float32" else narrowed(native, kernel, dtype)
    transposed = tf.transpose(kernel) if kernel.dtype == tf.float32 and not by_tiles else None
    return LayerWeights(kernel, bias, transposed, gamma, epsilon, packed)


def dense(
    inputs: tf.Tensor, weights: LayerWeights, relu: bool, native: NativeOperations | None, slices: int | None = None, mask: Mask | None = None
) -> tf.Tensor:
    """Compute a dense layer, `[b, in] -> [b, out]`; outputs and gradients are bit-identical for any number of threads.

    Gradients: with respect to the inputs, in the compute dtype; to the kernel, in the compute dtype or, with `slices` or matrix tiles, in float32; to
    the bias, in float32. Without matrix tiles, the gradient in float32 with respect to the inputs is a product with a transposed copy of
    the kernel. Where oneDNN transposes by itself, it splits the sum over `out` between threads as soon as `out` is above 512 or so (seen with 1, 2, 4
    and 8 threads): workers that share a machine's cores would get other last bits than a single worker that has them all. In 16 bits it does not, and
    is faster than with a copy.

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
        if weights.packed is not None and biases and mask is None:
            outputs = native.products.product(inputs, weights.packed, *biases, relu)
        else:
            products = whole(products_of(inputs, kernel, weights, native, slices))
            outputs = _activated(products, *biases, relu, native, mask) if biases else products

        def gradient(upstream):
            scale = mask.scale if mask else 1.0
            masked, by_bias = _before_activation(upstream, outputs, relu, native, slices or 1, scale) if biases else (upstream, None)
            by_inputs, by_kernel = product_gradients(inputs, masked, kernel, weights, native, slices)
            return by_inputs, by_kernel, *([by_bias] if biases else [])

        return outputs, gradient

    return layer(inputs, *weights.trained)


def products_of(inputs: tf.Tensor, kernel: tf.Tensor, weights: LayerWeights, native: NativeOperations | None, slices: int | None) -> list[tf.Tensor]:
    """Multiply inputs by the kernel, `[b, in] -> [b, out]`; return the product in consecutive parts of equal size.

    By matrix tiles a sample's bits do not depend on the other samples.
    """
    if weights.packed is not None:
        return [native.products.product(inputs, weights.packed)]
    return _products(inputs, kernel, slices)


def _products(inputs: tf.Tensor, kernel: tf.Tensor, slices: int | None, transpose: bool = False) -> list[tf.Tensor]:
    """Multiply by TensorFlow.

    oneDNN splits the sum over `in` depending on the number of rows, too (in float32 with 1024 columns, from 128 rows on), so each slice is a product
    of its own. Small ones are computed as one batch of products, which takes two thirds of the time of eight single ones; a product's bits depend
    on its slice only there, too.
    """
    if slices is None:
        return [tf.matmul(inputs, kernel, transpose_b=transpose)]
    if not is_small(inputs.shape[0] // slices):
        return [tf.matmul(part, kernel, transpose_b=transpose) for part in cut(inputs, slices)]
    by_slice = tf.reshape(inputs, [slices, inputs.shape[0] // slices, inputs.shape[1]])
    products = tf.matmul(by_slice, kernel[tf.newaxis], transpose_b=transpose)
    return [tf.reshape(products, [inputs.shape[0], products.shape[2]])]


def product_gradients(
    inputs: tf.Tensor, upstream: tf.Tensor, kernel: tf.Tensor, weights: LayerWeights, native: NativeOperations | None, slices: int | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the gradients of a product with respect to its inputs, `[b, in]`, and to the kernel; arguments and dtypes as in `dense`.

    `upstream` is the gradient with respect to the product, `[b, out]`.
    """
    packed, count = weights.packed, slices or 1
    by_slice = list(zip(cut(inputs, count), cut(upstream, count), strict=True))
    if packed is not None:
        by_inputs = native.products.product(upstream, packed, transposed=True)
        if slices is None or is_small(inputs.shape[0] // slices):
            return by_inputs, native.products.by_kernel(inputs, upstream, count)
        return by_inputs, summed([native.products.by_kernel(*part) for part in by_slice], native)
    transposed = weights.transposed
    by_inputs = whole(_products(upstream, kernel if transposed is None else transposed, slices, transpose=transposed is None))
    by_kernel = [tf.matmul(x, y, transpose_a=True) for x, y in by_slice]
    return by_inputs, by_kernel[0] if slices is None else summed(by_kernel, native)


def _activated(products: tf.Tensor, bias: tf.Tensor, relu: bool, native: NativeOperations | None, mask: Mask | None) -> tf.Tensor:
    if mask is not None:
        return native.bias_relu_dropout(products, bias, mask)
    if relu and native is not None:
        return native.bias_relu(products, bias)
    outputs = tf.nn.bias_add(products, tf.cast(bias, products.dtype))
    return tf.maximum(outputs, 0) if relu else outputs  # not tf.nn.relu: TensorFlow fuses it into the product, which then turns NaN into 0


def _before_activation(
    upstream: tf.Tensor, outputs: tf.Tensor, relu: bool, native: NativeOperations | None, slices: int, scale: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the gradients with respect to the activation's input and, in float32, with respect to the bias."""
    if relu and native is not None:
        return native.relu_gradient(upstream, outputs, scale, slices)
    masked = tf.raw_ops.ReluGrad(gradients=upstream, features=outputs) if relu else upstream
    return masked, summed([tf.cast(tf.raw_ops.BiasAddGrad(out_backprop=part), tf.float32) for part in cut(masked, slices)], native)


def cut(values: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Cut samples into slices of equal size."""
    return [values] if count == 1 else tf.split(values, count)


def whole(parts: list[tf.Tensor]) -> tf.Tensor:
    """Join what `cut` has cut."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
