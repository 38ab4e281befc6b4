"""Lookup of a column's ids by binary search in files, for dictionaries too large for a hash table in an executor's memory."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

VALUES, IDS = "values.u32", "ids.i32"


class SortedIds:
    """A dictionary in two memory-mapped files: all values, rising, and the id of each. Only the page cache holds them in memory.

    Args:
        folder: folder of the files `values.u32` and `ids.i32`.
        dtype: dtype of the returned ids.
    """

    def __init__(self, folder: Path, dtype: str):
        self._values = np.memmap(folder / VALUES, np.uint32, "r")
        self._ids = np.memmap(folder / IDS, np.int32, "r")
        self.dtype, self.knows_zero = np.dtype(dtype), bool(self._values[0] == 0)

    def ids(self, values: np.ndarray) -> np.ndarray:
        """Return the ids `[n]` of values `[n]` uint32; 0 for values that the vocabulary lacks."""
        distinct, places = np.unique(values, return_inverse=True)  # sorted, so that the search passes through the file once
        found = np.minimum(np.searchsorted(self._values, distinct), len(self._values) - 1)
        return np.where(self._values[found] == distinct, self._ids[found], 0).astype(self.dtype)[places]


def write_sorted(vocabulary: pl.LazyFrame, low: int, high: int, folder: Path) -> None:
    """Write the two files of the values in [low, high); the caller joins the parts of a dictionary in order."""
    part = vocabulary.filter((pl.col("value") >= low) & (pl.col("value") < high)).select("value", "id").collect(engine="streaming").sort("value")
    part["value"].to_numpy().tofile(folder / VALUES)
    part["id"].to_numpy().tofile(folder / IDS)


def value_ranges(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Divide the 32-bit numbers into ranges of at most about `most` of `count` values, if these are hashes, which are evenly distributed."""
    parts = max(1, -(-count // most))
    cuts = [(part << 32) // parts for part in range(parts + 1)]
    return itertools.pairwise(cuts)
