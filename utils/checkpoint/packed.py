"""Packed tables for serving: one file a table, row after row, in float32 or a lower precision.

`int8` is FBGEMM's row-wise quantisation: row x becomes bytes q = round((x - min x) * 255 / (max x - min x)), a scale and a bias with
x = scale * q + bias.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from utils.checkpoint.chunks import Chunks
from utils.checkpoint.zarr_store import file_of
from utils.config.serving import BFLOAT16, FLOAT16, FLOAT32, INT8

NAME = "packed"  # key of a manifest: the precision of its tables
ROWS, SCALES = "rows.bin", "scales.bin"
_BLOCK_BYTES = 16 << 20
_EPSILON = np.float32(1e-8)  # FBGEMM's: it avoids a division by 0 for rows of equal values
_STORED = {FLOAT32: np.dtype("<f4"), BFLOAT16: np.dtype("<u2"), FLOAT16: np.dtype("<f2"), INT8: np.dtype("u1")}


class TableFiles(NamedTuple):
    """A table's files: `rows` `[V, D]`, and for int8 `scales` `[V, 2]` float32, scale and bias."""

    rows: Path
    scales: Path | None


def table_files(folder: Path, table: str, precision: str) -> TableFiles:
    """Return the paths of a table's files in a folder."""
    place = folder / file_of(f"tables/{table}")
    return TableFiles(place / ROWS, place / SCALES if precision == INT8 else None)


def stored_bytes(rows: int, dim: int, precision: str) -> int:
    """Return the size of a table's files in bytes."""
    return rows * (dim * _STORED[precision].itemsize + (8 if precision == INT8 else 0))


def write_table(blocks: Iterable[tuple[int, np.ndarray]], files: TableFiles, precision: str) -> None:
    """Write a table from blocks (first row, `[n, D]` float32) in the order of the rows; the memory needed does not grow with the table."""
    files.rows.parent.mkdir(parents=True, exist_ok=True)
    with files.rows.open("wb") as rows:
        scales = files.scales.open("wb") if files.scales else None
        for _, values in blocks:
            packed, scale = pack(values, precision)
            rows.write(np.ascontiguousarray(packed).data)
            if scales:
                scales.write(np.ascontiguousarray(scale).data)
        if scales:
            scales.close()


def checksum(path: Path) -> str:
    """Return the CRC-32 of a file's content. Raises OSError."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def pack(values: np.ndarray, precision: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Convert `[n, D]` float32 to the stored form, and for int8 scale and bias `[n, 2]`. bfloat16 is stored as its 16 bits."""
    if precision == BFLOAT16:  # round to the nearest, ties to even
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2"), None
    if precision != INT8:
        return values.astype(_STORED[precision], copy=False), None
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    codes = np.rint((values - low) * (np.float32(255) / (high - low + _EPSILON))).astype(np.uint8)
    return codes, np.concatenate([(high - low) / np.float32(255), low], axis=1).astype("<f4")


def unpack(stored: np.ndarray, scales: np.ndarray | None, precision: str) -> np.ndarray:
    """Convert the stored form back to `[n, D]` float32."""
    if precision == BFLOAT16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if precision == INT8:
        return stored.astype(np.float32) * scales[:, :1] + scales[:, 1:]
    return stored.astype(np.float32, copy=False)


class PackedTable:
    """A table `[V, D]` mapped from its files; thread-safe.

    Args:
        folder: the folder of the tables, see `table_files`.
        name: the table's name.
        shape: V and D.
        precision: one of `PRECISIONS`.

    Raises:
        ValueError: a file is missing or of the wrong size; the message names it.
    """

    def __init__(self, folder: Path, name: str, shape: tuple[int, int], precision: str):
        self.shape, self._precision = shape, precision
        files = table_files(folder, name, precision)
        self._rows = _mapped(files.rows, _STORED[precision], shape)
        self._scales = _mapped(files.scales, np.dtype("<f4"), (shape[0], 2)) if files.scales else None

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows by their numbers, `[n] -> [n, D]` float32."""
        return unpack(self._rows[numbers], None if self._scales is None else self._scales[numbers], self._precision)

    def chunks(self) -> Chunks:
        """Return the table's memory, valid as long as this object."""
        return Chunks([self._rows], self._precision, self._scales)


def _mapped(path: Path, dtype: np.dtype, shape: tuple[int, int]) -> np.ndarray:
    expected = shape[0] * shape[1] * dtype.itemsize
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if size != expected:
        raise ValueError(f"{path}: {size} bytes, expected {expected}")
    return np.asarray(np.memmap(path, dtype, "r", shape=shape))
