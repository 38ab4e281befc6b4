"""Tests of the expected number of different ids: equal to the sum over all ids where that is short, and near the number of drawn ones."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading.features import Categorical
from dataloading.synthetic.lists import drawn_ids, drawn_weights
from dataloading.synthetic.power_law import cumulative
from dataloading.synthetic.touched_ids import Draws, expected_distinct, expected_hashed

T3 = [int(rows) for rows in """45833188 36747 1572176 345139 11 2209 11268 128 4 975 15 48937457 17246 11316796 40094537 452104 12607 105 36 7414
    20244 4 7115 1442 63 29275261""".split()]  # fmt: skip


def by_every_id(samples, cardinality, alpha):
    """Return the sum over all ids of the probability that some sample has it."""
    masses = np.diff(cumulative(np.arange(-1, cardinality), cardinality, alpha))
    with np.errstate(divide="ignore"):
        return float(-np.expm1(samples * np.log1p(-np.minimum(masses, 1))).sum())


@given(st.integers(1, 10**6), st.integers(1, 5000), st.sampled_from([0.0, 0.5, 1.0, 1.1, 1.45, 3.0]))
@settings(max_examples=60)
def test_few_ids(samples, cardinality, alpha):
    assert expected_distinct([Draws(samples, cardinality, alpha)]) == pytest.approx(by_every_id(samples, cardinality, alpha), rel=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.1, 1.45])
@pytest.mark.parametrize("samples", [1000, 10**6, 10**8])
def test_bins_of_many_ids_are_nearly_exact(samples, alpha):
    assert expected_distinct([Draws(samples, 1_000_000, alpha)]) == pytest.approx(by_every_id(samples, 1_000_000, alpha), rel=1e-5)


@pytest.mark.parametrize(
    ("alpha", "steps", "millions"), [(1.45, 2000, 1.214), (1.45, 10_000, 3.144), (1.1, 2000, 12.009), (1.1, 10_000, 34.745)], ids=str
)
def test_rows_of_the_model_of_23_billion_parameters(alpha, steps, millions):
    assert sum(expected_distinct([Draws(8192 * steps, rows, alpha)]) for rows in T3) / 1e6 == pytest.approx(millions, abs=1e-3)


@pytest.mark.parametrize(
    ("cardinality", "hotness", "alpha", "samples"),
    [(1000, 1, 1.45, 5000), (10**6, 1, 0.0, 10**6), (1000, 50, 1.45, 200), (10**5, 100, 1.1, 3000), (60, 59, 1.45, 3), (200, 100, 3.0, 20)],
    ids=str,
)
def test_drawn_ids_are_as_many(cardinality, hotness, alpha, samples):
    ids = drawn_ids(Categorical("a", cardinality, "int32", hotness, alpha), (1, "a"), 0, samples)
    expected = expected_distinct([Draws(samples, cardinality, alpha, hotness)])
    assert abs(len(np.unique(ids)) - expected) < 4 * math.sqrt(expected)  # the variance is below the mean


def test_ids_of_weight_0_name_no_row():
    feature = Categorical("a", 3000, "int32", 2, 0.5, weights=True)
    ids, weights = drawn_ids(feature, (1, "a"), 0, 1000), drawn_weights(feature, (1, "w"), 0, 1000)
    expected = expected_distinct([Draws(1000, 3000, 0.5, 2, weights=True)])
    assert abs(len(np.unique(ids[weights != 0])) - expected) < 4 * math.sqrt(expected)
    assert expected < expected_distinct([Draws(1000, 3000, 0.5, 2)])


def test_features_that_share_a_table():
    one, other = Draws(700, 1000, 1.2), Draws(700, 1000, 1.2)
    assert expected_distinct([one, other]) == pytest.approx(expected_distinct([Draws(1400, 1000, 1.2)]))
    assert expected_distinct([Draws(10**6, 5, 0.0), Draws(10**6, 1000, 0.0)]) == pytest.approx(1000)


@pytest.mark.parametrize("draws", [Draws(1, 60, 1.45, 60), Draws(1, 60, 100.0, 60), Draws(7, 1, 1.0), Draws(7, 1, 100.0)], ids=str)
def test_every_id_of_full_lists_is_named(draws):
    assert expected_distinct([draws]) == draws.cardinality


def test_nothing_is_named_by_no_sample():
    assert expected_distinct([Draws(0, 10**6, 1.1)]) == 0
    assert expected_distinct([Draws(1, 2 * 10**9, 1.1)]) == pytest.approx(1)


def test_hashed_ids_fall_together():
    rows = np.unique(np.random.default_rng(1).integers(0, 1000, 700))
    assert abs(len(rows) - expected_hashed(700, 1000)) < 4 * math.sqrt(len(rows))
    assert expected_hashed(10**9, 1000) == pytest.approx(1000) and expected_hashed(3.5, 1) == 1 and expected_hashed(0, 7) == 0
