"""Row groups of a Parquet file, from its footer, so that ranges of whole groups can be read.

Polars skips the groups that a slice of rows does not touch, but does not report how many rows each has. The footer is a struct in Thrift's compact
protocol.
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

_MARK = b"PAR1"
_MOST_FOOTER_BYTES = 256 << 20  # a file with a larger footer is one group to its readers
_ROW_GROUPS, _ROWS = 4, 3  # field numbers in Parquet's FileMetaData; _ROWS also in RowGroup
_BOOLS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT, _UUID = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12, 13  # types of Thrift
UNREADABLE = (struct.error, ValueError, KeyError, IndexError, TypeError, RecursionError)  # errors of a damaged footer


def group_rows(path: Path) -> list[int]:
    """Return the number of rows of each row group; an empty list where the footer cannot be read."""
    try:
        with path.open("rb") as file:
            found = _Thrift(read_footer(file, _MARK)).struct({_ROWS: (), _ROW_GROUPS: {_ROWS}})
            rows = [group[_ROWS] for group in found[_ROW_GROUPS]]
            return rows if sum(rows) == found[_ROWS] and min(rows, default=0) >= 0 else []
    except UNREADABLE:
        return []


def read_footer(file: BinaryIO, mark: bytes) -> bytes:
    """Return the footer of a Parquet or Arrow file, which precedes its length and a mark at the file's end. Raises ValueError where there is none."""
    end = file.seek(0, 2)
    file.seek(max(0, end - 4 - len(mark)))
    (size,) = struct.unpack("<I", file.read(4))
    if file.read() != mark or not 0 < size <= min(end - 4 - len(mark), _MOST_FOOTER_BYTES):
        raise ValueError("no footer")
    file.seek(end - 4 - len(mark) - size)
    return file.read(size)


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
