"""Row groups of Parquet files and batches of Arrow files, from the file's footer, so that several processes can read one file.

Polars skips the groups that a slice of rows does not touch, but does not report how many rows each has. `dataloading.parquet.footer` reads Parquet's
footer. Arrow's is a Flatbuffers table; the number of rows of a batch is in the message before it.
"""

import itertools
import struct
from pathlib import Path
from typing import BinaryIO

from dataloading.parquet import footer as parquet_footer
from dataloading.parquet.footer import UNREADABLE, read_footer
from preproc.reading.arrow_stream import MARK, field, table_at
from preproc.reading.files import ARROW, PARQUET, Form

_ARROW = b"ARROW1"
_BATCHES, _HEADER, _LENGTH = 3, 2, 0  # field numbers in Arrow's Footer, Message and RecordBatch
_BLOCK = struct.Struct("<qi4xq")  # an entry of Arrow's footer: offset and sizes of a batch


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
    if form.kind == PARQUET:
        return parquet_footer.group_rows(path)
    try:
        with path.open("rb") as file:
            return _batch_rows(file) if form.kind == ARROW else []
    except UNREADABLE:
        return []


def _batch_rows(file: BinaryIO) -> list[int]:
    footer = read_footer(file, _ARROW)
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
