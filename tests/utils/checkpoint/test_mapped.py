"""Rows read from mapped chunks equal the rows of the array."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.utils.checkpoint.touched_checkpoints import origins, trained, write
from utils.checkpoint import writing
from utils.checkpoint.manifest import DamagedError
from utils.checkpoint.mapped import MappedArray
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.touched_form import bitmap_name
from utils.checkpoint.zarr_store import create_array, write_rows
from utils.initial_rows import numbers_of_rows


def written(folder, values, chunk):
    store = create_array(folder / "a", values.shape, chunk).result()
    write_rows(store, 0, values, None).result()
    return SimpleNamespace(folder=folder, shape=lambda name: values.shape, touched_table=lambda table: None)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_of_any_shape_and_chunks(tmp_path_factory, data):
    rows, columns = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 9))
    chunk = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
    values = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    mapped = MappedArray(written(tmp_path_factory.mktemp("array"), values, chunk), "a")
    for _ in range(2):
        numbers = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=50)), np.int32)
        assert_array_equal(mapped.rows(numbers), values[numbers])


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: file.write_bytes(b"short")], ids=["missing", "short"])
def test_error_names_a_missing_or_short_chunk(tmp_path, spoil):
    checkpoint = written(tmp_path, np.ones((4, 2), np.float32), (2, 2))
    mapped = MappedArray(checkpoint, "a")
    spoil(tmp_path / "a/c/1/0")
    assert_array_equal(mapped.rows(np.array([0, 1])), np.ones((2, 2)))
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
    assert_array_equal(mapped.rows(numbers), values[numbers])
    assert mapped.rows(numbers[:0]).shape == (0, 3)
    assert mapped.whole().shape == (5120, 3) and not mapped.whole().flags.writeable
    assert_array_equal(mapped.whole()[:5000], values)


@pytest.mark.parametrize("chunk", [(2, 2), (5, 3), (4, 1)])
def test_other_chunks_are_mapped_one_by_one_in_order(tmp_path, chunk):
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    found = MappedArray(written(tmp_path, values, chunk), "a").chunks().arrays
    starts = [(row, column) for row in range(0, 5, chunk[0]) for column in range(0, 3, chunk[1])]
    assert len(found) == len(starts)
    for (row, column), array in zip(starts, found, strict=True):
        expected = values[row : row + chunk[0], column : column + chunk[1]]
        assert_array_equal(array[: expected.shape[0], : expected.shape[1]], expected)


@pytest.mark.parametrize("numbers", [np.empty(0, np.int64), np.array([0, 64, 129]), np.arange(1, 2999), np.arange(3000)])
@pytest.mark.parametrize("step", [None, 2])
@pytest.mark.parametrize("chunk_rows", [100, 1024])  # 1,024 rows of a multiple of 4 bytes are whole pages
def test_rows_of_a_table_of_touched_rows(tmp_path, monkeypatch, numbers, step, chunk_rows):
    monkeypatch.setattr(writing, "CHUNK_BYTES", chunk_rows * 4 * 6)
    where = origins(1000, 3000)
    table = trained(where, numbers)
    write(tmp_path, where, numbers, table, step=step)
    asked = np.random.default_rng(0).integers(0, 3000, 700).astype(np.int32)
    drawn = []

    def draw(key, counts, rows):
        drawn.extend(rows)
        return numbers_of_rows(key, counts, rows)

    for kind, values in table.items():
        mapped = MappedArray(Checkpoint(tmp_path), f"tables/user/{kind}", draw)
        assert mapped.partial and mapped.shape == values.shape
        for some in (asked, asked[:1], asked[:0]):
            assert_array_equal(mapped.rows(some).view(np.uint32), values[some].view(np.uint32))
        for whole in (mapped.chunks, mapped.whole):
            with pytest.raises(NotImplementedError, match="only its touched rows are stored"):
                whole()
    assert set(drawn) == set(asked) - set(numbers)


def test_damage_of_touched_rows_is_found_when_they_are_mapped(tmp_path):
    where, numbers = origins(100), np.array([3, 99])
    folder = write(tmp_path, where, numbers, trained(where, numbers))
    checkpoint, other = Checkpoint(tmp_path), Checkpoint(tmp_path)
    mapped = MappedArray(checkpoint, "tables/user/weights")
    (folder / "tables/user/weights/c/0/0").write_bytes(b"short")
    with pytest.raises(DamagedError, match=r"weights/c/0/0: .*; the checkpoint is damaged"):
        mapped.rows(np.array([3]))
    (folder / "tables/user/weights/zarr.json").write_text("{}")
    with pytest.raises(DamagedError, match=r"tables/user/weights: .*; the checkpoint is damaged"):
        MappedArray(checkpoint, "tables/user/weights")
    (folder / bitmap_name("user")).unlink()
    with pytest.raises(DamagedError, match=r"touched_rows/user\.bin: No such file or directory; the checkpoint is damaged"):
        MappedArray(other, "tables/user/weights")


def test_mappings_are_released(tmp_path):
    def maps():
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    mapped = MappedArray(written(tmp_path, np.ones((5000, 3), np.float32), (1024, 3)), "a")
    mapped.rows(np.arange(5000))
    assert maps() == 5
    del mapped
    assert maps() == 0
