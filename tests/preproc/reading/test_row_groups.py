"""Parquet and Arrow files read in ranges of whole row groups: the rows of each, and the same rows as the whole file."""

import polars as pl
import pytest

from dataloading.features import DatasetError
from preproc.reading.files import FormFlags, form_of
from preproc.reading.row_groups import group_rows, row_ranges
from preproc.reading.table_file import TableFile

ROWS = 1003


def frame(rows: int = ROWS) -> pl.DataFrame:
    """Return columns of every kind that affects a file's footer: lists, structs, categories, statistics, nulls."""
    numbers = pl.int_range(rows, eager=True).alias("n")
    return numbers.to_frame().with_columns(
        s=pl.format("text {}", "n"),
        c=pl.format("c{}", pl.col("n") % 7).cast(pl.Categorical),
        e=(pl.col("n") % 2).cast(pl.String).cast(pl.Enum(["0", "1"])),
        l=pl.concat_list("n", pl.col("n") + 1),
        st=pl.struct("n", x=pl.lit(None, pl.String)),
        b=pl.col("n") % 3 == 0,
        t=pl.col("n").cast(pl.Datetime("us", "UTC")),
        d=pl.col("n").cast(pl.Decimal(20, 2)),
        f=pl.col("n") / 3,
    )


WRITERS = {
    "parquet": lambda path, rows: frame(rows).write_parquet(path, row_group_size=100),
    "parquet without statistics": lambda path, rows: frame(rows).write_parquet(
        path, row_group_size=100, statistics=False, compression="uncompressed"
    ),
    "arrow": lambda path, rows: frame(rows).write_ipc(path, record_batch_size=100),
    "compressed arrow": lambda path, rows: frame(rows).write_ipc(path, record_batch_size=100, compression="zstd"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_ranges_are_whole_groups_and_hold_the_rows_of_the_file(tmp_path, kind):
    path = tmp_path / "a b"
    WRITERS[kind](path, ROWS)
    form, size = form_of(path, FormFlags()), path.stat().st_size
    groups = group_rows(path, form)
    assert sum(groups) == ROWS and len(groups) > 5
    ends = {sum(groups[:place]) for place in range(len(groups) + 1)}
    for parts in (2, 4, 100):
        ranges = row_ranges(path, form, size // parts)
        assert len(ranges) == min(parts, len(groups)) and {bound for found in ranges for bound in found} <= ends
        blocks = [list(TableFile(path, form).tasks(["n", "l"], frozenset(), 1, row_range=found)) for found in ranges]
        found = [task() for tasks in blocks for task in tasks]
        assert pl.concat([block.frame for block in found])["n"].to_list() == list(range(ROWS))
        assert [row for block in found for row in block.lines] == list(range(1, ROWS + 1))
    assert row_ranges(path, form, size) == row_ranges(path, form, 10 * size) == [None]


def test_files_without_a_usable_footer_are_read_whole(tmp_path):
    form = lambda path: form_of(path, FormFlags())  # noqa: E731
    streamed, one, none, damaged = (tmp_path / name for name in ("stream", "one", "none", "damaged"))
    frame().write_ipc_stream(streamed)
    frame().write_parquet(one)
    frame(0).write_parquet(none)
    assert [row_ranges(path, form(path), 10) for path in (streamed, one, none)] == [[None]] * 3
    assert (group_rows(streamed, form(streamed)), group_rows(one, form(one))) == ([], [ROWS])
    for kind in ("parquet", "arrow"):
        WRITERS[kind](one, ROWS)
        content = one.read_bytes()
        for cut in (len(content) - 1, len(content) // 2, 9):
            damaged.write_bytes(content[:cut])
            assert row_ranges(damaged, form(damaged), 10) == [None]
            with pytest.raises(DatasetError, match="cannot be read as"):
                [task() for task in TableFile(damaged, form(damaged)).tasks(None, frozenset(), 1)]
        for place in range(
            len(content) - 400, len(content), 7
        ):  # a changed byte in the footer is a fault that the reader finds, or another number of rows
            damaged.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
            assert all(isinstance(rows, int) and rows >= 0 for rows in group_rows(damaged, form(damaged)))
