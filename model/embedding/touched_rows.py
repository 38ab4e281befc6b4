"""The rows of a table that a batch touches, each once: what an optimizer reads and writes."""

from collections.abc import Sequence

import tensorflow as tf


def sum_repeated(ids: tf.Tensor, gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Distinct ids `[k]` in the order of their first occurrence, and the sum of each one's gradients `[k, columns]`."""
    distinct, place = tf.unique(ids)
    return distinct, tf.math.unsorted_segment_sum(gradients, place, tf.shape(distinct)[0])


class TouchedRows:
    """k distinct rows of a table and of its slots.

    Args:
        table: `[V, width]` float32.
        slots: the optimizer's, `[V, width]`, or `[V, 1]` where it keeps one number a row.
        ids: `[k]` int32, without repetition.
    """

    def __init__(self, table: tf.Variable, slots: Sequence[tf.Variable], ids: tf.Tensor):
        self._table, self._slots, self._ids = table, slots, ids

    def weights(self) -> tf.Tensor:
        """`[k, width]`."""
        return _gather(self._table, self._ids)

    def set_weights(self, values: tf.Tensor) -> None:
        """Overwrite the rows."""
        _overwrite(self._table, self._ids, values)

    def subtract(self, change: tf.Tensor) -> None:
        """weights −= change."""
        tf.raw_ops.ResourceScatterSub(resource=self._table.handle, indices=self._ids, updates=change)

    def slot(self, number: int) -> tf.Tensor:
        """`[k, width]` or `[k, 1]`."""
        return _gather(self._slots[number], self._ids)

    def set_slot(self, number: int, values: tf.Tensor) -> None:
        """Overwrite the rows of a slot."""
        _overwrite(self._slots[number], self._ids, values)


def _gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=tf.float32)


def _overwrite(variable: tf.Variable, ids: tf.Tensor, values: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=values)
