"""Tables whose rows exist once a training batch has named them: `--table_storage lazy`.

A row that no batch has named is what its generator says, so only the others take memory. Each table has an array `[C, width]` for its weights and
one for each slot. A row's number in them is its place: places are given in the order in which batches name rows. The thread that reads ahead turns
the ids of a training batch into places (`LazyTables.planned`) and draws the new rows; the rows become part of the model with the batch's step
(`LazyTables.commit`). Lookups and updates work on places as they do on ids. They sum in the order of the samples, so no bit differs from a table in
memory.

A batch that is only scored makes no rows: those that do not exist are drawn behind the table's places, for this batch.
"""

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from model.embedding.initializers import origin_of
from model.embedding.shard import IdRows
from model.embedding.shards import Placement, Shard
from model.embedding.table import Table
from model.native import NativeOperations
from model.native_places import PlaceMap, row_numbers
from utils.initial_rows import Origin, Untouched

# Batches whose rows may come on top of a table's budget: that which exceeds it, the next one, and those that the reader has planned meanwhile.
_BATCHES_BEYOND = 8


class LazyMemory(NamedTuple):
    """The memory for lazy tables on a worker.

    Attributes:
        budget: bytes of rows, with their slots; beyond it training ends.
        batch_size: the largest number of samples in a batch.
    """

    budget: float
    batch_size: int


class Placed(NamedTuple):
    """The ids of a batch with those of lazy tables as places: see `LazyTables.layout`."""

    ids: np.ndarray  # [K', B] int32
    rows: tuple[int, ...] = ()  # rows of each lazy table after the batch's step; empty where the batch is only scored
    full: bool = False  # these rows exceed the budget


class ReservedRows:
    """Rows of a variable whose memory the host writes directly, `[C, width]`; a page takes memory once it is written.

    Args:
        reserved: the tensor of the reserved rows, which the variable takes over.
    """

    def __init__(self, reserved: tf.Tensor):
        rows, columns = reserved.shape
        address = np.frombuffer(memoryview(reserved), np.float32).__array_interface__["data"][0]
        self.values = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (rows, columns))


class LazyShard:
    """The memory of a shard's rows.

    Args:
        columns: first and last+1 column of the table that the shard holds.
        untouched: the rows that do not exist.
        weights: the memory of the weights.

    Attributes:
        arrays: the memory by kind: "weights" and the optimizer's slots.
        starts: what each slot of an untouched row holds.
    """

    def __init__(self, columns: tuple[int, int], untouched: Untouched, weights: ReservedRows):
        self.columns, self.untouched = columns, untouched
        self.arrays, self.starts = {"weights": weights}, {}

    def draw(self, first: int, ids: np.ndarray) -> None:
        """Write untouched rows, with their slots, to the places from `first` on."""
        place = slice(first, first + len(ids))
        self.untouched.at(ids.astype(np.int64), self.arrays["weights"].values[place])
        for slot, start in self.starts.items():
            self.arrays[slot].values[place] = start


class LazyTable:
    """A table of which a worker holds one or more shards. Planning and scoring may happen in two threads.

    Args:
        table: the table.
        capacity: places for rows that exist.
        scratch: places behind them, for the untouched rows of a batch that is scored.
        row_bytes: the bytes of a row in all shards, with slots.
        seed: the seed of the rows of a new table.
        native: the C++ operations, which reserve the memory.
    """

    def __init__(self, table: Table, capacity: int, scratch: int, row_bytes: int, seed: int, native: NativeOperations):
        self.table, self.capacity, self.row_bytes, self._scratch, self._native = table, capacity, row_bytes, scratch, native
        self._origins: tuple[Origin, ...] = (origin_of(table, seed),)
        self._shards: dict[Shard, LazyShard] = {}
        self.places = PlaceMap(table.rows)
        self.known = 0  # rows that are part of the model; later places are planned

    @property
    def shards(self) -> list[LazyShard]:
        """The shards that the worker holds."""
        return list(self._shards.values())

    def memory(self, shard: Shard) -> LazyShard:
        """Return the memory of one of these shards."""
        return self._shards[shard]

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The generators of the untouched rows."""
        return self._origins

    def add_shard(self, shard: Shard, make_variable: Callable[[tf.Tensor], tf.Variable]) -> tf.Variable:
        """Return the variable of a shard's weights, `[C, width]`; `make_variable` as in `table_memory.new_table`."""
        variable, rows = self._reserve(shard.width, make_variable)
        columns = (shard.first, shard.last)
        self._shards[shard] = LazyShard(columns, Untouched(self._origins, columns, row_numbers), rows)
        return variable

    def add_slot(self, shard: Shard, name: str, columns: int, start: float) -> tf.Variable:
        """Return the variable of a slot of a shard, `[C, columns]`; every row holds `start`."""
        variable, rows = self._reserve(columns, tf.Variable)
        self._shards[shard].arrays[name], self._shards[shard].starts[name] = rows, start
        rows.values[: self.known] = start
        return variable

    def _reserve(self, columns: int, make_variable: Callable[[tf.Tensor], tf.Variable]) -> tuple[tf.Variable, ReservedRows]:
        tensor = self._native.reserve(self.capacity + self._scratch, columns)
        rows = ReservedRows(tensor)
        return make_variable(tensor), rows

    def draw_by(self, origins: Sequence[Origin]) -> None:
        """Draw untouched rows from these origins from now on."""
        self._origins = tuple(origins)
        for shard in self.shards:
            shard.untouched = Untouched(origins, shard.columns, row_numbers)

    def whole_rows(self) -> Untouched:
        """Return the untouched rows of all columns."""
        return Untouched(self._origins)

    def ids(self) -> np.ndarray:
        """Return the numbers of the rows that exist, in the order of their places, `[n]` int32."""
        return self.places.ids()[: self.known]

    def plan(self, ids: np.ndarray, out: np.ndarray) -> None:
        """Turn ids `[k, B]` into places, and draw the rows that are new.

        Raises:
            ValueError: an id is out of range.
            MemoryError: there is no place left.
        """
        before = len(self.places)
        self.places.plan(ids, out)
        self._draw_from(before)

    def _draw_from(self, first: int) -> None:
        if len(self.places) > self.capacity:
            raise MemoryError(f"table {self.table.name}: {len(self.places):,} rows, there are places for {self.capacity:,}")
        new = self.places.ids(first)
        for shard in self.shards if len(new) else ():
            shard.draw(first, new)

    def find(self, ids: np.ndarray, out: np.ndarray) -> None:
        """Turn ids `[k, B]` into places; draw the rows that do not exist, for this batch only.

        Raises:
            ValueError: an id is out of range, or the batch is larger than was said.
        """
        absent = self.places.find(ids, out, self.known, self.capacity)
        if len(absent) > self._scratch:
            raise ValueError(f"table {self.table.name}: {len(absent):,} untouched rows in a batch, expected at most {self._scratch:,}")
        for shard in self.shards if len(absent) else ():
            shard.draw(self.capacity, absent)

    def begin_with(self, ids: np.ndarray) -> None:
        """Make rows exist in a table that has none, at the places 0 to n−1; the caller writes their weights.

        Raises:
            MemoryError: there are fewer places.
        """
        if len(ids) > self.capacity:
            raise MemoryError(f"table {self.table.name}: {len(ids):,} rows, there are places for {self.capacity:,}")
        self.places, self.known = PlaceMap(self.table.rows, ids), len(ids)
        for shard in self.shards:
            for slot, start in shard.starts.items():
                shard.arrays[slot].values[: self.known] = start

    def add(self, ids: np.ndarray) -> np.ndarray:
        """Make rows exist, `[n]`, and return their places; those that exist already keep theirs. Nothing may be planned meanwhile."""
        before, out = len(self.places), np.empty((1, len(ids)), np.int32)
        self.places.plan(np.ascontiguousarray(ids[np.newaxis], np.int32), out)
        self._draw_from(before)
        self.known = len(self.places)
        return out[0]


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
        return self._bytes(table.known for table in self.tables.values())

    def _bytes(self, rows: Iterable[int]) -> int:
        return sum(count * table.row_bytes for count, table in zip(rows, self.tables.values(), strict=True))

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
            rows = tuple(len(table.places) for table in self.tables.values())
            return Placed(out, rows, self._bytes(rows) > self._memory.budget)

    def found(self, ids: np.ndarray) -> Placed:
        """Turn the ids of a batch that is scored, `[K, B]`, into places, which are valid until the next call.

        Raises:
            ValueError: an id is out of range.
        """
        return Placed(self.layout.filled(ids, lambda table, some, places: self.tables[table].find(some, places)))

    def commit(self, placed: Placed) -> None:
        """Make the new rows of a planned batch part of the model; call this before its step, batch after batch."""
        for table, count in zip(self.tables.values(), placed.rows, strict=True):
            table.known = max(table.known, count)


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
        capacity = min(table.rows, int(memory.budget // row_bytes) + _BATCHES_BEYOND * of_batch)
        tables[number] = LazyTable(table, capacity, of_batch, row_bytes, seed, native)
    return LazyTables(PlacedLayout(read, placement.table_of, mine), tables, memory)
