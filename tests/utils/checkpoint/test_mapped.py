"""Rows read from mapped chunks equal the rows of the array."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.checkpoint.manifest import DamagedError
from utils.checkpoint.mapped import MappedArray
from utils.checkpoint.zarr_store import create_array, write_rows


def written(folder, values, chunk):
    store = create_array(folder / "a", values.shape, chunk).result()
    write_rows(store, 0, values, None).result()
    return SimpleNamespace(folder=folder, shape=lambda name: values.shape)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_of_any_shape_and_chunks(tmp_path_factory, data):
    rows, columns = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 9))
    chunk = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
    values = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    mapped = MappedArray(written(tmp_path_factory.mktemp("array"), values, chunk), "a")
    for _ in range(2):
        numbers = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=50)), np.int32)
        np.testing.assert_array_equal(mapped.rows(numbers), values[numbers])


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: file.write_bytes(b"short")], ids=["missing", "short"])
def test_error_names_a_missing_or_short_chunk(tmp_path, spoil):
    checkpoint = written(tmp_path, np.ones((4, 2), np.float32), (2, 2))
    mapped = MappedArray(checkpoint, "a")
    spoil(tmp_path / "a/c/1/0")
    np.testing.assert_array_equal(mapped.rows(np.array([0, 1])), np.ones((2, 2)))
    with pytest.raises(DamagedError, match=r"a/c/1/0: .*; the checkpoint is damaged"):
        mapped.rows(np.array([3]))


def test_shape_other_than_the_manifests_is_an_error(tmp_path):
    checkpoint = written(tmp_path, np.ones((4, 2), np.float32), (2, 2))
    checkpoint.shape = lambda name: (5, 2)
    with pytest.raises(DamagedError, match=r"shape \[4, 2\], the manifest says \[5, 2\]"):
        MappedArray(checkpoint, "a")


def test_chunks_of_whole_pages_are_mapped_contiguously(tmp_path):
    """1,024 rows of 4 bytes are a page; the last chunk is not full."""
    values = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    mapped = MappedArray(written(tmp_path, values, (1024, 3)), "a")
    numbers = np.array([4999, 0, 1023, 1024, 4096, 4096, 2047], np.int32)
    np.testing.assert_array_equal(mapped.rows(numbers), values[numbers])
    assert mapped.rows(numbers[:0]).shape == (0, 3)
    assert mapped.whole().shape == (5120, 3) and not mapped.whole().flags.writeable
    np.testing.assert_array_equal(mapped.whole()[:5000], values)


@pytest.mark.parametrize("chunk", [(2, 2), (5, 3), (4, 1)])
def test_other_chunks_are_mapped_one_by_one_in_order(tmp_path, chunk):
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    found = MappedArray(written(tmp_path, values, chunk), "a").chunks().arrays
    starts = [(row, column) for row in range(0, 5, chunk[0]) for column in range(0, 3, chunk[1])]
    assert len(found) == len(starts)
    for (row, column), array in zip(starts, found, strict=True):
        expected = values[row : row + chunk[0], column : column + chunk[1]]
        np.testing.assert_array_equal(array[: expected.shape[0], : expected.shape[1]], expected)


def test_mappings_are_released(tmp_path):
    def maps():
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    mapped = MappedArray(written(tmp_path, np.ones((5000, 3), np.float32), (1024, 3)), "a")
    mapped.rows(np.arange(5000))
    assert maps() == 5
    del mapped
    assert maps() == 0
