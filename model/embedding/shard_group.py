"""Groups of shards that share one variable, one gather and one update.

On a GPU 26 small operations take longer to launch than to run, so the shards of a device, width and table group lie one after another in one
variable. On a CPU each shard has its own variable: the C++ operations take all shards at once anyway.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import tensorflow as tf

from model.compilation import on_gpu
from model.embedding.lazy_table import LazyTable
from model.embedding.pack import Pack, columns_of, packs_of
from model.embedding.partial_table import PartialTable
from model.embedding.shard import IdRows, LocalLookup, LocalShard
from model.embedding.shards import Shard
from model.embedding.table_memory import RowFiller, new_table
from model.embedding.touched_rows import AllRows, TouchedRows, sum_repeated, sum_repeated_lists
from utils.initial_rows import ConstantRows, StackedRows

NewVariable = Callable[[str, tf.Tensor], tf.Variable]


class ShardGroup:
    """Shards that share variables.

    Args:
        shards: shards of the same width, device and table group.
        lookups: the lookups in these shards, in the features' order.
    """

    def __init__(self, shards: Sequence[LocalShard], lookups: Sequence[LocalLookup]):
        self.shards, self.lookups, self.width = tuple(shards), tuple(lookups), shards[0].shard.width
        self.packs = packs_of(self.lookups)
        self._device, self._weights, self.group = shards[0].device or None, shards[0].weights, shards[0].group
        self.whole, self.l2 = shards[0].whole, shards[0].l2

    @property
    def simple(self) -> bool:
        """True if each sample has one id, and each shard one feature, so rows and gradients are one to one. On a GPU features may share a shard."""
        one_each = on_gpu() or len(self.lookups) == len(self.shards)
        return len(self.packs) == 1 and not self.packs[0].is_list and one_each

    @property
    def num_rows(self) -> int:
        """The number of rows of all shards together."""
        return sum(local.shard.rows for local in self.shards)

    @property
    def slots(self) -> list[tf.Variable]:
        """The optimizer's slots, in the order of its rule."""
        return list(self.shards[0].slots.values())

    def add_slots(self, rule) -> None:
        """Allocate the slots of an optimizer's rule (`training.optimizers.rule`)."""
        rows, per_row = self._weights.shape[0], frozenset(slot.name for slot in rule.slots if slot.per_row)
        columns = {slot.name: 1 if slot.per_row else self.width for slot in rule.slots}
        if self.shards[0].lazy:
            slots = {slot.name: self.shards[0].lazy.add_slot(self.shards[0].shard, slot.name, columns[slot.name], slot.start) for slot in rule.slots}
        else:
            with tf.device(self._device):
                slots = {slot.name: new_table(rows, columns[slot.name], ConstantRows(slot.start), tf.Variable) for slot in rule.slots}
        for local in self.shards:
            local.slots, local.per_row = slots, per_row
            if local.partial:
                local.partial.starts = {slot.name: slot.start for slot in rule.slots}

    def singly(self) -> "list[ShardGroup]":
        """Split the group: return the same shards, each in a group of its own."""
        if len(self.shards) == 1:
            return [self]
        return [ShardGroup([local], [lookup for lookup in self.lookups if lookup.local is local]) for local in self.shards]

    def look_up(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """Return the vectors of each pack, `[K, B] -> [B, n·width]` float32."""
        with tf.device(self._device):
            return [pack.pooled(ids, self._gather) for pack in self.packs]

    def _gather(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.ResourceGather(resource=self._weights.handle, indices=rows, dtype=tf.float32)

    def row_gradients(self, ids: tf.Tensor, gradients: tf.Tensor, columns: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the looked-up rows of a `simple` group, `[m]`, and their gradients, `[m, width]` float32; arguments as in `distinct`."""
        return self.packs[0].rows(ids), tf.reshape(columns_of(gradients, columns, self.width), [-1, self.width])

    def lists(self, ids: tf.Tensor, gradients: tf.Tensor, columns: Sequence[int]) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Return for each lookup and each position in its lists the samples' rows, `[n]`, −1 for no row, and their gradients, `[n, width]` float32.

        Arguments as in `distinct`, for n samples. On a GPU, where few operations are faster, the lookups of a pack are taken together.
        """
        begins = {id(lookup): column for lookup, column in zip(self.lookups, columns, strict=True)}
        found = []
        for pack in self.packs if on_gpu() else [Pack([lookup]) for lookup in self.lookups]:
            mine = columns_of(gradients, [begins[id(lookup)] for lookup in pack.lookups], self.width)
            found += pack.of_rows(tf.reshape(mine, [-1, self.width]), ids)
        return found

    def distinct(self, ids: tf.Tensor, gradients: tf.Tensor, columns: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the distinct touched rows and the sum of each one's gradients, see `sum_repeated`.

        Args:
            ids: `[K, B]`.
            gradients: `[B, columns]` float32.
            columns: each lookup's first column in the gradients.
        """
        with tf.device(self._device):
            if self.simple:
                return sum_repeated(*self.row_gradients(ids, gradients, columns))
            return sum_repeated_lists(self.lists(ids, gradients, columns))

    def gradients(self, ids: tf.Tensor, gradients: tf.Tensor, columns: Sequence[int]) -> tuple[tf.Tensor | None, tf.Tensor]:
        """Return the rows to update and their gradients: those of `distinct`; of a `whole` group None, for all rows, and `[V, width]` with decay."""
        rows, sums = self.distinct(ids, gradients, columns)
        if not self.whole:
            return rows, sums
        with tf.device(self._device):
            zeros = tf.zeros([self.num_rows, self.width])
            return None, self.decayed(tf.tensor_scatter_nd_update(zeros, rows[:, tf.newaxis], sums))

    def decayed(self, gradients: tf.Tensor) -> tf.Tensor:
        """Add `l2` times the rows to the gradients of all rows, `[V, width]`."""
        return gradients + self.l2 * self._weights.read_value() if self.l2 else gradients

    def apply(self, rule, rows: tf.Tensor | None, gradients: tf.Tensor, scalars: tf.Tensor | None, squares: tf.Tensor | None = None) -> None:
        """Update k rows, given by number `[k]`, with gradients `[k, width]` float32; the other arguments as in `Rule.apply`.

        The rows must be distinct, except with a `linear` rule; None for all rows in order.
        """
        with tf.device(self._device):
            chosen = AllRows(self._weights, self.slots) if rows is None else TouchedRows(self._weights, self.slots, rows)
            rule.apply(chosen, gradients, scalars, squares)

    def apply_linear(self, rule, ids: tf.Tensor, gradients: tf.Tensor, columns: Sequence[int], scalars: tf.Tensor | None) -> None:
        """Update by a `linear` rule without summing the gradients of repeated rows first; the other arguments as in `distinct`."""
        if self.simple:
            self.apply(rule, *self.row_gradients(ids, gradients, columns), scalars)
            return
        for rows, mine in self.lists(ids, gradients, columns):
            self.apply(rule, tf.maximum(rows, 0), tf.where((rows >= 0)[:, tf.newaxis], mine, 0.0), scalars)


class ShardSpec(NamedTuple):
    """A shard to allocate: part of table `name`, filled by `fill`; `device`, `group`, `lazy`, … as in `LocalShard`; `ids` are looked up in it."""

    name: str
    shard: Shard
    replicated: bool
    device: str
    fill: RowFiller | None  # None where the table is lazy
    ids: tuple[IdRows, ...]
    group: str
    whole: bool = False
    l2: float = 0.0
    lazy: LazyTable | None = None
    partial: PartialTable | None = None


def allocate(wanted: Sequence[ShardSpec], new_variable: NewVariable) -> list[ShardGroup]:
    """Allocate shards and fill them in place.

    Args:
        wanted: the shards to allocate, in the order of the tables.
        new_variable: a function that makes a variable from a name and a tensor; like `make_variable` in `new_table`.
    """
    together: dict[Hashable, list[ShardSpec]] = {}
    for number, one in enumerate(wanted):
        together.setdefault((one.device, one.shard.width, one.group, one.whole) if on_gpu() else number, []).append(one)
    return [_allocated(members, new_variable) for members in together.values()]


def _allocated(members: Sequence[ShardSpec], new_variable: NewVariable) -> ShardGroup:
    if members[0].lazy:
        return _reserved(members[0], new_variable)
    counts = [one.shard.rows for one in members]
    first = [sum(counts[:i]) for i in range(len(counts))]
    alike = len({getattr(one.fill, "value", one.name) for one in members}) == 1  # one table, or tables filled with the same constant
    fill = members[0].fill if alike else StackedRows([one.fill for one in members], first)
    name = f"{members[0].name}_{members[0].shard.first}" if len(members) == 1 else f"{len(members)}_tables_of_{members[0].shard.width}"
    with tf.device(members[0].device or None):
        weights = new_table(sum(counts), members[0].shard.width, fill, lambda initial: new_variable(name, initial))
    shards = [
        LocalShard(one.name, one.shard, one.replicated, one.device, weights, start, group=one.group, whole=one.whole, l2=one.l2, partial=one.partial)
        for one, start in zip(members, first, strict=True)
    ]
    lookups = [LocalLookup(local, ids) for local, one in zip(shards, members, strict=True) for ids in one.ids]
    return ShardGroup(shards, sorted(lookups, key=lambda lookup: (lookup.feature, lookup.local.shard.first)))


def _reserved(one: ShardSpec, new_variable: NewVariable) -> ShardGroup:
    weights = one.lazy.add_shard(one.shard, lambda initial: new_variable(f"{one.name}_{one.shard.first}", initial))
    local = LocalShard(one.name, one.shard, one.replicated, one.device, weights, group=one.group, lazy=one.lazy)
    return ShardGroup([local], [LocalLookup(local, ids) for ids in one.ids])
