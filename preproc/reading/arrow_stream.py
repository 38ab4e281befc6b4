"""Reading of Arrow's stream format, batch by batch. Polars reads a stream whole, so it is given streams of one batch each.

A stream is a sequence of messages. A message is four bytes 0xff, the length of the metadata (a Flatbuffers table `Message`), the metadata, and a body
whose length the metadata give. The first message holds the schema. Dictionaries of categorical columns precede the batches that need them.
"""

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import polars as pl

from dataloading.features import DatasetError

MARK = b"\xff\xff\xff\xff"
_END = MARK + bytes(4)
_DICTIONARY, _BATCH = 2, 3  # types of messages
_KIND, _BODY_BYTES = 1, 3  # field numbers in a message


def stream_schema(path: Path) -> pl.Schema:
    """Return the columns of a stream. Raises DatasetError where the stream is damaged."""
    with path.open("rb") as file:
        _, first = _message(path, file) or (0, b"")
    return pl.read_ipc_stream(io.BytesIO(first + _END)).schema


def stream_batches(path: Path, on_read: Callable[[int], object] = lambda count: None) -> Iterator[pl.DataFrame]:
    """Yield the batches of a stream in order. One batch and the dictionaries so far are in memory at a time.

    Args:
        path: the file.
        on_read: called with the number of bytes read.

    Raises:
        DatasetError: the stream is damaged or ends early.
    """
    before = b""  # the schema and the dictionaries
    with path.open("rb") as file:
        while message := _message(path, file):
            kind, content = message
            on_read(len(content))
            if kind == _BATCH:
                yield pl.read_ipc_stream(io.BytesIO(before + content + _END))
            else:
                before += content


def _message(path: Path, file: BinaryIO) -> tuple[int, bytes] | None:
    """Read the next message and return its type and bytes; None at the stream's end."""
    start = file.read(8)
    if start in (b"", _END):
        return None
    try:
        metadata = _exactly(file, struct.unpack("<4xI", start)[0])
        kind, body_bytes = field(metadata, _KIND, "<B"), field(metadata, _BODY_BYTES, "<q")
        if not start.startswith(MARK) or kind > _BATCH or body_bytes < 0:
            raise ValueError("expected a message with a schema, dictionary or batch")
        return kind, start + metadata + _exactly(file, body_bytes)
    except (struct.error, ValueError) as error:
        raise DatasetError(f"{path}: damaged or truncated Arrow stream, before byte {file.tell()}: {error}; fetch or write it again") from None


def _exactly(file: BinaryIO, size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise ValueError(f"it ends {size - len(found)} bytes early")
    return found


def field(metadata: bytes, place: int, form: str, table: int | None = None) -> int:
    """Read a number of a Flatbuffers table, by default of the root; return 0, its default value, where the table omits it."""
    table = struct.unpack_from("<I", metadata)[0] if table is None else table
    offset = _offset(metadata, place, table)
    return struct.unpack_from(form, metadata, table + offset)[0] if offset else 0


def table_at(metadata: bytes, table: int, place: int) -> int:
    """Return the offset of the table or vector to which a table's field refers. Raises ValueError where the field is absent."""
    offset = _offset(metadata, place, table)
    if not offset:
        raise ValueError("the table lacks a field")
    return table + offset + struct.unpack_from("<I", metadata, table + offset)[0]


def _offset(metadata: bytes, place: int, table: int) -> int:
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    return struct.unpack_from("<H", metadata, table - back + 4 + 2 * place)[0] if 4 + 2 * place < size else 0
