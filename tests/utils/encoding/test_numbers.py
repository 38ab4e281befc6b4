"""Numbers of a table converted for a dataset, compared with values worked out by hand."""

import math

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from utils.encoding.numbers import bounded, bucketed, stored, transformed
from utils.encoding.numerical import beyond_float16, log_plus_3, unchanged
from utils.encoding.recipe import recipe_of

NAN = math.nan
VALUES = np.array([-7.0, -2.0, 0.0, 1.5, 9.0, NAN])


def recipe(**options):
    return recipe_of("x", {"kind": "numerical", **options}, fitted=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [-7, -2, 0, 1.5, 9, NAN]),
        ({"missing": 4}, [-7, -2, 0, 1.5, 9, 4]),
        ({"clip": [-2, 3]}, [-2, -2, 0, 1.5, 3, NAN]),
        ({"clip": [None, 1]}, [-7, -2, 0, 1, 1, NAN]),
        ({"clip": [0, None]}, [0, 0, 0, 1.5, 9, NAN]),
        ({"clip": [0, 3], "missing": 99}, [0, 0, 0, 1.5, 3, 3]),
    ],
)
def test_missing_values_and_limits(options, expected):
    assert_array_equal(bounded(recipe(**options), VALUES), expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"transform": "none"}, [-7, -2, 0, 1.5, 9, 0]),
        ({"transform": "log"}, [0, math.log(1), math.log(3), math.log(4.5), math.log(12), 0]),
        ({"transform": "log1p"}, [-math.log(8), -math.log(3), 0, math.log(2.5), math.log(10), 0]),
        ({"mean": 1.0, "std": 2.0}, [-4, -1.5, -0.5, 0.25, 4, 0]),
        ({"mean": 1.0, "std": 2.0, "missing": 3}, [-4, -1.5, -0.5, 0.25, 4, 1]),
    ],
)
def test_transforms(options, expected):
    np.testing.assert_allclose(transformed(recipe(**options), VALUES), expected, rtol=1e-15, atol=0)


def test_buckets_begin_at_their_boundaries():
    found = bucketed(recipe(buckets=3, boundaries=[-2.0, 1.5]), VALUES)
    assert found.dtype == np.int32 and found.tolist() == [1, 2, 2, 3, 3, 0]
    assert bucketed(recipe(buckets=3, boundaries=[-2.0, 1.5], missing=0), VALUES).tolist() == [1, 2, 2, 3, 3, 2]


def test_first_value_out_of_the_dtypes_range_is_found():
    found, place = stored(np.array([1.0, 65504.0, -65504.0]), "float16")
    assert found.dtype == np.float16 and found.tolist() == [1.0, 65504.0, -65504.0] and place is None
    assert stored(np.array([1.0, 65520.0, 1e9]), "float16")[1] == 1
    assert stored(np.array([1e9]), "float32")[1] is None and stored(np.array([-1e39]), "float32")[1] == 0
    assert stored(np.array([]), "float16")[1] is None


COUNTS = pl.DataFrame({"a": [-3, -2, 0, None], "b": [5, None, -100, 2**62]}, schema={"a": pl.Int64, "b": pl.Int64})


def test_log_transform_of_counts():
    found = log_plus_3(COUNTS)
    assert found.dtype == np.float16 and found.flags.c_contiguous
    expected = [[0, math.log(8)], [0, 0], [math.log(3), 0], [0, math.log(2**62 + 3)]]
    assert_array_equal(found, np.array(expected).astype(np.float16))


def test_unchanged_counts():
    found = unchanged(COUNTS[:3])
    assert found.dtype == np.float16 and found.flags.c_contiguous
    assert_array_equal(found, [[-3, 5], [-2, 0], [0, -100]])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 65504, None], [-65504, 0, 0], None),
        ([1, 65505, None], [0, 0, 0], (1, "a", 65505)),
        ([1, 2, 70000], [0, -65505, 0], (1, "b", -65505)),
        ([1, 2, 70000], [0, 0, 80000], (2, "a", 70000)),
    ],
)
def test_counts_beyond_float16(a, b, expected):
    assert beyond_float16(pl.DataFrame({"a": a, "b": b}, schema={"a": pl.Int64, "b": pl.Int64})) == expected
