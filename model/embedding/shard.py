"""A shard on this worker (columns of a table, or a whole replicated table) with its optimizer slots, and the ids that are looked up in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from model.embedding.lazy_table import LazyTable
from model.embedding.partial_table import PartialTable
from model.embedding.shards import Shard
from model.embedding.table_memory import VariableRows


@dataclass
class LocalShard:
    """Columns of one table on this worker: the weights `[V, width]` and the optimizer's slots, `[V, width]` or `[V, 1]`.

    The shard has variables of its own, or shares variables with others and takes rows `first` to `first + V` of them (`shard_group`). The variables
    of a `lazy` table hold the rows that exist, by their places (`lazy_rows`).
    """

    name: str  # name of the table
    shard: Shard
    replicated: bool
    device: str  # "" for the default device; "CPU:0" where the shard lives in host memory
    weights: tf.Variable
    first: int = 0  # first row in the variables
    slots: dict[str, tf.Variable] = field(default_factory=dict)
    per_row: frozenset[str] = frozenset()  # names of the slots of one number a row
    group: str = ""  # group of the table, `whole` and `l2`: see `Table`
    whole: bool = False
    l2: float = 0.0
    lazy: LazyTable | None = None
    partial: PartialTable | None = None

    @property
    def by_rows(self) -> LazyTable | PartialTable | None:
        """The table, where checkpoints store some of its rows; None where they store all."""
        return self.lazy or self.partial

    @property
    def starts(self) -> Mapping[str, float]:
        """The value of untouched rows in each slot, where checkpoints store some rows of the table."""
        return self.lazy.memory(self.shard).starts if self.lazy else self.partial.starts

    def kinds(self, with_slots: bool = True) -> dict[str, VariableRows]:
        """Return the rows of the weights and of the slots, by name; of a lazy table those that exist, in the order of their places."""
        variables = {"weights": self.weights} | (self.slots if with_slots else {})
        count = self.lazy.known if self.lazy else self.shard.rows
        return {kind: VariableRows(variable, self.first, count) for kind, variable in variables.items()}


class IdRows(NamedTuple):
    """The rows of a batch's ids that belong to a feature, `[h, B]` of `[K, B]`: row j holds every sample's j-th id, or −1 for no id.

    If the ids have weights, the next h rows hold these: the bits of float32 numbers, 0 where there is no id.
    """

    feature: int  # index in the model's order
    first: int  # first row of the batch's ids
    hotness: int = 1  # h
    mean: bool = False  # True: the vectors are averaged; False: summed
    weighted: bool = False  # whether the ids have weights

    @property
    def rows(self) -> range:
        """The rows of the batch's ids, as a range."""
        return range(self.first, self.first + self.hotness)

    @property
    def end(self) -> int:
        """The row after the feature's last one, weights included."""
        return self.first + self.hotness * (2 if self.weighted else 1)

    @property
    def is_list(self) -> bool:
        """True if −1 means no id; else every sample has exactly one."""
        return self.hotness > 1 or self.weighted

    def weights(self, ids: tf.Tensor, number: int) -> tf.Tensor:
        """Return the weights of the samples' number-th ids, `[K, B] -> [B]` float32."""
        return floats(ids[self.first + self.hotness + number])

    def count(self, ids: tf.Tensor) -> tf.Tensor:
        """Return what a mean divides by, `[K, B] -> [B, 1]` float32: the number of ids of each sample, or the sum of their weights; 1 if it is 0."""
        if self.weighted:
            total = self.weights(ids, 0)
            for number in range(1, self.hotness):  # in this order, as the C++ operations add them
                total += self.weights(ids, number)
            return not_zero(total)[:, tf.newaxis]
        there = tf.cast(ids[self.first : self.first + self.hotness] >= 0, tf.float32)
        return tf.maximum(tf.reduce_sum(there, axis=0), 1.0)[:, tf.newaxis]


@dataclass(frozen=True, eq=False)
class LocalLookup:
    """A feature's ids, and the shard that they are looked up in."""

    local: LocalShard
    ids: IdRows

    @property
    def feature(self) -> int:
        """The index of the feature in the model's order."""
        return self.ids.feature

    def rows(self, ids: tf.Tensor, number: int) -> tf.Tensor:
        """Return the number-th ids of the samples as rows of the shard's variables, `[K, B] -> [B]`; −1 stays −1."""
        return shifted(ids[self.ids.first + number], self.local.first, self.ids.is_list)


def floats(bits: tf.Tensor) -> tf.Tensor:
    """Return the float32 numbers whose bits the integers are."""
    return tf.bitcast(tf.cast(bits, tf.int32), tf.float32)


def not_zero(totals: tf.Tensor) -> tf.Tensor:
    """Return the numbers, 1 in place of 0."""
    return tf.where(tf.equal(totals, 0.0), 1.0, totals)


def shifted(ids: tf.Tensor, first: tf.Tensor | int, padded: bool) -> tf.Tensor:
    """Return ids + first; where the ids are `padded`, −1 stays −1."""
    if isinstance(first, int) and first == 0:
        return ids
    return tf.where(ids < 0, ids, ids + first) if padded else ids + first
