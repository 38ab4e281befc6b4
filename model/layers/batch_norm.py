"""Batch normalisation (Ioffe and Szegedy, arXiv:1502.03167) between a layer's product and its ReLU, over the samples of all workers."""

from collections.abc import Mapping
from typing import NamedTuple

import keras
import tensorflow as tf

from model.layers.dense import LayerWeights, cut, prepared, product_gradients, products_of, whole
from model.native import NativeOperations
from model.native_layers import Mask, NormOperations
from model.ordered_sums import pairwise_sum
from utils.distributed import World


class Moments(NamedTuple):
    """The statistics of a layer's products in a batch, `[out]` float32: the mean, and the variance with n - 1 as its divisor."""

    mean: tf.Tensor
    variance: tf.Tensor


class BatchNorm:
    """The batch normalisation of all layers in one step, with the batch's own statistics.

    With x a layer's products `[b, out]`: outputs = relu(gamma z + beta), z = (x - mean) / sqrt(variance + epsilon), where mean and variance are those
    of the samples of the global batch, each as often as its weight says; the variance has n as its divisor. Padding has no part in them, and its
    gradient is 0. A batch of one sample has the variance 0, so its outputs are relu(beta).

    The sums over the samples are computed slice by slice, in float64, and added by the tree of `ordered_sums`, over the slices of a worker and then
    over the workers: two small exchanges a layer and step. So outputs and gradients have the same bits for every number of workers that keeps the
    order of sums.

    Args:
        weights: `[b]` float32, of the samples; 0 for padding.
        total: n, the sum of the weights of the global batch, which is the number of its samples where each counts once; a float32 scalar.
        slices: the number of equal slices that this worker's samples consist of; None for one sum over all of them.
        world: this worker and the collectives.

    Attributes:
        found: the statistics of each layer that has been computed, by its name.
    """

    def __init__(self, weights: tf.Tensor, total: tf.Tensor, slices: int | None, world: World):
        self._weights, self._slices, self._world = weights, slices, world
        self._count = tf.cast(total, tf.float64)
        self.found: dict[str, Moments] = {}

    def dense(self, inputs: tf.Tensor, weights: LayerWeights, name: str, native: NativeOperations | None, mask: Mask | None) -> tf.Tensor:
        """Compute a dense layer, its normalisation and a ReLU, `[b, in] -> [b, out]`; gradients as in `dense.dense`.

        Args:
            inputs: `[b, in]` in the compute dtype.
            weights: the layer's weights.
            name: the layer's name, `top_mlp/0` for instance.
            native: the C++ operations for the elementwise passes; None for TensorFlow's own operations.
            mask: the mask of the dropout that follows the ReLU, with `native` only.
        """
        passes = _Native(native.norm, mask) if native is not None else _Plain()
        count = self._slices or 1
        of_samples = cut(self._weights, count)

        @tf.custom_gradient
        def layer(inputs, kernel, gamma, beta):
            products = cut(whole(joined), count) if len(joined := products_of(inputs, kernel, weights, native, self._slices)) < count else joined
            mean, inverse = self._moments(products, of_samples, weights.epsilon, name, passes)
            by_deviation = tf.cast(gamma, tf.float64) * inverse  # gamma / sqrt(variance + epsilon)
            outputs = passes.outputs(products, _float32(mean, by_deviation, tf.cast(beta, tf.float64)))

            def gradient(upstream):
                rows = list(zip(cut(upstream, count), cut(outputs, count), products, of_samples, strict=True))
                sums = pairwise_sum([passes.gradient_sums(*part, tf.stack([mean, inverse])) for part in rows])
                of_all = tf.cast(self._over_workers(sums, f"batch_norm/{name}/gradient"), tf.float64) / self._count
                factors = _float32(mean, by_deviation, -by_deviation * of_all[1] * inverse, -by_deviation * of_all[0])
                before = [passes.gradient(*part, factors) for part in rows]
                by_inputs, by_kernel = product_gradients(inputs, whole(before), kernel, weights, native, self._slices)
                return by_inputs, by_kernel, sums[1], sums[0]

            return outputs, gradient

        return layer(inputs, *weights.trained)

    def _moments(self, products, of_samples, epsilon: float, name: str, passes: "_Native | _Plain") -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean and 1 / sqrt(variance + epsilon) of the products, `[out]` float64."""
        mine = pairwise_sum([passes.moments(*part) for part in zip(products, of_samples, strict=True)])
        sums = self._over_workers(mine, f"batch_norm/{name}/moments") / self._count
        mean = sums[0]
        variance = tf.maximum(sums[1] - mean * mean, 0.0)
        unbiased = variance * (self._count / tf.maximum(self._count - 1, 1))
        self.found[name] = Moments(tf.cast(mean, tf.float32), tf.cast(unbiased, tf.float32))
        return mean, 1 / tf.sqrt(variance + epsilon)

    def _over_workers(self, sums: tf.Tensor, name: str) -> tf.Tensor:
        """Sum over the workers by a tree in the order of ranks."""
        if self._world.size == 1:
            return sums
        everyone = self._world.all_gather(tf.reshape(sums, [1, *sums.shape]), name)
        return pairwise_sum([everyone[rank] for rank in range(self._world.size)])


def _float32(*rows: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.stack(rows), tf.float32)


class _Native(NamedTuple):
    """The passes over memory by the C++ operations."""

    native: NormOperations
    mask: Mask | None

    def moments(self, products, of_samples):
        """Return the sums of each column and of its squares over the real samples of a slice, `[2, out]` float64."""
        return self.native.column_moments(products, of_samples)

    def outputs(self, products, factors):
        """Return relu((products - factors[0]) * factors[1] + factors[2]) of all slices, `[b, out]`, with dropout."""
        return self.native.normalise_relu(products, factors, self.mask)

    def gradient_sums(self, upstream, outputs, products, of_samples, moments):
        """Return the gradients with respect to beta and gamma of a slice, `[2, out]` float32."""
        return self.native.normalise_gradient_sums((upstream, outputs, products, of_samples), moments, self._scale)

    def gradient(self, upstream, outputs, products, of_samples, factors):
        """Return the gradient with respect to the products of a slice, `[b, out]`."""
        return self.native.normalise_gradient((upstream, outputs, products, of_samples), factors, self._scale)

    @property
    def _scale(self) -> float:
        return self.mask.scale if self.mask else 1.0


class _Plain:
    """The same by TensorFlow's operations, which XLA can compile; without dropout, which then follows as an operation of its own."""

    def moments(self, products, of_samples):
        """See `_Native.moments`."""
        values = tf.cast(tf.where(of_samples[:, tf.newaxis] > 0, products, tf.zeros([], products.dtype)), tf.float64)
        weighted = values * tf.cast(of_samples, tf.float64)[:, tf.newaxis]
        return tf.stack([tf.reduce_sum(weighted, axis=0), tf.reduce_sum(weighted * values, axis=0)])

    def outputs(self, products, factors):
        """See `_Native.outputs`."""
        parts = [tf.maximum((tf.cast(part, tf.float32) - factors[0]) * factors[1] + factors[2], 0) for part in products]
        return tf.cast(whole(parts), products[0].dtype)

    def gradient_sums(self, upstream, outputs, products, of_samples, moments):
        """See `_Native.gradient_sums`."""
        before = tf.cast(self._before_relu(upstream, outputs, of_samples), tf.float64)
        normalised = tf.where(of_samples[:, tf.newaxis] > 0, (tf.cast(products, tf.float64) - moments[0]) * moments[1], 0.0)
        return _float32(tf.reduce_sum(before, axis=0), tf.reduce_sum(before * normalised, axis=0))

    def gradient(self, upstream, outputs, products, of_samples, factors):
        """See `_Native.gradient`."""
        of_moments = (tf.cast(products, tf.float32) - factors[0]) * factors[2] + factors[3]
        found = self._before_relu(upstream, outputs, of_samples) * factors[1] + of_samples[:, tf.newaxis] * of_moments
        return tf.cast(tf.where(of_samples[:, tf.newaxis] > 0, found, 0.0), upstream.dtype)

    def _before_relu(self, upstream, outputs, of_samples) -> tf.Tensor:
        masked = tf.raw_ops.ReluGrad(gradients=upstream, features=outputs)
        return tf.where(of_samples[:, tf.newaxis] > 0, tf.cast(masked, tf.float32), 0.0)


def with_norm(layer: keras.layers.Dense, norm: keras.layers.BatchNormalization, native: NativeOperations | None = None) -> LayerWeights:
    """Return the current weights of a layer that is normalised by the batch's statistics, as training computes it."""
    gamma, beta = (tf.convert_to_tensor(weight.value) for weight in (norm.gamma, norm.beta))
    return prepared(layer.kernel.value, beta, layer.compute_dtype, gamma, norm.epsilon, native)


def folded(layer: keras.layers.Dense, norm: keras.layers.BatchNormalization, native: NativeOperations | None = None) -> LayerWeights:
    """Return the weights of the plain layer that gives the same outputs as one normalised by the moving statistics, for scoring."""
    gamma, beta, mean, variance = (tf.cast(weight.value, tf.float64) for weight in (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance))
    scale = gamma / tf.sqrt(variance + norm.epsilon)
    kernel = tf.cast(layer.kernel.value, tf.float32) * tf.cast(scale, tf.float32)
    return prepared(kernel, tf.cast(beta - mean * scale, tf.float32), layer.compute_dtype, native=native)


def follow(norms: Mapping[str, keras.layers.BatchNormalization], found: Mapping[str, Moments], num_samples: tf.Tensor) -> None:
    """Move the moving statistics towards a batch's, as PyTorch does: m = momentum m + (1 - momentum) batch.

    The moving variance takes the variance with n - 1 as its divisor, so a batch of one sample, which has none, leaves both as they are.
    """
    for name, norm in norms.items():
        for moving, batch in zip((norm.moving_mean, norm.moving_variance), found[name], strict=True):
            moved = norm.momentum * moving.value + (1 - norm.momentum) * batch
            moving.value.assign(tf.where(num_samples > 1, moved, moving.value))
