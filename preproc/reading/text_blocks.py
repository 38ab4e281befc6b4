"""Reading of text files, or byte ranges of them, in blocks of whole rows. A row is a line, or several where quoted values hold line ends."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dataloading.features import DatasetError
from preproc.reading.compressed import read_chunks
from preproc.reading.stores import Source
from utils.csv_rows import CsvRows

NEWLINE = 10
_BOM = b"\xef\xbb\xbf"
_BLANK = b"\r\n"
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # gzip, zstd
_COUNTED_BYTES = 1 << 18  # small enough for the intermediate arrays to stay in the processor's cache
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class TextForm:
    """The form of a text file.

    `expected` describes the form in errors. A line of more than `longest_line_bytes` is an error, so that a file of another kind is not read whole
    into memory. `rows` divides CSV text with quotes into rows; None where each line is a row.
    """

    expected: str
    longest_line_bytes: int
    rows: CsvRows | None = None


class TextBlock(NamedTuple):
    """Whole rows.

    Each row ends with a newline, the only one that it holds. A line end inside a quoted value is replaced by `stand_in` (empty where there is none),
    which occurs nowhere else in the text. `lines` are the numbers of the rows' first lines. `bad` are the rows, from 0, whose quotes or number of
    values are wrong.
    """

    text: bytes
    lines: Sequence[int]
    stand_in: bytes = b""
    bad: tuple[int, ...] = ()


def text_blocks(
    path: Source,
    form: TextForm,
    block_bytes: int,
    on_read: Callable[[int], object] = lambda count: None,
    byte_range: tuple[int, int] | None = None,
) -> Iterator[TextBlock]:
    """Yield blocks of whole rows of about `block_bytes`, with LF line ends and without a byte order mark; blank lines at the file's end are dropped.

    Args:
        path: the file, plain, gzip or zstd.
        form: the form of the text.
        block_bytes: the size at which a block is full. It is cut at a line's end, so it can be larger by a line, or by a row that spans lines.
        on_read: called with the number of bytes read from the disk.
        byte_range: (start, stop) of a plain local file: lines that begin in [start, stop), numbered from 1. Ranges that cover a file give
            each line once. Rows that span lines cannot be read by ranges, because a range may begin inside one.

    Raises:
        DatasetError: the compressed stream is damaged or ends early, a line is longer than the form allows, or the file of a range is compressed.
    """
    pending, rest, size, line, needed = [], b"", 0, 1, block_bytes
    whole = byte_range is None or byte_range[0] == 0  # reading begins at the file's first byte
    chunks = read_chunks(path, block_bytes, on_read) if byte_range is None else _range_chunks(path, *byte_range, on_read)
    for chunk in chunks:
        pending.append(chunk)
        size += len(chunk)
        if size < needed:
            continue
        if not (cut := _last_line(pending[-1])) and len(pending) > 1:
            pending = [b"".join(pending)]
            cut = _last_line(pending[0])
        if not cut:
            if size > max(form.longest_line_bytes, block_bytes):
                raise DatasetError(f"{path}, line {line}: longer than {form.longest_line_bytes >> 20} MiB; expected {form.expected}")
            continue
        last = pending.pop()
        text = rest + _plain(b"".join([*pending, last[:cut]]), line == 1 and whole and not rest)
        block, rest = _rows(text, line, form.rows, at_end=False)
        if block is not None:
            yield block
            line += count(text, NEWLINE) - count(rest, NEWLINE) if block.stand_in else len(block.lines)
        pending = [last[cut:]]
        size = len(rest) + len(last) - cut
        needed = size + block_bytes if rest else block_bytes
    text = b"".join(pending)
    text = rest + _plain(text if text.endswith(b"\n") or not text else text + b"\n", first=line == 1 and whole and not rest)
    held = text.rstrip(b"\n")
    if byte_range is None or len(text) <= len(held) + bool(held) or not _has_line_from(path, byte_range[1]):
        text = held + b"\n" if held else b""
    if text:
        yield _rows(text, line, form.rows, at_end=True)[0]


def count(text: bytes, byte: int) -> int:
    """Count the occurrences of a byte; faster than `bytes.count`, and other threads can run meanwhile."""
    data = np.frombuffer(text, np.uint8)
    return sum(int(np.count_nonzero(data[start : start + _COUNTED_BYTES] == byte)) for start in range(0, len(data), _COUNTED_BYTES))


def _last_line(text: bytes) -> int:
    """Return the start of the last line that is not blank; 0 where that is the first line.

    A block is cut there, so that blank lines at its end stay with the rest, which may be the file's end.
    """
    return text.rfind(b"\n", 0, len(text.rstrip(_BLANK))) + 1


def _plain(text: bytes, first: bool) -> bytes:
    text = text.removeprefix(_BOM) if first else text
    return text.replace(b"\r\n", b"\n") if b"\r" in text else text


def _rows(text: bytes, line: int, rows: CsvRows | None, at_end: bool) -> tuple[TextBlock | None, bytes]:
    """Split whole lines into whole rows and the remaining lines, which need more text before it is known whether they are one row."""
    found = None if rows is None else rows.of(text, at_end)
    if found is None:
        return TextBlock(text, range(line, line + count(text, NEWLINE))), b""
    return (TextBlock(found.text, (line + found.starts).tolist(), found.stand_in, found.bad) if found.text else None), found.rest


def _range_chunks(path: Source, start: int, stop: int, on_read: Callable[[int], object]) -> Iterator[bytes]:
    """Yield the lines of a plain file that begin in [start, stop), in chunks."""
    with path.open("rb") as file:
        if file.read(4).startswith(_COMPRESSED):
            raise DatasetError(f"{path}: is compressed; expected a plain file, which can be read in byte ranges")
        file.seek(0)
        if start > 0:
            file.seek(start - 1)  # the byte before, so that a line that begins exactly at `start` is kept
            while (piece := file.readline(_PIECE_BYTES)) and not piece.endswith(b"\n"):
                pass
        chunk = b"\n"
        while (left := stop - file.tell()) > 0 and (chunk := file.read(min(left, _PIECE_BYTES))):
            on_read(len(chunk))
            yield chunk
        while not chunk.endswith(b"\n") and (chunk := file.readline(_PIECE_BYTES)):
            on_read(len(chunk))
            yield chunk


def _has_line_from(path: Source, place: int) -> bool:
    """Return True if a line that is not blank begins at or after a place of a plain file."""
    with path.open("rb") as file:
        file.seek(max(place - 1, 0))
        if place > 0:
            while (piece := file.readline(_PIECE_BYTES)) and not piece.endswith(b"\n"):
                pass
        return any(piece.strip(_BLANK) for piece in iter(lambda: file.read(_PIECE_BYTES), b""))
