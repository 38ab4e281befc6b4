"""The training step: forward, backward, and the updates of dense weights and table rows."""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from model.compilation import Compiled
from model.dlrm import DLRM
from model.layers.mlp import summed
from model.native import NativeOperations
from training.gradient_slices import keeps_order, parts
from training.report import StepReport, WorkerReport
from training.state import check_equal
from utils.distributed import pairwise_sum

NOTHING = Compiled()


class TensorBatch(NamedTuple):
    """A batch on the device; shapes as in `dataloading.batches.Batch`, numerical in float32, num_samples and out_of_range float32 scalars."""

    numerical: tf.Tensor
    ids: tf.Tensor
    local_ids: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor
    num_samples: tf.Tensor
    out_of_range: tf.Tensor


def to_device(batch) -> TensorBatch:
    """Copy a batch to the device; called from the prefetching thread, so that no step waits for it."""
    numerical = batch.numerical.astype(np.float32)  # oneDNN complains of float16 inputs, and M columns weigh little
    parts = (numerical, batch.ids, batch.local_ids, batch.labels, batch.weights, np.float32(batch.num_samples), np.float32(batch.out_of_range))
    return TensorBatch(*(tf.convert_to_tensor(part) for part in parts))


def dense_optimizer(name: str, beta1: float, beta2: float) -> keras.optimizers.Optimizer:
    """The Keras optimizer of the dense layers; the learning rate is set every step."""
    if name == "adam":
        return keras.optimizers.Adam(0.0, beta_1=beta1, beta_2=beta2)
    return {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad}[name](0.0)


class Trainer:
    """Trains a DLRM by one step at a time.

    The loss is the mean binary cross-entropy over the real samples of the global batch. Lookups and sparse updates
    are never compiled by XLA: they work on resources in place.

    Args:
        model: built.
        optimizer: of the dense weights.
        sparse_optimizer: of the tables, see `sparse_optimizers`; None freezes them.
        compiled: what XLA compiles.
        loss_scale: the loss is multiplied by this before the backward pass and gradients are divided by it (float16).
        gradient_slices: the global batch is cut into so many equal slices, whose gradients are summed in a fixed order. So the sums,
            bit by bit, are the same for every N that keeps the order, see `gradient_slices.keeps_order`; with another N each worker sums its own
            samples whole. It costs nothing at large batches (a slice's activations stay in the cache) and time at small ones.
        native: sums the slices' gradients; None for TensorFlow's own operations.
    """

    def __init__(
        self,
        model: DLRM,
        optimizer: keras.optimizers.Optimizer,
        sparse_optimizer,
        *,
        compiled: Compiled = NOTHING,
        loss_scale: float = 1.0,
        gradient_slices: int = 1,
        native: NativeOperations | None = None,
    ):
        self.model, self._optimizer, self._sparse_optimizer = model, optimizer, sparse_optimizer
        self.world = model.embedding.world
        self.rank = self.world.rank
        self._scale = loss_scale
        self._slices, self._native = gradient_slices, native
        self.scaled = loss_scale != 1
        self._variables = [*model.bottom_mlp.trainable_variables, *model.top_mlp.trainable_variables]
        optimizer.build(self._variables)
        if sparse_optimizer is not None:
            model.embedding.add_slots(sparse_optimizer)
        self._dense = tf.function(self._loss_and_gradients, jit_compile=compiled.dense or None)
        self._apply = tf.function(self._apply_gradients, jit_compile=compiled.optimizer or None)
        self._step = tf.function(self._whole_step)

    def step(self, batch: TensorBatch, step: int, learning_rate: float) -> tf.Tensor:
        """Train on a batch; returns its loss, a float32 scalar, perhaps still being computed."""
        return self.reporting_step(batch, step, learning_rate, WorkerReport())[0]

    def reporting_step(self, batch: TensorBatch, step: int, learning_rate: float, mine: WorkerReport) -> tf.Tensor:
        """Train on a batch.

        Args:
            batch: this worker's part of it.
            step: from 0.
            learning_rate: of this step.
            mine: what this worker tells the others; it travels with the dense gradients.

        Returns:
            a packed `StepReport`, perhaps still being computed; the same on every worker.
        """
        return self._step(batch, tf.constant(learning_rate, tf.float32), tf.constant(step, tf.int64), tf.constant(mine.pack(), tf.float32))

    def check_copies(self) -> None:
        """Check that what every worker holds a copy of is still the same everywhere. Raises DivergedError."""
        check_equal(self.model, self)

    def optimizer_variables(self) -> dict[str, tf.Variable]:
        """Slots of the dense optimizer by name; its learning rate and step are set every step and not among them."""
        return {str(i): variable.value for i, variable in enumerate(self._optimizer.variables) if len(variable.shape)}

    @property
    def table_slots(self) -> tuple[str, ...]:
        """Names of the slots that the sparse optimizer keeps for each table."""
        return () if self._sparse_optimizer is None else tuple(self._sparse_optimizer.slots)

    def start_at(self, step: int) -> None:
        """Continue with step `step`: the dense optimizer's own count, which Adam's bias correction uses."""
        self._optimizer.iterations.assign(step)

    def _loss_and_gradients(self, numerical, embeddings, labels, weights, num_samples, layers, slices):
        """Loss of a part of the batch, and its gradients by the embeddings and the layers' weights; `slices` as in `mlp.dense`."""
        by = [embeddings, *(value for layer in layers for value in (layer.kernel, layer.bias))]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(by)
            logits = self.model.dense(numerical, embeddings, layers, slices)
            # Slice by slice: the bits of exp and log depend on an element's place in its tensor.
            per_slice = (tf.split(part, slices or 1) for part in (logits, tf.cast(labels, tf.float32), weights))
            loss = pairwise_sum([_cross_entropy(*parts) / num_samples for parts in zip(*per_slice, strict=True)])
            scaled = loss * self._scale
        return loss, *tape.gradient(scaled, by)

    def _whole_step(self, batch: TensorBatch, learning_rate: tf.Tensor, step: tf.Tensor, mine: tf.Tensor) -> tf.Tensor:
        embedding, optimizer = self.model.embedding, self._sparse_optimizer
        vectors = embedding(batch.ids, batch.local_ids)
        loss, by_vector, gradients = self._by_slices(batch, vectors)
        gradients = [gradient / self._scale for gradient in gradients] if self.scaled else gradients
        replicated = []
        if optimizer is not None:
            count = self._count(vectors.shape[0])
            replicated = embedding.replicated_gradients(batch.local_ids, by_vector, self._scale, count)
        overflows = [_count_not_finite(part) for part in by_vector] if self.scaled else []  # what a worker sends for tables is in 16 bits
        summed = tf.concat([[loss], mine, overflows], axis=0)
        summed, *sums = self._sum_over_workers([summed, *gradients, *replicated], vectors.shape[0])
        self._apply(sums[: len(gradients)], learning_rate)
        if optimizer is not None:
            embedding.update(optimizer, batch.ids, by_vector, learning_rate, step, self._scale)
            embedding.update_replicated(optimizer, sums[len(gradients) :], learning_rate, step)
        loss, reports, overflows = tf.split(summed, [1, mine.shape[0], len(overflows)])
        return StepReport.pack(loss[0], self._all_finite(sums, overflows), reports)

    def _all_finite(self, sums: list[tf.Tensor], overflows: tf.Tensor) -> tf.Tensor:
        """1 where the summed gradients are finite and `overflows` are 0, else 0.

        Reading all of them takes 5% of a step of 128 samples. It needs a column of each kernel's gradient: an input that is not finite is
        in each of them, and what comes from above shows in the bias's gradient. With a loss scale single elements overflow: all are read.
        """
        if not self.scaled:
            sums = [gradient if len(gradient.shape) == 1 else gradient[:, 0] for gradient in sums]
        checked = tf.concat([tf.reshape(gradient, [-1]) for gradient in sums], axis=0)
        return tf.cast(tf.equal(_count_not_finite(checked) + tf.reduce_sum(overflows), 0), tf.float32)

    def _apply_gradients(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor) -> None:
        self._optimizer.learning_rate.assign(learning_rate)
        self._optimizer.apply(gradients, self._variables)

    def _by_slices(self, batch: TensorBatch, vectors: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Of this worker's samples: the loss, the gradient of the vectors part by part, and the gradients of the dense weights."""
        local_batch = vectors.shape[0]
        in_order = self._slices > 1 and self._ordered(local_batch)
        count, slices = parts(self._count(local_batch), local_batch) if in_order else (1, None)
        layers = self.model.step_weights()
        per_sample = (tf.split(part, count) for part in (batch.numerical, vectors, batch.labels, batch.weights))
        results = [self._dense(*parts, batch.num_samples, layers, slices) for parts in zip(*per_sample, strict=True)]
        loss, by_vector, *gradients = zip(*results, strict=True)
        return pairwise_sum(loss), list(by_vector), [summed(parts, self._native) for parts in gradients]

    def _count(self, local_batch: int) -> int:
        """Slices of this worker's samples."""
        return self._slices // self.world.size if self._ordered(local_batch) else 1

    def _ordered(self, local_batch: int) -> bool:
        """Whether the sums can be taken in the order that does not depend on N."""
        return keeps_order(self._slices, local_batch * self.world.size, self.world.size)

    def _sum_over_workers(self, tensors: list[tf.Tensor], local_batch: int) -> list[tf.Tensor]:
        """Sum float32 tensors over the workers, all in one vector. The loss is a mean over the global batch, so a sum is right."""
        if self.world.size == 1:
            return tensors
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        flat = self.world.sum_in_order(flat, "dense_gradients") if self._ordered(local_batch) else self.world.sum(flat, "dense_gradients")
        parts = tf.split(flat, [tensor.shape.num_elements() for tensor in tensors])
        return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Weighted sum of the binary cross-entropies."""
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits) * weights)


def _count_not_finite(values: tf.Tensor) -> tf.Tensor:
    """How many elements are not finite, as float32: it is summed with the gradients."""
    return tf.reduce_sum(tf.cast(tf.logical_not(tf.math.is_finite(values)), tf.float32))
