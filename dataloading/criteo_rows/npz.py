"""Rows in NumPy's archives, as Facebook's DLRM writes them: `X_int` [n, 13], `X_cat` [n, 26], `y` [n], and `counts` [26].

The archive of Kaggle's data has 45.8 million rows, 10 GB once unpacked, so the arrays are read side by side as streams, a block of rows at a time.
Facebook's script transposes its arrays before it saves them, so they lie column by column. Such an array is unpacked to a temporary file first.
"""

import errno
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from dataloading.criteo_rows.rows import NUM_CATEGORICAL, NUM_NUMERICAL, RawRows
from dataloading.features import DatasetError

_PART_BYTES = 1 << 20
_READABLE = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, NotImplementedError, RuntimeError)


class NpzRows:
    """An archive of rows; a `rows.RowsFile`.

    Raises:
        DatasetError: the archive cannot be read, or lacks an array of the right shape and type.
    """

    def __init__(self, path: Path):
        """Read the headers of the arrays."""
        self.path = path
        self._unpacked: dict[str, np.ndarray] = {}
        with ExitStack() as stack:
            arrays = self._streams(stack)
            self.num_rows = arrays[0].rows
            for array in arrays:
                if array.rows != self.num_rows:
                    raise DatasetError(f"{path}: {array.name} has {array.rows} rows, {arrays[0].name} has {self.num_rows}; expected the same")
        if not self.num_rows:
            raise DatasetError(f"{path}: holds no rows")

    def blocks(self, start: int, stop: int, size: int) -> Iterator[RawRows]:
        """Yield rows start to stop in blocks of `size` rows, the last one shorter. Raises DatasetError for a truncated or damaged archive."""
        with ExitStack() as stack:
            arrays = self._streams(stack)
            for first in range(0, start, size):  # a compressed stream has no other way to a row
                for array in arrays:
                    array.read(min(size, start - first))
            for first in range(start, stop, size):
                numerical, ids, labels = (array.read(min(size, stop - first)) for array in arrays)
                yield RawRows(labels[:, 0], numerical, ids)

    def _streams(self, stack: ExitStack) -> list["_Array"]:
        wanted = (("X_int", NUM_NUMERICAL), ("X_cat", NUM_CATEGORICAL), ("y", 1))
        return [_Array(stack.enter_context(opened(self.path, name)), self.path, name, width, self._unpacked) for name, width in wanted]


class _Array:
    """A stream of the rows of one array `[n, width]`, or `[n]` for a width of 1; `unpacked` keeps the arrays that lie column by column."""

    def __init__(self, stream: IO[bytes], path: Path, name: str, width: int, unpacked: dict[str, np.ndarray]):
        self.name, self._stream, self._path, self._width, self._unpacked = name, stream, path, width, unpacked
        try:
            shape, fortran, self._dtype = _READABLE[npy.read_magic(stream)](stream)
        except (*_DAMAGED, KeyError) as error:
            raise DatasetError(damage(path, name, error)) from None
        expected = (shape[0] if shape else 0, width)
        if shape not in (expected, expected[:1] if width == 1 else expected) or self._dtype.kind not in "iuf":
            raise DatasetError(f"{path}: {name} is {self._dtype} {list(shape)}; expected numbers [rows, {width}]")
        self.rows, self._row, self._by_column = int(expected[0]), 0, fortran and width > 1

    def read(self, rows: int) -> np.ndarray:
        """Return the next rows: `[rows, width]`."""
        if self._by_column:
            if self.name not in self._unpacked:
                self._unpacked[self.name] = self._columns()
            self._row += rows
            return np.ascontiguousarray(self._unpacked[self.name][:, self._row - rows : self._row].T)
        size = rows * self._width * self._dtype.itemsize
        content = bytearray()
        try:
            while len(content) < size and (part := self._stream.read(size - len(content))):
                content += part
        except _DAMAGED as error:
            raise DatasetError(damage(self._path, self.name, error)) from None
        if len(content) < size:
            raise DatasetError(damage(self._path, self.name, EOFError("it ends too early")))
        return np.frombuffer(content, self._dtype).reshape(rows, self._width)

    def _columns(self) -> np.ndarray:
        """Unpack the array to a file that the system deletes when the process ends: `[width, n]`."""
        size, folder = self.rows * self._width * self._dtype.itemsize, tempfile.gettempdir()
        needed = f"{self._path}: {self.name} lies column by column, so {size / 2**30:.1f} GiB of it are unpacked to {folder}"
        if (free := shutil.disk_usage(folder).free) < size:
            raise DatasetError(f"{needed}, where {free / 2**30:.1f} GiB are free; name another folder in TMPDIR")
        with tempfile.TemporaryFile() as file:
            try:
                while part := self._stream.read(_PART_BYTES):
                    file.write(part)
                file.flush()
            except _DAMAGED as error:
                full = isinstance(error, OSError) and error.errno == errno.ENOSPC
                raise DatasetError(f"{needed}: the disk is full" if full else damage(self._path, self.name, error)) from None
            if file.tell() < size:
                raise DatasetError(damage(self._path, self.name, EOFError("it ends too early")))
            return np.memmap(file, self._dtype, "r", shape=(self._width, self.rows))


@contextmanager
def opened(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open one array of an archive as a stream, and close both at the end of the block. Raises DatasetError."""
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(stack.enter_context(zipfile.ZipFile(path)).open(f"{name}.npy"))
        except KeyError:
            raise DatasetError(f"{path}: there is no array {name}; expected an archive that Facebook's DLRM wrote: X_int, X_cat, y, counts") from None
        except _DAMAGED as error:
            raise DatasetError(damage(path, name, error)) from None
        yield stream


def whole_numbers(path: Path, name: str, length: int | None = None) -> list[int]:
    """Return a small array of whole numbers, 1 or more each. Raises DatasetError."""
    with opened(path, name) as stream:
        try:
            values = npy.read_array(stream, allow_pickle=False)
        except _DAMAGED as error:
            raise DatasetError(damage(path, name, error)) from None
    if values.ndim != 1 or values.dtype.kind not in "iu" or (length is not None and len(values) != length) or not len(values) or values.min() < 1:
        many = "" if length is None else f"{length} "
        raise DatasetError(f"{path}: {name} is {values.dtype} {list(values.shape)}; expected {many}whole numbers of at least 1")
    return values.tolist()


def damage(path: Path, name: str, error: Exception) -> str:
    """Return the line about an archive that cannot be read."""
    if isinstance(error, OSError) and error.strerror:
        return f"{path}: {error.strerror}"
    return f"{path}: {name} cannot be read: {' '.join(str(error).split())[:80] or type(error).__name__}; the archive is truncated or damaged"


def days_of(rows: int, days: int) -> Sequence[int]:
    """Return the rows of each of `days` near-equal parts; the first ones have one more where the rows do not divide."""
    return [rows // days + (day < rows % days) for day in range(days)]
