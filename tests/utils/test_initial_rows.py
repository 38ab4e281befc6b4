"""Tests that initial embedding rows depend on (seed, feature, row) and on nothing else."""

import hashlib
import json
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from model.embedding.table import INITIALIZERS
from utils.initial_rows import (
    GENERATORS,
    ConstantRows,
    GlorotNormalRows,
    NormalRows,
    Origin,
    StackedRows,
    UniformRows,
    Untouched,
    numbers_of_rows,
)


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
    assert_array_equal(table(rows, dim, seed, chunk=chunk), whole)
    assert np.isfinite(whole).all()


@pytest.mark.parametrize("dim", [8, 16, 13, 1])
def test_values_do_not_depend_on_blocks_drawn_at_once(dim):
    whole = table(5000, dim)  # more than one block of 2048 rows
    assert_array_equal(table(5000, dim, chunk=777), whole)


@given(dim=st.integers(2, 24), data=st.data())
@settings(max_examples=50)
def test_a_slice_of_columns_is_the_slice_of_the_table(dim, data):
    low = data.draw(st.integers(0, dim - 1))
    high = data.draw(st.integers(low + 1, dim))
    assert_array_equal(table(9, dim, columns=(low, high)), table(9, dim)[:, low:high])


@pytest.mark.parametrize("dim", [8, 12])
@pytest.mark.parametrize("row", [0, 1, 4999, 123_456_789])
def test_a_row_can_be_drawn_alone(dim, row):
    fill = UniformRows(3, "user", 2 * 10**8, dim)
    alone, among = np.empty((1, dim), np.float32), np.empty((4, dim), np.float32)
    fill(alone, row)
    first = max(row - 2, 0)
    fill(among, first)
    assert_array_equal(alone[0], among[row - first])


def test_a_target_with_strides_is_filled_too():
    wide = np.zeros((6, 16), np.float32)
    UniformRows(0, "cat_0", 6, 8)(wide[:, 4:12], 0)
    assert_array_equal(wide[:, 4:12], table(6, 8))
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
    assert_allclose(found, shares, atol=5 * np.sqrt(0.25 / values.size), rtol=0)
    assert np.isfinite(values).all() and np.abs(values).max() < 0.5 * 5.5
    some = np.empty((3, 5), np.float32)
    NormalRows(3, "user", 20_000, 64, (7, 12), stddev=0.5)(some, 4321)
    assert_array_equal(some, values[4321:4324, 7:12])


def test_normal_rows_at_the_ends_of_the_grid_are_finite():
    fill = NormalRows(0, "x", 10, 8, stddev=1.0)
    drawn = np.array([[0, 2**-24, 0.02425, 0.5, 1 - 0.02425, 1 - 2**-24]], np.float32)
    fill._distribute(drawn)
    expected = [NormalDist().inv_cdf(float(np.float32(share)) + 2**-25) for share in (0, 2**-24, 0.02425, 0.5, 1 - 0.02425, 1 - 2**-24)]
    assert_allclose(drawn[0], expected, rtol=3e-4, atol=1e-7)  # the polynomials are evaluated in float32


FILLERS = {
    "uniform": lambda rows, dim, columns: UniformRows(3, "user", rows, dim, columns),
    "scaled": lambda rows, dim, columns: UniformRows(3, "user", rows, dim, columns, 0.25),
    "glorot_normal": lambda rows, dim, columns: GlorotNormalRows(3, "user", rows, dim, columns),
    "normal": lambda rows, dim, columns: NormalRows(3, "user", rows, dim, columns, stddev=0.01),
    "constant": lambda rows, dim, columns: ConstantRows(0.1),
}


@pytest.mark.parametrize("kind", FILLERS)
@given(rows=st.integers(1, 4000), dim=st.integers(1, 20), data=st.data())
@settings(max_examples=15, deadline=None)
def test_rows_by_number_are_those_of_the_whole_table_bit_for_bit(kind, rows, dim, data):
    low = data.draw(st.integers(0, dim - 1))
    columns = low, data.draw(st.integers(low + 1, dim))
    numbers = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, rows, data.draw(st.sampled_from([0, 1, 5, 3000])))
    fill = FILLERS[kind](rows, dim, columns)
    whole, some = np.empty((rows, columns[1] - low), np.float32), np.full((len(numbers), columns[1] - low), np.nan, np.float32)
    fill(whole, 0)
    fill.at(numbers, some)
    assert_array_equal(some.view(np.uint32), whole[numbers].view(np.uint32))


@pytest.mark.parametrize(("counts", "row"), [(1, 2**40), (16, 292_775_613), (2, 2**31), (1, 0), (3, 2**60)])
def test_numbers_of_a_row_are_those_of_numpys_generator(counts, row):
    key = [2**64 - 1, 0x9E3779B97F4A7C15]
    philox = np.random.Philox(key=np.array(key, np.uint64))
    philox.advance(row * counts)
    expected = np.random.Generator(philox).random(8 * counts, np.float32)
    assert_array_equal(numbers_of_rows(key, counts, np.array([row])), expected[np.newaxis])


@pytest.mark.parametrize("feature", ["a", "b", "c", "d", "e", "f"])
def test_the_key_is_that_of_all_tables_drawn_so_far(feature):
    """NumPy rounds some of these keys to float64: a list of one word of 64 bits and a shorter one."""
    digest = hashlib.sha256(f"0/{feature}".encode()).digest()
    expected = np.random.Philox(key=[int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")])
    values = np.random.Generator(expected).random((4, 8), np.float32)
    assert_array_equal(table(4, 8, feature=feature), values * np.float32(1) - np.float32(0.5))


def test_another_function_may_draw_the_numbers_of_rows():
    asked = []

    def draw(key, counts, rows):
        asked.append((counts, list(rows)))
        return numbers_of_rows(key, counts, rows)

    origin, out = Origin(0, 50, "user", 50, 12, 3, "uniform"), np.empty((2, 12), np.float32)
    Untouched([origin], draw=draw).at(np.array([40, 7]), out)
    assert asked == [(2, [40, 7])]
    assert_array_equal(out, table(50, 12, 3, "user")[[40, 7]])


def test_rows_of_stacked_tables_by_number():
    stacked = StackedRows([UniformRows(0, "a", 5, 3), ConstantRows(7.0), UniformRows(1, "b", 9, 3)], [0, 5, 6])
    whole, numbers = np.empty((15, 3), np.float32), np.array([14, 0, 5, 6, 4, 5, 10])
    stacked(whole, 0)
    some = np.empty((7, 3), np.float32)
    stacked.at(numbers, some)
    assert_array_equal(some, whole[numbers])
    assert_array_equal(some[0], table(9, 3, 1, "b")[8])


def origins(*lasts, initializer="uniform", **more):
    firsts = [0, *lasts[:-1]]
    return [Origin(first, last, "user", last, 6, 10 + first, initializer, **more) for first, last in zip(firsts, lasts, strict=True)]


@pytest.mark.parametrize("columns", [None, (2, 5)])
def test_rows_of_a_grown_table_come_from_the_generator_that_each_was_drawn_by(columns):
    fill, (low, high) = Untouched(origins(4, 9, 20), columns), columns or (0, 6)
    assert fill.rows == 20 and getattr(fill, "value", None) is None
    whole = np.empty((20, high - low), np.float32)
    fill(whole, 0)
    for first, last in ((0, 4), (4, 9), (9, 20)):
        assert_array_equal(whole[first:last], table(last, 6, 10 + first, "user", columns=columns)[first:last])
    part, numbers = np.empty((10, high - low), np.float32), np.array([19, 0, 3, 4, 8, 9, 4])
    fill(part, 2)
    assert_array_equal(part, whole[2:12])
    some = np.empty((7, high - low), np.float32)
    fill.at(numbers, some)
    assert_array_equal(some, whole[numbers])


def test_only_rows_that_are_all_equal_have_a_value():
    assert Untouched(origins(4, 9, initializer="zeros")).value == 0
    assert Untouched(origins(4, initializer="constant", scale=0.5)).value == 0.5
    two = [*origins(4, initializer="zeros"), replace(origins(9, initializer="constant", scale=0.5)[0], first=4)]
    assert not hasattr(Untouched(two), "value")


def test_origins_have_a_generator_for_every_initializer_of_tables():
    assert set(GENERATORS) == {*INITIALIZERS, "constant"}


@pytest.mark.parametrize("initializer", GENERATORS)
def test_an_origin_is_read_back_from_json(initializer):
    origin = Origin(2, 8, "ü/user", 9, 4, 2**62, initializer, 0.1)
    assert Origin.parsed(json.loads(json.dumps(origin.described()))) == origin


@pytest.mark.parametrize(
    "change",
    [
        *({"first": value} for value in (-1, 8, True, 1.0, "1", None)),
        *({"last": value} for value in (10, 0)),
        *({"rows": 7}, {"dim": 0}, {"seed": "3"}, {"name": 3}, {"initializer": "odd"}, {"initializer": ["zeros"]}, {"more": 1}),
        *({"scale": value} for value in (float("nan"), float("inf"), "0.1", True)),
        *({"initializer": name, "scale": None} for name in ("normal", "constant")),
    ],
)
def test_an_odd_origin_is_an_error(change):
    described = Origin(2, 8, "user", 9, 4, 0, "uniform").described()
    with pytest.raises(ValueError, match=r"expected|origin|scale"):
        Origin.parsed(described | change)


def test_an_origin_without_a_value_is_an_error():
    described = Origin(2, 8, "user", 9, 4, 0, "uniform").described()
    for odd in (None, [], {name: value for name, value in described.items() if name != "seed"}):
        with pytest.raises(ValueError, match="origin"):
            Origin.parsed(odd)


@pytest.mark.parametrize(
    "odd", [[], origins(4, 9)[1:], [origins(4)[0], replace(origins(9)[0], first=5)], [origins(4)[0], replace(origins(9)[0], first=4, dim=7)]]
)
def test_origins_must_cover_the_rows_of_one_table(odd):
    with pytest.raises(ValueError, match="expected"):
        Untouched(odd)
