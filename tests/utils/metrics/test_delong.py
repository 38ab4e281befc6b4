"""The AUC's variance against a double sum over all pairs, a formula for independent scores, and drawn samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from utils.metrics.delong import area


def by_pairs(negatives, positives):
    """Compute by the definition: 1 for a pair in order, ½ for a tie; the sample variance of each side's means over the other side."""
    pairs = np.array([[(n < p) + 0.5 * (n == p) for n in negatives] for p in positives])
    auc = pairs.mean()
    variance = pairs.mean(axis=1).var(ddof=1) / len(positives) + pairs.mean(axis=0).var(ddof=1) / len(negatives)
    return auc, variance


SCORES = st.lists(st.floats(-50, 50, width=32) | st.integers(-2, 2), min_size=2, max_size=40)


@given(SCORES, SCORES, st.integers(1, 50))
def test_area_equals_the_sum_over_all_pairs(negatives, positives, chunk):
    n, p = (np.sort(np.array(values, np.float32)) for values in (negatives, positives))
    auc, variance = area(n, p, chunk)
    expected = by_pairs(n, p)
    assert auc == pytest.approx(expected[0], abs=1e-14)
    assert variance == pytest.approx(expected[1], rel=1e-9, abs=1e-16)
    labels = np.repeat([0, 1], [len(n), len(p)])
    assert auc == pytest.approx(roc_auc_score(labels, np.concatenate([n, p])), abs=1e-12)


def test_variance_by_hand():
    # Positives 1 and 3 against negatives 0, 2, 2: shares below 1/3 and 1 (mean 2/3, squares of the differences 1/9 each, variance 2/9); shares of
    # positives above 1, 1/2, 1/2 (mean 2/3, squares 1/9, 1/36, 1/36, variance 1/12).
    auc, variance = area(np.array([0, 2, 2], np.float32), np.array([1, 3], np.float32))
    assert auc == pytest.approx(2 / 3)
    assert variance == pytest.approx(2 / 9 / 2 + 1 / 12 / 3)


def test_classes_that_do_not_overlap_have_no_variance():
    assert area(np.arange(5.0), np.arange(5.0, 8.0)) == (1.0, 0.0)
    assert area(np.arange(5.0, 8.0), np.arange(5.0)) == (0.0, 0.0)
    assert area(np.zeros(5), np.zeros(3)) == (0.5, 0.0)


@pytest.mark.parametrize(("negatives", "positives"), [(1, 3), (3, 1), (1, 1)])
def test_variance_is_unknown_with_a_single_sample_of_a_class(negatives, positives):
    auc, variance = area(np.arange(negatives, dtype=np.float32), np.arange(positives, dtype=np.float32) + 0.5)
    assert variance is None and 0 <= auc <= 1


def test_chunks_do_not_cut_equal_scores():
    draw = np.random.default_rng(0)
    n, p = np.sort(draw.integers(0, 7, 500)), np.sort(draw.integers(1, 8, 300))
    whole = area(n, p)
    for chunk in (1, 2, 37, 299):
        auc, variance = area(n, p, chunk)
        assert auc == whole.auc
        assert variance == pytest.approx(whole.variance, rel=1e-12)


def test_variance_of_a_nearly_perfect_model_keeps_its_digits():
    # One wrong pair of 4 · 10^8: the shares are 1/20000 for one positive and one negative and 0 for all others.
    count = 20_000
    n, p = np.arange(count, dtype=np.float64), np.arange(count, dtype=np.float64) + count
    n[-1], p[0] = p[0], n[-1]
    share = 1 / count
    expected = 2 * (share**2 - count * (share / count) ** 2) / (count - 1) / count
    auc, variance = area(n, p)
    assert auc == 1 - 1 / count**2
    assert variance == pytest.approx(expected, rel=1e-9)


def test_intervals_of_drawn_samples_cover_the_true_area():
    # Normal scores, positives higher by 1: the true AUC is Φ(1/√2) = 0.76025. An interval of ±1.96 standard errors should hold it in 95% of samples;
    # over 1000 samples the share's standard error is 0.7%.
    draw = np.random.default_rng(3)
    covered = 0
    for _ in range(1000):
        n, p = np.sort(draw.normal(size=300)), np.sort(draw.normal(1, 1, size=60))
        auc, variance = area(n, p)
        covered += abs(auc - 0.7602499) < 1.959964 * variance**0.5
    assert 0.93 < covered / 1000 < 0.97


def test_variance_of_large_samples_equals_the_published_formula():
    # Hanley and McNeil (Radiology 1982) for exponential scores: Q1 = A / (2 - A), Q2 = 2 A² / (1 + A).
    draw = np.random.default_rng(4)
    n, p = np.sort(draw.exponential(1, 400_000)), np.sort(draw.exponential(3, 100_000))
    a = 3 / 4
    q1, q2 = a / (2 - a), 2 * a * a / (1 + a)
    expected = (a * (1 - a) + (100_000 - 1) * (q1 - a * a) + (400_000 - 1) * (q2 - a * a)) / (100_000 * 400_000)
    auc, variance = area(n, p)
    assert auc == pytest.approx(a, abs=4 * expected**0.5)
    assert variance == pytest.approx(expected, rel=0.02)
