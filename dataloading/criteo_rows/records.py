"""Files of rows as records of 160 bytes: 40 little-endian numbers of 4 bytes, no header.

The first is the label, the last 26 are ids, all int32. The 13 between are float32 in NVIDIA's files (`--dataset_type binary` of its DLRM for PyTorch)
and int32 in Facebook's (`terabyte_processed_train.bin`). Only the values tell the two apart: as int32, NVIDIA's logarithms lie near a billion,
and Facebook's counts do not.
"""

import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dataloading.criteo_rows.rows import NUM_CATEGORICAL, NUM_NUMERICAL, RawRows
from dataloading.features import DatasetError
from dataloading.tf_raw import ColumnFile

WIDTH = 1 + NUM_NUMERICAL + NUM_CATEGORICAL
_BYTES = 4 * WIDTH
_FLOAT_BITS = 0x30000000  # bits of float32 2^-31, as an integer 805,306,368: a nonzero logarithm is larger, a count of Criteo's logs smaller
_LOOKED_AT = 4096  # rows


class RecordFile:
    """A file of records; a `rows.RowsFile`.

    Raises:
        DatasetError: the file is missing, empty, or not a whole number of records, or its numerical values are of the other kind.
    """

    def __init__(self, path: Path, floats: bool):
        """Check the size and the kind of the first rows.

        Args:
            path: the file.
            floats: whether the numerical values are float32, otherwise int32.
        """
        self.path, self._floats = path, floats
        try:
            status = path.stat()
        except OSError as error:
            raise DatasetError(f"{path}: {error.strerror}; expected records of {_BYTES} bytes") from None
        if not stat.S_ISREG(status.st_mode):
            raise DatasetError(f"{path}: not a regular file; expected records of {_BYTES} bytes")
        if status.st_size % _BYTES or not status.st_size:
            raise DatasetError(f"{path}: {status.st_size} bytes, expected whole records of {_BYTES} bytes: a label, 13 numerical values, 26 ids")
        self.num_rows = status.st_size // _BYTES
        self._check_kind()

    def blocks(self, start: int, stop: int, size: int) -> Iterator[RawRows]:
        """Yield rows start to stop in blocks of `size` rows, the last one shorter. Raises DatasetError if the file was cut meanwhile."""
        file = ColumnFile(self.path, np.dtype("<i4"), WIDTH)
        try:
            for first in range(start, stop, size):
                block = file.read(first, min(first + size, stop))
                numerical = np.ascontiguousarray(block[:, 1 : 1 + NUM_NUMERICAL])
                yield RawRows(block[:, 0], numerical.view("<f4") if self._floats else numerical, block[:, 1 + NUM_NUMERICAL :])
        finally:
            file.close()

    def _check_kind(self) -> None:
        """Raise DatasetError if the first rows hold values of the other kind."""
        file = ColumnFile(self.path, np.dtype("<i4"), WIDTH)
        try:
            values = file.read(0, min(_LOOKED_AT, self.num_rows))[:, 1 : 1 + NUM_NUMERICAL]
        finally:
            file.close()
        magnitudes = np.abs(values[values != 0].astype(np.int64) & 0x7FFFFFFF)
        if len(magnitudes) and (np.median(magnitudes) > _FLOAT_BITS) != self._floats:
            found, kind = ("integers", "facebook") if self._floats else ("float32 values", "binary")
            raise DatasetError(f"{self.path}: its numerical values look like {found}; read it with --src_dataset_type {kind}")
