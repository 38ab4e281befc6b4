"""The places of the rows of lazy tables, and the numbers that single rows are drawn from, in C++ (`ops/place_map.h`, `ops/row_numbers.h`).

They are in the scorer's library, which `ops/build` compiles; see `native_scorer.native_scorer_library`.
"""

import ctypes
import functools
import os
import weakref
from collections.abc import Sequence

import numpy as np

from model.native import scorer_path
from model.native_scorer import native_scorer_library
from utils.errors import UserError

_MOST_ROWS = (1 << 31) - 1  # places and ids are int32
_NUMBERS_OF_COUNT = 8  # float32 numbers that a count of the generator gives
_SUCCESS, _NO_MEMORY = -1, -2  # return codes; 0 or more is the position of an id that is out of range


class _PlacedIds(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "places")),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "ids_stride", "places_stride")),
    )


class PlaceMap:
    """The places of the rows of a table that exist: numbers from 0 in the order in which batches named the rows. Thread-safe.

    A row takes about 16 bytes.

    Args:
        rows: V.
        ids: the rows that exist at the start, `[n]`, in the order of their places.

    Raises:
        MemoryError: there is not enough memory for the map; methods raise it, too.
        UserError: the library is not built, or is switched off.
        ValueError: V is not in [1, 2^31), or an id is out of range or occurs twice.
    """

    def __init__(self, rows: int, ids: np.ndarray | None = None):
        if not 1 <= rows <= _MOST_ROWS:
            raise ValueError(f"a table of {rows} rows: expected 1 to {_MOST_ROWS}")
        self._rows, self._library = rows, _places_library()
        self._handle = self._library.dlrm_places_new(rows, 0 if ids is None else len(ids))
        if not self._handle:
            raise MemoryError(f"the places of {0 if ids is None else len(ids):,} rows")
        weakref.finalize(self, self._library.dlrm_places_delete, self._handle).atexit = False
        if ids is not None:
            self._start(_as_ids(ids))

    def _start(self, ids: np.ndarray) -> None:
        places = np.empty((1, len(ids)), np.int32)
        self.plan(ids[np.newaxis], places)
        if len(self) < len(ids):
            again = np.flatnonzero(places[0] != np.arange(len(ids), dtype=np.int32))[0]
            raise ValueError(f"ids[{again}] = {ids[again]}: expected rows of the table, each once")

    def __len__(self) -> int:
        """Return n, the number of rows that exist."""
        return self._library.dlrm_places_size(self._handle)

    def plan(self, ids: np.ndarray, out: np.ndarray) -> None:
        """Turn ids into places, row after row; an id that is new gets the next place, and exists from then on.

        Args:
            ids: `[k, B]` int32; -1 means no id, whose place is -1.
            out: the places, `[k, B]` int32; it may be `ids` itself.

        Raises:
            ValueError: an id is out of range; then nothing has changed. Or an array is not as described.
        """
        batch = _batch(ids, out)
        self._check(self._library.dlrm_places_plan(self._handle, ctypes.byref(batch)), ids)

    def find(self, ids: np.ndarray, out: np.ndarray, known: int, scratch: int) -> np.ndarray:
        """Turn ids into places; no row comes into existence.

        Args:
            ids: `[k, B]` int32; -1 means no id, whose place is -1.
            out: the places, `[k, B]` int32; it may be `ids` itself.
            known: rows whose places are `known` or more are absent, like those that do not exist.
            scratch: the place of the first absent row; the others follow it in the order of their first occurrence.

        Returns:
            The ids of the absent rows, each once, `[m]` int32.

        Raises:
            ValueError: an id is out of range, a place could exceed int32, or an array is not as described.
        """
        batch = _batch(ids, out)
        if known < 0 or not 0 <= scratch <= _MOST_ROWS - ids.size:
            raise ValueError(f"known {known} and scratch {scratch} for {ids.size} ids: expected places from 0 to {_MOST_ROWS - 1}")
        absent, count = np.empty(ids.size, np.int32), ctypes.c_int64()
        arguments = ctypes.byref(batch), min(known, _MOST_ROWS), scratch, absent.ctypes.data, ctypes.byref(count)
        self._check(self._library.dlrm_places_find(self._handle, *arguments), ids)
        return absent[: count.value].copy()

    def truncate(self, count: int) -> None:
        """Forget the rows whose places are `count` or more."""
        if count < 0:
            raise ValueError(f"truncate to {count} rows: expected 0 or more")
        self._library.dlrm_places_truncate(self._handle, count)

    def ids(self, first: int = 0) -> np.ndarray:
        """Return the ids of the rows that exist, from place `first` on, in the order of their places, `[n - first]` int32."""
        if first < 0:
            raise ValueError(f"ids from place {first} on: expected 0 or more")
        last = len(self)
        found = np.empty(max(last - first, 0), np.int32)
        return found[: self._library.dlrm_places_ids(self._handle, first, last, found.ctypes.data)]

    def _check(self, code: int, ids: np.ndarray) -> None:
        if code == _NO_MEMORY:
            raise MemoryError(f"the places of {ids.size:,} ids, beside {len(self):,} rows")
        if code != _SUCCESS:
            row, column = divmod(code, ids.shape[1])
            raise ValueError(f"ids[{row}, {column}] = {ids[row, column]} is not in [0, {self._rows})")


def _as_ids(ids: np.ndarray) -> np.ndarray:
    """Return ids `[n]` as int32. Raises ValueError where int32 does not hold them, or they are negative."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"ids {list(ids.shape)} {ids.dtype}: expected [n] integers")
    bad = np.flatnonzero((ids < 0) | (ids >= _MOST_ROWS))
    if len(bad):
        raise ValueError(f"ids[{bad[0]}] = {ids[bad[0]]}: expected rows of the table, each once")
    return np.ascontiguousarray(ids, np.int32)


def _batch(ids: np.ndarray, out: np.ndarray) -> _PlacedIds:
    for name, array in (("ids", ids), ("out", out)):
        # A row may be anywhere, but its elements lie side by side.
        if array.dtype != np.int32 or array.ndim != 2 or not array[:1].flags.c_contiguous or array.strides[0] % 4:
            raise ValueError(f"{name} {list(array.shape)} {array.dtype}, strides {array.strides}: expected [k, B] int32, rows contiguous")
    if ids.shape != out.shape or not out.flags.writeable:
        raise ValueError(f"ids {list(ids.shape)}, out {list(out.shape)}: expected an out of the same shape that can be written")
    return _PlacedIds(ids.ctypes.data, out.ctypes.data, *ids.shape, ids.strides[0] // 4, out.strides[0] // 4)


def row_numbers(key: Sequence[int], counts: int, rows: np.ndarray) -> np.ndarray:
    """Return the numbers that `np.random.Generator(Philox(key))` draws for some rows, each alone: `[n] -> [n, 8·counts]` float32 in [0, 1).

    The same bits as `utils.initial_rows.numbers_of_rows`, by all processors that the process may use.

    Args:
        key: the two words of the generator's key.
        counts: the counter values of a row; row r begins at counter r·counts.
        rows: the rows' numbers, `[n]` integers, in any order.

    Raises:
        MemoryError: there is not enough memory.
        UserError: the library is not built, or is switched off.
        ValueError: no counts, or a row is negative.
    """
    library = _places_library()
    rows = np.ascontiguousarray(rows, np.int64)
    if counts < 1 or rows.ndim != 1 or (len(rows) and rows.min() < 0):
        raise ValueError(f"{counts} counts for rows {list(rows.shape)}: expected 1 count or more, and numbers [n] of rows from 0 on")
    words, found = np.array([int(word) for word in key], np.uint64), np.empty((len(rows), counts * _NUMBERS_OF_COUNT), np.float32)
    if words.shape != (2,):
        raise ValueError(f"a key of {words.size} words: expected 2")
    threads = len(os.sched_getaffinity(0))
    if library.dlrm_row_numbers(words.ctypes.data, counts, rows.ctypes.data, len(rows), found.ctypes.data, threads) == _NO_MEMORY:
        raise MemoryError(f"the numbers of {len(rows):,} rows")
    return found


def places_available() -> bool:
    """Return whether the library is built and not switched off. Raises UserError where it cannot be loaded."""
    return native_scorer_library() is not None


def _places_library() -> ctypes.CDLL:
    if os.environ.get("DLRM_NATIVE_OPS") == "0":
        raise UserError("the C++ places of rows are switched off: remove DLRM_NATIVE_OPS=0")
    return _loaded()


@functools.cache  # the library's name is a hash of its sources, which would take longer than the numbers of many rows
def _loaded() -> ctypes.CDLL:
    """Return the library, whose functions are declared, once in a process."""
    library = native_scorer_library()
    if library is None:
        raise UserError("the C++ places of rows are not built: run ops/build")
    int32, int64, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
    functions = {
        "dlrm_places_new": (pointer, [int64, int64]),
        "dlrm_places_delete": (None, [pointer]),
        "dlrm_places_size": (int64, [pointer]),
        "dlrm_places_plan": (int64, [pointer, pointer]),
        "dlrm_places_find": (int64, [pointer, pointer, int32, int32, pointer, pointer]),
        "dlrm_places_truncate": (None, [pointer, int64]),
        "dlrm_places_ids": (int64, [pointer, int64, int64, pointer]),
        "dlrm_row_numbers": (int64, [pointer, int64, pointer, int64, pointer, ctypes.c_int]),
    }
    try:
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise UserError(f"{scorer_path()}: {error}; remove it and run ops/build, or set DLRM_NATIVE_OPS=0") from None
    return library
