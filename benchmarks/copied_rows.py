"""Copying of the rows of a lookup or an update by a threaded loop that does nothing else: the least work of any embedding.

The loop is C++ (`copied_rows.cc`), compiled for this processor. Each thread takes an equal part of the samples, or of the rows, table by table.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import numpy as np

from benchmarks.bag_values import BOTH, LOOKUP, UPDATE, repeated

SOURCE = Path(__file__).with_suffix(".cc")
_SUMS = 64  # floats that `dlrm_read` writes


def compiled(folder: Path) -> ctypes.CDLL | None:
    """Compile the loop in a folder and load it; return None where there is no compiler."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if not shutil.which(compiler[0]):
        return None
    library = folder / "copied_rows.so"
    subprocess.run([*compiler, "-O3", "-march=native", "-shared", "-fPIC", str(SOURCE), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


class Copying:
    """The copying of rows in place of a lookup and an update.

    Lookup: each id's row is copied to a buffer in the cache, once for each occurrence. Update: the gradients are read once, in order, and each
    distinct row is read and written once; the distinct rows are found before timing.

    Args:
        library: the result of `compiled`.
        tables: the tables, `[V, D]` float32 each; they are changed.
        id_rows: each feature's range of rows of the ids.
        gradient_bytes: the size of a batch's gradients.
    """

    def __init__(self, library: ctypes.CDLL, tables: Sequence[np.ndarray], id_rows: Sequence[range], gradient_bytes: int):
        self._library, self._tables, self._id_rows = library, tables, id_rows
        self._gradients = np.ones(gradient_bytes // 4, np.float32)
        self._threads = len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._threads)
        size = max(_SUMS, *(table.shape[1] for table in tables))
        self._buffers = [np.zeros(size, np.float32) for _ in range(self._threads)]

    def load(self, batches: Sequence[np.ndarray], weights: Sequence[np.ndarray | None]) -> None:
        """Set the batches of ids, `[K, B]` int32 each; copying ignores their weights."""
        del weights
        self._batches = cycle(batches)
        self._distinct = cycle([[np.unique(ids[rows.start : rows.stop]) for rows in self._id_rows] for ids in batches])

    def turn(self, seconds: float) -> dict[str, float]:
        """Return the seconds of a lookup, an update and both; the first two are each repeated for `seconds`."""
        lookup, update = repeated(self._look_up, seconds), repeated(self._update, seconds)
        return {LOOKUP: lookup, UPDATE: update, BOTH: lookup + update}

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _look_up(self) -> None:
        self._in_parallel(self._read_rows, next(self._batches))

    def _update(self) -> None:
        self._in_parallel(self._read_gradients, self._gradients)
        self._in_parallel(self._change_rows, next(self._distinct))

    def _in_parallel(self, part: Callable[[object, int], None], values: object) -> None:
        """Call `part` in every thread, with the values and the thread's number."""
        list(self._pool.map(lambda thread: part(values, thread), range(self._threads)))

    def _share(self, count: int, thread: int) -> slice:
        return slice(count * thread // self._threads, count * (thread + 1) // self._threads)

    def _read_rows(self, ids: np.ndarray, thread: int) -> None:
        samples = self._share(ids.shape[1], thread)
        for table, rows in zip(self._tables, self._id_rows, strict=True):
            for row in rows:
                some = ids[row, samples]
                self._library.dlrm_read_rows(_at(table), _at(some), _long(len(some)), _long(table.shape[1]), _at(self._buffers[thread]))

    def _change_rows(self, distinct: Sequence[np.ndarray], thread: int) -> None:
        for table, ids in zip(self._tables, distinct, strict=True):
            some = ids[self._share(len(ids), thread)]
            self._library.dlrm_change_rows(_at(table), _at(some), _long(len(some)), _long(table.shape[1]))

    def _read_gradients(self, gradients: np.ndarray, thread: int) -> None:
        some = gradients[self._share(len(gradients), thread)]
        self._library.dlrm_read(_at(some), _long(len(some)), _at(self._buffers[thread]))


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _long(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)
