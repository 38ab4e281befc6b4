"""The dense part of a training step: the loss of this worker's samples, and its gradients by vectors and weights."""

import tensorflow as tf

from model.ordered_sums import OrderedSums, packed, pairwise_sum
from model.sharded_model import ShardedModel
from training.loss_scale import LossScale
from training.regularisation import Regularisation


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
        self._scaled, self._rank = scale.scales, model.embedding.world.rank
        self._part = tf.function(self._loss_and_gradients, autograph=False, jit_compile=by_slice or None)

    def _loss_and_gradients(self, numerical, embeddings, labels, weights, of_step, layers, first, slices):
        """Return a part's loss and its gradients by embeddings and weights, times the loss scale; `slices` as in `mlp.dense`."""
        step, num_samples, scale = of_step
        drop = self._regularisation.drop(step, first)
        by = [embeddings, *(value for layer in layers for value in layer.trained)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(by)
            logits = self._model.dense(numerical, embeddings, layers, slices, drop)
            # Slice by slice, because the last bits of exp and log depend on an element's position in its tensor.
            per_slice = (tf.split(part, slices or 1) for part in (logits, labels, weights))
            loss = pairwise_sum([_cross_entropy(*parts) / num_samples for parts in zip(*per_slice, strict=True)])
            scaled = loss * scale
        by_vectors, *by_layers = tape.gradient(scaled, by)
        return loss, self._regularisation.by_vectors(by_vectors, embeddings, weights, scale / num_samples), *by_layers

    def gradients(self, numerical, vectors, labels, weights, of_step, factor):
        """Return the loss of this worker's samples, and its gradients with respect to the vectors and to the dense weights.

        The loss is the first element of a vector; with a loss scale, its second element counts the vectors' gradients that are not finite. The
        vectors' gradients come in parts, multiplied by `factor` if `_folds` is set. The dense weights' gradients are packed if `_packs` is set.
        """
        layers, scale, firsts = self._model.step_weights(), of_step[2], self._regularisation.firsts(self._rank * labels.shape[0])
        loss, by_vector, gradients = self._sums.over_samples(
            lambda *part: self._part(*part[:-1], of_step, layers, firsts(part[0]), part[-1]), (numerical, vectors, labels, weights)
        )
        overflows = [count_not_finite(part) for part in by_vector] if self._scaled else []
        gradients = [gradient / scale for gradient in gradients] if self._scaled else gradients
        by_vector = [part * factor for part in by_vector] if self._folds else by_vector
        return tf.stack([loss, *([sum(overflows)] if overflows else [])]), by_vector, [packed(gradients)] if self._packs else gradients


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the weighted sum of the samples' binary cross-entropies."""
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits) * weights)


def count_not_finite(values: tf.Tensor) -> tf.Tensor:
    """Return the number of elements that are not finite, as float32, because it is summed together with the gradients."""
    return tf.reduce_sum(tf.cast(tf.logical_not(tf.math.is_finite(values)), tf.float32))
