"""The rows of each table that a training batch has had so far in the run: marked on the host, kept in checkpoints, counted for the log."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from model.compilation import on_gpu
from model.embedding.distributed import DistributedEmbedding
from model.embedding.shard import IdRows, LocalShard
from model.embedding.shard_specs import ids_of
from training.device_batch import TensorBatch
from training.lazy_state import add_rows
from utils.checkpoint.kept_files import TOUCHED_FILE
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.touched_form import bits_of, numbers_of

NAME = "touched"  # key of the manifest


class Marks:
    """One byte a row of some tables: 1 where a batch has had the row.

    Args:
        tables: V of each table, by its index.
        lookups: the rows of ids that are looked up in these tables: (table, rows).
    """

    def __init__(self, tables: Mapping[int, int], lookups: Sequence[tuple[int, IdRows]]):
        # The byte before a table's first row is that of −1, which means no id.
        starts = np.cumsum([0, *(rows + 1 for rows in tables.values())]) + 1
        self._places = {table: (int(start), rows) for (table, rows), start in zip(tables.items(), starts, strict=False)}
        self._marks = np.zeros(int(starts[-1]) - 1, np.uint8)
        places = sorted((row, self._places[table][0]) for table, ids in lookups for row in ids.rows)
        self._rows = np.array([row for row, _ in places], np.int64)
        self._starts = np.array([start for _, start in places], np.int64)[:, np.newaxis]
        self._in_order = bool(np.array_equal(self._rows, np.arange(len(places))))
        self._numbers = np.empty((0, 0), np.int64)

    def add(self, ids: np.ndarray) -> None:
        """Mark the rows that a batch's ids name, `[K, B]`; −1 names none."""
        if not len(self._rows):
            return
        chosen = ids if self._in_order and len(ids) == len(self._rows) else ids[self._rows]
        if self._numbers.shape != chosen.shape:
            self._numbers = np.empty(chosen.shape, np.int64)
        np.add(chosen, self._starts, out=self._numbers)
        self._marks[self._numbers.reshape(-1)] = 1

    def of(self, table: int) -> np.ndarray:
        """Return the marks of a table, `[V]` uint8; a view."""
        start, rows = self._places[table]
        return self._marks[start : start + rows]


class Touched:
    """The rows touched so far in a run.

    A worker marks the rows of the tables whose first column it holds, of partial tables whose any column it holds, and those of replicated tables
    that its own samples name. Those of lazy tables are marked by their places. With a GPU another thread does so, during the next step: marking 1.7
    million ids takes the host about as long as the step takes the device.

    Args:
        embedding: the tables of a model, built.

    Attributes:
        since: the step from which on the rows are counted; 0 unless the run was resumed from a checkpoint that has no marks.
    """

    def __init__(self, embedding: DistributedEmbedding):
        placement, self._world = embedding.placement, embedding.world
        self.tables = {table.name: table.rows for table in placement.tables}
        self._sharded = [[shard.table for shard in shards if shard.first == 0] for shards in placement.workers]
        self._replicated = list(placement.replicated)
        read, own = (ids_of(placement, features) for features in (embedding.view.global_features, embedding.view.local_features))
        self._lazy, lazy = embedding.lazy, embedding.lazy.tables if embedding.lazy else {}
        mine, placed = self._sharded[self._world.rank], embedding.lazy.layout.read if embedding.lazy else ()

        def marks(tables: Sequence[int], rows: Mapping[int, int], ids: Sequence[IdRows]) -> Marks:
            looked_up = [(table, some) for some in ids if (table := placement.table_of[some.feature]) in tables]
            return Marks({table: rows[table] for table in tables}, looked_up)

        rows = dict(enumerate(placement.rows))
        partial = [shard.table for shard in placement.workers[self._world.rank] if placement.tables[shard.table].partial]
        self._in_memory = list(dict.fromkeys([*(table for table in mine if table not in lazy), *partial]))
        self._global, self._local = marks(self._in_memory, rows, read), marks(self._replicated, rows, own)
        self._placed = marks([table for table in mine if table in lazy], {table: one.capacity for table, one in lazy.items()}, placed)
        self.since = 0
        self._thread = ThreadPoolExecutor(1, "touched") if on_gpu() else None
        self._last: Future | None = None  # the marking of the last batch, which may still be going on

    def add(self, batch: TensorBatch) -> None:
        """Mark the rows of a training batch."""
        self._finish()
        if self._thread is None:
            self._mark(batch)
        else:
            self._last = self._thread.submit(self._mark, batch)

    def _mark(self, batch: TensorBatch) -> None:
        self._global.add(batch.host.ids)
        self._local.add(batch.host.local_ids)
        if batch.placed:
            self._placed.add(batch.placed.ids)

    def _finish(self) -> None:
        """Wait until the rows of the last batch are marked."""
        if self._last is not None:
            self._last.result()
            self._last = None

    def bits(self) -> list[np.ndarray]:
        """Return the marks of every table, in their order, as bits; on the first worker only, else nothing. Every worker calls this."""
        self._finish()
        mine = [self._bits(table) for table in (*self._sharded[self._world.rank], *self._replicated)]
        received = self._world.gather_to_first(np.concatenate(mine) if mine else np.empty(0, np.uint8), "touched")
        if not self._world.first:
            return []
        found: dict[int, np.ndarray] = {}
        rows, start = list(self.tables.values()), 0
        for sharded in self._sharded:
            for table in (*sharded, *self._replicated):
                stop = start + -(-rows[table] // 8)
                found[table] = found[table] | received[start:stop] if table in found else received[start:stop]
                start = stop
        return [found[table] for table in range(len(rows))]

    def _bits(self, table: int) -> np.ndarray:
        """Return this worker's marks of a table, one bit a row."""
        if table in self._replicated:
            return np.packbits(self._local.of(table))
        if self._lazy is None or table not in self._lazy.tables:
            return np.packbits(self._global.of(table))
        lazy = self._lazy.tables[table]
        return bits_of(lazy.ids()[self._placed.of(table)[: lazy.known] > 0], lazy.table.rows)

    def changed(self, local: LocalShard) -> np.ndarray:
        """Return the numbers of the rows of a partial shard's table that may differ from their initial values, `[n]` ascending."""
        self._finish()
        return numbers_of(local.partial.differs | np.packbits(self._global.of(local.shard.table)))

    def shares(self) -> dict[str, float]:
        """Return the share of each table's rows that were touched, by the table's name; on the first worker only. Every worker calls this."""
        return {name: int(np.bitwise_count(bits).sum()) / rows for (name, rows), bits in zip(self.tables.items(), self.bits(), strict=False)}

    def described(self) -> dict[str, Any]:
        """Return the entry of the manifest of a checkpoint that holds the marks in `TOUCHED_FILE`."""
        return {NAME: {"since": self.since, "tables": self.tables}}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Mark the rows that a checkpoint's run had touched; where it does not hold them, count from its step on.

        Raises:
            CheckpointError: the marks are damaged, or of other tables.
            UserError: the rows of lazy tables do not fit their memory.
        """
        saved = checkpoint.manifest.get(NAME)
        if not isinstance(saved, Mapping) or TOUCHED_FILE not in checkpoint.manifest["files"]:
            self.since = checkpoint.step
            return
        content = np.frombuffer(checkpoint.content(TOUCHED_FILE), np.uint8)
        if saved.get("tables") != self.tables or len(content) != sum(-(-rows // 8) for rows in self.tables.values()):
            raise CheckpointError(f"{checkpoint.folder}/{TOUCHED_FILE}: holds the rows touched of other tables than the model's")
        found, start = {}, 0
        for table, rows in enumerate(self.tables.values()):
            found[table] = content[start : start + -(-rows // 8)]
            start += len(found[table])
        self.since = int(saved.get("since") or 0)
        lazy = self._lazy.tables if self._lazy else {}
        for marks, tables in ((self._global, self._in_memory), (self._local, self._replicated)):
            for table in tables:
                marks.of(table)[:] |= np.unpackbits(found[table], count=len(marks.of(table)))
        for table, rows in lazy.items():  # on every worker that holds columns of it, so that all have the same rows
            places = add_rows(self._lazy, rows, numbers_of(found[table]), checkpoint)
            if table in self._sharded[self._world.rank]:
                self._placed.of(table)[places] = 1
