"""A shard on this worker: columns of a table, or a whole replicated one, with the optimizer's slots."""

from dataclasses import dataclass, field

import tensorflow as tf

from model.embedding.initializers import ConstantRows
from model.embedding.placement import Shard
from model.embedding.table_memory import new_table
from model.embedding.touched_rows import TouchedRows


@dataclass
class LocalShard:
    """Columns of one table on this worker: the weights `[V, width]` and the optimizer's slots, `[V, width]` or `[V, 1]`."""

    name: str  # of the table
    shard: Shard
    replicated: bool
    device: str  # "" for the default one, else "CPU:0": the shard lives in host memory
    weights: tf.Variable
    slots: dict[str, tf.Variable] = field(default_factory=dict)
    per_row: frozenset[str] = frozenset()  # slots of one number a row

    def add_slots(self, rule) -> None:
        """Allocate the slots of a rule (`training.optimizers.rule`)."""
        self.per_row = frozenset(slot.name for slot in rule.slots if slot.per_row)
        with tf.device(self.device or None):
            self.slots = {
                slot.name: new_table(self.shard.rows, 1 if slot.per_row else self.shard.width, ConstantRows(slot.start), tf.Variable)
                for slot in rule.slots
            }

    def gather(self, ids: tf.Tensor) -> tf.Tensor:
        """Rows of the ids, `[n] -> [n, width]` float32."""
        with tf.device(self.device or None):
            return tf.raw_ops.ResourceGather(resource=self.weights.handle, indices=ids, dtype=tf.float32)

    def apply(self, rule, ids: tf.Tensor, gradients: tf.Tensor, scalars: tf.Tensor, squares: tf.Tensor | None = None) -> None:
        """Update k rows: distinct ids `[k]`, summed gradients `[k, width]` float32; the rest as in `Rule.apply`."""
        with tf.device(self.device or None):
            rule.apply(TouchedRows(self.weights, list(self.slots.values()), ids), gradients, scalars, squares)
