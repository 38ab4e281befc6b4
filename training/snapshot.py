"""Snapshots of the tables at one moment, readable while training changes them."""

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from model.compilation import on_gpu
from model.embedding.shard import LocalShard
from model.embedding.table_memory import VariableRows, gather_rows
from utils.memory import available_bytes

KEPT_BYTES = 512 << 20  # bytes of rows kept for a checkpoint being written; beyond this limit training waits for the disk
KEPT_SHARE = 4  # with a GPU, whose steps touch that many bytes in a few milliseconds, 1/4 of the free host memory may be kept


def kept_bytes(local_workers: int) -> int:
    """Return the bytes of changed rows that a worker may keep while a checkpoint is written; `local_workers` share the machine."""
    return max(KEPT_BYTES, available_bytes() // KEPT_SHARE // local_workers) if on_gpu() else KEPT_BYTES


class Order:
    """The order in which a snapshot reads the rows of a shard: as they lie, or by ascending row number those that exist or may have changed.

    Args:
        local: the shard.
        changed: of a partial table, the numbers of the rows that may differ from their initial values, `[n]` ascending.

    Attributes:
        numbers: of a lazy or partial table, the numbers of the rows that are read, `[n]` ascending; else None.
    """

    def __init__(self, local: LocalShard, changed: np.ndarray | None = None):
        self.numbers = self._places = self._position = None
        if local.lazy:
            ids = local.lazy.ids()
            self._places = np.argsort(ids).astype(np.int32)
            self.numbers, self._position = ids[self._places], np.empty_like(self._places)
            self._position[self._places] = np.arange(len(ids), dtype=np.int32)
        elif local.partial:
            self.numbers = self._places = changed

    def count(self, rows: VariableRows) -> int:
        """Return how many of a shard's rows are read."""
        return rows.count if self._places is None else len(self._places)

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of rows that are about to change, ascending, given as they lie, ascending. Rows newer than the snapshot have none."""
        if self._places is None:
            return rows
        if self._position is not None:
            return np.sort(self._position[rows[: np.searchsorted(rows, len(self._places))]])
        found = np.searchsorted(self.numbers, rows)
        found, rows = found[: (inside := np.searchsorted(found, len(self.numbers)))], rows[:inside]
        return found[self.numbers[found] == rows]

    def places(self, positions: np.ndarray) -> np.ndarray:
        """Return the rows at these positions, as they lie."""
        return positions if self._places is None else self._places[positions]

    def read(self, rows: VariableRows, start: int, stop: int) -> np.ndarray:
        """Return the rows at positions start to stop."""
        if self._places is None:
            return rows.read(start, stop)
        return gather_rows(rows.variable, rows.first + self._places[start:stop]).numpy()


class FrozenRows:
    """A snapshot of a table's rows, to be read once, in order, while training continues.

    Before a step changes rows that were not read yet, a copy of them is kept, once. So the memory needed is that of the rows that training touches
    before they are read, not of the whole table.

    Args:
        rows: the rows of the table.
        order: the order in which they are read; below, rows are numbered by it.
        settle: called before rows are read; fetches copies that were taken but are not kept yet.
    """

    def __init__(self, rows: VariableRows, order: Order, settle: Callable[[], None]):
        self.stored, self.order, self._settle = rows, order, settle
        self._rows = order.count(rows)
        self._next = 0  # first row that was not read yet
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []  # numbers of rows, ascending, and their values
        self._is_kept = np.zeros(self._rows, bool)

    @property
    def bytes(self) -> int:
        """The memory of the kept rows."""
        return sum(values.nbytes for _, values in self._kept)

    def wanted(self, distinct: np.ndarray) -> np.ndarray:
        """Return those of the rows about to change (ascending, distinct) that must be kept, and mark them as kept."""
        if self._next == self._rows:
            return distinct[:0]
        wanted = distinct[np.searchsorted(distinct, self._next) :]
        wanted = wanted[~self._is_kept[wanted]]
        self._is_kept[wanted] = True
        return wanted

    def keep(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Keep the values `[n, columns]` of rows that `wanted` returned."""
        self._kept.append((rows, values))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows start to stop, `[n, columns]`, as they were at the time of the snapshot."""
        self._settle()
        values = self.order.read(self.stored, start, stop)
        for numbers, rows in self._kept:
            first, last = np.searchsorted(numbers, (start, stop))
            values[numbers[first:last] - start] = rows[first:last]
        self._next = stop
        self._kept = [(numbers, rows) for numbers, rows in self._kept if numbers[-1] >= stop]
        if stop == self._rows:
            self._is_kept = np.empty(0, bool)  # free it: it takes one byte a row
        return values


class Snapshot:
    """A snapshot of this worker's shards: weights and optimizer slots.

    Args:
        shards: the shards of this worker.
        places: for each shard, the rows of the batch's `ids` that hold the numbers of the table rows that a step changes.
        limit: the number of bytes that may be kept; beyond it, training must wait.
        changed: returns the rows of a partial shard's table that are read, as in `Order`.
    """

    def __init__(
        self,
        shards: Iterable[LocalShard],
        places: Iterable[tuple[int, ...]],
        limit: int = KEPT_BYTES,
        changed: Callable[[LocalShard], np.ndarray] | None = None,
    ):
        self.limit = limit
        self._shards = []
        orders: dict[int, Order] = {}  # by lazy or partial table
        for one, place in zip(shards, places, strict=True):
            order = orders.get(id(one.by_rows)) or Order(one, changed(one) if one.partial else None)
            if one.by_rows:
                orders[id(one.by_rows)] = order
            self._shards.append((place, order, {kind: FrozenRows(rows, order, self._settle) for kind, rows in one.kinds().items()}))
        self._copies: list[tuple[tf.Tensor, list[tuple[FrozenRows, np.ndarray]]]] = []  # the device may still be making them
        self._copied = 0  # bytes of the copies

    def rows(self, number: int, kind: str) -> FrozenRows:
        """Return the rows of the number-th shard: of its weights or of a slot."""
        return self._shards[number][2][kind]

    def numbers(self, number: int) -> np.ndarray | None:
        """Return the numbers of the number-th shard's rows, see `Order`."""
        return self._shards[number][1].numbers

    @property
    def bytes(self) -> int:
        """The memory of the kept rows and of the copies."""
        return self._copied + sum(frozen.bytes for _, _, kinds in self._shards for frozen in kinds.values())

    def protect(self, ids: np.ndarray) -> int:
        """Keep the rows that a step would overwrite before they are read; return the bytes kept in all.

        `ids` are those of the batch, `[K_r, B]`; of lazy tables the places.
        One operation for each variable takes the copies. They are fetched from the device a step later, so nothing waits for the device.
        """
        self._settle()
        distinct: dict[tuple[int, ...], np.ndarray] = {}
        by_variable: dict[int, list[tuple[FrozenRows, np.ndarray]]] = {}
        for place, order, kinds in self._shards:
            if place not in distinct:
                found = np.unique(ids[list(place)])
                distinct[place] = found[np.searchsorted(found, 0) :]  # drop −1, which means no id
            changed = order.positions(distinct[place])
            for frozen in kinds.values():
                rows = frozen.wanted(changed)
                if len(rows):
                    by_variable.setdefault(id(frozen.stored.variable), []).append((frozen, rows))
        for wanted in by_variable.values():
            numbers = [frozen.stored.first + frozen.order.places(rows) for frozen, rows in wanted]
            copy = gather_rows(wanted[0][0].stored.variable, numbers[0] if len(numbers) == 1 else np.concatenate(numbers))
            self._copies.append((copy, wanted))
            self._copied += 4 * copy.shape.num_elements()
        return self.bytes

    def _settle(self) -> None:
        """Fetch the copies that were taken, and keep them."""
        copies, self._copies, self._copied = self._copies, [], 0
        for copy, wanted in copies:
            values, start = copy.numpy(), 0
            for frozen, rows in wanted:
                mine = values[start : start + len(rows)]
                frozen.keep(rows, mine if len(wanted) == 1 else mine.copy())  # a view would keep the whole array in memory
                start += len(rows)
