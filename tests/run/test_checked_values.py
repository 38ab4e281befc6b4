"""Tests of the values of a request: numericals are rounded to the dtype of the dataset, and refused where they are no longer finite."""

import re

import numpy as np
import pytest

from run.array_scorer import ArrayScorer
from training.features import ModelFeatures

HALF = [0.0, -0.0, 1e-9, -5.96e-8, 2.98e-8, 6.1e-5, 1 / 3, 2049.0, -65_504.0, 65_519.996]  # subnormal, tied and the largest float16
SINGLE = [1e-45, 65_520.0, -1e6, 3.4028235e38]
TOO_LARGE = {"float16": [65_520.0, -65_520.0, 7e4, 1e30], "float32": []}


def of(dtype, samples, given=np.float32):
    """Return a scorer of models with two numericals and one table, and arrays of samples."""
    scorer = ArrayScorer(ModelFeatures({"item": 9}, ("x", "y"), numerical_dtype=dtype), None, "error")
    numerical = np.array(samples, given)
    return scorer, numerical, np.arange(len(numerical), dtype=np.int64).reshape(-1, 1) % 9


@pytest.mark.parametrize("given", [np.float32, np.float64, ">f4"])
@pytest.mark.parametrize(("dtype", "values"), [("float16", HALF), ("float32", HALF + SINGLE)])
def test_finite_numericals_are_rounded_as_by_the_dataset(dtype, values, given):
    scorer, numerical, ids = of(dtype, [(value, -value) for value in values], given)
    before = numerical.copy()
    held, found = scorer.checked(numerical, ids)
    assert held.dtype == np.float32 and not np.shares_memory(held, numerical)
    np.testing.assert_array_equal(held.view(np.int32), numerical.astype(dtype).astype(np.float32).view(np.int32))
    np.testing.assert_array_equal(numerical, before)
    np.testing.assert_array_equal(found, ids)


@pytest.mark.parametrize("given", [np.float32, np.float64])
@pytest.mark.parametrize(("dtype", "value"), [(dtype, value) for dtype, large in TOO_LARGE.items() for value in [*large, np.nan, np.inf, -np.inf]])
def test_numericals_that_are_not_finite_in_the_dtype_of_the_dataset_are_refused(dtype, value, given):
    samples = [(1.0, 2.0), (3.0, value), (value, 4.0)]
    scorer, numerical, ids = of(dtype, samples, given)
    shown = re.escape(f"{numerical[1, 1]}")
    with pytest.raises(ValueError, match=rf"^feature y: value {shown} of sample 1 is not a finite {dtype}, the dtype"):
        scorer.checked(numerical, ids)


def test_no_samples_have_no_values():
    scorer, numerical, ids = of("float16", np.empty((0, 2)))
    held, found = scorer.checked(numerical, ids)
    assert held.shape == (0, 2) and found.shape == (0, 1)
