"""Tables of fewer bits: compared with values worked out by hand, with TensorFlow, and with a slow form of FBGEMM's rows."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from utils.checkpoint.links import clone, link
from utils.checkpoint.packed import PackedTable, pack, stored_bytes, table_files, unpack, write_table

PRECISIONS = ("float32", "bfloat16", "float16", "int8")


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40))
def test_bfloat16_rounds_to_the_nearest_ties_to_even(values):
    row = np.array([values], np.float32)
    assert_array_equal(unpack(*pack(row, "bfloat16"), "bfloat16"), tf.cast(tf.cast(row, tf.bfloat16), tf.float32).numpy())


def test_rows_of_int8_by_hand():
    codes, scales = pack(np.array([[-1.0, 0.0, 4.1], [2.0, 2.0, 2.0]], np.float32), "int8")
    assert codes.tolist() == [[0, 50, 255], [0, 0, 0]]  # 255 / 5.1 = 50 codes a unit
    assert_allclose(scales, [[0.02, -1.0], [0.0, 2.0]], rtol=1e-6)
    assert_allclose(unpack(codes, scales, "int8"), [[-1.0, 0.0, 4.1], [2.0, 2.0, 2.0]], atol=1e-6)


def test_int8_error_is_at_most_half_a_step():
    rows = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
    codes, scales = pack(rows, "int8")
    error = np.abs(unpack(codes, scales, "int8") - rows)
    assert (error <= 0.5001 * scales[:, :1] + 1e-6).all() and error.max() > 0.4 * scales.max()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_table_written_in_blocks_is_read_by_rows(tmp_path, precision):
    table = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32)
    files = table_files(tmp_path, "a table/x", precision)
    write_table(((start, table[start : start + 16]) for start in range(0, 50, 16)), files, precision)
    assert sum(file.stat().st_size for file in files if file) == stored_bytes(50, 6, precision)
    numbers = np.array([49, 0, 0, 17])
    found = PackedTable(tmp_path, "a table/x", (50, 6), precision).rows(numbers)
    assert found.dtype == np.float32
    assert_array_equal(found, unpack(*pack(table[numbers], precision), precision))


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: file.write_bytes(b"short")], ids=["missing", "short"])
def test_error_names_a_missing_or_short_file(tmp_path, spoil):
    files = table_files(tmp_path, "t", "int8")
    write_table([(0, np.ones((4, 2), np.float32))], files, "int8")
    spoil(files.scales)
    with pytest.raises(ValueError, match=r"tables/t/scales\.bin: "):
        PackedTable(tmp_path, "t", (4, 2), "int8")


@pytest.mark.parametrize("how", [link, clone])
def test_link_and_clone_copy_the_contents(tmp_path, how):
    (tmp_path / "a").write_bytes(b"rows")
    how(tmp_path / "a", (tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"rows"
    assert ((tmp_path / "a").stat().st_ino == (tmp_path / "b").stat().st_ino) == (how is link)
