"""Metrics of weighted samples against exact arithmetic (fractions, and decimals of 100 digits for exp and log), scikit-learn and Keras."""

from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import groupby

import keras
import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from utils.metrics.binary import evaluate, sigmoid
from utils.metrics.ranking import rank
from utils.metrics.ranking_metric import parse
from utils.metrics.weighted import area, sorted_keys

FIGURES = ("auc", "log_loss", "normalized_entropy", "calibration", "binary_accuracy")
logits_of = st.floats(-60, 60, width=32) | st.integers(-2, 2).map(float)
weights_of = st.sampled_from([0.0, 1.0, 3.0, 0.1, 1e-30, 1e30]) | st.floats(0, 2.0**100, width=32)


def columns(rows):
    logits, labels, weights = zip(*rows, strict=True)
    return np.array(logits, np.float32), np.array(labels), np.array(weights, np.float32)


def draw_rows(draw, count, decimals):
    """Draw logits with the more ties the fewer decimals, labels, and weights from 1e-30 to 1e30, some 0."""
    labels = draw.random(count) < 0.3
    weights = (10 ** draw.uniform(-30, 30, count)).astype(np.float32) * (draw.random(count) < 0.9)
    return (draw.normal(size=count) + labels).round(decimals).astype(np.float32), labels, weights


def exact_auc(logits, labels, weights):
    """Return the weighted AUC as a fraction, or None."""
    rows = sorted((logit, bool(label), Fraction(weight)) for logit, label, weight in zip(logits.tolist(), labels, weights.tolist(), strict=True))
    lower, higher, right = Fraction(0), Fraction(0), Fraction(0)
    for _, tie in groupby(rows, key=lambda row: row[0]):
        of_tie = [Fraction(0), Fraction(0)]
        for _, label, weight in tie:
            of_tie[label] += weight
        right += of_tie[1] * (lower + of_tie[0] / 2)
        lower, higher = lower + of_tie[0], higher + of_tie[1]
    return right / (lower * higher) if lower and higher else None


def exact_figures(logits, labels, weights):
    """Return all figures by their definitions."""
    with localcontext() as context:
        context.prec = 100
        rows = [(Decimal(x), int(y), Decimal(w)) for x, y, w in zip(logits.tolist(), labels, weights.tolist(), strict=True)]
        total, clicks = sum(w for _, _, w in rows), sum(w for _, y, w in rows if y)
        auc = exact_auc(logits, labels, weights)
        found = dict.fromkeys(FIGURES) | {"auc": auc and float(auc)}
        if total:
            loss = sum(w * (1 + (-x if y else x).exp()).ln() for x, y, w in rows) / total
            found |= {"log_loss": float(loss), "binary_accuracy": float(sum(w for x, y, w in rows if (x > 0) == y) / total)}
        if clicks:
            found["calibration"] = float(sum(w / (1 + (-x).exp()) for x, _, w in rows) / clicks)
        if auc is not None:
            rate = clicks / total
            found["normalized_entropy"] = float(loss / -(rate * rate.ln() + (1 - rate) * (1 - rate).ln()))
        return found


def assert_exact(logits, labels, weights):
    metrics = evaluate(logits, labels, weights=weights)
    for name, expected in exact_figures(logits, labels, weights).items():
        value = getattr(metrics, name)
        if name == "log_loss" and expected is None:
            assert np.isnan(value)
        else:
            assert value is expected is None or value == pytest.approx(expected, rel=1e-12, abs=1e-300), name
    assert metrics.weight == pytest.approx(float(sum(map(Fraction, weights.tolist()))), rel=1e-15)


@given(st.lists(st.tuples(logits_of, st.booleans(), weights_of), min_size=1, max_size=40))
def test_any_sample_equals_exact_arithmetic(rows):
    assert_exact(*columns(rows))


@pytest.mark.parametrize("seed", range(20))
def test_random_samples_equal_exact_arithmetic(seed):
    draw = np.random.default_rng(seed)
    assert_exact(*draw_rows(draw, int(draw.integers(2, 800)), seed % 5))


@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 16])
@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_auc_does_not_depend_on_chunks(chunk, decimals):
    logits, labels, weights = draw_rows(np.random.default_rng(chunk), 3000, decimals)
    kept = weights > 0
    found = area(sorted_keys(logits[kept], labels[kept], weights[kept]), chunk)
    assert found == pytest.approx(float(exact_auc(logits, labels, weights)), rel=1e-12, abs=0)


def test_auc_of_many_samples_equals_exact_arithmetic():
    draw = np.random.default_rng(8)
    labels = draw.random(200_000) < 0.1
    logits, weights = (draw.normal(size=200_000) + labels).round(4).astype(np.float32), draw.random(200_000, np.float32)
    found = evaluate(logits, labels, weights=weights)
    assert found.auc == pytest.approx(float(exact_auc(logits, labels, weights)), rel=1e-14, abs=0)


def test_by_hand():
    # Positives 3 (weight 2), 1 (weight 1); negatives 1 (weight 4), 0 (weight 0), -1 (weight 1): pairs 2·5 + 1·(4/2 + 1) of 3·5.
    logits, labels, weights = np.array([3, 1, 1, 0, -1], np.float32), np.array([1, 1, 0, 0, 0]), np.array([2, 1, 4, 0, 1], np.float32)
    found = evaluate(logits, labels, weights=weights)
    assert found.auc == 13 / 15
    assert found.binary_accuracy == (2 + 1 + 1) / 8
    assert (found.weight, found.samples, found.positives) == (8, 5, 2)
    assert found.auc_variance is found.log_loss_variance is None
    assert found.unweighted == evaluate(logits, labels)


@pytest.mark.parametrize("decimals", [1, 6])
def test_metrics_equal_those_of_scikit_learn(decimals):
    logits, labels, _ = draw_rows(np.random.default_rng(decimals), 4000, decimals)
    weights = np.random.default_rng(9).exponential(size=4000).astype(np.float32)
    found, wide = evaluate(logits, labels, weights=weights), weights.astype(np.float64)
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert found.auc == pytest.approx(sklearn.metrics.roc_auc_score(labels, logits, sample_weight=wide), abs=1e-12)
    assert found.log_loss == pytest.approx(sklearn.metrics.log_loss(labels, probabilities, sample_weight=wide), abs=1e-12)
    assert found.binary_accuracy == pytest.approx(sklearn.metrics.accuracy_score(labels, logits > 0, sample_weight=wide), abs=1e-12)


@pytest.mark.parametrize("thresholds", [2, 50, 200, 8000])
def test_thresholded_auc_equals_that_of_keras(thresholds):
    logits, labels, _ = draw_rows(np.random.default_rng(thresholds), 3000, 6)
    weights = np.random.default_rng(9).exponential(size=3000).astype(np.float32)
    weights[::7] = 0
    metric = keras.metrics.AUC(num_thresholds=thresholds)
    metric.update_state(labels, sigmoid(logits), sample_weight=weights)
    found = evaluate(logits, labels, thresholds, weights=weights)
    assert found.auc == pytest.approx(float(metric.result()), abs=2e-6)
    assert found.unweighted == evaluate(logits, labels, thresholds)


@pytest.mark.parametrize("thresholds", [None, 100])
def test_weights_of_1_are_no_weights(thresholds):
    logits, labels, _ = draw_rows(np.random.default_rng(1), 5000, 2)
    found = evaluate(logits, labels, thresholds, weights=np.ones(5000, np.float32))
    plain = evaluate(logits, labels, thresholds)
    assert (found.auc, found.weight, found.binary_accuracy) == (plain.auc, 5000, plain.binary_accuracy)
    assert found.log_loss == pytest.approx(plain.log_loss, rel=1e-15)
    assert found.normalized_entropy == pytest.approx(plain.normalized_entropy, rel=1e-14)
    assert found.calibration == pytest.approx(plain.calibration, rel=1e-7)  # without weights, probabilities are float32


def test_weights_that_are_whole_numbers_repeat_rows():
    draw = np.random.default_rng(2)
    logits, labels, _ = draw_rows(draw, 2000, 1)
    times = draw.integers(0, 5, 2000)
    found, plain = evaluate(logits, labels, weights=times.astype(np.float32)), evaluate(np.repeat(logits, times), np.repeat(labels, times))
    assert (found.auc, found.weight, found.samples) == (plain.auc, plain.samples, 2000)
    assert found.log_loss == pytest.approx(plain.log_loss, rel=1e-14)
    assert found.binary_accuracy == pytest.approx(plain.binary_accuracy, rel=1e-15)
    assert found.normalized_entropy == pytest.approx(plain.normalized_entropy, rel=1e-13)
    assert found.calibration == pytest.approx(plain.calibration, rel=1e-7)


@pytest.mark.parametrize("thresholds", [None, 100])
def test_rows_of_weight_0_have_no_part(thresholds):
    logits, labels, weights = draw_rows(np.random.default_rng(3), 1000, 1)
    logits[weights == 0] = np.resize([np.nan, np.inf, -np.inf, 5.0], np.count_nonzero(weights == 0))
    kept = weights > 0
    found, without = evaluate(logits, labels, thresholds, weights=weights), evaluate(logits[kept], labels[kept], thresholds, weights=weights[kept])
    assert (found.samples, found.positives) == (1000, labels.sum()) and np.isfinite(found.log_loss)
    assert replace(found, unweighted=None, samples=0, positives=0) == replace(without, unweighted=None, samples=0, positives=0)


def test_metrics_do_not_depend_on_the_order_of_the_samples():
    logits, labels, weights = draw_rows(np.random.default_rng(4), 10_000, 1)
    expected = evaluate(logits, labels, weights=weights)
    for order in (np.arange(10_000)[::-1], np.random.default_rng(5).permutation(10_000)):
        found = evaluate(logits[order], labels[order], weights=weights[order])
        assert found.auc == expected.auc
        assert [getattr(found, name) for name in FIGURES] == pytest.approx([getattr(expected, name) for name in FIGURES], rel=1e-14)


@pytest.mark.parametrize("thresholds", [None, 100])
def test_without_any_weight_metrics_are_undefined(thresholds):
    found = evaluate(np.array([1, 2], np.float32), np.array([0, 1]), thresholds, weights=np.zeros(2, np.float32))
    assert np.isnan(found.log_loss)
    assert found.auc is found.normalized_entropy is found.calibration is found.binary_accuracy is None
    assert (found.weight, found.samples, found.positives) == (0, 2, 1) and found.unweighted.auc is not None


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("thresholds", [None, 100])
def test_auc_is_none_where_one_class_has_no_weight(label, thresholds):
    labels = np.array([0, 1, 1, 0])
    found = evaluate(np.zeros(4, np.float32), labels, thresholds, weights=(labels == label).astype(np.float32))
    assert found.auc is found.normalized_entropy is None and found.unweighted.auc == 0.5
    assert found.calibration == (0.5 if label else None)
    assert found.log_loss == pytest.approx(np.log(2), rel=1e-15)


def test_extreme_weights_and_logits_neither_overflow_nor_vanish():
    largest, smallest = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal
    logits, labels = np.array([largest, -largest, 1, 0], np.float32), np.array([1, 0, 1, 0])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = evaluate(logits, labels, weights=np.array([largest, smallest, smallest, smallest], np.float32))
    assert found.auc == 1.0 and found.normalized_entropy > 0 and np.isfinite(found.normalized_entropy)


def test_the_loss_of_infinite_logits_is_not_finite_without_a_warning():
    weights = np.ones(3, np.float32)
    assert not np.isfinite(evaluate(np.array([np.inf, -np.inf, 0], np.float32), np.array([0, 1, 0]), weights=weights).log_loss)
    assert np.isnan(evaluate(np.array([np.nan, 1, 0], np.float32), np.array([0, 1, 0]), weights=weights).log_loss)


def test_logits_that_only_float64_tells_apart_are_no_ties():
    logits, labels = np.array([1 + 1e-12, 1, -1 - 1e-12, -1]), np.array([1, 0, 0, 1])
    assert evaluate(logits, labels, weights=np.array([1, 1, 1, 2], np.float32)).auc == (1 * 2 + 2 * 1) / (3 * 2)


def test_figures_without_weights_have_names_of_their_own():
    logits, labels, weights = draw_rows(np.random.default_rng(6), 500, 2)
    plain, metrics = evaluate(logits, labels), evaluate(logits, labels, weights=weights)
    assert plain.other_figures() == {} and plain.unweighted is plain.weight is None
    names = ("auc", "log_loss", "normalized_entropy", "calibration")
    expected = {f"{name}_unweighted": getattr(plain, name) for name in names}
    assert metrics.other_figures() == expected
    ranking = rank(logits, labels, np.arange(500) // 9, parse(["map@12", "gauc"]))
    by_group = {f"{metric.key}_unweighted": value for metric, value in ranking.values.items()}
    assert by_group.keys() == {"map_at_12_unweighted", "gauc_unweighted"}
    assert replace(metrics, unweighted=replace(plain, ranking=ranking)).other_figures() == expected | by_group
