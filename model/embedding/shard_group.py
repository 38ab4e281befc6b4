"""Shards of one width on one device: one variable, one gather and one update for all of them, or each its own.

On a GPU 26 small operations take longer to launch than to run, so the shards of a width lie one after another in one variable. On a CPU each has
its own: the C++ operations take them all at once anyway.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import tensorflow as tf

from model.compilation import on_gpu
from model.embedding.initializers import ConstantRows, StackedRows
from model.embedding.placement import Shard
from model.embedding.shard import LocalShard
from model.embedding.table_memory import RowFiller, new_table
from model.embedding.touched_rows import TouchedRows, sum_repeated

NewVariable = Callable[[str, tf.Tensor], tf.Variable]


class ShardGroup:
    """Shards that share variables.

    Args:
        shards: of one width on one device.
        id_rows: for each the row of the batch's ids that holds its own.
    """

    def __init__(self, shards: Sequence[LocalShard], id_rows: Sequence[int]):
        self.shards, self.id_rows, self.width = tuple(shards), tuple(id_rows), shards[0].shard.width
        self._device, self._weights = shards[0].device or None, shards[0].weights

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def num_rows(self) -> int:
        """Of the shards together."""
        return sum(local.shard.rows for local in self.shards)

    @property
    def slots(self) -> list[tf.Variable]:
        """The optimizer's, in the order of its rule."""
        return list(self.shards[0].slots.values())

    def add_slots(self, rule) -> None:
        """Allocate the slots of an optimizer's rule (`training.optimizers.rule`)."""
        rows, per_row = self._weights.shape[0], frozenset(slot.name for slot in rule.slots if slot.per_row)
        with tf.device(self._device):
            slots = {slot.name: new_table(rows, 1 if slot.per_row else self.width, ConstantRows(slot.start), tf.Variable) for slot in rule.slots}
        for local in self.shards:
            local.slots, local.per_row = slots, per_row

    def singly(self) -> "list[ShardGroup]":
        """The same shards, each a group of its own."""
        return [self] if len(self) == 1 else [ShardGroup([local], [row]) for local, row in zip(self.shards, self.id_rows, strict=True)]

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """The batch's ids `[F_r, B]` as rows of the variables, sample by sample: `[B·n]` for n shards."""
        if len(self) == 1:
            (local,), (row,) = self.shards, self.id_rows
            return ids[row] + local.first if local.first else ids[row]
        chosen = ids if self.id_rows == tuple(range(ids.shape[0])) else tf.gather(ids, self.id_rows)
        first = tf.constant([[local.first] for local in self.shards], ids.dtype)
        return tf.reshape(tf.transpose(chosen + first), [-1])

    def look_up(self, ids: tf.Tensor) -> tf.Tensor:
        """The shards' vectors side by side, `[F_r, B] -> [B, n·width]` float32."""
        with tf.device(self._device):
            found = tf.raw_ops.ResourceGather(resource=self._weights.handle, indices=self.rows(ids), dtype=tf.float32)
            return found if len(self) == 1 else tf.reshape(found, [ids.shape[1], len(self) * self.width])

    def distinct(self, ids: tf.Tensor, gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `sum_repeated`; of gradients `[B, n·width]` float32."""
        with tf.device(self._device):
            return sum_repeated(self.rows(ids), self._by_row(gradients))

    def apply(self, rule, rows: tf.Tensor, gradients: tf.Tensor, scalars: tf.Tensor | None, squares: tf.Tensor | None = None) -> None:
        """Update k rows: their numbers `[k]`, distinct but with a `linear` rule, gradients `[k, width]` float32; the rest as in `Rule.apply`."""
        with tf.device(self._device):
            rule.apply(TouchedRows(self._weights, self.slots, rows), gradients, scalars, squares)

    def apply_linear(self, rule, ids: tf.Tensor, gradients: tf.Tensor, scalars: tf.Tensor | None) -> None:
        """Update by a rule that is `linear`: gradients `[B, n·width]` float32 as they are, repeated rows and all."""
        self.apply(rule, self.rows(ids), self._by_row(gradients), scalars)

    def _by_row(self, gradients: tf.Tensor) -> tf.Tensor:
        return gradients if len(self) == 1 else tf.reshape(gradients, [-1, self.width])


class Wanted(NamedTuple):
    """A shard to allocate: of the table `name`, filled by `fill`; `device` as in `LocalShard`, `id_row` as in `ShardGroup`."""

    name: str
    shard: Shard
    replicated: bool
    device: str
    fill: RowFiller
    id_row: int


def allocate(wanted: Sequence[Wanted], new_variable: NewVariable) -> list[ShardGroup]:
    """Allocate and fill shards, in place.

    Args:
        wanted: in the order of the features.
        new_variable: makes a variable of a name and a tensor; as `make_variable` of `new_table`.
    """
    together: dict[Hashable, list[Wanted]] = {}
    for number, one in enumerate(wanted):
        together.setdefault((one.device, one.shard.width) if on_gpu() else number, []).append(one)
    return [_allocated(members, new_variable) for members in together.values()]


def _allocated(members: Sequence[Wanted], new_variable: NewVariable) -> ShardGroup:
    counts = [one.shard.rows for one in members]
    first = [sum(counts[:i]) for i in range(len(counts))]
    alike = len({getattr(one.fill, "value", one.name) for one in members}) == 1  # one table, or all of the same constant
    fill = members[0].fill if alike else StackedRows([one.fill for one in members], first)
    name = f"{members[0].name}_{members[0].shard.first}" if len(members) == 1 else f"{len(members)}_tables_of_{members[0].shard.width}"
    with tf.device(members[0].device or None):
        weights = new_table(sum(counts), members[0].shard.width, fill, lambda initial: new_variable(name, initial))
    shards = [LocalShard(one.name, one.shard, one.replicated, one.device, weights, start) for one, start in zip(members, first, strict=True)]
    return ShardGroup(shards, [one.id_row for one in members])
