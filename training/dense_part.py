"""The dense part of a training step: the loss of this worker's samples, and its gradients by vectors and weights."""

from typing import NamedTuple

import tensorflow as tf

from model.compilation import on_gpu
from model.layers.batch_norm import BatchNorm, Moments
from model.ordered_sums import OrderedSums, packed, pairwise_sum
from model.sharded_model import ShardedModel
from training.loss_scale import LossScale
from training.regularisation import Regularisation


class DenseGradients(NamedTuple):
    """The results of a worker's samples.

    Attributes:
        own: the loss; with a loss scale, then the number of the vectors' gradients that are not finite.
        by_vector: the gradients with respect to the vectors, in consecutive parts.
        by_weights: those with respect to the dense weights, in float32.
        moments: the statistics of the layers with batch normalisation, by their names.
        seconds: how long the exchanges of statistics took, where it is measured.
    """

    own: tf.Tensor
    by_vector: list[tf.Tensor]
    by_weights: list[tf.Tensor]
    moments: dict[str, Moments]
    seconds: list[tf.Tensor]


class DensePart:
    """Forward and backward pass of everything after the lookup.

    Args:
        model: the model, built.
        scale: the loss scale.
        regularisation: the terms that are minimised beside the loss, and dropout.
        sums: adds the gradients of the slices.
        folds: multiply the vectors' gradients by the factor that the tables' update would have to apply.
        packs: return the dense weights' gradients as a single vector.
        by_slice: XLA compiles the part for each slice.
    """

    def __init__(
        self, model: ShardedModel, scale: LossScale, regularisation: Regularisation, sums: OrderedSums, *, folds: bool, packs: bool, by_slice: bool
    ):
        self._model, self._regularisation, self._sums, self._folds, self._packs = model, regularisation, sums, folds, packs
        self._scaled, self._world, self._normalises = scale.scales, model.embedding.world, bool(model.normalisations)
        part = self._with_norm if self._normalises else self._loss_and_gradients
        self._part = tf.function(part, autograph=False, jit_compile=by_slice or None)

    def _loss_and_gradients(self, samples, of_step, layers, first, slices, norm=None):
        """Return a part's loss and its gradients by embeddings and weights, times the loss scale; `slices` as in `dense.dense`."""
        (numerical, embeddings, labels, weights), (step, num_samples, scale) = samples, of_step
        drop = self._regularisation.drop(step, first)
        by = [embeddings, *(value for layer in layers for value in layer.trained)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(by)
            logits = self._model.dense(numerical, embeddings, layers, slices, drop, *([norm] if norm else []))
            # Slice by slice, because the last bits of exp and log depend on an element's position in its tensor.
            per_slice = (tf.split(part, slices or 1) for part in (logits, labels, weights))
            loss = pairwise_sum([_cross_entropy(*parts) / num_samples for parts in zip(*per_slice, strict=True)])
            scaled = loss * scale
        by_vectors, *by_layers = tape.gradient(scaled, by)
        return loss, self._regularisation.by_vectors(by_vectors, embeddings, weights, scale / num_samples), *by_layers

    def _with_norm(self, samples, of_step, layers, first, slices):
        """Return the result of `_loss_and_gradients` for all slices at once, the moments by layer, and the seconds of the exchanges."""
        norm = BatchNorm(samples[3], of_step[1], slices, self._world)
        with self._world.timed(on_gpu()) as seconds:
            found = self._loss_and_gradients(samples, of_step, layers, first, slices, norm)
        return found, norm.found, list(seconds)

    def gradients(self, numerical, vectors, labels, weights, of_step, factor) -> DenseGradients:
        """Return the loss of this worker's samples, and its gradients with respect to the vectors and to the dense weights.

        Those with respect to the vectors are multiplied by `factor` if `_folds` is set; those to the dense weights are packed if `_packs` is set.
        """
        layers, scale, local_batch = self._model.step_weights(), of_step[2], labels.shape[0]
        firsts, per_sample = self._regularisation.firsts(self._world.rank * local_batch), (numerical, vectors, labels, weights)
        moments, seconds = {}, []
        if self._normalises:
            found, moments, seconds = self._part(per_sample, of_step, layers, firsts(labels), self._sums.slices(local_batch))
            loss, by_vector, gradients = found[0], [found[1]], [tf.cast(gradient, tf.float32) for gradient in found[2:]]
        else:
            loss, by_vector, gradients = self._sums.over_samples(
                lambda *part: self._part(part[:-1], of_step, layers, firsts(part[0]), part[-1]), per_sample
            )
        overflows = [count_not_finite(part) for part in by_vector] if self._scaled else []
        gradients = [gradient / scale for gradient in gradients] if self._scaled else gradients
        by_vector = [part * factor for part in by_vector] if self._folds else by_vector
        own = tf.stack([loss, *([sum(overflows)] if overflows else [])])
        return DenseGradients(own, by_vector, [packed(gradients)] if self._packs else gradients, moments, seconds)


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the weighted sum of the samples' binary cross-entropies."""
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits) * weights)


def count_not_finite(values: tf.Tensor) -> tf.Tensor:
    """Return the number of elements that are not finite, as float32, because it is summed together with the gradients."""
    return tf.reduce_sum(tf.cast(tf.logical_not(tf.math.is_finite(values)), tf.float32))
