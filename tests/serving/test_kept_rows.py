"""Tests of the rows kept with an exported version: they are read as written, and at most the requested number of them."""

import numpy as np
import pytest

from serving.kept_rows import KeptRows, read_rows
from utils.errors import UserError


def rows(count):
    texts = np.array([f"text {i} \u00fc".encode() if i % 3 else b"" for i in range(count)], object)
    inputs = {"x": np.arange(3 * count, dtype=np.float32).reshape(count, 3), "user": texts[:, np.newaxis]}
    return KeptRows(inputs, np.linspace(0, 1, count, dtype=np.float32), 2e-6)


@pytest.mark.parametrize("count", [1, 7, 200])
def test_rows_are_read_as_written(tmp_path, count):
    rows(count).write(tmp_path / "rows.npz")
    found = read_rows(tmp_path / "rows.npz")
    assert list(found.inputs) == ["x", "user"] and found.limit == 2e-6
    for name, values in rows(count).inputs.items():
        assert found.inputs[name].dtype == values.dtype and np.array_equal(found.inputs[name], values)
    np.testing.assert_array_equal(found.scores, rows(count).scores)


@pytest.mark.parametrize("count", [0, 1, 6, 7, 9])
def test_first_returns_at_most_that_many_rows(count):
    found, kept = rows(7).first(count), min(count, 7)
    assert len(found.scores) == kept and {len(values) for values in found.inputs.values()} == {kept} and found.limit == 2e-6
    assert np.array_equal(found.inputs["user"], rows(7).inputs["user"][:kept]) and np.array_equal(found.scores, rows(7).scores[:kept])


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_invalid_file_is_one_line(tmp_path, content):
    (tmp_path / "rows.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"rows\.npz: cannot be read .*export the model again"):
        read_rows(tmp_path / "rows.npz")
