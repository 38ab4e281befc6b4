"""Tests that initial embedding rows depend on (seed, feature, row) and on nothing else."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.embedding.initializers import ConstantRows, NormalRows, UniformRows, rows_of
from model.embedding.table import Table


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


def test_normal_rows_have_the_quantiles_of_their_distribution_and_depend_on_nothing_else():
    fill = NormalRows(3, "user", 20_000, 64, stddev=0.5)
    values = np.empty((20_000, 64), np.float32)
    fill(values, 0)
    shares = np.array([1e-5, 1e-3, 0.02, 0.03, 0.1, 0.5, 0.9, 0.97, 0.98, 0.999, 0.99999])
    expected = 0.5 * np.array([NormalDist().inv_cdf(share) for share in shares])
    found = np.searchsorted(np.sort(values.ravel()), expected) / values.size
    np.testing.assert_allclose(found, shares, atol=5 * np.sqrt(0.25 / values.size), rtol=0)
    assert np.isfinite(values).all() and np.abs(values).max() < 0.5 * 5.5
    some = np.empty((3, 5), np.float32)
    NormalRows(3, "user", 20_000, 64, (7, 12), stddev=0.5)(some, 4321)
    np.testing.assert_array_equal(some, values[4321:4324, 7:12])


def test_normal_rows_at_the_ends_of_the_grid_are_finite():
    fill = NormalRows(0, "x", 10, 8, stddev=1.0)
    drawn = np.array([[0, 2**-24, 0.02425, 0.5, 1 - 0.02425, 1 - 2**-24]], np.float32)
    fill._distribute(drawn)
    expected = [NormalDist().inv_cdf(float(np.float32(share)) + 2**-25) for share in (0, 2**-24, 0.02425, 0.5, 1 - 0.02425, 1 - 2**-24)]
    np.testing.assert_allclose(drawn[0], expected, rtol=3e-4, atol=1e-7)  # the polynomials are evaluated in float32


def test_a_tables_initializer_takes_its_scale():
    out = np.empty((500, 8), np.float32)
    rows_of(Table("t", 500, 8, initializer="uniform", scale=0.25), 0, (0, 8))(out, 0)
    assert 0.24 < np.abs(out).max() <= 0.25
    rows_of(Table("t", 500, 8, initializer="normal", scale=0.01), 0, (0, 8))(out, 0)
    assert out.std() == pytest.approx(0.01, rel=0.05)
    with pytest.raises(ValueError, match="needs a scale"):
        Table("t", 5, 8, initializer="normal")
