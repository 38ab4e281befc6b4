"""Lookup of a column's ids in a hash table in NumPy, which is several times as fast as a join."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl

from utils.naming import naming

_ODD = np.uint32(2654435769)  # 2^32 over the golden ratio: multiplicative hashing, which uses the highest bits of the product
_BLOCK = 1 << 15  # values looked up at once, so that all arrays but the table stay in the cache


class IdTable:
    """A hash table with open addressing and linear probing; `(4 + bytes of an id)` bytes a slot, 2 to 8 slots a value.

    Args:
        vocabulary: columns `value` UInt32, unique, and `id` Int32 from 1 on, frequent values first: these are found with the first probe.
        dtype: dtype of the returned ids.
        sparse_values: a table of up to so many values is at most a quarter full, a larger one at most half.
        inserted: values that are inserted at once.
    """

    def __init__(self, vocabulary: pl.DataFrame, dtype: str, sparse_values: int = 1 << 20, inserted: int = 1 << 18):
        values, ids = vocabulary["value"].to_numpy(), vocabulary["id"].to_numpy().astype(dtype)
        bits = max(4, ((4 if len(values) <= sparse_values else 2) * len(values)).bit_length())
        self._shift, self._last = np.uint32(32 - bits), (1 << bits) - 1
        self._values, self._ids = np.zeros(1 << bits, np.uint32), np.zeros(1 << bits, dtype)  # id 0: the slot is free
        self.dtype, self.knows_zero = np.dtype(dtype), bool((values == 0).any())
        for start in range(0, len(values), inserted):
            self._insert(values[start : start + inserted][::-1], ids[start : start + inserted][::-1])

    def _insert(self, values: np.ndarray, ids: np.ndarray) -> None:
        """Insert values, frequent ones last: where several hash to the same slot, NumPy's assignment keeps the last."""
        slots = self._slots(values)
        while len(values):
            free = self._ids[slots] == 0
            self._values[slots[free]], self._ids[slots[free]] = values[free], ids[free]
            left = self._ids[slots] != ids
            slots, values, ids = (slots[left] + 1) & self._last, values[left], ids[left]

    def _slots(self, values: np.ndarray) -> np.ndarray:
        return ((values * _ODD) >> self._shift).astype(np.intp)

    def ids(self, values: np.ndarray) -> np.ndarray:
        """Return the ids `[n]` of values `[n]` uint32; 0 for values that the vocabulary lacks."""
        slots = self._slots(values)
        found = self._ids[slots]
        other = np.flatnonzero(self._values[slots] != values)
        other = other[found[other] != 0]  # a free slot ends the search
        found[other], slots = 0, slots[other]
        while len(other):
            slots = (slots + 1) & self._last
            ids, hit = self._ids[slots], self._values[slots] == values[other]
            found[other[hit]] = ids[hit]
            going = ~hit & (ids != 0)
            slots, other = slots[going], other[going]
        return found


class IdLookup(Protocol):
    """The interface of `IdTable` and of other lookups with the same results."""

    dtype: np.dtype
    knows_zero: bool  # whether 0 is a value that has an id

    def ids(self, values: np.ndarray) -> np.ndarray:
        """Return the ids `[n]` of values `[n]` uint32; 0 for values that the vocabulary lacks."""


def write_table_ids(columns: Iterable[pl.Series], vocabulary: pl.DataFrame, dtype: str, path: Path, block: int = _BLOCK) -> None:
    """Write the ids of a column of values to a binary file, in row order; missing values, and values that the vocabulary lacks, get id 0.

    Args:
        columns: blocks of the column, UInt32 with null for missing.
        vocabulary: see `IdTable`.
        dtype: int8, int16 or int32.
        path: the file, which is replaced.
        block: values looked up at once.
    """
    write_looked_up(columns, IdTable(vocabulary, dtype), path, block)


def write_looked_up(columns: Iterable[pl.Series], table: IdLookup, path: Path, block: int = _BLOCK) -> None:
    """Write the ids as `write_table_ids` does, with an existing table."""
    file = path.open("wb")
    try:
        for column in columns:
            values = column.fill_null(0).to_numpy()
            ids = np.empty(len(values), table.dtype)
            for start in range(0, len(values), block):
                ids[start : start + block] = table.ids(values[start : start + block])
            if table.knows_zero and column.null_count():
                ids[column.is_null().to_numpy()] = 0
            with naming(path):
                file.write(ids.data)
        with naming(path):
            file.close()
    finally:
        with contextlib.suppress(OSError):  # on a full disk: the original error is raised already
            file.close()
