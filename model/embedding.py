"""Embedding tables held by one worker: lookup, and in-place update of the rows a batch touched."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from model.initializers import ConstantRows, UniformRows
from model.table_memory import new_table


@dataclass(frozen=True)
class Table:
    """One categorical feature's embedding table, `[num_rows, D]`."""

    name: str
    num_rows: int


class Embedding(keras.layers.Layer):
    """Many embedding tables, one id a sample from each: ids `[F, B]` int32 -> vectors `[B, F, D]`.

    Tables are float32 whatever the compute dtype; rows are cast after the lookup. Gradients do not flow through this
    layer: the trainer takes the gradient of its output and hands it to `update`, which touches the looked-up rows only
    (a dense gradient of a table would be as large as the table).

    Args:
        tables: F tables in the model's order.
        dim: D.
        seed: of the initial rows, see `UniformRows`.
        zeros: start at zero instead.
        compute_dtype: dtype of the vectors.
    """

    def __init__(self, tables: Sequence[Table], dim: int, seed: int = 0, zeros: bool = False, compute_dtype: str = "float32"):
        super().__init__(name="embedding", dtype="float32")
        self.tables = tuple(tables)
        self.dim = dim
        self._seed, self._zeros, self._vector_dtype = seed, zeros, tf.as_dtype(compute_dtype)
        self.weights_by_table: dict[str, tf.Variable] = {}
        self.slots_by_table: dict[str, dict[str, tf.Variable]] = {}

    def build(self, input_shape=None):
        """Allocate and initialise every table, in place."""
        for table in self.tables:
            fill = ConstantRows(0.0) if self._zeros else UniformRows(self._seed, table.name, table.num_rows, self.dim)
            self.weights_by_table[table.name] = new_table(table.num_rows, self.dim, fill, functools.partial(self._weight, table.name))

    def _weight(self, name: str, initial: tf.Tensor) -> tf.Variable:
        def initializer(shape, dtype=None):
            return initial

        name = name.replace("/", "_")  # Keras allows no slash in a weight's name
        return self.add_weight(name=name, shape=initial.shape, initializer=initializer, autocast=False, trainable=False).value

    def add_slots(self, optimizer) -> None:
        """Allocate the optimizer's slots, one of the table's shape for each name in `optimizer.slots`."""
        for table in self.tables:
            self.slots_by_table[table.name] = {
                slot: new_table(table.num_rows, self.dim, ConstantRows(start), tf.Variable) for slot, start in optimizer.slots.items()
            }

    def compute_output_shape(self, ids_shape):
        """`[B, F, D]`."""
        return (ids_shape[1], len(self.tables), self.dim)

    def call(self, ids):
        """Look up ids `[F, B]`; gives `[B, F, D]` in the compute dtype."""
        vectors = [
            tf.cast(
                tf.raw_ops.ResourceGather(resource=self.weights_by_table[table.name].handle, indices=column, dtype=tf.float32), self._vector_dtype
            )
            for table, column in zip(self.tables, tf.unstack(ids, num=len(self.tables)), strict=True)
        ]
        return tf.stack(vectors, axis=1)

    def update(self, optimizer, ids: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Apply gradients `[B, F, D]` of the looked-up vectors to the rows `ids` `[F, B]`, in place."""
        columns = tf.unstack(ids, num=len(self.tables))
        for table, column, gradient in zip(self.tables, columns, tf.unstack(gradients, axis=1), strict=True):
            slots = list(self.slots_by_table.get(table.name, {}).values())
            gradient = tf.cast(gradient, tf.float32)
            optimizer.apply(self.weights_by_table[table.name], slots, column, gradient, learning_rate, step)
