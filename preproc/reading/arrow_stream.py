"""Arrow's stream format, batch by batch: Polars reads such a stream whole, so it is handed streams of one batch each.

A stream is a row of messages: four bytes 0xff, the length of the metadata (a Flatbuffers table `Message`), the metadata, and a body whose length they
say. The first holds the schema; dictionaries of categorical columns come before the batches that need them.
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
_DICTIONARY, _BATCH = 2, 3  # kinds of messages
_KIND, _BODY_BYTES = 1, 3  # fields of a message


def stream_schema(path: Path) -> pl.Schema:
    """The columns of a stream. Raises DatasetError where it is damaged."""
    with path.open("rb") as file:
        _, first = _message(path, file) or (0, b"")
    return pl.read_ipc_stream(io.BytesIO(first + _END)).schema


def stream_batches(path: Path, on_read: Callable[[int], object] = lambda count: None) -> Iterator[pl.DataFrame]:
    """The batches of a stream, in their order; one of them is in memory at a time, and the dictionaries so far.

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
    """The next message: its kind and its bytes; None at the stream's end."""
    start = file.read(8)
    if start in (b"", _END):
        return None
    try:
        metadata = _exactly(file, struct.unpack("<4xI", start)[0])
        kind, body_bytes = field(metadata, _KIND, "<B"), field(metadata, _BODY_BYTES, "<q")
        if not start.startswith(MARK) or kind > _BATCH or body_bytes < 0:
            raise ValueError("what stands there is no message of schema, dictionary or batch")
        return kind, start + metadata + _exactly(file, body_bytes)
    except (struct.error, ValueError) as error:
        raise DatasetError(f"{path}: damaged or truncated Arrow stream, before byte {file.tell()}: {error}; fetch or write it again") from None


def _exactly(file: BinaryIO, size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise ValueError(f"it ends {size - len(found)} bytes early")
    return found


def field(metadata: bytes, place: int, form: str, table: int | None = None) -> int:
    """A number of a Flatbuffers table, by default of the root; 0, its default, where the table leaves it out."""
    table = struct.unpack_from("<I", metadata)[0] if table is None else table
    offset = _offset(metadata, place, table)
    return struct.unpack_from(form, metadata, table + offset)[0] if offset else 0


def table_at(metadata: bytes, table: int, place: int) -> int:
    """Where what a table refers to begins, a table or a vector. Raises ValueError where it refers to none."""
    offset = _offset(metadata, place, table)
    if not offset:
        raise ValueError("the table lacks a field")
    return table + offset + struct.unpack_from("<I", metadata, table + offset)[0]


def _offset(metadata: bytes, place: int, table: int) -> int:
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    return struct.unpack_from("<H", metadata, table - back + 4 + 2 * place)[0] if 4 + 2 * place < size else 0
