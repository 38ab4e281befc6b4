"""Comparisons of two models' predictions, and the metrics of rows, against plain formulas."""

import numpy as np
import polars as pl
import pytest
from drawn_rows import write_predictions
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from report.rows.predictions import Predictions, metrics_of, paired, read_predictions, wilson
from utils.errors import UserError
from utils.metrics.delong import area, difference_spreads


def predictions(scores, labels, rows=None, path="p", weights=None):
    return Predictions(path, np.asarray(scores, np.float32), np.asarray(labels, bool), rows, weights)


def drawn(count, seed, better=0.0):
    """Draw labels and the scores of two models that share most of what they know."""
    draw = np.random.default_rng(seed)
    labels = draw.random(count) < 0.2
    shared = draw.normal(size=count) + labels
    logits = [shared + 0.3 * draw.normal(size=count), shared + better * labels + 0.3 * draw.normal(size=count)]
    return labels, [(1 / (1 + np.exp(1.5 - one))).astype(np.float32) for one in logits]


def covariance_by_pairs(first, second, positive):
    """Compute the variance of the difference from all pairs, as DeLong, DeLong and Clarke-Pearson define it: equations 4 to 6."""
    kernels = []
    for scores in (first, second):
        n, p = scores[~positive].astype(np.float64), scores[positive].astype(np.float64)
        kernels.append((n[None] < p[:, None]) + 0.5 * (n[None] == p[:, None]))
    of_positives = np.cov([kernel.mean(axis=1) for kernel in kernels])
    of_negatives = np.cov([kernel.mean(axis=0) for kernel in kernels])
    covariance = of_positives / positive.sum() + of_negatives / (~positive).sum()
    return covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.sampled_from([0.25, 0.5, 0.75]), st.booleans()), min_size=4, max_size=60))
def test_auc_interval_is_delongs(rows):
    first, second = (np.array([row[i] for row in rows], np.float32) for i in range(2))
    positive = np.array([row[2] for row in rows])
    if not 2 <= positive.sum() <= len(rows) - 2:
        return
    found = paired(predictions(first, positive), predictions(second, positive)).auc
    assert found.first == pytest.approx(roc_auc_score(positive, first), abs=1e-12)
    assert found.difference.value == pytest.approx(roc_auc_score(positive, second) - roc_auc_score(positive, first), abs=1e-12)
    variance = max(0.0, covariance_by_pairs(first, second, positive))
    assert found.difference.high - found.difference.value == pytest.approx(1.959963984540054 * variance**0.5, abs=1e-7)
    assert found.difference.value - found.difference.low == pytest.approx(found.difference.high - found.difference.value)


def test_difference_from_scores_that_know_nothing_has_the_variance_of_the_other():
    draw = np.random.default_rng(0)
    positive, scores = draw.random(400) < 0.3, draw.random(400).astype(np.float32)
    parts = difference_spreads(np.full(400, 0.5, np.float32), scores, positive, chunk=37)
    assert sum(parts) == pytest.approx(area(np.sort(scores[~positive]), np.sort(scores[positive])).variance, rel=1e-9)


def test_losses_are_compared_row_by_row():
    labels, (first, second) = drawn(3000, 1)
    found = paired(predictions(first, labels), predictions(second, labels))
    rows = [-np.where(labels, np.log(one.astype(np.float64)), np.log1p(-one.astype(np.float64))) for one in (first, second)]
    assert found.log_loss.first == pytest.approx(log_loss(labels, first.astype(np.float64)), rel=1e-12)
    change = rows[1] - rows[0]
    width = 1.959963984540054 * (change.var(ddof=1) / 3000) ** 0.5
    interval = found.log_loss.difference
    assert (interval.value, interval.low, interval.high) == pytest.approx((change.mean(), change.mean() - width, change.mean() + width), rel=1e-9)
    rate = labels.mean()
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    relative = found.normalized_entropy
    assert (relative.first, relative.second) == pytest.approx((rows[0].mean() / entropy, rows[1].mean() / entropy))
    assert (relative.difference.low, relative.difference.high) == pytest.approx((interval.low / entropy, interval.high / entropy))


def test_intervals_of_models_that_are_as_good_hold_zero():
    missed = 0
    for seed in range(300):
        labels, (first, second) = drawn(400, seed)
        found = paired(predictions(first, labels), predictions(second, labels))
        missed += not found.auc.difference.low <= 0 <= found.auc.difference.high
    assert missed <= 30  # 15 expected; the standard error is 3.8


def test_better_model_is_told_apart_where_its_own_interval_could_not():
    labels, (first, second) = drawn(4000, 5, better=0.06)
    found = paired(predictions(first, labels), predictions(second, labels)).auc
    assert found.difference.low > 0
    assert metrics_of("all", first, labels).auc.high > found.second


def test_same_predictions_do_not_differ():
    labels, (first, _) = drawn(500, 2)
    found = paired(predictions(first, labels), predictions(first, labels))
    for one in (found.auc, found.log_loss, found.normalized_entropy):
        assert (one.difference.value, one.difference.low, one.difference.high) == (0, 0, 0)


def test_labels_that_are_all_the_same_leave_the_loss():
    found = paired(predictions([0.1, 0.2], [0, 0]), predictions([0.2, 0.3], [0, 0]))
    assert found.auc is None and found.normalized_entropy is None and found.positives == 0
    assert found.log_loss.difference.value > 0


def test_single_row_has_no_interval():
    found = paired(predictions([0.25], [1]), predictions([0.5], [1])).log_loss
    assert found.difference.value == pytest.approx(np.log(0.5)) and found.difference.low is None
    two = paired(predictions([0.25, 0.5], [1, 0]), predictions([0.5, 0.25], [1, 0]))
    assert (two.auc.first, two.auc.second, two.auc.difference.low) == (0, 1, None)


def test_probabilities_of_0_and_1_have_a_finite_loss():
    found = metrics_of("all", np.array([0, 1], np.float32), np.array([True, False]))
    assert found.log_loss.value == pytest.approx((150 * np.log(2) + 25 * np.log(2)) / 2)


@pytest.mark.parametrize(
    ("positives", "count", "low", "high"),
    # Brown, Cai and DasGupta (Statistical Science 2001) and Newcombe (Statistics in Medicine 1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_interval_of_published_examples(positives, count, low, high):
    found = wilson(positives, count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_metrics_of_rows():
    labels, (scores, _) = drawn(2000, 8)
    found = metrics_of("all", scores, labels)
    assert found.auc.value == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert found.calibration.value == pytest.approx(scores.mean(dtype=np.float64) / labels.mean())
    assert found.calibration.low == pytest.approx(found.mean_prediction / found.click_rate.high)
    assert found.log_loss.low < found.log_loss.value < found.log_loss.high


def test_rows_that_are_all_positive_or_all_negative():
    none, all_of_them = (metrics_of("x", np.array([0.2, 0.4], np.float32), np.full(2, label)) for label in (False, True))
    assert none.auc is none.calibration is all_of_them.auc is None
    assert all_of_them.calibration.value == pytest.approx(0.3) and none.click_rate.low == 0 and none.click_rate.high < 1


def test_perfect_order_of_few_rows_claims_no_interval():
    found = metrics_of("x", np.array([0.1, 0.2, 0.3, 0.4], np.float32), np.array([0, 0, 1, 1], bool)).auc
    assert (found.value, found.low, found.high) == (1, None, None)


def test_files_are_read(tmp_path):
    path = write_predictions(tmp_path / "p.parquet", [0.25, 0.75, 0.5], [0, 1, 0], user=["a", "b", "c"])
    found = read_predictions(path)
    assert found.scores.tolist() == [0.25, 0.75, 0.5] and found.positive.tolist() == [False, True, False] and found.rows is None
    part = read_predictions(write_predictions(tmp_path / "part.parquet", [0.5, 0.25], [1, 0], rows=[7, 3]))
    assert part.rows.tolist() == [7, 3]


BAD = {
    "labels": (lambda path: write_predictions(path, [0.5]), "it has no labels"),
    "rows": (lambda path: write_predictions(path, [], []), "it has no rows"),
    "score": (lambda path: write_predictions(path, [0.5, 1.5], [0, 1]), r"row 1: score 1\.5 is no probability"),
    "nan": (lambda path: write_predictions(path, [np.nan, 0.5], [0, 1]), "row 0: score nan is no probability"),
    "label": (lambda path: write_predictions(path, [0.5, 0.5], [0, 3]), "label 3 is neither 0 nor 1"),
    "column": (lambda path: pl.DataFrame({"row": [0], "probability": [0.5]}).write_parquet(path), "no column score"),
    "text": (lambda path: pl.DataFrame({"row": [0], "score": ["a"], "label": [1]}).write_parquet(path), "column score .* String; expected numbers"),
    "null": (
        lambda path: pl.DataFrame({"row": [0, 1], "score": [0.5, None], "label": [1, 0]}).write_parquet(path),
        "column score has missing values",
    ),
    "format": (lambda path: path.write_text("row,score,label\n0,0.5,1\n"), "cannot be read as Parquet"),
    "folder": (lambda path: path.mkdir(), "not a file"),
    "nothing": (lambda path: None, "no such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_file_that_holds_no_predictions_is_one_line(tmp_path, case):
    make, line = BAD[case]
    make(tmp_path / "p.parquet")
    with pytest.raises(UserError, match=line) as found:
        read_predictions(tmp_path / "p.parquet")
    assert "\n" not in str(found.value) and "p.parquet" in str(found.value)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (predictions([0.1, 0.2], [0, 1]), "2 rows, p has 3"),
        (predictions([0.1, 0.2, 0.3], [0, 1, 1]), "row 2: label 1, in p 0"),
        (predictions([0.1, 0.2, 0.3], [0, 1, 0], np.array([0, 2, 1])), "place 1: row 2, in p 1"),
    ],
)
def test_other_rows_are_one_line(other, line):
    with pytest.raises(UserError, match=line):
        paired(predictions([0.1, 0.2, 0.3], [0, 1, 0]), other)


# Weights ------------------------------------------------------------------------------------------------------------------


def test_a_row_of_weight_3_is_three_rows():
    labels, (first, second) = drawn(2000, 8)
    weights = np.random.default_rng(1).integers(0, 4, 2000)
    first[:300] = np.round(first[:300], 1)  # ties
    one, other = metrics_of("x", first, labels, weights.astype(np.float32)), metrics_of("x", *(np.repeat(each, weights) for each in (first, labels)))
    assert (one.rows, one.positives) == (2000, labels.sum())
    for name in ("click_rate", "calibration", "auc", "log_loss"):
        assert getattr(one, name).value == pytest.approx(getattr(other, name).value, rel=1e-9), name
        assert getattr(one, name).low < getattr(other, name).low < getattr(other, name).high < getattr(one, name).high  # fewer rows say less
    assert one.mean_prediction == pytest.approx(other.mean_prediction, rel=1e-9)
    both = paired(*(predictions(scores, labels, weights=weights.astype(np.float32)) for scores in (first, second)))
    repeated = paired(*(predictions(np.repeat(scores, weights), np.repeat(labels, weights)) for scores in (first, second)))
    assert (both.rows, both.positives) == (2000, labels.sum())
    for name in ("auc", "log_loss", "normalized_entropy"):
        found, expected = getattr(both, name), getattr(repeated, name)
        assert (found.first, found.second, found.difference.value) == pytest.approx(
            (expected.first, expected.second, expected.difference.value), rel=1e-9
        )


def test_equal_weights_change_no_figure():
    labels, (first, second) = drawn(700, 4)
    weights = np.full(700, 0.3, np.float32)
    one, other = metrics_of("x", first, labels, weights), metrics_of("x", first, labels)
    for name in ("click_rate", "calibration", "auc", "log_loss"):
        assert list(vars(getattr(one, name)).values()) == pytest.approx(list(vars(getattr(other, name)).values()), rel=1e-6), name
    both = [paired(predictions(first, labels, weights=each), predictions(second, labels, weights=each)) for each in (weights, None)]
    for name in ("auc", "log_loss", "normalized_entropy"):
        found, expected = (list(vars(getattr(each, name).difference).values()) for each in both)
        assert found == pytest.approx(expected, rel=1e-6), name


def test_weighted_intervals_hold_what_they_should():
    """Rows are drawn with weights that say how many others they stand for; the intervals hold the figures of all rows in 95 of 100 cases."""
    draw = np.random.default_rng(9)
    labels, (first, second) = drawn(200_000, 3, better=0.1)
    chance = np.clip(first + 0.05, 0.05, 0.6)  # positives are drawn more often
    truth, missed = metrics_of("all", first, labels), dict.fromkeys(("click_rate", "auc", "log_loss", "difference"), 0)
    better = paired(predictions(first, labels), predictions(second, labels)).auc.difference.value
    for _ in range(200):
        rows = np.flatnonzero(draw.random(len(labels)) < chance / 60)
        weights = (1 / chance[rows]).astype(np.float32)
        found = vars(metrics_of("x", first[rows], labels[rows], weights))
        change = paired(*(predictions(each[rows], labels[rows], weights=weights) for each in (first, second))).auc.difference
        for name in missed:
            one, true = (change, better) if name == "difference" else (found[name], getattr(truth, name).value)
            missed[name] += not one.low <= true <= one.high
    assert all(2 <= count <= 24 for count in missed.values()), missed  # 10 expected; the standard error is 3.1


def test_rows_without_weight_have_no_figures():
    found = metrics_of("x", np.array([0.2, 0.4], np.float32), np.array([True, False]), np.zeros(2, np.float32))
    assert (found.rows, found.positives) == (2, 1)
    assert found.click_rate is found.mean_prediction is found.calibration is found.auc is found.log_loss is None
    with pytest.raises(UserError, match="p: no row has weight"):
        paired(*(predictions([0.2, 0.4], [1, 0], weights=np.zeros(2, np.float32)) for _ in range(2)))


def test_rows_whose_weights_differ_are_not_compared():
    one, two = (predictions([0.2, 0.4], [1, 0], weights=np.array(weights, np.float32), path=str(weights)) for weights in ([1, 2], [1, 3]))
    with pytest.raises(UserError, match=r"\[1, 3\]: row 1: weight 3.0, in \[1, 2\] 2.0; expected predictions of the same rows"):
        paired(one, two)
    with pytest.raises(UserError, match=r"the rows have weights, unlike those of p"):
        paired(predictions([0.2, 0.4], [1, 0]), two)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_that_cannot_be_are_refused(tmp_path, weight):
    path = write_predictions(tmp_path / "p.parquet", [0.5, 0.5], [1, 0], weight=np.array([1, weight], np.float32))
    with pytest.raises(UserError, match=f"row 1: weight {weight} is no finite number of at least 0"):
        read_predictions(path)
