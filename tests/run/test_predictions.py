"""Tests of the file of predictions."""

import numpy as np
import polars
import pytest

from run.predictions import write


@pytest.mark.parametrize(("dtype", "column"), [(np.int32, polars.Int32), (np.int64, polars.Int64)])
def test_groups_are_written_as_stored(tmp_path, dtype, column):
    scores, labels = np.array([0.25, 0.5, 1], np.float32), np.array([0, 1, 1], np.uint8)
    groups = np.array([np.iinfo(dtype).min, 7, 7], dtype)
    write(tmp_path / "p.parquet", scores, labels, groups)
    frame = polars.read_parquet(tmp_path / "p.parquet")
    assert frame.schema == {"row": polars.UInt64, "score": polars.Float32, "label": polars.UInt8, "group": column}
    assert frame.rows() == [(0, 0.25, 0, int(groups[0])), (1, 0.5, 1, 7), (2, 1.0, 1, 7)]
    write(tmp_path / "p.parquet", scores, labels)
    assert polars.read_parquet(tmp_path / "p.parquet").equals(frame.drop("group"))
