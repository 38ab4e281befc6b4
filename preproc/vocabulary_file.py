"""Writing `vocabulary/FEATURE.parquet`: the same values give the same bytes, whichever engine counted them and however they come."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from utils.naming import naming

# Polars 2.0 makes row groups of about this many rows of a frame in memory, all but the last of one size. What is written as a
# stream comes in such pieces, and is then the same file.
_GROUP_ROWS = 122_880


def write_vocabulary(path: Path, frames: Iterable[pl.DataFrame], rows: int, schema: pl.Schema) -> None:
    """Write a vocabulary as a stream; memory grows with the frames and not with the rows.

    Args:
        path: the file, which is replaced.
        frames: its values in the order of the ids, in pieces of any size.
        rows: of all frames together.
        schema: of each.

    Raises:
        OSError, UserError: of the path, where it cannot be written.
    """
    groups = max(1, (2 * rows + _GROUP_ROWS) // (2 * _GROUP_ROWS))
    group_rows = max(1, -(-rows // groups))

    def pieces(*_) -> Iterator[pl.DataFrame]:
        yield schema.to_frame()
        yield from _of_equal_rows(frames, group_rows)

    with naming(path):
        register_io_source(pieces, schema=schema).sink_parquet(path)


def _of_equal_rows(frames: Iterable[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    waiting: list[pl.DataFrame] = []
    held = 0
    for frame in frames:
        waiting.append(frame)
        held += frame.height
        while held >= rows:
            joined = pl.concat(waiting)
            yield joined.head(rows).rechunk()
            waiting, held = [joined.slice(rows)], held - rows
    if held:
        yield pl.concat(waiting).rechunk()
