"""A table whose rows exist once a training batch has named them: the memory of its rows, by their places. See `lazy_rows`."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from model.embedding.initializers import origin_of
from model.embedding.shards import Shard
from model.embedding.table import Table
from model.native import NativeOperations, reserve_rows
from model.native_places import PlaceMap, row_numbers
from utils.initial_rows import Origin, Untouched


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

    def draw(self, first: int, ids: np.ndarray, slots: bool = True) -> None:
        """Write untouched rows, and with `slots` their slots, to the places from `first` on."""
        place = slice(first, first + len(ids))
        self.untouched.at(ids.astype(np.int64), self.arrays["weights"].values[place])
        for slot, start in self.starts.items() if slots else ():
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
        tensor = reserve_rows(self._native, self.capacity + self._scratch, columns)
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
            shard.draw(self.capacity, absent, slots=False)

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
