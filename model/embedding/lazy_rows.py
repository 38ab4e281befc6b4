"""Tables whose rows exist once a training batch has named them: `--table_storage lazy`.

A row that no batch has named is what its generator says, so only the others take memory. Each table has an array `[C, width]` for its weights and
one for each slot. A row's number in them is its place: places are given in the order in which batches name rows. The thread that reads ahead turns
the ids of a training batch into places (`LazyTables.planned`) and draws the new rows; the rows become part of the model with the batch's step
(`Placed.commit`). Lookups and updates work on places as they do on ids. They sum in the order of the samples, so no bit differs from a table in
memory.

A batch that is only scored makes no rows: those that do not exist are drawn behind the table's places, for this batch.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from model.embedding.lazy_table import LazyTable
from model.embedding.shard import IdRows
from model.embedding.shards import Placement
from model.native import NativeOperations

# Batches whose rows may come on top of a table's budget: that which exceeds it, the next one, and those that the reader has planned meanwhile.
_BATCHES_BEYOND = 8
_MOST_PLACES = (1 << 31) - 1  # places are int32


class LazyMemory(NamedTuple):
    """The memory for lazy tables on a worker.

    Attributes:
        budget: bytes of rows, with their slots; beyond it training ends.
        batch_size: the largest number of samples in a batch.
    """

    budget: float
    batch_size: int


class Placed(NamedTuple):
    """The ids of a batch with those of lazy tables as places: see `PlacedLayout`.

    Attributes:
        ids: `[K', B]` int32.
        tables: of a training batch, the lazy tables and their rows after the batch's step.
        full: these rows exceed the budget.
    """

    ids: np.ndarray
    tables: tuple[tuple[LazyTable, int], ...] = ()
    full: bool = False

    def commit(self) -> None:
        """Make the rows that a training batch has named first part of the model. Call this before its step, batch after batch."""
        for table, count in self.tables:
            table.known = max(table.known, count)


class LazyTables:
    """The lazy tables of a worker.

    Args:
        layout: how the batch's ids become places.
        tables: the tables, by their index in the placement.
        memory: the memory for their rows.
    """

    def __init__(self, layout: "PlacedLayout", tables: Mapping[int, LazyTable], memory: LazyMemory):
        self.layout, self.tables, self._memory = layout, dict(tables), memory
        self._planning = threading.Lock()

    @property
    def bytes(self) -> int:
        """The bytes of the rows that exist, with their slots."""
        return sum(table.known * table.row_bytes for table in self.tables.values())

    @property
    def budget(self) -> float:
        """The bytes that rows may take."""
        return self._memory.budget

    def begin(self) -> None:
        """Forget what was planned for batches that no step had; call this before the first batch of a new iteration is planned."""
        with self._planning:
            for table in self.tables.values():
                table.places.truncate(table.known)

    def planned(self, ids: np.ndarray) -> Placed:
        """Turn the ids of the next training batch, `[K, B]`, into places. Called for one batch after the other, in any one thread.

        Raises:
            ValueError: an id is out of range.
        """
        with self._planning:
            out = self.layout.filled(ids, lambda table, some, places: self.tables[table].plan(some, places))
            rows = tuple((table, len(table.places)) for table in self.tables.values())
            return Placed(out, rows, sum(count * table.row_bytes for table, count in rows) > self._memory.budget)

    def found(self, ids: np.ndarray) -> Placed:
        """Turn the ids of a batch that is scored, `[K, B]`, into places, which are valid until the next call.

        Raises:
            ValueError: an id is out of range.
        """
        return Placed(self.layout.filled(ids, lambda table, some, places: self.tables[table].find(some, places)))


class PlacedLayout:
    """The rows of ids where lazy tables have places: the batch's ids `[K, B]`, followed by rows of places for each source and lazy table.

    Ids stay in their rows, for other tables may be looked up by them. Rows with the weights of ids are copied.

    Args:
        read: the rows of ids that each feature takes in a batch.
        table_of: the index of each feature's table.
        lazy: the indices of the lazy tables.
    """

    def __init__(self, read: Sequence[IdRows], table_of: Sequence[int], lazy: Sequence[int]):
        self._width = max((one.end for one in read), default=0)
        self._moved: dict[tuple[int, int], tuple[IdRows, int]] = {}  # by table and first row: the ids, and the first row of their places
        end, self.read = self._width, []
        for one in read:
            table = table_of[one.feature]
            if table in lazy:
                _, first = self._moved.setdefault((table, one.first), (one, end))
                end = max(end, first + one.end - one.first)
                one = one._replace(first=first)
            self.read.append(one)
        self._end = end

    def _of_table(self) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield each table with its rows of ids and of places."""
        for table in dict.fromkeys(table for table, _ in self._moved):
            mine = [(one, first) for (of, _), (one, first) in self._moved.items() if of == table]
            yield table, [row for one, _ in mine for row in one.rows], [first + j for one, first in mine for j in range(one.hotness)]

    def filled(self, ids: np.ndarray, place: Callable[[int, np.ndarray, np.ndarray], None]) -> np.ndarray:
        """Return the batch's ids with places, `[K', B]`; `place(table, ids, out)` turns some rows of ids into places."""
        out = np.empty((self._end, ids.shape[1]), np.int32)
        out[: self._width] = ids
        for one, first in self._moved.values():
            out[first + one.hotness : first + one.end - one.first] = ids[one.first + one.hotness : one.end]
        for table, rows, places in self._of_table():
            found = np.empty((len(rows), ids.shape[1]), np.int32)
            place(table, np.ascontiguousarray(ids[rows]), found)
            out[places] = found
        return out


def lazy_tables(
    placement: Placement, worker: int, read: Sequence[IdRows], seed: int, memory: LazyMemory | None, native: NativeOperations | None
) -> LazyTables | None:
    """Return the lazy tables that a worker holds, still without shards; None where it holds none.

    Args:
        placement: the placement of the tables.
        worker: the rank of the worker.
        read: the rows of ids that each feature takes in the worker's batches.
        seed: the seed of the rows.
        memory: the memory for the rows.
        native: the C++ operations.

    Raises:
        ValueError: a table is lazy, and there are no C++ operations or no `memory`.
    """
    mine = sorted({shard.table for shard in placement.workers[worker] if placement.tables[shard.table].lazy})
    if not mine:
        return None
    if memory is None or native is None:
        raise ValueError("lazy tables: expected the C++ operations, and the memory for the rows")
    tables = {}
    for number in mine:
        table = placement.tables[number]
        row_bytes = sum(placement.storage.bytes(1, shard.width) for shard in placement.workers[worker] if shard.table == number)
        of_batch = min(table.rows, memory.batch_size * placement.reads[number])
        most = _MOST_PLACES - memory.batch_size * placement.reads[number]
        capacity = min(table.rows, int(memory.budget // row_bytes) + _BATCHES_BEYOND * of_batch, most)
        tables[number] = LazyTable(table, capacity, of_batch, row_bytes, seed, native)
    return LazyTables(PlacedLayout(read, placement.table_of, mine), tables, memory)
