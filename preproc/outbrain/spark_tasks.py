"""Tasks that executors run for `preproc.outbrain`: parsing the rows of a part of a file, and making the features of some clicks."""

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from preproc.outbrain.files import FORM, names_of, open_table, typed_rows
from preproc.reading.table_file import may_span_lines
from preproc.spark.shared_objects import load_shared
from utils.naming import naming

_ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class RawFilePart:
    """A part of a raw file that a task reads.

    Attributes:
        table: name of its table.
        path: the file, by a name that is valid on every machine.
        byte_range: range of the part; None for the whole file.
        skip_bad_lines: skip bad rows, or stop at the first.
        block_bytes: text parsed at once, in bytes.
        work: file of a function for `load_shared`, which is called with each block's rows.
    """

    table: str
    path: Path
    byte_range: tuple[int, int] | None
    skip_bad_lines: bool
    block_bytes: int
    work: Path


@dataclass
class RawFilePartRead:
    """The result of reading a part.

    Attributes:
        spans_lines: whether rows may span several lines: then nothing was read, since the part may begin inside a row.
        lines: number of lines of the part.
        blocks: for each block the number of valid rows, the faults (which name lines by their number in the part) and the file of the result.
    """

    spans_lines: bool = False
    lines: int = 0
    blocks: list[tuple[int, list[str], str]] = field(default_factory=list)


def read_part(item: RawFilePart, folder: Path) -> RawFilePartRead:
    """Read a part of a file, and pickle the result for each block. Raises DatasetError with the line number in the part where it is malformed."""
    if item.byte_range is not None and may_span_lines(item.path, FORM, item.byte_range):
        return RawFilePartRead(spans_lines=True)
    work, found, file = load_shared(item.work), RawFilePartRead(), open_table(item.path, item.skip_bad_lines)
    for block in file.blocks(names_of(item.table), frozenset(), item.block_bytes, byte_range=item.byte_range):
        typed = typed_rows(item.table, item.path, block, item.skip_bad_lines)
        with naming(path := folder / f"{len(found.blocks):06d}.pickle"):
            path.write_bytes(pickle.dumps(work(typed.rows), protocol=5))
        found.blocks.append((typed.rows.height, typed.faults, path.name))
    found.lines = file.num_lines
    return found


@dataclass(frozen=True)
class Piece:
    """Some rows of a split, of which a task makes the features.

    Attributes:
        split: name of the split.
        slices: for each slice a staged file, its first row and its number of rows.
        work: file of a function for `load_shared`, which makes the columns of a block, in the order of the dataset's files.
        dtypes: dtypes of the columns.
    """

    split: str
    slices: Sequence[tuple[Path, int, int]]
    work: Path
    dtypes: Sequence[str]


def column_file(place: int) -> str:
    """Return the file name of a column of a piece."""
    return f"{place:02d}.bin"


def write_piece(item: Piece, folder: Path) -> int:
    """Write the columns of some rows, each in the dataset's format. Return the number of rows."""
    work, written = load_shared(item.work), 0
    paths = [folder / column_file(place) for place in range(len(item.dtypes))]
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(path.open("wb")) for path in paths]
        for rows in _blocks(item.slices):
            columns: Sequence[Any] = work(rows)
            for path, file, values, dtype in zip(paths, files, columns, item.dtypes, strict=True):
                with naming(path):
                    file.write(np.ascontiguousarray(values, dtype).data)
            written += rows.height
    return written


def _blocks(slices: Sequence[tuple[Path, int, int]]) -> Iterator[pl.DataFrame]:
    for path, first, count in slices:
        for start in range(first, first + count, _ROWS_AT_ONCE):
            yield pl.scan_ipc(path, glob=False).slice(start, min(_ROWS_AT_ONCE, first + count - start)).collect()
