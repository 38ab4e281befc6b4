"""Parquet written as a stream has the same bytes as a frame written from memory, however its rows are cut into pieces."""

import polars as pl
import pytest

from preproc.shared.vocabulary_file import write_vocabulary

GROUP = 122_880  # approximate number of rows in a row group


# At 2 k (k + 1) / (2 k + 1) times GROUP rows, k groups are as much too large as k + 1 groups are too small: 163,840 rows for k = 1.
@pytest.mark.parametrize(
    "rows",
    [0, 1, GROUP + 1, 163_839, 163_840, 163_841, 184_320, 294_911, 294_912, 294_913, 294_914, 421_303, 421_304, 421_305, 421_306, 5 * GROUP - 7],
)
def test_row_groups(tmp_path, rows):
    frame = pl.DataFrame({"value": pl.int_range(rows, eager=True, dtype=pl.Int32)}).with_columns(text=pl.col("value").cast(pl.String))
    frame.write_parquet(tmp_path / "frame")
    write_vocabulary(tmp_path / "stream", (frame[start : start + 77_777] for start in range(0, rows, 77_777)), rows, frame.schema)
    assert (tmp_path / "stream").read_bytes() == (tmp_path / "frame").read_bytes()
