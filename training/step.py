"""The training step: forward, backward, and the updates of dense weights and table rows."""

from collections.abc import Sequence

import tensorflow as tf

from model.compilation import Compiled, on_gpu
from model.embedding.distributed import GroupUpdate
from model.native import NativeOperations
from model.ordered_sums import OrderedSums
from model.sharded_model import ShardedModel
from training.clipping import Clipping
from training.dense_part import DensePart, count_not_finite
from training.dense_update import DenseUpdate
from training.device_batch import StepInputs, TensorBatch
from training.groups import Groups
from training.norms import GradientSquares, measures
from training.regularisation import NO_REGULARISATION, Regularisation
from training.report import StepReport, WorkerReport
from training.state import check_equal
from training.touched import Touched
from training.traced import TracedStep

NOTHING = Compiled()


class Trainer:
    """Trains a model, one step at a time.

    The loss is the mean binary cross-entropy over the real samples of the global batch. Each worker computes its samples' share of this mean, so
    losses and gradients are summed over workers, not averaged. XLA never compiles lookups and sparse updates: they work on resources in place.

    Args:
        model: the model, built.
        groups: the groups of weights, with their optimizers and the loss scale; the tables' slots are allocated here.
        compiled: the parts that XLA compiles.
        gradient_slices: the number of slices of the global batch, see `ordered_sums`: free at large ones, slower at small ones.
        native: the C++ operations that sum the slices' gradients; None for TensorFlow's own operations.
        regularisation: the terms that are minimised beside the loss, and dropout.
        norms: build a step that can measure the gradients of each group of weights.

    Attributes:
        touched: the rows touched so far in the run.
    """

    def __init__(
        self,
        model: ShardedModel,
        groups: Groups,
        *,
        compiled: Compiled = NOTHING,
        gradient_slices: int = 1,
        native: NativeOperations | None = None,
        regularisation: Regularisation = NO_REGULARISATION,
        norms: bool = False,
    ):
        self.model, self.groups, self.world, self.rank = model, groups, model.embedding.world, model.embedding.world.rank
        self.touched = Touched(model.embedding)
        self._scale, self._norms, self.scaled = groups.scale, norms, groups.scale.scales
        for tables in groups.tables:
            model.embedding.add_slots(tables.rule, tables.name)
        # On a single GPU the dense part multiplies the vectors' gradients by the factors that the tables' update would have to apply.
        self._clipping = Clipping(groups.clip_norm, self.world) if groups.clip_norm else None
        self._folds = on_gpu() and self.world.size == 1 and not model.embedding.replicated and self._clipping is None
        # With slices XLA compiles the part for one: eight would take eight times as long. With batch normalisation they are computed together.
        together = gradient_slices == 1 or bool(model.normalisations)
        self._sums = OrderedSums(gradient_slices, self.world, None if compiled.dense and together else native)  # XLA compiles no C++ operation
        packs = compiled.dense and together and self.world.size > 1  # the compiled parts pass dense gradients as a single vector
        self._update = DenseUpdate(model, groups, regularisation, packs)
        ways = {"folds": self._folds, "packs": packs, "by_slice": compiled.dense and not together}
        self.dense_part = DensePart(model, groups.scale, regularisation, self._sums, **ways).gradients
        self._dense = tf.function(self.dense_part, autograph=False, jit_compile=(compiled.dense and together) or None)
        self._check = tf.function(self._all_finite, autograph=False, jit_compile=compiled.optimizer or None)
        self._apply = tf.function(self._apply_gradients, autograph=False, jit_compile=compiled.optimizer or None)
        self._step = TracedStep(self._whole_step, self.groups.num_rates + 2 + len(WorkerReport().pack()) + int(norms))

    def step(self, batch: TensorBatch, step: int, learning_rate: float | Sequence[float]) -> tf.Tensor:
        """Train on a batch; return its loss, a float32 scalar that the device may still be computing."""
        self.reporting_step(batch, step, learning_rate, WorkerReport())
        return self._loss

    def reporting_step(
        self, batch: TensorBatch, step: int, learning_rate: float | Sequence[float], mine: WorkerReport, measured: bool = False
    ) -> tf.Tensor:
        """Train on a batch and return the workers' report.

        Args:
            batch: this worker's part of the batch.
            step: the number of the step, from 0.
            learning_rate: one learning rate for all groups, or one for each (`Groups.learning_rates`).
            mine: this worker's report to the others; it is summed together with the dense gradients.
            measured: with `norms`, whether the report has the squares of the gradients.

        Returns:
            a packed `StepReport`; the device may still be computing it.
        """
        rates = [learning_rate] * self.groups.num_rates if isinstance(learning_rate, float | int) else list(learning_rate)
        # One small tensor holds everything but the data that changes from step to step. It is float64 to hold the step's number exactly.
        message = [step, batch.weight, *rates, *mine.pack(), *([float(measured)] if self._norms else [])]
        batch.begin_step()
        report, self._loss = self._step.of(batch.inputs)(batch.inputs, tf.constant(message, tf.float64))
        self.touched.add(batch)
        return report

    def graph(self, inputs: StepInputs) -> tf.Graph:
        """Return the graph of a step for inputs of these shapes, without running it."""
        return self._step.of(inputs).graph

    def learning_rates(self, step: int, reductions: int = 0) -> tuple[float, ...]:
        """Return the learning rates of a step, see `Groups.learning_rates`."""
        return self.groups.learning_rates(step, reductions)

    def check_copies(self) -> None:
        """Check that replicated weights and slots are still equal on all workers. Raises DivergedError where they differ."""
        check_equal(self.model, self.groups)

    def _whole_step(self, batch: StepInputs, message: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        batch, embedding, tables = batch.unpacked(), self.model.embedding, self.groups.tables
        message, measured = (message[:-1], message[-1] > 0) if self._norms else (message, None)
        step, count, local_batch = tf.cast(message[0], tf.int64), self.groups.num_rates, batch.labels.shape[0]
        num_samples, rates, mine = tf.split(tf.cast(message[1:], tf.float32), [1, count, message.shape[0] - count - 2])
        scale = self._scale.now()
        updates = [GroupUpdate(group.rule, rates[len(self.groups.dense) + number], group.name) for number, group in enumerate(tables)]
        linear = self._folds and len(updates) == 1 and updates[0].rule.linear and not any(group.l2 for group in embedding.groups)
        table_scale, factor = (1.0, (updates[0].learning_rate if linear else 1.0) / scale) if self._folds else (scale, 1.0)
        updates = [updates[0]._replace(learning_rate=None)] if linear else updates
        squares = GradientSquares(measured, self.groups, embedding) if self._norms else None
        with self.world.timed(on_gpu()) as seconds:
            vectors = embedding(batch.ids, batch.local_ids)
            samples = batch.numerical, vectors, batch.labels, batch.weights
            own, by_vector, gradients, moments, exchanges = self._dense(*samples, (step, num_samples[0], scale), factor)
            seconds.extend(exchanges)
            replicated = []
            if tables:
                replicated = embedding.replicated_gradients(batch.local_ids, by_vector, scale, self._sums.count(local_batch))
            own, *sums = self._sums.over_workers([tf.concat([own, mine], axis=0), *gradients, *replicated], local_batch)
        loss, overflows, reports = tf.split(own, [1, int(self.scaled), mine.shape[0]])
        gradients, replicated = sums[: len(gradients)], sums[len(gradients) :]
        finite = self._check(gradients, replicated, loss, overflows)
        if squares:
            squares.add_known(lambda: self._update.by_name(gradients), updates, replicated)
            updates = squares.watching(updates, (rates[-1] if linear else 1.0))

        def update() -> tf.Tensor | None:
            with self.world.timed(on_gpu()) as more:
                received = embedding.receive(batch.ids, by_vector, table_scale) if tables and self._clipping else None
                divisor = self._divisor(gradients, replicated, received, num_samples[0]) if self._clipping else None
                self._apply(gradients, rates, step, moments, num_samples[0], divisor)
                if tables:
                    received = received or embedding.receive(batch.ids, by_vector, table_scale)
                    embedding.apply(updates, received._replace(divisor=divisor), step)
                    embedding.update_replicated(updates, replicated, step, divisor)
            return measures([*seconds, *more], squares and squares.total(), divisor)

        if self.scaled:  # every worker takes the same branch: `finite` is derived from sums over the workers
            measured_here = tf.cond(finite > 0, update, lambda: measures(seconds, squares and squares.undefined, self._clipping and tf.ones([])))
            self._scale.after_step(finite)
        else:
            measured_here = update()
        return StepReport.pack(loss[0], finite, reports, measured_here), loss[0]

    def _all_finite(self, gradients, replicated, loss, overflows) -> tf.Tensor:
        return all_finite([*self._update.unpacked(gradients), *replicated], tf.concat([loss, overflows], axis=0) if self.scaled else None)

    def _divisor(self, gradients, replicated, received, num_samples) -> tf.Tensor:
        """Return what divides all gradients of the step, see `Clipping`; without `received` the tables are frozen."""
        embedding, known = self.model.embedding, list(self._update.by_name(gradients).values())
        if received is None:
            return self._clipping.divisor(known, [], num_samples)
        known += [group.decayed(total[:, :-1]) for group, total in zip(embedding.replicated_groups, replicated, strict=True)]
        return self._clipping.divisor(known, embedding.gradients_of_rows(received), num_samples)

    def _apply_gradients(self, gradients: list[tf.Tensor], rates: tf.Tensor, step: tf.Tensor, moments, num_samples: tf.Tensor, divisor=None) -> None:
        self.model.follow(moments, num_samples)
        self._update.apply(gradients, rates, step, divisor)


def all_finite(sums: Sequence[tf.Tensor], under_scale: tf.Tensor | None) -> tf.Tensor:
    """Return 1 if the summed gradients are finite, else 0, as float32.

    Reading all gradients takes 5% of a step of 128 samples. Without a loss scale, one column of each kernel's gradient is enough: an input that is
    not finite appears in every column, and an upstream gradient that is not finite appears in the bias's gradient. With a loss scale single elements
    can overflow, so all gradients are read.

    Args:
        sums: the summed gradients of the dense weights and of replicated tables.
        under_scale: with a loss scale, the loss followed by the number of the vectors' gradients that are not finite; otherwise None. The result is
            also 0 where the loss is not finite or this number is not 0.
    """
    if under_scale is None:
        sums = [gradient if len(gradient.shape) == 1 else gradient[:, 0] for gradient in sums]
    count = count_not_finite(tf.concat([tf.reshape(gradient, [-1]) for gradient in sums], axis=0))
    if under_scale is not None:
        count += count_not_finite(under_scale[:1]) + tf.reduce_sum(under_scale[1:])
    return tf.cast(tf.equal(count, 0), tf.float32)
