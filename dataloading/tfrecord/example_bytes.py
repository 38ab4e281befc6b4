"""Serialized `tf.train.Example` messages whose features are lists of numbers: encoded from NumPy arrays, and scanned without decoding.

An Example maps names to lists. With protobuf's field numbers: `Example.features` (1) holds `Features.feature` (1), each with `key` (1) and
`value` (2). The value holds a `float_list` (2) or an `int64_list` (3), each with a packed `value` (1).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

BYTES, FLOAT, INT64 = KINDS = ("bytes", "float", "int64")  # fields 1 to 3 of tf.train.Feature
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_PAGE = 4096  # bytes read at once


class Listed(NamedTuple):
    """A feature of an Example, and the position of its list in the record."""

    name: str
    kind: str  # one of KINDS; empty for a feature without a list
    start: int
    stop: int


def encode_example(columns: Mapping[str, np.ndarray]) -> bytes:
    """Serialize columns `[n]` as an Example, in the order of the mapping: floating-point columns as float lists, whole numbers as int64 lists."""
    return _field(1, b"".join(_field(1, _field(1, name.encode()) + _field(2, _list(column))) for name, column in columns.items()))


def varints(values: np.ndarray) -> bytes:
    """Encode `[n]` whole numbers as base-128 varints: 7 bits per byte, lowest first; negative numbers as 64 bits, like protobuf's int64."""
    unsigned = np.ascontiguousarray(values, np.int64).view(np.uint64)
    largest = int(unsigned.max(initial=0))
    if largest < 0x80:
        return unsigned.astype(np.uint8).tobytes()
    if largest < 1 << 32:
        unsigned = unsigned.astype(np.uint32)  # takes half the time of 64 bits
    width = -(-largest.bit_length() // 7)
    groups, kept = np.empty((len(unsigned), width), np.uint8), np.ones((len(unsigned), width), bool)
    for i in range(width):
        rest = unsigned >> unsigned.dtype.type(7 * i)
        groups[:, i] = rest & 0x7F | (rest > 0x7F) * unsigned.dtype.type(0x80)  # the highest bit says that more bytes follow
        if i:
            kept[:, i] = rest > 0
    return groups[kept].tobytes()


def _list(column: np.ndarray) -> bytes:
    if column.dtype.kind == "f":
        return _field(2, _field(1, np.ascontiguousarray(column, "<f4").tobytes()))
    return _field(3, _field(1, varints(column)))


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), bytearray([number << 3 | _LENGTH])
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + content


def features_of(read: Callable[[int, int], bytes], size: int) -> Iterator[Listed]:
    """Yield the features of a record, in its order; only the bytes between their lists are needed.

    Args:
        read: returns bytes start to stop of the record, fewer at its end.
        size: size of the record in bytes.

    Raises:
        ValueError: the record is not an Example.
    """
    walk = _Walk(read)
    for start, stop in walk.fields(0, size, 1):
        for entry_start, entry_stop in walk.fields(start, stop, 1):
            name, feature = "", (entry_stop, entry_stop)
            for number, begin, end in walk.all_fields(entry_start, entry_stop):
                if number == 1:
                    name = walk.text(begin, end)
                elif number == 2:
                    feature = begin, end
            kind, place = "", (entry_stop, entry_stop)
            for number, begin, end in walk.all_fields(*feature):
                if 1 <= number <= len(KINDS):
                    kind, place = KINDS[number - 1], (begin, end)
            yield Listed(name, kind, *place)


def count_values(read: Callable[[int, int], bytes], listed: Listed) -> int:
    """Count the values of a list of numbers, packed or not; `read` is as in `features_of`. Raises ValueError for any other list."""
    walk, count = _Walk(read), 0
    for number, begin, end in walk.all_fields(listed.start, listed.stop):
        if number != 1:
            continue
        if not walk.packed:
            count += 1
        elif listed.kind == FLOAT:
            if (end - begin) % 4:
                raise ValueError(f"{end - begin} bytes of float32 values, expected a multiple of 4")
            count += (end - begin) // 4
        else:
            count += int(np.count_nonzero(np.frombuffer(read(begin, end), np.uint8) < 0x80))  # the last byte of each varint is below 0x80
    return count


def first_dimension(read: Callable[[int, int], bytes], size: int, name: str) -> int:
    """Return the first dimension of the serialized tensor that an Example holds by this name, 1 for a tensor without dimensions.

    A `TensorProto` has its shape in field 2, a `TensorShapeProto`, whose dimensions are field 2 with `size` as field 1; what is 0 is left out.

    Args:
        read: as in `features_of`.
        size: as in `features_of`.
        name: name of the feature.

    Raises:
        ValueError: the record is not an Example with one such tensor.
    """
    walk = _Walk(read)
    listed = next((feature for feature in features_of(read, size) if feature.name == name and feature.kind == BYTES), None)
    tensor = next(walk.fields(listed.start, listed.stop, 1), None) if listed else None
    if tensor is None:
        raise ValueError(f"no tensor named {name!r}")
    shape = next(walk.fields(*tensor, 2), None)
    dimension = next(walk.fields(*shape, 2), None) if shape else None
    return walk.whole_number(*dimension, 1) if dimension else 1


class _Walk:
    """A scanner of the fields of messages, by positions in the record."""

    def __init__(self, read: Callable[[int, int], bytes]):
        self._read, self._first, self._page = read, 0, b""
        self.packed = False  # whether the last field had a length

    def bytes(self, start: int, stop: int) -> bytes:
        if not self._first <= start <= stop <= self._first + len(self._page):
            self._first, self._page = start, self._read(start, max(stop, start + _PAGE))
        found = self._page[start - self._first : stop - self._first]
        if len(found) < stop - start:
            raise ValueError("ends within a field")
        return found

    def text(self, start: int, stop: int) -> str:
        try:
            return self.bytes(start, stop).decode()
        except UnicodeDecodeError:
            raise ValueError("a feature's name is not UTF-8") from None

    def fields(self, start: int, stop: int, wanted: int) -> Iterator[tuple[int, int]]:
        """Yield start and stop of the content of each length-delimited field with number `wanted`."""
        for number, begin, end in self.all_fields(start, stop):
            if number == wanted and self.packed:
                yield begin, end

    def whole_number(self, start: int, stop: int, wanted: int) -> int:
        """Return the varint of the field with number `wanted`, 0 if there is none."""
        return next((self._varint(begin, end)[0] for number, begin, end in self.all_fields(start, stop) if number == wanted and not self.packed), 0)

    def all_fields(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each field, and start and stop of its content."""
        while start < stop:
            tag, begin = self._varint(start, stop)
            wire, self.packed = tag & 7, tag & 7 == _LENGTH
            if wire == _LENGTH:
                size, begin = self._varint(begin, stop)
            elif wire == _VARINT:
                size = self._varint(begin, stop)[1] - begin
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
            else:
                raise ValueError(f"unknown wire type {wire}")
            if begin + size > stop:
                raise ValueError("a field is longer than its message")
            yield tag >> 3, begin, begin + size
            start = begin + size

    def _varint(self, start: int, stop: int) -> tuple[int, int]:
        """Return the varint at `start`, and its end."""
        value = 0
        for i in range(10):  # 64 bits take at most ten bytes
            if start + i >= stop:
                break
            byte = self.bytes(start + i, start + i + 1)[0]
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return value, start + i + 1
        raise ValueError("a varint without an end")
