"""Parquet that is written as a stream has the bytes of a frame in memory, however its rows come."""

import polars as pl
import pytest

from preproc.shared.vocabulary_file import write_vocabulary

GROUP = 122_880  # rows of a row group, about


# Between k and k + 1 groups the size of a group is equally far from GROUP at 2 k (k + 1) / (2 k + 1) times that: 163,840 rows for k = 1.
@pytest.mark.parametrize(
    "rows",
    [0, 1, GROUP + 1, 163_839, 163_840, 163_841, 184_320, 294_911, 294_912, 294_913, 294_914, 421_303, 421_304, 421_305, 421_306, 5 * GROUP - 7],
)
def test_row_groups(tmp_path, rows):
    frame = pl.DataFrame({"value": pl.int_range(rows, eager=True, dtype=pl.Int32)}).with_columns(text=pl.col("value").cast(pl.String))
    frame.write_parquet(tmp_path / "frame")
    write_vocabulary(tmp_path / "stream", (frame[start : start + 77_777] for start in range(0, rows, 77_777)), rows, frame.schema)
    assert (tmp_path / "stream").read_bytes() == (tmp_path / "frame").read_bytes()
