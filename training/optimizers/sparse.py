"""Optimizers of embedding tables: only the rows that a batch touches are read and written.

Each `apply` takes ids `[n]` with repetitions and their gradients `[n, columns]`; the gradients of a repeated id are
summed first, so that the result is that of the dense optimizer on the touched rows. `rule` tells the same arithmetic to the C++ operation
(`model/native.py`), which gives the same bits.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from model.native import Rule

Slots = Sequence[tf.Variable]


class SparseSgd:
    """Plain stochastic gradient descent: row −= learning_rate · gradient."""

    slots: Mapping[str, float] = {}

    def rule(self, learning_rate: tf.Tensor, step: tf.Tensor) -> Rule:
        """The arithmetic of `apply`."""
        del step
        return Rule("sgd", learning_rate)

    def apply(self, table: tf.Variable, slots: Slots, ids: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update the rows `ids`.

        Subtraction would sum repeated ids by itself, but from about a thousand ids on TensorFlow's threads do it in an order that changes
        from run to run, and wait for each other at the frequent rows.
        """
        del slots, step
        ids, gradients = sum_repeated(ids, gradients)
        tf.raw_ops.ResourceScatterSub(resource=table.handle, indices=ids, updates=gradients * learning_rate)


class SparseAdagrad:
    """Adagrad (Duchi et al., JMLR 2011) on touched rows, with Keras's constants.

    accumulator += gradient²; row −= learning_rate · gradient / sqrt(accumulator + epsilon).
    """

    def __init__(self, initial_accumulator: float = 0.1, epsilon: float = 1e-7):
        self.slots: Mapping[str, float] = {"accumulator": initial_accumulator}
        self._epsilon = epsilon

    def rule(self, learning_rate: tf.Tensor, step: tf.Tensor) -> Rule:
        """The arithmetic of `apply`."""
        del step
        return Rule("adagrad", learning_rate, (self._epsilon,))

    def apply(self, table: tf.Variable, slots: Slots, ids: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update the rows `ids` of the table and of its accumulator."""
        del step
        ids, gradients = sum_repeated(ids, gradients)
        (accumulator,) = slots
        total = _gather(accumulator, ids) + tf.square(gradients)
        _overwrite(accumulator, ids, total)
        # Not rsqrt: TensorFlow's is an approximation that differs with the processor, and with an element's place in the tensor.
        delta = learning_rate * gradients / tf.sqrt(total + self._epsilon)
        tf.raw_ops.ResourceScatterSub(resource=table.handle, indices=ids, updates=delta)


class SparseAdam:
    """Lazy Adam (Kingma & Ba, arXiv:1412.6980).

    Moments decay only where a batch touches the row; the bias correction uses the global step.
    """

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-7):
        self.slots: Mapping[str, float] = {"momentum": 0.0, "velocity": 0.0}
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon

    def rule(self, learning_rate: tf.Tensor, step: tf.Tensor) -> Rule:
        """The arithmetic of `apply`; `step` counts from 0."""
        count = tf.cast(step + 1, tf.float32)
        rate = learning_rate * tf.sqrt(1 - tf.pow(self._beta2, count)) / (1 - tf.pow(self._beta1, count))
        return Rule("adam", rate, (self._beta1, 1 - self._beta1, self._beta2, 1 - self._beta2, self._epsilon))

    def apply(self, table: tf.Variable, slots: Slots, ids: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update the rows `ids` of the table and of its moments; `step` counts from 0."""
        ids, gradients = sum_repeated(ids, gradients)
        momentum, velocity = slots
        first = self._beta1 * _gather(momentum, ids) + (1 - self._beta1) * gradients
        second = self._beta2 * _gather(velocity, ids) + (1 - self._beta2) * tf.square(gradients)
        _overwrite(momentum, ids, first)
        _overwrite(velocity, ids, second)
        rate = self.rule(learning_rate, step).rate
        tf.raw_ops.ResourceScatterSub(resource=table.handle, indices=ids, updates=rate * first / (tf.sqrt(second) + self._epsilon))


def sum_repeated(ids: tf.Tensor, gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Distinct ids `[k]` and the sum of each one's gradients `[k, columns]`."""
    distinct, place = tf.unique(ids)
    return distinct, tf.math.unsorted_segment_sum(gradients, place, tf.shape(distinct)[0])


def _gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=tf.float32)


def _overwrite(variable: tf.Variable, ids: tf.Tensor, values: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=values)
