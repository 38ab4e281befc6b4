"""Writing of Parquet as a stream: the same rows give the same bytes as a frame in memory, whatever engine and frames they come from."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from utils.naming import naming

# Polars 2.0 splits a frame in memory into row groups of nearly this many rows (with the number of groups that brings their size nearest to it); the
# first groups have one row more where the number does not divide the rows. Streamed frames are cut in the same way, so that the file is the same.
_GROUP_ROWS = 122_880


def write_vocabulary(path: Path, frames: Iterable[pl.DataFrame], rows: int, schema: pl.Schema) -> None:
    """Write a vocabulary, or other rows, as a stream; memory grows with the frames and not with the rows.

    Args:
        path: the file, which is replaced.
        frames: its values in the order of the ids, in frames of any size.
        rows: number of rows of all frames together.
        schema: schema of each frame.

    Raises:
        OSError, UserError: the path cannot be written; the error names it.
    """
    groups = num_groups(rows)
    sizes = [rows // groups + (place < rows % groups) for place in range(groups if rows else 0)]

    def groups_of_rows(*_) -> Iterator[pl.DataFrame]:
        yield schema.to_frame()
        yield from _of_rows(frames, sizes)

    with naming(path):
        register_io_source(groups_of_rows, schema=schema).sink_parquet(path)


def num_groups(rows: int) -> int:
    """Return the number of row groups into which Polars splits a frame in memory."""
    fewer = max(1, rows // _GROUP_ROWS)
    return fewer + (_GROUP_ROWS - rows // (fewer + 1) < rows // fewer - _GROUP_ROWS)


def _of_rows(frames: Iterable[pl.DataFrame], sizes: Iterable[int]) -> Iterator[pl.DataFrame]:
    """Yield the rows of all frames, in order, as frames of the given sizes."""
    source, waiting = iter(frames), pl.DataFrame()
    for size in sizes:
        parts = [waiting] if waiting.height else []
        while sum(part.height for part in parts) < size:
            parts.append(next(source))
        joined = pl.concat(parts) if parts else waiting
        yield joined.head(size).rechunk()
        waiting = joined.slice(size)
