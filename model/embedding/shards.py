"""A placement as data: the shards on each worker, and the features that are looked up in them. Imports no TensorFlow."""

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from model.embedding.table import NO_SLOTS, Feature, Storage, Table


@dataclass(frozen=True)
class Shard:
    """Columns first to last (exclusive) of one table, `[rows, last−first]`, on one worker."""

    table: int  # index of the table
    rows: int
    first: int
    last: int

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.last - self.first


class ShardLookup(NamedTuple):
    """A lookup of a feature, given by its index in the model's order, in a shard of its table."""

    feature: int
    shard: Shard


@dataclass(frozen=True)
class View:
    """The sources (the dataset's features, by their index) that one worker reads."""

    global_features: tuple[int, ...]  # sources that it reads for the global batch
    local_features: tuple[int, ...]  # sources that it reads for its own samples
    # Sources whose ids out of range this worker does not count. Where several workers read a source for the global batch, only one of them counts,
    # and no worker counts the ids again among its own samples.
    uncounted: frozenset[int] = frozenset()
    uncounted_local: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Placement:
    """The worker or workers that hold each table.

    `workers[r]` are the shards on worker r, in the order of the tables; `replicated` are the tables that every worker holds as a whole; `hosted[r]`
    are the shards of worker r that live in host memory because its device is full. `storage` counts the optimizer's slots. `features` are in the
    model's order; by default there is one for each table.

    Raises:
        ValueError: a feature's table does not exist, two tables have the same name, or features of one source differ in their ids.
    """

    tables: tuple[Table, ...]
    workers: tuple[tuple[Shard, ...], ...]
    replicated: tuple[int, ...] = ()
    hosted: tuple[frozenset[Shard], ...] = field(default=())
    storage: Storage = NO_SLOTS
    features: tuple[Feature, ...] = ()

    def __post_init__(self):
        if not self.features:
            object.__setattr__(self, "features", tuple(Feature(table.name, table.name, table.name) for table in self.tables))
        names = {table.name for table in self.tables}
        if len(names) < len(self.tables):
            raise ValueError("tables: two tables have the same name")
        for feature in self.features:
            if feature.table not in names:
                raise ValueError(f"feature {feature.name}: no table is named {feature.table}")
        if len({(feature.source, feature.hotness, feature.weights) for feature in self.features}) > self.num_sources:
            raise ValueError("features: two features of the same source differ in hotness or weights")

    @property
    def rows(self) -> tuple[int, ...]:
        """V of each table."""
        return tuple(table.rows for table in self.tables)

    @cached_property
    def table_of(self) -> tuple[int, ...]:
        """The index of each feature's table."""
        places = {table.name: place for place, table in enumerate(self.tables)}
        return tuple(places[feature.table] for feature in self.features)

    @cached_property
    def source_of(self) -> tuple[int, ...]:
        """The index of each feature's source; sources are ordered by the first feature that reads them."""
        places: dict[str, int] = {}
        return tuple(places.setdefault(feature.source, len(places)) for feature in self.features)

    @property
    def num_sources(self) -> int:
        """The number of sources: columns of the dataset whose ids the model reads."""
        return max(self.source_of, default=-1) + 1

    @property
    def widths(self) -> tuple[int, ...]:
        """D_f of each feature."""
        return tuple(self.tables[table].dim for table in self.table_of)

    @cached_property
    def columns_before(self) -> tuple[int, ...]:
        """The first column of each feature in a sample's vectors, which lie side by side; the last entry is the total number of columns."""
        return (0, *itertools.accumulate(self.widths))

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The number of rows of each table that a sample reads: the ids of all features of the table."""
        counts = [0] * len(self.tables)
        for table, feature in zip(self.table_of, self.features, strict=True):
            counts[table] += feature.hotness
        return tuple(counts)

    def most_updated(self, table: int, batch_size: int) -> int:
        """Return the most rows of a table that a step over a batch updates: all of a table that is updated whole."""
        whole = self.tables[table]
        return whole.rows if whole.whole else batch_size * self.reads[table]

    @cached_property
    def lookups(self) -> tuple[tuple[ShardLookup, ...], ...]:
        """Each worker's lookups for every sample of the global batch, in the features' order, which is also the order of its vectors' columns."""
        features: dict[int, list[int]] = {}
        for feature, table in enumerate(self.table_of):
            features.setdefault(table, []).append(feature)
        found = ([ShardLookup(feature, shard) for shard in shards for feature in features.get(shard.table, ())] for shards in self.workers)
        return tuple(tuple(sorted(some, key=lambda one: (one.feature, one.shard.first))) for some in found)

    def is_cut(self, shard: Shard) -> bool:
        """Return whether a shard holds only some of its table's columns."""
        return shard.width < self.tables[shard.table].dim

    @cached_property
    def lazy(self) -> tuple[int, ...]:
        """The indices of the lazy tables."""
        return tuple(i for i, table in enumerate(self.tables) if table.lazy)

    def held_rows(self, shard: Shard) -> int:
        """Return the most rows of a shard that memory holds: V, or fewer of a lazy table."""
        table = self.tables[shard.table]
        return table.held_rows if table.lazy else shard.rows

    def size(self, shard: Shard) -> int:
        """Return the bytes of a shard with its optimizer slots; of a lazy table's, those of the rows that memory holds at the most."""
        return self.storage.bytes(self.held_rows(shard), shard.width)

    @property
    def replicated_bytes(self) -> int:
        """The bytes that every worker holds for the replicated tables."""
        return sum(self.storage.bytes(self.tables[table].rows, self.tables[table].dim) for table in self.replicated)

    def stored(self, worker: int) -> int:
        """Return the bytes on a worker, in device and host memory together."""
        return sum(self.size(shard) for shard in self.workers[worker]) + self.replicated_bytes

    def columns(self, worker: int) -> int:
        """Return the number of columns of the pooled vectors that a worker computes for every sample of the global batch."""
        return sum(shard.width for _, shard in self.lookups[worker])

    def read_columns(self, worker: int) -> int:
        """Return the number of columns of table rows that a worker reads for a sample: a feature with h ids a sample reads h rows."""
        return sum(shard.width * self.features[feature].hotness for feature, shard in self.lookups[worker])

    def view(self, worker: int) -> View:
        """Return the sources that a worker reads."""
        replicated, mine = set(self.replicated), {self.source_of[lookup.feature] for lookup in self.lookups[worker]}
        local = {self.source_of[feature] for feature, table in enumerate(self.table_of) if table in replicated}
        counting: dict[int, int] = {}  # the first feature of each source whose table single workers hold
        for feature, (source, table) in enumerate(zip(self.source_of, self.table_of, strict=True)):
            if table not in replicated:
                counting.setdefault(source, feature)
        counted = {self.source_of[feature] for feature, shard in self.lookups[worker] if shard.first == 0 and feature in counting.values()}
        return View(tuple(sorted(mine)), tuple(sorted(local)), frozenset(mine - counted), frozenset(local & set(counting)))
