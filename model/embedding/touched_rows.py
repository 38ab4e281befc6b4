"""The rows of a table that the optimizer reads and writes: the distinct ones that a batch touches, or all."""

from collections.abc import Sequence

import tensorflow as tf


def sum_repeated(ids: tf.Tensor, gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the distinct ids `[k]` in the order of their first occurrence, and the sum of each one's gradients `[k, columns]`."""
    distinct, place = tf.unique(ids)
    return distinct, tf.math.unsorted_segment_sum(gradients, place, tf.shape(distinct)[0])


def sum_repeated_lists(lists: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the same as `sum_repeated` for samples with several ids.

    Args:
        lists: for each feature and each position in its lists the samples' ids `[B]`, −1 for no id, and their gradients `[B, columns]`.
    """
    every = tf.concat([ids for ids, _ in lists], axis=0)
    distinct, place = tf.unique(every, out_idx=every.dtype)  # int64 on a GPU, because TensorFlow keeps int32 in host memory
    width = lists[0][1].shape[1]
    sums, start = tf.zeros(tf.stack([tf.shape(distinct)[0], width])), 0
    for ids, gradients in lists:  # one position at a time: all at once would take h times the memory of the gradients
        sums = tf.tensor_scatter_nd_add(sums, place[start : start + ids.shape[0], tf.newaxis], gradients)
        start += ids.shape[0]
    there = tf.where(distinct >= 0)[:, 0]
    return tf.gather(distinct, there), tf.gather(sums, there)


class TouchedRows:
    """The k distinct rows of a table and of its slots.

    Args:
        table: `[V, width]` float32.
        slots: the optimizer's slots, `[V, width]`, or `[V, 1]` for one number a row.
        ids: `[k]` int32, without repetition.
    """

    def __init__(self, table: tf.Variable, slots: Sequence[tf.Variable], ids: tf.Tensor):
        self._table, self._slots, self._ids = table, slots, ids

    def weights(self) -> tf.Tensor:
        """Return the rows of the table, `[k, width]`."""
        return _gather(self._table, self._ids)

    def set_weights(self, values: tf.Tensor) -> None:
        """Overwrite the rows of the table."""
        _overwrite(self._table, self._ids, values)

    def subtract(self, change: tf.Tensor) -> None:
        """Subtract in place: weights −= change."""
        tf.raw_ops.ResourceScatterSub(resource=self._table.handle, indices=self._ids, updates=change)

    def slot(self, number: int) -> tf.Tensor:
        """Return the rows of a slot, `[k, width]` or `[k, 1]`."""
        return _gather(self._slots[number], self._ids)

    def set_slot(self, number: int, values: tf.Tensor) -> None:
        """Overwrite the rows of a slot."""
        _overwrite(self._slots[number], self._ids, values)


def _gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=tf.float32)


def _overwrite(variable: tf.Variable, ids: tf.Tensor, values: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=values)


class AllRows:
    """All rows of a table and of its slots; `TouchedRows` of every row in order, without gathering them."""

    def __init__(self, table: tf.Variable, slots: Sequence[tf.Variable]):
        self._table, self._slots = table, slots

    def weights(self) -> tf.Tensor:
        """Return the table, `[V, width]`."""
        return self._table.read_value()

    def set_weights(self, values: tf.Tensor) -> None:
        """Overwrite the table."""
        self._table.assign(values)

    def subtract(self, change: tf.Tensor) -> None:
        """Subtract in place: weights −= change."""
        self._table.assign_sub(change)

    def slot(self, number: int) -> tf.Tensor:
        """Return a slot, `[V, width]` or `[V, 1]`."""
        return self._slots[number].read_value()

    def set_slot(self, number: int, values: tf.Tensor) -> None:
        """Overwrite a slot."""
        self._slots[number].assign(values)
