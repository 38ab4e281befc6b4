"""Writing Parquet as a stream: the same rows give the same bytes as a frame in memory, whichever engine made them and however they come."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from utils.naming import naming

# Polars 2.0 makes row groups of nearly this many rows of a frame in memory (as many groups as bring their size nearest to it), the first of them of
# one row more where their number does not divide the rows. What is written as a stream comes in such pieces, and is then the same file.
_GROUP_ROWS = 122_880


def write_vocabulary(path: Path, frames: Iterable[pl.DataFrame], rows: int, schema: pl.Schema) -> None:
    """Write a vocabulary, or other rows, as a stream; memory grows with the frames and not with the rows.

    Args:
        path: the file, which is replaced.
        frames: its values in the order of the ids, in pieces of any size.
        rows: of all frames together.
        schema: of each.

    Raises:
        OSError, UserError: of the path, where it cannot be written.
    """
    groups = num_groups(rows)
    sizes = [rows // groups + (place < rows % groups) for place in range(groups if rows else 0)]

    def pieces(*_) -> Iterator[pl.DataFrame]:
        yield schema.to_frame()
        yield from _of_rows(frames, sizes)

    with naming(path):
        register_io_source(pieces, schema=schema).sink_parquet(path)


def num_groups(rows: int) -> int:
    """How many row groups Polars makes of a frame in memory."""
    fewer = max(1, rows // _GROUP_ROWS)
    return fewer + (_GROUP_ROWS - rows // (fewer + 1) < rows // fewer - _GROUP_ROWS)


def _of_rows(frames: Iterable[pl.DataFrame], sizes: Iterable[int]) -> Iterator[pl.DataFrame]:
    """The rows of all frames in frames of these sizes, one after another."""
    source, waiting = iter(frames), pl.DataFrame()
    for size in sizes:
        parts = [waiting] if waiting.height else []
        while sum(part.height for part in parts) < size:
            parts.append(next(source))
        joined = pl.concat(parts) if parts else waiting
        yield joined.head(size).rechunk()
        waiting = joined.slice(size)
