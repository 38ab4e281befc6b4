"""A shard on this worker: columns of a table, or a whole replicated one, with the optimizer's slots; and the ids that are looked up in it."""

from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from model.embedding.shards import Shard
from model.embedding.table_memory import VariableRows


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
    group: str = ""  # of the table, see `Table`

    def kinds(self, with_slots: bool = True) -> dict[str, VariableRows]:
        """The rows of the weights and of the slots, by name."""
        variables = {"weights": self.weights} | (self.slots if with_slots else {})
        return {kind: VariableRows(variable, self.first, self.shard.rows) for kind, variable in variables.items()}


class IdRows(NamedTuple):
    """Where a feature's ids are among those of a batch, `[h, B]` of `[K, B]`: row j holds every sample's j-th, −1 where it has none."""

    feature: int  # its place in the model's order
    first: int
    hotness: int = 1  # h
    mean: bool = False  # the vectors are averaged; else summed

    @property
    def rows(self) -> range:
        """Of the batch's ids."""
        return range(self.first, self.first + self.hotness)

    def count(self, ids: tf.Tensor) -> tf.Tensor:
        """How many ids each sample has, at least 1: what a mean divides by, `[K, B] -> [B, 1]` float32."""
        there = tf.cast(ids[self.first : self.first + self.hotness] >= 0, tf.float32)
        return tf.maximum(tf.reduce_sum(there, axis=0), 1.0)[:, tf.newaxis]


@dataclass(frozen=True, eq=False)
class LocalLookup:
    """A feature's ids, and the shard of its table that they are looked up in."""

    local: LocalShard
    ids: IdRows

    @property
    def feature(self) -> int:
        """Its place in the model's order."""
        return self.ids.feature

    def rows(self, ids: tf.Tensor, number: int) -> tf.Tensor:
        """The number-th ids of the samples as rows of the shard's variables, `[K, B] -> [B]`; −1 stays."""
        return shifted(ids[self.ids.first + number], self.local.first, self.ids.hotness > 1)


def shifted(ids: tf.Tensor, first: tf.Tensor | int, padded: bool) -> tf.Tensor:
    """ids + first; −1 stays where the ids are `padded`."""
    if isinstance(first, int) and first == 0:
        return ids
    return tf.where(ids < 0, ids, ids + first) if padded else ids + first
