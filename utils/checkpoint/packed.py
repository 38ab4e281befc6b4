"""Tables for serving in one file each, row after row: float32, or of fewer bits.

`int8` is the row-wise form of FBGEMM: row x becomes bytes q = round((x - min x) * 255 / (max x - min x)), a scale and a bias: x = scale * q + bias.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from utils.checkpoint.chunks import Chunks
from utils.checkpoint.zarr_store import file_of
from utils.config.serving import BFLOAT16, FLOAT16, FLOAT32, INT8

NAME = "packed"  # in a manifest: the precision of its tables
ROWS, SCALES = "rows.bin", "scales.bin"
_EPSILON = np.float32(1e-8)  # FBGEMM's, for rows of one value
_STORED = {FLOAT32: np.dtype("<f4"), BFLOAT16: np.dtype("<u2"), FLOAT16: np.dtype("<f2"), INT8: np.dtype("u1")}


class TableFiles(NamedTuple):
    """A table's files: `rows` `[V, D]`, and of int8 `scales` `[V, 2]` float32, scale and bias."""

    rows: Path
    scales: Path | None


def table_files(folder: Path, table: str, precision: str) -> TableFiles:
    """Where a table's files lie in a folder."""
    place = folder / file_of(f"tables/{table}")
    return TableFiles(place / ROWS, place / SCALES if precision == INT8 else None)


def stored_bytes(rows: int, dim: int, precision: str) -> int:
    """Bytes of a table's files."""
    return rows * (dim * _STORED[precision].itemsize + (8 if precision == INT8 else 0))


def write_table(blocks: Iterable[tuple[int, np.ndarray]], files: TableFiles, precision: str) -> None:
    """Write a table of blocks (first row, `[n, D]` float32) in the order of the rows; memory does not grow with it."""
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


def pack(values: np.ndarray, precision: str) -> tuple[np.ndarray, np.ndarray | None]:
    """`[n, D]` float32 -> as stored, and of int8 scale and bias `[n, 2]`. bfloat16 is held as its 16 bits."""
    if precision == BFLOAT16:  # to the nearest, ties to even
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2"), None
    if precision != INT8:
        return values.astype(_STORED[precision], copy=False), None
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    codes = np.rint((values - low) * (np.float32(255) / (high - low + _EPSILON))).astype(np.uint8)
    return codes, np.concatenate([(high - low) / np.float32(255), low], axis=1).astype("<f4")


def unpack(stored: np.ndarray, scales: np.ndarray | None, precision: str) -> np.ndarray:
    """The way back, `[n, D]` float32."""
    if precision == BFLOAT16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if precision == INT8:
        return stored.astype(np.float32) * scales[:, :1] + scales[:, 1:]
    return stored.astype(np.float32, copy=False)


class PackedTable:
    """A table `[V, D]` mapped from its files; safe from several threads.

    Args:
        folder: that `table_files` is asked about.
        name: of the table.
        shape: V and D.
        precision: of `PRECISIONS`.

    Raises:
        ValueError: a file is missing or of another size; the message names it.
    """

    def __init__(self, folder: Path, name: str, shape: tuple[int, int], precision: str):
        self.shape, self._precision = shape, precision
        files = table_files(folder, name, precision)
        self._rows = _mapped(files.rows, _STORED[precision], shape)
        self._scales = _mapped(files.scales, np.dtype("<f4"), (shape[0], 2)) if files.scales else None

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Rows by their numbers, `[n] -> [n, D]` float32."""
        return unpack(self._rows[numbers], None if self._scales is None else self._scales[numbers], self._precision)

    def chunks(self) -> Chunks:
        """All of its memory, valid as long as this object."""
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
