"""Summaries of scores against plain counts over all rows."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.metrics.binary import classes_of, evaluate, sigmoid
from utils.metrics.summary import BINS, entry, evaluate_in_full, summarize, summarize_weighted


def summary_of(logits, labels):
    return summarize(classes_of(np.array(logits, np.float32), np.array(labels, bool)))


@given(st.lists(st.tuples(st.floats(-40, 40, width=32) | st.sampled_from([-1.0, 0.0, 1.0]), st.booleans()), min_size=1, max_size=80))
def test_deciles_and_bins_count_every_sample_once(rows):
    logits, labels = np.array([x for x, _ in rows], np.float32), np.array([y for _, y in rows])
    found = summarize(classes_of(logits, labels))
    counts = [decile.samples for decile in found.deciles]
    assert counts == [len(rows) * (k + 1) // 10 - len(rows) * k // 10 for k in range(10)]
    assert sum(decile.positives for decile in found.deciles) == labels.sum()
    assert all(0 <= decile.positives <= decile.samples for decile in found.deciles)
    ordered = np.sort(logits)
    ends = np.cumsum([0, *counts])
    for decile, first, last in zip(found.deciles, ends[:-1], ends[1:], strict=True):
        if first == last:
            assert decile == (0, 0, 0, None, None, None)
            continue
        part = sigmoid(ordered[first:last])
        assert decile.probability == pytest.approx(part.sum(dtype=np.float64), rel=1e-6)
        assert (decile.lowest, decile.highest) == (part[0], part[-1])
    for values, bins in ((logits[~labels], found.negative), (logits[labels], found.positive)):
        edges = found.low + (found.high - found.low) * np.arange(1, BINS) / BINS
        expected = np.bincount((values[:, None].astype(np.float64) >= edges).sum(axis=1), minlength=BINS)
        assert list(bins) == expected.tolist()


def test_deciles_by_hand():
    logits = np.log(np.arange(1, 21) / (21 - np.arange(1, 21)))  # probabilities 1/21 to 20/21
    labels = [0] * 9 + [1, 0] * 3 + [1] * 5
    found = summary_of(logits, labels)
    assert [decile.positives for decile in found.deciles] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert [decile.probability for decile in found.deciles] == pytest.approx([(4 * k + 3) / 21 for k in range(10)], rel=1e-6)


def test_positives_of_equal_scores_are_shared_out_in_proportion():
    found = summary_of(np.zeros(1000), np.arange(1000) < 300)
    assert [decile.positives for decile in found.deciles] == [30] * 10
    assert {(decile.lowest, decile.highest) for decile in found.deciles} == {(0.5, 0.5)}


def test_summary_does_not_depend_on_the_order_of_the_samples():
    draw = np.random.default_rng(1)
    logits, labels = draw.integers(-3, 3, 997).astype(np.float32), draw.random(997) < 0.2
    order = draw.permutation(997)
    assert summarize(classes_of(logits, labels)) == summarize(classes_of(logits[order], labels[order]))


def test_equal_logits_have_bins_of_some_width():
    found = summary_of([2.0, 2.0], [0, 1])
    assert (found.low, found.high) == (1.5, 2.5)
    assert found.negative[100] == found.positive[100] == 1


def test_extreme_logits_are_counted():
    largest = float(np.finfo(np.float32).max)
    with np.errstate(over="raise"):
        found = summary_of([-largest, largest, 0.0], [0, 1, 1])
    assert found.negative[0] == found.positive[-1] == found.positive[100] == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("label", [0, 1])
def test_scores_that_are_not_finite_have_no_summary(bad, label):
    assert summary_of([bad, 1.0, 0.0], [label, 1, 0]) is None


def test_a_single_class_is_summarized():
    found = summary_of([1.0, 2.0], [1, 1])
    assert sum(found.negative) == 0 and sum(found.positive) == 2


def test_full_metrics_are_those_of_evaluate():
    draw = np.random.default_rng(2)
    logits, labels = draw.normal(size=5000).astype(np.float32), draw.random(5000) < 0.3
    full, plain = evaluate_in_full(logits, labels), evaluate(logits, labels)
    assert vars(full) == vars(plain) | {"summary": full.summary}
    thresholds = evaluate_in_full(logits, labels, 200)
    assert thresholds.auc == evaluate(logits, labels, 200).auc != full.auc
    assert thresholds.auc_variance == full.auc_variance
    assert evaluate(logits, labels, 200).auc_variance is None


def test_variance_of_the_mean_loss():
    draw = np.random.default_rng(5)
    logits, labels = (3 * draw.normal(size=3_000_000)).astype(np.float32), draw.random(3_000_000) < 0.3
    losses = np.logaddexp(0, np.where(labels, -1, 1) * logits.astype(np.float64))
    assert evaluate(logits, labels).log_loss_variance == pytest.approx(losses.var(ddof=1) / len(losses), rel=1e-9)
    assert evaluate(logits[:1], labels[:1]).log_loss_variance is None
    assert evaluate(np.zeros(7, np.float32), np.arange(7) < 3).log_loss_variance == pytest.approx(0, abs=1e-17)


def test_entry_is_json_with_every_key():
    found = json.loads(json.dumps(entry("test", evaluate_in_full(np.array([0, 1, 2], np.float32), np.array([0, 1, 1])), (1, 20), final=True)))
    assert [found[key] for key in ("split", "epoch", "step", "final", "samples", "positives", "auc")] == ["test", 1, 20, True, 3, 2, 1.0]
    assert len(found["deciles"]) == 10 and len(found["histogram"]["negative"]) == 200
    one_class = entry("valid", evaluate_in_full(np.zeros(2, np.float32), np.ones(2)), (0, 1))
    assert one_class["auc"] is one_class["auc_variance"] is one_class["normalized_entropy"] is None and one_class["final"] is False


@given(
    st.lists(st.tuples(st.floats(-40, 40, width=32) | st.sampled_from([-1.0, 0.0, 1.0]), st.booleans(), st.integers(0, 5)), min_size=1, max_size=40)
)
def test_a_row_of_weight_3_is_summarized_as_three_rows(rows):
    logits, labels, weights = (np.array([row[i] for row in rows], kind) for i, kind in enumerate((np.float32, bool, np.float32)))
    times = 10 * weights.astype(int)  # so that every tenth is of whole rows
    if not times.any():
        assert summarize_weighted(logits, labels, weights) is None
        return
    found, expected = summarize_weighted(logits, labels, weights), summarize(classes_of(np.repeat(logits, times), np.repeat(labels, times)))
    assert (found.low, found.high) == (expected.low, expected.high)
    for one, other in ((found.negative, expected.negative), (found.positive, expected.positive)):
        assert np.array(one) * 10 == pytest.approx(other)
    mixed = any(labels[logits == value].any() and not labels[logits == value].all() for value in logits)
    for one, other in zip(found.deciles, expected.deciles, strict=True):
        assert (10 * one.samples, 10 * one.probability) == pytest.approx((other.samples, other.probability), rel=1e-6)
        assert one.positives * 10 == pytest.approx(other.positives, abs=1 if mixed else 1e-6)  # whole rows share a tie of both classes out
        assert (one.lowest, one.highest) == pytest.approx((other.lowest, other.highest), rel=1e-6)


def test_the_effective_number_of_rows_of_a_decile():
    draw = np.random.default_rng(3)
    logits, labels, weights = draw.normal(size=5000).astype(np.float32), draw.random(5000) < 0.3, draw.exponential(size=5000).astype(np.float32)
    order, equal = np.argsort(logits), summarize_weighted(logits, labels, np.full(5000, 0.25, np.float32))
    assert [decile.effective for decile in equal.deciles] == pytest.approx([500] * 10) and [decile.samples for decile in equal.deciles] == [
        125.0
    ] * 10
    found, up_to = summarize_weighted(logits, labels, weights), np.cumsum(weights[order], dtype=np.float64)
    for k, decile in enumerate(found.deciles):
        inside = weights[order][(up_to > up_to[-1] * k / 10) & (up_to <= up_to[-1] * (k + 1) / 10)].astype(np.float64)
        assert decile.effective == pytest.approx(inside.sum() ** 2 / (inside**2).sum(), rel=0.05)


def test_the_order_of_rows_does_not_show_in_a_weighted_summary():
    draw = np.random.default_rng(4)
    logits, labels, weights = np.round(draw.normal(size=999), 1).astype(np.float32), draw.random(999) < 0.3, draw.random(999).astype(np.float32)
    order = draw.permutation(999)
    assert summarize_weighted(logits, labels, weights) == summarize_weighted(logits[order], labels[order], weights[order])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weighted_scores_that_are_not_finite_have_no_summary(bad):
    logits, labels = np.array([bad, 1.0, 0.0], np.float32), np.array([True, True, False])
    assert summarize_weighted(logits, labels, np.ones(3, np.float32)) is None
    assert summarize_weighted(logits, labels, np.array([0, 1, 1], np.float32)).low == 0  # a row without weight has no part


def test_weights_leave_the_figures_without_weights_as_they_are():
    draw = np.random.default_rng(6)
    logits, labels, weights = draw.normal(size=900).astype(np.float32), draw.random(900) < 0.3, draw.integers(0, 4, 900).astype(np.float32)
    plain, weighted = evaluate_in_full(logits, labels), evaluate_in_full(logits, labels, weights=weights)
    assert vars(weighted) == vars(evaluate(logits, labels, weights=weights)) | {"summary": summarize_weighted(logits, labels, weights)}
    assert weighted.unweighted == evaluate(logits, labels)
    before, found = (json.loads(json.dumps(entry("test", metrics, (1, 20)))) for metrics in (plain, weighted))
    assert found.keys() - before.keys() == {f"{name}_unweighted" for name in ("auc", "log_loss", "normalized_entropy", "calibration")}
    assert found["auc_unweighted"] == before["auc"] != found["auc"] and found["auc_variance"] is None
