"""What a worker allocates for a shard, and the ids that are looked up in it, out of a placement."""

from collections.abc import Sequence

from model.embedding.initializers import ConstantRows, UniformRows
from model.embedding.placement import Placement, Shard
from model.embedding.shard import IdRows
from model.embedding.shard_group import Wanted
from model.embedding.table import MEAN, ZEROS


def ids_of(placement: Placement, features: Sequence[int] | None = None) -> list[IdRows]:
    """Where the ids of some features, by their places, are in a batch that holds just theirs; the default is all features."""
    found: list[IdRows] = []
    for place in range(len(placement.features)) if features is None else features:
        feature, first = placement.features[place], found[-1].rows.stop if found else 0
        found.append(IdRows(place, first, feature.hotness, feature.pooling == MEAN))
    return found


def wanted(placement: Placement, shard: Shard, seed: int, read: Sequence[IdRows], device: str = "", replicated: bool = False) -> Wanted:
    """What to allocate for a shard of a placement.

    Args:
        placement: of the tables.
        shard: of one of them.
        seed: of the rows, see `UniformRows`.
        read: the ids that the worker reads.
        device: as in `LocalShard`.
        replicated: every worker holds it.
    """
    table = placement.tables[shard.table]
    zeros = table.initializer == ZEROS
    fill = ConstantRows(0.0) if zeros else UniformRows(seed, table.name, table.rows, table.dim, (shard.first, shard.last))
    return Wanted(table.name, shard, replicated, device, fill, tuple(ids for ids in read if placement.table_of[ids.feature] == shard.table))
