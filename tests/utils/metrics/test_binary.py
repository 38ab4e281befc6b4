"""Metrics against scikit-learn and Keras."""

import keras
import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from utils.metrics.binary import evaluate, exact_auc, log_loss, sigmoid, thresholded_auc


def both_classes(labels):
    return 0 < sum(labels) < len(labels)


def scored(scores):
    return st.lists(st.tuples(scores, st.booleans()), min_size=2, max_size=60).filter(lambda rows: both_classes([y for _, y in rows]))


def columns(rows):
    return np.array([x for x, _ in rows], np.float32), np.array([y for _, y in rows])


@given(scored(st.floats(-50, 50, width=32)))
def test_exact_auc_equals_scikit_learn(rows):
    scores, positive = columns(rows)
    assert exact_auc(scores, positive) == pytest.approx(sklearn.metrics.roc_auc_score(positive, scores), abs=1e-12)


@given(scored(st.integers(-2, 2)))
def test_exact_auc_counts_ties_half(rows):
    scores, positive = columns(rows)
    assert exact_auc(scores, positive) == pytest.approx(sklearn.metrics.roc_auc_score(positive, scores), abs=1e-12)


def test_exact_auc_by_hand():
    # positives 3, 2, 2 against negatives 1, 2: (1 + 1) + (1 + ½) + (1 + ½) of 6 pairs
    assert exact_auc(np.array([3, 2, 2, 1, 2]), np.array([1, 1, 1, 0, 0], bool)) == 5 / 6


def test_exact_auc_does_not_depend_on_the_order_of_the_samples():
    draw = np.random.default_rng(0)
    scores, positive, order = draw.normal(size=10_000).astype(np.float32), draw.random(10_000) < 0.3, draw.permutation(10_000)
    assert exact_auc(scores, positive) == exact_auc(scores[order], positive[order])


@given(scored(st.floats(-12, 12, width=32)))
def test_log_loss_equals_scikit_learn(rows):
    logits, positive = columns(rows)
    assert log_loss(logits, positive) == pytest.approx(sklearn.metrics.log_loss(positive, 1 / (1 + np.exp(-logits.astype(np.float64)))), rel=1e-8)


@given(scored(st.floats(-1000, 1000, width=32)))
def test_log_loss_equals_the_formula_where_probabilities_are_0_or_1(rows):
    logits, positive = columns(rows)
    expected = np.mean(np.logaddexp(0, np.where(positive, -1, 1) * logits.astype(np.float64)))
    assert log_loss(logits, positive) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_log_loss_of_extreme_logits_is_their_distance_from_the_label():
    assert log_loss(np.array([1e4, -1e4], np.float32), np.array([False, True])) == 1e4
    assert log_loss(np.array([1e4, -1e4], np.float32), np.array([True, False])) == 0.0


def test_log_loss_of_many_samples_is_summed_over_blocks():
    logits = np.linspace(-3, 3, (1 << 20) + 12_345, dtype=np.float32)
    positive = np.arange(len(logits)) % 3 == 0
    z = logits.astype(np.float64)
    assert log_loss(logits, positive) == pytest.approx(np.mean(np.logaddexp(0, z) - z * positive), rel=1e-12)


@pytest.mark.parametrize("thresholds", [2, 3, 50, 200, 8000])
def test_thresholded_auc_equals_keras(thresholds):
    draw = np.random.default_rng(thresholds)
    positive = draw.random(3000) < 0.3
    logits = (draw.normal(size=3000) + positive).astype(np.float32)
    metric = keras.metrics.AUC(num_thresholds=thresholds)
    metric.update_state(positive, sigmoid(logits))
    assert thresholded_auc(logits, positive, thresholds) == pytest.approx(float(metric.result()), abs=2e-6)


def test_thresholded_auc_of_probabilities_zero_and_one_equals_keras():
    logits, positive = np.array([-200, -200, 200, 200, 200], np.float32), np.array([0, 1, 0, 1, 1], bool)
    metric = keras.metrics.AUC(num_thresholds=200)
    metric.update_state(positive, sigmoid(logits))
    assert thresholded_auc(logits, positive, 200) == pytest.approx(float(metric.result()), abs=1e-6)


def test_many_thresholds_approach_the_exact_auc():
    draw = np.random.default_rng(5)
    positive = draw.random(20_000) < 0.2
    logits = (draw.normal(size=20_000) + positive).astype(np.float32)
    assert evaluate(logits, positive, 8000).auc == pytest.approx(evaluate(logits, positive).auc, abs=1e-4)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("thresholds", [None, 100])
def test_auc_is_none_if_all_labels_are_the_same(label, thresholds):
    metrics = evaluate(np.array([1.0, -1.0], np.float32), np.full(2, label, np.uint8), thresholds)
    assert metrics.auc is None and metrics.normalized_entropy is None
    assert metrics.log_loss == pytest.approx((np.logaddexp(0, 1) + np.logaddexp(0, -1)) / 2)
    assert metrics.calibration == (pytest.approx(0.5) if label else None)
    assert metrics.samples == 2


def test_predicting_the_click_rate_has_normalized_entropy_and_calibration_one():
    labels = np.array([1, 0, 0, 0] * 25, np.uint8)
    metrics = evaluate(np.full(100, np.log(0.25 / 0.75), np.float32), labels)
    assert metrics.normalized_entropy == pytest.approx(1)
    assert metrics.calibration == pytest.approx(1)
    assert metrics.auc == 0.5


def test_calibration_is_the_mean_prediction_over_the_click_rate():
    metrics = evaluate(np.zeros(4, np.float32), np.array([1, 0, 0, 0], np.uint8))
    assert metrics.calibration == pytest.approx(0.5 / 0.25)
    assert metrics.normalized_entropy == pytest.approx(np.log(2) / -(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))


def test_extreme_logits_neither_overflow_nor_become_nan():
    largest = np.finfo(np.float32).max
    logits = np.array([largest, -largest, 1e30, -1e30, 0], np.float32)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        metrics = evaluate(logits, np.array([1, 0, 1, 0, 1], np.uint8))
        assert sigmoid(logits).tolist() == [1, 0, 1, 0, 0.5]
    assert metrics.auc == 1.0
    assert metrics.log_loss == pytest.approx(np.log(2) / 5)


def test_log_loss_of_infinite_logits_is_not_finite_without_a_warning():
    assert not np.isfinite(evaluate(np.array([np.inf, -np.inf, 0], np.float32), np.array([0, 1, 0], np.uint8)).log_loss)
    assert np.isnan(evaluate(np.array([np.nan, 1, 0], np.float32), np.array([0, 1, 0], np.uint8)).log_loss)


@given(st.floats(-80, 80, width=32))
def test_small_probabilities_keep_their_precision(logit):
    expected = 1 / (1 + np.exp(-np.float64(logit)))
    found = sigmoid(np.array([logit], np.float32))
    assert found.dtype == np.float32
    assert found[0] == pytest.approx(expected, rel=1e-6, abs=0)
