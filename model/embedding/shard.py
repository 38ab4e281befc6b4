"""A shard on this worker: columns of a table, or a whole replicated one, with the optimizer's slots."""

from dataclasses import dataclass, field

import tensorflow as tf

from model.embedding.placement import Shard
from model.embedding.table_memory import Rows


@dataclass
class LocalShard:
    """Columns of one table on this worker: the weights `[V, width]` and the optimizer's slots, `[V, width]` or `[V, 1]`.

    They are variables of its own, or rows `first` to `first + V` of variables that it shares (`shard_group`).
    """

    name: str  # of the table
    shard: Shard
    replicated: bool
    device: str  # "" for the default one, else "CPU:0": the shard lives in host memory
    weights: tf.Variable
    first: int = 0  # row of the variables
    slots: dict[str, tf.Variable] = field(default_factory=dict)
    per_row: frozenset[str] = frozenset()  # slots of one number a row

    def kinds(self, with_slots: bool = True) -> dict[str, Rows]:
        """The rows of the weights and of the slots, by name."""
        variables = {"weights": self.weights} | (self.slots if with_slots else {})
        return {kind: Rows(variable, self.first, self.shard.rows) for kind, variable in variables.items()}
