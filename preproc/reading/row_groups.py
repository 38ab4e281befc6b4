"""Row groups of Parquet files and batches of Arrow files, from the file's footer, so that several processes can read one file.

Polars skips the groups that a slice of rows does not touch, but does not report how many rows each has. Parquet's footer is a struct in Thrift's
compact protocol. Arrow's is a Flatbuffers table; the number of rows of a batch is in the message before it.
"""

import itertools
import struct
from pathlib import Path
from typing import Any, BinaryIO

from preproc.reading.arrow_stream import MARK, field, table_at
from preproc.reading.files import ARROW, PARQUET, Form

_PARQUET, _ARROW = b"PAR1", b"ARROW1"
_MOST_FOOTER_BYTES = 256 << 20  # a file with a larger footer is read by one task
_ROW_GROUPS, _ROWS = 4, 3  # field numbers in Parquet's FileMetaData; _ROWS also in RowGroup
_BATCHES, _HEADER, _LENGTH = 3, 2, 0  # field numbers in Arrow's Footer, Message and RecordBatch
_BLOCK = struct.Struct("<qi4xq")  # an entry of Arrow's footer: offset and sizes of a batch
_BOOLS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT, _UUID = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12, 13  # types of Thrift


def row_ranges(path: Path, form: Form, range_bytes: int) -> list[tuple[int, int] | None]:
    """Return ranges of rows (start, stop) of about `range_bytes`, made of whole row groups or batches, in file order.

    [None] for a file that is small or has no readable footer: an Arrow stream, or a damaged file, whose reader raises the error.
    """
    size = path.stat().st_size
    parts = round(size / range_bytes)
    ends = list(itertools.accumulate(group_rows(path, form))) if parts > 1 else []
    if len(ends) < 2:
        return [None]
    wanted = [ends[-1] * part / parts for part in range(1, parts)]
    cuts = sorted({0, ends[-1], *(min(ends, key=lambda end: abs(end - place)) for place in wanted)})
    return list(itertools.pairwise(cuts)) if len(cuts) > 2 else [None]


def group_rows(path: Path, form: Form) -> list[int]:
    """Return the number of rows of each row group or batch; an empty list where the footer cannot be read."""
    try:
        with path.open("rb") as file:
            if form.kind == PARQUET:
                found = _Thrift(_footer(file, _PARQUET)).struct({_ROWS: (), _ROW_GROUPS: {_ROWS}})
                rows = [group[_ROWS] for group in found[_ROW_GROUPS]]
                return rows if sum(rows) == found[_ROWS] else []
            return _batch_rows(file) if form.kind == ARROW else []
    except (struct.error, ValueError, KeyError, IndexError, TypeError, RecursionError):
        return []


def _footer(file: BinaryIO, mark: bytes) -> bytes:
    """Return the footer, which precedes its length and a magic number at the file's end. Raises ValueError where there is none."""
    end = file.seek(0, 2)
    file.seek(max(0, end - 4 - len(mark)))
    (size,) = struct.unpack("<I", file.read(4))
    if file.read() != mark or not 0 < size <= min(end - 4 - len(mark), _MOST_FOOTER_BYTES):
        raise ValueError("no footer")
    file.seek(end - 4 - len(mark) - size)
    return file.read(size)


def _batch_rows(file: BinaryIO) -> list[int]:
    footer = _footer(file, _ARROW)
    (root,) = struct.unpack_from("<I", footer)
    place = table_at(footer, root, _BATCHES)
    (count,) = struct.unpack_from("<I", footer, place)
    found = []
    for offset, size, _ in _BLOCK.iter_unpack(footer[place + 4 : place + 4 + count * _BLOCK.size]):
        file.seek(offset)
        message = file.read(size)
        message = message[8 if message.startswith(MARK) else 4 :]
        (root,) = struct.unpack_from("<I", message)
        found.append(field(message, _LENGTH, "<q", table_at(message, root, _HEADER)))
    if any(rows < 0 for rows in found):
        raise ValueError("a negative number of rows")
    return found


class _Thrift:
    """A reader of Thrift's compact protocol; it keeps only some fields of structs and skips the rest."""

    def __init__(self, content: bytes):
        self._content, self._place = content, 0

    def struct(self, wanted: Any) -> dict[int, Any]:
        """Read a struct's fields, by number. `wanted` is a set of numbers, or maps each number to what is wanted of that field."""
        found, number = {}, 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._whole()
            kept = number in wanted
            value = self._value(head & 15, wanted[number] if kept and isinstance(wanted, dict) else ())
            if kept:
                found[number] = value
        return found

    def _value(self, kind: int, wanted: Any) -> Any:
        if kind in _BOOLS:
            return kind == 1
        if kind in _INTEGERS:
            return self._whole()
        if kind in _LISTS:
            head = self._byte()
            count = self._unsigned() if head >> 4 == 15 else head >> 4
            return [self._byte() if head & 15 in _BOOLS else self._value(head & 15, wanted) for _ in range(count)]
        if kind == _STRUCT:
            return self.struct(wanted)
        if kind == _MAP:
            kinds = self._byte() if (count := self._unsigned()) else 0
            return [(self._value(kinds >> 4, ()), self._value(kinds & 15, ())) for _ in range(count)]
        sizes = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
        self._skip(self._unsigned() if kind == _BINARY else sizes[kind])
        return None

    def _byte(self) -> int:
        self._place += 1
        return self._content[self._place - 1]

    def _unsigned(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 128:
            found, shift = found | (byte & 127) << shift, shift + 7
        return found | byte << shift

    def _whole(self) -> int:
        found = self._unsigned()
        return found >> 1 ^ -(found & 1)

    def _skip(self, count: int) -> None:
        self._place += count
        if self._place > len(self._content):
            raise ValueError("ends early")
