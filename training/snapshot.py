"""The tables as they are at one moment, readable while training changes them."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from model.embedding.shard import LocalShard
from model.embedding.table_memory import gather_rows, read_rows


class FrozenRows:
    """A table's rows as they are now, to be read once, in order, while training goes on.

    Before a step changes rows that were not read yet, `protect` keeps a copy of them, once. So what it costs is the rows
    that training touches until the reader has passed them, not the table.
    """

    def __init__(self, variable: tf.Variable):
        self._variable = variable
        self._rows, self._columns = variable.shape
        self._next = 0  # first row that was not read yet
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []  # rows' numbers, ascending, and their values
        self._is_kept = np.zeros(self._rows, bool)

    @property
    def bytes(self) -> int:
        """Memory that kept rows take."""
        return sum(values.nbytes for _, values in self._kept)

    def protect(self, distinct: np.ndarray) -> None:
        """Keep the values of rows that are about to change: their numbers, ascending, without repetition."""
        if self._next == self._rows:
            return
        wanted = distinct[np.searchsorted(distinct, self._next) :]
        wanted = wanted[~self._is_kept[wanted]]
        if len(wanted):
            self._kept.append((wanted, gather_rows(self._variable, wanted)))
            self._is_kept[wanted] = True

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop, `[n, columns]`, as they were."""
        values = read_rows(self._variable, start, stop)
        for numbers, rows in self._kept:
            first, last = np.searchsorted(numbers, (start, stop))
            values[numbers[first:last] - start] = rows[first:last]
        self._next = stop
        self._kept = [(numbers, rows) for numbers, rows in self._kept if numbers[-1] >= stop]
        if stop == self._rows:
            self._is_kept = np.empty(0, bool)
        return values


class Snapshot:
    """The shards that this worker holds, weights and optimizer slots, as they are now.

    Args:
        shards: of this worker.
        places: for each of them the row of the batch's `ids` that names the rows a step changes.
    """

    def __init__(self, shards: Iterable[LocalShard], places: Iterable[int]):
        self._shards = [
            (place, {kind: FrozenRows(variable) for kind, variable in (("weights", one.weights), *one.slots.items())})
            for one, place in zip(shards, places, strict=True)
        ]

    def rows(self, number: int, kind: str) -> FrozenRows:
        """The rows of the number-th shard, of its weights or of a slot."""
        return self._shards[number][1][kind]

    @property
    def bytes(self) -> int:
        """Memory that kept rows take."""
        return sum(frozen.bytes for _, kinds in self._shards for frozen in kinds.values())

    def protect(self, ids: np.ndarray) -> int:
        """Keep what a step over `ids`, `[F_r, B]`, would overwrite before it is read; returns the bytes kept in all."""
        distinct: dict[int, np.ndarray] = {}
        for place, kinds in self._shards:
            if place not in distinct:
                distinct[place] = np.unique(ids[place])
            for frozen in kinds.values():
                frozen.protect(distinct[place])
        return self.bytes
