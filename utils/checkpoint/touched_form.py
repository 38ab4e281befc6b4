"""Tables of which a checkpoint stores only the rows that exist: a bitmap names these, and all others are what their generator says.

    PATH/step-…/tables/user/weights      an array `[n, D]`: the n touched rows, in ascending order of their numbers
    PATH/step-…/touched_rows/user.bin    a bit for each of the V rows, the first one the highest of its byte; 1 where the row is stored
    manifest.json, "arrays"              `"tables/user/weights": {"shape": [V, D], "dtype": "float32", "touched": n}`
    manifest.json, "touched_rows"        `"user": {"origins": [Origin.described(), …], "slots": {name of a slot: its start value}}`

All arrays of a table, its weights and its slots, have the same rows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from utils.checkpoint.kept_files import read_checked
from utils.checkpoint.manifest import TOUCHED, TOUCHED_FORMAT, fault
from utils.checkpoint.zarr_store import brief, file_of
from utils.initial_rows import ConstantRows, Draw, Origin, Rows, Untouched, numbers_of_rows

TOUCHED_ROWS = "touched_rows"  # key of the manifest, and folder of the bitmaps
WEIGHTS = "weights"
_MOST_ROWS = np.iinfo(np.int32).max
_BLOCK_BYTES = 32 << 20
_BLOCK_ROWS = 1 << 21  # so that the numbers of a block's rows, 8 bytes each, stay small, too
_WORD_BITS = 64


def bitmap_name(table: str) -> str:
    """Return the name, in a step's folder, of the file of a table's touched rows."""
    return f"{TOUCHED_ROWS}/{file_of(table)}.bin"


def table_and_kind(array: str) -> tuple[str | None, str]:
    """Return the table of an array `tables/…/kind`, and its kind, `weights` or a slot's name; no table for other arrays."""
    table, _, kind = array.removeprefix("tables/").rpartition("/")
    return (table, kind) if array.startswith("tables/") and table else (None, array)


def numbers_of(bits: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows whose bits are set, `[n]` int64, ascending."""
    places = np.flatnonzero(bits)  # few bytes are not 0 where few rows are touched
    ones = np.flatnonzero(np.unpackbits(bits[places]))
    return 8 * places[ones >> 3] + (ones & 7)


def bits_of(numbers: np.ndarray, rows: int) -> np.ndarray:
    """Return a bitmap of V rows, `[ceil(V / 8)]` uint8, in which the bits of some rows are set; `numbers` `[n]`, distinct, in any order."""
    bits = np.zeros(-(-rows // 8), np.uint8)
    if len(numbers):
        numbers = np.sort(numbers)
        places = numbers >> 3
        starts = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))
        bits[places[starts]] = np.bitwise_or.reduceat((128 >> (numbers & 7)).astype(np.uint8), starts)
    return bits


class TouchedTable:
    """A table of which a checkpoint stores the touched rows; its bitmap is read on first use.

    Args:
        folder: the step's folder.
        name: the table's name.
        rows: V.
        count: n, the rows that are stored.
        origins: what the other rows are, from the first to the last row.
        slots: the value of the other rows in each slot of the table's optimizer, by the slot's name.

    Attributes:
        name, rows, count, origins, slots: as given.
    """

    def __init__(self, folder: Path, name: str, rows: int, count: int, origins: Sequence[Origin], slots: Mapping[str, float]):
        self.name, self.rows, self.count = name, rows, count
        self.origins, self.slots = tuple(origins), MappingProxyType(dict(slots))
        self._folder = folder
        self._bits: np.ndarray | None = None
        self._ranks: np.ndarray | None = None
        self._numbers: np.ndarray | None = None

    def check(self) -> None:
        """Check the bitmap. Raises CheckpointError as `bits`."""
        self._padded()

    @property
    def bits(self) -> np.ndarray:
        """The bitmap, `[ceil(V / 8)]` uint8.

        Raises:
            CheckpointError: its file is missing or damaged, or it does not name n of the V rows.
        """
        return self._padded()[: -(-self.rows // 8)]

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of the stored rows, `[n]` int32, ascending. Raises CheckpointError as `bits`."""
        if self._numbers is None:
            found, end = np.empty(self.count, np.int32), 0
            for start in range(0, self.rows, _BLOCK_ROWS):
                some = self.among(start, min(start + _BLOCK_ROWS, self.rows))
                found[end : end + len(some)] = some
                end += len(some)
            self._numbers = found
        return self._numbers

    def among(self, start: int, stop: int) -> np.ndarray:
        """Return the numbers of the stored rows from start to stop, `[k]` int64, ascending. Raises CheckpointError as `bits`."""
        begin = start // 8
        numbers = numbers_of(self.bits[begin : -(-stop // 8)]) + 8 * begin
        return numbers[(numbers >= start) & (numbers < stop)]

    def located(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each row, by its number, whether it is stored, and if so its place among the stored ones: `[n]` bool and `[n]` int64.

        Raises:
            CheckpointError: as `bits`.
        """
        if self._ranks is None:
            self._ranks = _ranks(self._padded())
        words, bits = np.divmod(np.asarray(numbers, np.int64), _WORD_BITS)
        before = self._padded().view(">u8")[words].astype(np.uint64) >> (np.uint64(_WORD_BITS - 1) - bits.astype(np.uint64))
        stored = (before & np.uint64(1)).astype(bool)
        return stored, self._ranks[words] + _ones(before >> np.uint64(1))

    def untouched(self, kind: str, columns: tuple[int, int] | None = None, draw: Draw = numbers_of_rows) -> Rows:
        """Return the values of the other rows, in the weights or a slot; `columns` and `draw` as in `Untouched`."""
        return Untouched(self.origins, columns, draw) if kind == WEIGHTS else ConstantRows(self.slots[kind])

    def dense(self, kind: str, width: int, columns: tuple[int, int] | None, stored: Iterator) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all rows in blocks, (first row, `[k, width]` float32), made of the stored rows and the others.

        Args:
            kind: the array, `weights` or a slot's name.
            width: the columns of a block.
            columns: which these are; None for all.
            stored: yields the stored rows of these columns in blocks like these.
        """
        fill, rest = self.untouched(kind, columns), np.empty((0, width), np.float32)
        step = min(_BLOCK_ROWS, max(_BLOCK_BYTES // (4 * width), 1))
        for start in range(0, self.rows, step):
            block = np.empty((min(step, self.rows - start), width), np.float32)
            fill(block, start)
            places = self.among(start, start + len(block)) - start
            while len(places):
                if not len(rest):
                    _, rest = next(stored)
                block[places[: len(rest)]] = rest[: len(places)]
                places, rest = places[len(rest) :], rest[len(places) :]
            yield start, block

    def _padded(self) -> np.ndarray:
        """Return the bitmap, filled with zeros to whole words."""
        if self._bits is None:
            self._bits = self._read()
        return self._bits

    def _read(self) -> np.ndarray:
        path = self._folder / bitmap_name(self.name)
        try:
            content = np.frombuffer(read_checked(path), np.uint8)
            if len(content) != -(-self.rows // 8):
                raise ValueError(f"{len(content):,} bytes of bits, expected {-(-self.rows // 8):,} for {self.rows:,} rows")
            if self.rows % 8 and content[-1] & (0xFF >> self.rows % 8):
                raise ValueError(f"names a row beyond the {self.rows:,} rows of the table")
            padded = np.zeros(-(-len(content) // 8) * 8, np.uint8)
            padded[: len(content)] = content
            found = int(_ones(padded.view(np.uint64)).sum(dtype=np.int64))
            if found != self.count:
                raise ValueError(f"names {found:,} rows, the manifest says {self.count:,}")
        except (ValueError, OSError) as error:
            raise fault(self._folder, path, getattr(error, "strerror", None) or brief(error)) from None
        return padded


def _ranks(padded: np.ndarray) -> np.ndarray:
    """Return for each word of a bitmap the number of ones before it, `[words]` int32."""
    found = np.zeros(len(padded) // 8, np.int32)
    np.cumsum(_ones(padded.view(np.uint64))[:-1], dtype=np.int32, out=found[1:])
    return found


def _ones(words: np.ndarray) -> np.ndarray:
    """Return the number of ones in each word, `[n]` uint64 -> `[n]` int64. NumPy has a function for it from version 2 on; Triton's stub has 1.26."""
    pairs = words - ((words >> np.uint64(1)) & np.uint64(0x5555555555555555))
    fours = (pairs & np.uint64(0x3333333333333333)) + ((pairs >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bytes_ = (fours + (fours >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((bytes_ * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)


def touched_tables(folder: Path, manifest: Mapping[str, Any]) -> dict[str, TouchedTable]:
    """Return the tables of which a checkpoint stores the touched rows, by name, as its manifest describes them.

    Raises:
        ValueError: the description is incomplete or contradicts itself.
    """
    described, arrays = manifest.get(TOUCHED_ROWS, {}), {}
    if not isinstance(described, Mapping):
        raise ValueError(f"{TOUCHED_ROWS} is {_brief(described)}, expected a mapping of tables")
    for name, array in manifest["arrays"].items():
        table, kind = table_and_kind(name)
        if table is not None:
            arrays.setdefault(table, {})[kind] = array
        elif TOUCHED in array:
            raise ValueError(f"{name} has {TOUCHED}, which only arrays of tables have")
    partial = {table: kinds for table, kinds in arrays.items() if any(TOUCHED in array for array in kinds.values())}
    if odd := sorted(set(described) ^ set(partial)):
        raise ValueError(f"table {odd[0]} stands in {TOUCHED_ROWS} or has arrays of touched rows, expected both or neither")
    if partial and manifest.get("format", TOUCHED_FORMAT) < TOUCHED_FORMAT:
        raise ValueError(f"arrays of touched rows in format {manifest['format']}, expected format {TOUCHED_FORMAT}")
    for table in partial:
        if "files" in manifest and bitmap_name(table) not in manifest["files"]:
            raise ValueError(f"{bitmap_name(table)} is missing among the files")
    return {table: _parsed(folder, table, kinds, described[table]) for table, kinds in partial.items()}


def _parsed(folder: Path, table: str, arrays: Mapping[str, Mapping], described: Any) -> TouchedTable:
    where = f"{TOUCHED_ROWS}.{table}"
    if not isinstance(described, Mapping) or not isinstance(described.get("origins"), list) or not isinstance(described.get("slots"), Mapping):
        raise ValueError(f"{where} is {_brief(described)}, expected origins and slots")
    try:
        origins = [Origin.parsed(origin) for origin in described["origins"]]
        rows = Untouched(origins).rows
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    starts = described["slots"]
    for slot, start in starts.items():
        if type(start) not in (int, float) or not math.isfinite(start):
            raise ValueError(f"{where}: slot {slot} starts with {_brief(start)}, expected a number")
    if WEIGHTS not in arrays:
        raise ValueError(f"{where}: the table has no {WEIGHTS}")
    count = arrays[WEIGHTS].get(TOUCHED)
    if type(count) is not int or not 0 <= count <= rows <= _MOST_ROWS:
        raise ValueError(f"{where}: {_brief(count)} of {rows} rows, expected 0 to as many as there are, at most {_MOST_ROWS}")
    for kind, array in arrays.items():
        name, widths = f"tables/{table}/{kind}", {origins[0].dim} if kind == WEIGHTS else {origins[0].dim, 1}
        if array.get(TOUCHED) != count:
            raise ValueError(f"{name} holds {_brief(array.get(TOUCHED))} touched rows, expected {count} like the {WEIGHTS}")
        if len(array["shape"]) != 2 or array["shape"][0] != rows or array["shape"][1] not in widths:
            raise ValueError(f"{name} has shape {_brief(array['shape'])}, its origins are those of a table [{rows}, {origins[0].dim}]")
        if kind != WEIGHTS and kind not in starts:
            raise ValueError(f"{where}: slot {kind} has no start value")
    return TouchedTable(folder, table, rows, count, origins, starts)


def _brief(value: Any) -> str:
    return repr(value)[:60]
