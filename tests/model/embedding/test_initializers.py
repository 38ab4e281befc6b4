"""Tests that initial embedding rows depend on (seed, feature, row) and on nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.embedding.initializers import ConstantRows, UniformRows


def table(rows, dim, seed=0, feature="cat_0", chunk=None, columns=None):
    fill, (low, high) = UniformRows(seed, feature, rows, dim, columns), columns or (0, dim)
    out = np.full((rows, high - low), np.nan, np.float32)
    for start in range(0, rows, chunk or rows):
        fill(out[start : start + (chunk or rows)], start)
    return out


@pytest.mark.parametrize("rows", [1, 4, 10_000])
def test_rows_are_uniform_within_one_over_the_root_of_the_tables_rows(rows):
    values, bound = table(rows, 64), 1 / np.sqrt(rows)
    assert np.abs(values).max() <= bound * (1 + 1e-6)
    assert np.abs(values).max() > 0.9 * bound
    assert values.mean() == pytest.approx(0, abs=5 * bound / np.sqrt(3 * values.size))
    if rows == 10_000:
        counts, _ = np.histogram(values, bins=20, range=(-bound, bound))
        assert np.abs(counts - values.size / 20).max() < 6 * np.sqrt(values.size / 20)


@given(rows=st.integers(1, 40), dim=st.integers(1, 20), chunk=st.integers(1, 40), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=50)
def test_values_do_not_depend_on_the_chunks(rows, dim, chunk, seed):
    whole = table(rows, dim, seed)
    np.testing.assert_array_equal(table(rows, dim, seed, chunk=chunk), whole)
    assert np.isfinite(whole).all()


@pytest.mark.parametrize("dim", [8, 16, 13, 1])
def test_values_do_not_depend_on_blocks_drawn_at_once(dim):
    whole = table(5000, dim)  # more than one block of 2048 rows
    np.testing.assert_array_equal(table(5000, dim, chunk=777), whole)


@given(dim=st.integers(2, 24), data=st.data())
@settings(max_examples=50)
def test_a_slice_of_columns_is_the_slice_of_the_table(dim, data):
    low = data.draw(st.integers(0, dim - 1))
    high = data.draw(st.integers(low + 1, dim))
    np.testing.assert_array_equal(table(9, dim, columns=(low, high)), table(9, dim)[:, low:high])


@pytest.mark.parametrize("dim", [8, 12])
@pytest.mark.parametrize("row", [0, 1, 4999, 123_456_789])
def test_a_row_can_be_drawn_alone(dim, row):
    fill = UniformRows(3, "user", 2 * 10**8, dim)
    alone, among = np.empty((1, dim), np.float32), np.empty((4, dim), np.float32)
    fill(alone, row)
    first = max(row - 2, 0)
    fill(among, first)
    np.testing.assert_array_equal(alone[0], among[row - first])


def test_a_target_with_strides_is_filled_too():
    wide = np.zeros((6, 16), np.float32)
    UniformRows(0, "cat_0", 6, 8)(wide[:, 4:12], 0)
    np.testing.assert_array_equal(wide[:, 4:12], table(6, 8))
    assert not wide[:, :4].any() and not wide[:, 12:].any()


def test_rows_differ_by_seed_and_feature():
    tables = [table(50, 8, seed, feature) for seed in (0, 1) for feature in ("a", "b")]
    for i, one in enumerate(tables):
        assert len(np.unique(one)) > 395  # 400 values of a 24-bit grid
        for other in tables[i + 1 :]:
            assert not np.isclose(one, other, atol=0, rtol=1e-7).any(axis=1).all()
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.25


def test_constant_rows():
    out = np.empty((3, 2), np.float32)
    ConstantRows(0.1)(out, 7)
    assert (out == np.float32(0.1)).all()
