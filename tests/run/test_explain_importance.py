"""Tests of permutation importance: against slow definitions, and its intervals against repeated draws of the data."""

import numpy as np
import pytest

from run.explain_importance import importances, scored
from run.explain_units import Inputs, Places
from utils.metrics.binary import evaluate
from utils.metrics.delong import area

WEIGHTS = np.array([0.9, 0.6, 0.3, 0.0], np.float32)  # of the model; the third feature is useless, the model does not know it


def score(inputs):
    return inputs.numerical @ WEIGHTS - 1


def draw(count, random):
    values = random.normal(size=(count, 4)).astype(np.float32)
    positive = random.random(count) < 1 / (1 + np.exp(1 - values[:, 0] - 0.5 * values[:, 1]))
    return Inputs(values, np.zeros((count, 0), np.int32)), positive


def measured(inputs, positive, permutations):
    return importances(score, inputs, positive, [Places([place], []) for place in range(4)], permutations, lambda: None)


def test_metrics_equal_those_of_an_evaluation_and_the_influences_give_delongs_variance():
    inputs, positive = draw(400, np.random.default_rng(1))
    logits = np.round(score(inputs), 1)  # with ties
    found, metrics = scored(logits, positive), evaluate(logits, positive)
    assert found.auc == pytest.approx(metrics.auc, abs=1e-12) and found.log_loss == pytest.approx(metrics.log_loss, abs=1e-12)
    count, sizes = 400, {True: positive.sum(), False: (~positive).sum()}
    by_class = {label: (found.auc_influence[positive == label] * sizes[label] / count).var(ddof=1) / sizes[label] for label in sizes}
    assert sum(by_class.values()) == pytest.approx(area(np.sort(logits[~positive]), np.sort(logits[positive])).variance, rel=1e-9)
    assert found.auc_influence.sum() == pytest.approx(0, abs=1e-9) and found.log_loss_influence.sum() == pytest.approx(0, abs=1e-9)


def test_metrics_lost_are_those_with_permuted_values():
    random = np.random.default_rng(2)
    inputs, positive = draw(300, random)
    permutations = [random.permutation(300) for _ in range(3)]
    before = inputs.numerical.copy()
    whole, found = measured(inputs, positive, permutations)
    np.testing.assert_array_equal(inputs.numerical, before)
    for place, one in enumerate(found):
        lost = []
        for permutation in permutations:
            values = inputs.numerical.copy()
            values[:, place] = values[permutation, place]
            metrics = evaluate(score(Inputs(values, inputs.ids)), positive)
            lost.append((whole.auc - metrics.auc, metrics.log_loss - whole.log_loss))
        auc, loss = np.mean(lost, axis=0)
        assert one.auc_lost.mean == pytest.approx(auc, abs=1e-9) and one.log_loss_lost.mean == pytest.approx(loss, abs=1e-9)
    unread = found[3]
    assert unread.auc_lost == (0, 0, 0) and unread.log_loss_lost == (0, 0, 0)


def test_intervals_hold_the_true_values_as_often_as_they_say():
    """The interval covers what is lost on all data in about 95 of 100 draws, and its width is that of the estimates' spread."""
    random, draws = np.random.default_rng(3), 200
    inputs, positive = draw(400_000, random)
    _, truth = measured(inputs, positive, [np.roll(np.arange(400_000), 1)])
    estimates = []
    for _ in range(draws):
        inputs, positive = draw(300, random)
        estimates.append(measured(inputs, positive, [random.permutation(300) for _ in range(5)])[1])
    for place in range(3):
        for metric in ("auc_lost", "log_loss_lost"):
            found = [getattr(one[place], metric) for one in estimates]
            true = getattr(truth[place], metric).mean
            assert sum(one.low <= true <= one.high for one in found) >= 0.93 * draws
            assert 0.9 < np.mean([one.half for one in found]) / 1.96 / np.std([one.mean for one in found]) < 1.45


def test_a_few_rows_and_a_single_class_have_no_interval():
    random = np.random.default_rng(4)
    inputs, _ = draw(8, random)
    _, found = measured(inputs, np.arange(8) < 4, [random.permutation(8)])
    assert found[0].log_loss_lost.low is None and found[0].auc_lost.half is None
    inputs, _ = draw(50, random)
    whole, found = measured(inputs, np.ones(50, bool), [random.permutation(50)])
    assert whole.auc is None and found[0].auc_lost is None and found[0].log_loss_lost.half > 0
    _, found = measured(inputs, np.arange(50) < 3, [random.permutation(50)])
    assert found[0].auc_lost.high is None and found[0].log_loss_lost.high is not None


def test_rows_count_by_their_weights_as_if_they_stood_so_often():
    """Whole weights are copies of a row; weights of 1 are none; rows of weight 0 have no effect."""
    random = np.random.default_rng(5)
    inputs, positive = draw(300, random)
    logits, weights = np.round(score(inputs), 1), random.integers(0, 4, 300)  # with ties
    found, copies = scored(logits, positive, weights.astype(float)), scored(np.repeat(logits, weights), np.repeat(positive, weights))
    assert found.auc == pytest.approx(copies.auc, abs=1e-12) and found.log_loss == pytest.approx(copies.log_loss, abs=1e-12)
    metrics = evaluate(logits, positive, weights=weights.astype(float))
    assert found.auc == pytest.approx(metrics.auc, abs=1e-9) and found.log_loss == pytest.approx(metrics.log_loss, abs=1e-9)
    ones, none = scored(logits, positive, np.ones(300)), scored(logits, positive)
    for one, other in zip(ones, none, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    permutation = random.permutation(300)
    places = [Places([place], []) for place in range(4)]
    whole, parts = importances(score, inputs, positive, places, [permutation], lambda: None, weights.astype(float))
    for place, part in enumerate(parts):
        values = inputs.numerical.copy()
        values[:, place] = values[permutation, place]
        lost = evaluate(score(Inputs(values, inputs.ids)), positive, weights=weights.astype(float))
        assert part.auc_lost.mean == pytest.approx(whole.auc - lost.auc, abs=1e-9)
        assert part.log_loss_lost.mean == pytest.approx(lost.log_loss - whole.log_loss, abs=1e-9)


def test_intervals_of_weighted_rows_have_the_width_of_the_estimates_spread():
    random = np.random.default_rng(6)
    estimates = []
    for _ in range(200):
        inputs, positive = draw(300, random)
        weights = random.exponential(size=300) * (random.random(300) < 0.8)
        permutations = [random.permutation(300) for _ in range(5)]
        estimates.append(importances(score, inputs, positive, [Places([0], [])], permutations, lambda: None, weights)[1][0])
    for metric in ("auc_lost", "log_loss_lost"):
        found = [getattr(one, metric) for one in estimates]
        assert 0.85 < np.mean([one.half for one in found]) / 1.96 / np.std([one.mean for one in found]) < 1.5
