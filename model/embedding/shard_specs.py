"""The specifications of the shards that a worker allocates, and the rows of ids that features take, derived from a placement."""

from collections.abc import Sequence

from model.embedding.initializers import rows_of
from model.embedding.lazy_table import LazyTable
from model.embedding.partial_table import PartialTable
from model.embedding.placement import Placement, Shard
from model.embedding.shard import IdRows
from model.embedding.shard_group import ShardSpec
from model.embedding.table import MEAN


def ids_of(placement: Placement, sources: Sequence[int] | None = None) -> list[IdRows]:
    """Return the rows of ids that each feature takes in a batch that holds the ids of `sources` only (source indices; default: all sources)."""
    first, begins = 0, {}
    for source in range(placement.num_sources) if sources is None else sources:
        begins[source] = first
        first += placement.features[placement.source_of.index(source)].columns
    return [
        IdRows(place, begins[source], feature.hotness, feature.pooling == MEAN, feature.weights)
        for place, (feature, source) in enumerate(zip(placement.features, placement.source_of, strict=True))
        if source in begins
    ]


def shard_spec(
    placement: Placement,
    shard: Shard,
    seed: int,
    read: Sequence[IdRows],
    device: str = "",
    replicated: bool = False,
    lazy: LazyTable | None = None,
    partial: PartialTable | None = None,
) -> ShardSpec:
    """Return the specification for allocating a shard of a placement.

    Args:
        placement: the placement of the tables.
        shard: a shard of one of the tables.
        seed: the seed of the rows, see `UniformRows`.
        read: the ids that the worker reads.
        device: as in `LocalShard`.
        replicated: whether every worker holds the shard.
        lazy: the rows of its table, where the table is lazy.
        partial: the initial rows of its table, where checkpoints store some rows.
    """
    table = placement.tables[shard.table]
    fill = None if lazy else rows_of(table, seed, (shard.first, shard.last))
    ids = tuple(ids for ids in read if placement.table_of[ids.feature] == shard.table)
    return ShardSpec(table.name, shard, replicated, device, fill, ids, table.group, table.whole, table.l2, lazy, partial)
