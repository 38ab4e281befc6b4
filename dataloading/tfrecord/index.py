"""An index of the records of TFRecord files, with their positions and numbers of rows: it gives random access to the rows of pre-batched records.

A record is stored as its length (8 bytes), the checksum of the length (4), the content, and the checksum of the content (4). The index follows the
lengths from record to record and reads the beginning of each: 21,000 records (87 million rows) take a second.
"""

import os
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from dataloading.features import DatasetError
from dataloading.tfrecord.example_bytes import BYTES, count_values, features_of

HEADER, FOOTER = 12, 4  # bytes around a record
_BEGINNING = 4096  # bytes read at the beginning of a record
Read = Callable[[int, int], bytes]  # returns bytes start to stop of a record, fewer at its end
DAMAGED = "the file is truncated, damaged, compressed or not a TFRecord file"


class RecordIndex:
    """The index of the R records of some files, in order.

    Attributes:
        files: the paths.
        file_of: `[R]` index of each record's file in `files`.
        number: `[R]` number of the record in its file, from 0.
        offset: `[R]` position of the record in its file in bytes, where its length is stored.
        size: `[R]` bytes of the record's content.
        first_row: `[R + 1]` rows before the record; the last entry is the number of all rows.
    """

    def __init__(self, files: Sequence[Path], names: Collection[str]):
        """Read the lengths and the rows of all records.

        Args:
            files: the files, in the order of the rows.
            names: features; the first of them in a record gives its number of rows.

        Raises:
            DatasetError: a file has no records, is truncated or damaged, or a record is not an Example with such a feature.
        """
        self.files = tuple(files)
        found = [(i, *place) for i, path in enumerate(self.files) for place in _records(path, names)]
        self.file_of, self.number, self.offset, self.size, rows = np.array(found, np.int64).reshape(-1, 5).T
        self.first_row = np.concatenate([[0], rows.cumsum()])

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def num_rows(self) -> int:
        """The number of rows of all records."""
        return int(self.first_row[-1])

    def rows(self, record: int) -> int:
        """Return the number of rows of a record."""
        return int(self.first_row[record + 1] - self.first_row[record])

    def holding(self, start: int, stop: int) -> range:
        """Return the records that hold rows start to stop, a range that must not be empty."""
        first, last = np.searchsorted(self.first_row, (start, stop - 1), "right") - 1
        return range(int(first), int(last) + 1)

    def place(self, record: int) -> str:
        """Return the file and the number of a record, for messages."""
        return f"{self.files[self.file_of[record]]}, record {self.number[record]}"

    def place_of_row(self, row: int) -> str:
        """Return the file and the number of the record that holds a row, for messages."""
        return self.place(self.holding(row, row + 1)[0])


def first_record(path: Path) -> bytes:
    """Return the content of a file's first record, without comparing its checksum. Raises DatasetError."""
    descriptor = _opened(path)
    try:
        size = _length(path, descriptor, 0, 0)
        return os.pread(descriptor, size, HEADER)
    finally:
        os.close(descriptor)


def _records(path: Path, names: Collection[str]) -> list[tuple[int, int, int, int]]:
    """Return number, offset, size and rows of each record of a file."""
    return [(*place, rows) for *place, rows in measured_records(path, lambda read, size, place: _rows(read, size, names, place))]


def measured_records(path: Path, measure: Callable[[Read, int, str], int] | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, offset, size, and a measure of each record of a file.

    Args:
        path: the file.
        measure: called with a function that returns bytes start to stop of the record (fewer at its end), its size, and its place for messages;
            None for a measure of 0, without a look into the records.

    Raises:
        DatasetError: the file has no records, or is truncated or damaged.
    """
    descriptor = _opened(path)
    try:
        number, offset, end = 0, 0, os.fstat(descriptor).st_size
        while offset < end:
            size = _length(path, descriptor, offset, number)
            found = measure(_bytes_of(descriptor, offset + HEADER, size), size, f"{path}, record {number}") if measure else 0
            yield number, offset, size, found
            number, offset = number + 1, offset + HEADER + size + FOOTER
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        if not path.is_file():
            raise DatasetError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}; expected a file of TFRecords")
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from None
    if not os.fstat(descriptor).st_size:
        os.close(descriptor)
        raise DatasetError(f"{path}: the file is empty; expected TFRecords; remove the file, or write it again if it should have rows")
    return descriptor


def _length(path: Path, descriptor: int, offset: int, number: int) -> int:
    """Return the size of the record at `offset`. Raises DatasetError if there is no record, or the file ends within it."""
    header = os.pread(descriptor, HEADER, offset)
    rest = os.fstat(descriptor).st_size - offset
    if len(header) == HEADER:
        size, checksum = struct.unpack("<QI", header)
        if checksum != masked_crc32c(header[:8]):
            raise DatasetError(f"{path}, record {number}: no record length at byte {offset}; {DAMAGED}")
        if HEADER + size + FOOTER <= rest:
            return size
    raise DatasetError(f"{path}, record {number}: begins at byte {offset}, and the file ends within it; the file is truncated")


def _bytes_of(descriptor: int, begin: int, size: int) -> Read:
    """Return a function that returns bytes start to stop of a record."""
    beginning = os.pread(descriptor, min(_BEGINNING, size), begin)

    def read(start: int, stop: int) -> bytes:
        if stop <= len(beginning):
            return beginning[start:stop]
        return os.pread(descriptor, max(min(stop, size) - start, 0), begin + start)

    return read


def _rows(read: Read, size: int, names: Collection[str], place: str) -> int:
    try:
        listed = next((feature for feature in features_of(read, size) if feature.name in names and feature.kind not in ("", BYTES)), None)
        rows = count_values(read, listed) if listed else 0
    except ValueError as error:
        raise DatasetError(f"{place}: not a tf.train.Example: {error}; the record is damaged or has another format") from None
    if not rows:
        names = sorted(names)
        what = f"its feature {listed.name} is empty" if listed else f"holds none of the features {', '.join(names[:3])}{', …' * (len(names) > 3)}"
        raise DatasetError(f"{place}: {what}; expected a tf.train.Example with a list of numbers for each feature")
    return rows


def masked_crc32c(content: bytes) -> int:
    """Return the checksum used by TFRecords: CRC-32C, rotated, plus a constant. The loop over bytes is fit for lengths, too slow for records."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> list[int]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 * (value & 1)
        found.append(value)
    return found


_TABLE = _table()
