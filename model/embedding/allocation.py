"""The allocation of the tables that a worker holds."""

from typing import NamedTuple

from model.embedding.lazy_rows import LazyMemory, LazyTables, lazy_tables
from model.embedding.partial_table import PartialTable
from model.embedding.placement import Placement, Shard
from model.embedding.shard import LocalLookup, LocalShard
from model.embedding.shard_group import NewVariable, ShardGroup, allocate
from model.embedding.shard_specs import ids_of, shard_spec
from model.native import NativeOperations


class Allocated(NamedTuple):
    """A worker's tables.

    Attributes:
        groups: the groups of its shards.
        shards: these shards, in the order of the placement.
        lookups: the lookups in them, in the features' order.
        replicated: the groups of the tables that every worker holds.
        lazy: its lazy tables; None where it has none.
    """

    groups: list[ShardGroup]
    shards: list[LocalShard]
    lookups: list[LocalLookup]
    replicated: list[ShardGroup]
    lazy: LazyTables | None


def allocated(
    placement: Placement, worker: int, seed: int, memory: LazyMemory | None, native: NativeOperations | None, new_variable: NewVariable
) -> Allocated:
    """Allocate the tables that a worker holds, and initialise them in place.

    Args:
        placement: the placement of the tables.
        worker: the rank of the worker.
        seed: the seed of the rows.
        memory: the memory for the rows of lazy tables; None where there are none.
        native: the C++ operations, which reserve that memory.
        new_variable: as in `shard_group.allocate`.
    """
    view = placement.view(worker)
    read, own = (ids_of(placement, features) for features in (view.global_features, view.local_features))
    whole = [Shard(table, placement.rows[table], 0, placement.tables[table].dim) for table in placement.replicated]
    devices = {shard: "CPU:0" if shard in placement.hosted[worker] else "" for shard in placement.workers[worker]}
    lazy = lazy_tables(placement, worker, read, seed, memory, native)
    read, tables = (lazy.layout.read, lazy.tables) if lazy else (read, {})
    partial = {shard.table: PartialTable(table, seed) for shard in devices if (table := placement.tables[shard.table]).partial}
    specs = [
        shard_spec(placement, shard, seed, read, device, lazy=tables.get(shard.table), partial=partial.get(shard.table))
        for shard, device in devices.items()
    ]
    groups = allocate(specs, new_variable)
    replicated = allocate([shard_spec(placement, shard, seed, own, replicated=True) for shard in whole], new_variable)
    by_shard = {local.shard: local for group in groups for local in group.shards}
    found = {(lookup.feature, lookup.local.shard): lookup for group in groups for lookup in group.lookups}
    return Allocated(groups, [by_shard[shard] for shard in devices], [found[lookup] for lookup in placement.lookups[worker]], replicated, lazy)
