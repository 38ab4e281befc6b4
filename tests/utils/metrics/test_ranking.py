"""Metrics by group, compared with their definitions over every order of tied rows, and with scikit-learn's where it has the same metric."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from utils.metrics.binary import evaluate, exact_auc
from utils.metrics.ranking import rank
from utils.metrics.ranking_metric import DEFAULT, RankingMetric, parse

NAMES = "map@1,map@3,map@12,ndcg@2,ndcg@10,mrr,mrr@2,recall@1,recall@5,group_auc,gauc"
METRICS = parse(NAMES.split(","))


def orders(scores, labels):
    """Yield the labels from the highest score to the lowest, in every order of tied rows; all results are equally likely."""
    ties = [[y for x, y in zip(scores, labels, strict=True) if x == value] for value in sorted(set(scores), reverse=True)]
    for each in itertools.product(*(set(itertools.permutations(tie)) for tie in ties)):
        yield [label for tie in each for label in tie]


def of_order(metric, labels):
    """Return a metric of labels in the order of their ranks, by its definition."""
    k, positives = metric.cut or len(labels), sum(labels)
    hits = [position for position, label in enumerate(labels, 1) if label]
    if metric.name == "map":
        return sum(sum(labels[:position]) / position for position in hits if position <= k) / min(positives, k)
    if metric.name == "ndcg":
        best = sum(1 / math.log2(1 + position) for position in range(1, min(positives, k) + 1))
        return sum(1 / math.log2(1 + position) for position in hits if position <= k) / best
    if metric.name == "mrr":
        return 1 / hits[0] if hits[0] <= k else 0.0
    if metric.name == "recall":
        return sum(position <= k for position in hits) / positives
    misses = [position for position, label in enumerate(labels, 1) if not label]
    return sum(hit < miss for hit in hits for miss in misses) / (len(hits) * len(misses))


def definition(metric, scores, labels, groups):
    """Return the metric's mean over groups and over orders of ties; None where no group counts."""
    total = weight = 0
    for group in set(groups.tolist()):
        x, y = scores[groups == group].tolist(), labels[groups == group].tolist()
        if not any(y) or (metric.name in ("group_auc", "gauc") and all(y)):
            continue
        found = [of_order(metric, order) for order in orders(x, y)]
        share = len(y) if metric.name == "gauc" else 1
        total, weight = total + share * sum(found) / len(found), weight + share
    return total / weight if weight else None


def weighted_definition(metric, scores, labels, groups, weights):
    """Return the weighted mean over groups and over orders of ties, summed in fractions; None where no group counts."""
    total = share = Fraction(0)
    for group in set(groups[weights > 0].tolist()):
        rows = (groups == group) & (weights > 0)
        x, y, w = scores[rows].tolist(), labels[rows].tolist(), [Fraction(weight) for weight in weights[rows].tolist()]
        if not any(y) or (metric.name in ("group_auc", "gauc") and all(y)):
            continue
        if metric.name in ("group_auc", "gauc"):
            hits, misses = ([row for row in zip(x, w, y, strict=True) if row[2] == label] for label in (1, 0))
            right = sum(hit[1] * miss[1] * Fraction((hit[0] > miss[0]) + (hit[0] >= miss[0]), 2) for hit in hits for miss in misses)
            value = right / (sum(hit[1] for hit in hits) * sum(miss[1] for miss in misses))
        else:
            found = [of_order(metric, order) for order in orders(x, y)]
            value = Fraction(math.fsum(found) / len(found))
        of_group = {"group_auc": Fraction(1), "gauc": sum(w)}.get(metric.name, sum(w) / len(w))
        total, share = total + of_group * value, share + of_group
    return float(total / share) if share else None


def draw_rows(draw, count):
    """Draw groups of 1 to 16 rows, rows in any order: some with many ties, some without a positive, some of positives only."""
    sizes = draw.choice([1, 2, 3, 5, 6, 13, 16], count)
    ids = draw.choice(np.array([-(2**63), -7, 0, 3, 2**31, 2**63 - 1, *range(100, 160)]), count, replace=False)
    parts = []
    for size, number in zip(sizes, ids, strict=True):
        values = draw.integers(-2, 3, size) if size < 8 else draw.permutation(size) // draw.integers(1, 4)
        parts.append((values / 4, draw.random(size) < draw.choice([0.1, 0.3, 0.9]), np.full(size, number)))
    scores, labels, groups = map(np.concatenate, zip(*parts, strict=True))
    order = draw.permutation(len(scores))
    return scores[order].astype(np.float32), labels[order].astype(np.uint8), groups[order]


@pytest.mark.parametrize("seed", range(60))
def test_random_groups_match_the_definition(seed):
    scores, labels, groups = draw_rows(np.random.default_rng(seed), 50)
    found = rank(scores, labels, groups, METRICS, [1, 7, 100, 1 << 20][seed % 4])
    for metric, value in found.values.items():
        assert value == pytest.approx(definition(metric, scores, labels, groups), abs=1e-12), metric
    positive = {group for group, label in zip(groups.tolist(), labels, strict=True) if label}
    assert (found.groups, found.with_positive) == (50, len(positive))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(-2, 2)), min_size=1, max_size=14))
def test_any_small_sample_matches_the_definition(rows):
    scores, labels, groups = (np.array(column) for column in zip(*rows, strict=True))
    found = rank(scores.astype(np.float32), labels, groups.astype(np.int32), METRICS)
    for metric, value in found.values.items():
        assert value == pytest.approx(definition(metric, scores, labels, groups), abs=1e-12), metric


@pytest.mark.parametrize("chunk", [1, 1000, 1 << 20])
def test_the_bits_do_not_depend_on_the_order_of_the_rows(chunk):
    draw = np.random.default_rng(7)
    groups = np.sort(draw.integers(-300, 300, 5000)).astype(np.int32)
    scores, labels = np.round(draw.normal(size=5000), 1).astype(np.float32), draw.random(5000) < 0.2
    expected = rank(scores, labels, groups, METRICS, chunk)
    for order in (np.arange(5000)[::-1], draw.permutation(5000), draw.permutation(5000)):
        assert rank(scores[order], labels[order], groups[order].astype(np.int64), METRICS, chunk) == expected


def draw_weights(draw, count):
    """Draw weights, some of them 0 and some equal, many orders of magnitude apart or not."""
    weights = 10 ** draw.uniform(-30, 30, count) if draw.random() < 0.5 else draw.integers(0, 4, count) / 10
    return (weights * (draw.random(count) < 0.8)).astype(np.float32)


@pytest.mark.parametrize("seed", range(40))
def test_weighted_groups_match_the_definition(seed):
    draw = np.random.default_rng(seed)
    scores, labels, groups = draw_rows(draw, 50)
    weights = draw_weights(draw, len(scores))
    found = rank(scores, labels, groups, METRICS, [1, 7, 100, 1 << 20][seed % 4], weights)
    for metric, value in found.values.items():
        assert value == pytest.approx(weighted_definition(metric, scores, labels, groups, weights), abs=1e-12), metric
    kept = weights > 0
    assert found == rank(scores[kept], labels[kept], groups[kept], METRICS, [1, 7, 100, 1 << 20][seed % 4], weights[kept])
    assert (found.groups, found.with_positive) == (len(set(groups[kept])), len(set(groups[kept & (labels > 0)])))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(-2, 2), st.sampled_from([0, 1, 0.1, 1e-30, 1e30])), min_size=1, max_size=14)
)
def test_any_small_weighted_sample_matches_the_definition(rows):
    scores, labels, groups, weights = (np.array(column) for column in zip(*rows, strict=True))
    scores, weights = scores.astype(np.float32), weights.astype(np.float32)
    for metric, value in rank(scores, labels, groups, METRICS, weights=weights).values.items():
        assert value == pytest.approx(weighted_definition(metric, scores, labels, groups, weights), abs=1e-12), metric


@pytest.mark.parametrize("chunk", [1, 1000, 1 << 20])
def test_the_bits_of_weighted_metrics_do_not_depend_on_the_order_of_the_rows(chunk):
    draw = np.random.default_rng(7)
    groups, weights = draw.integers(-100, 100, 5000), (10 ** draw.uniform(-6, 6, 5000)).astype(np.float32)  # their sums are rounded
    scores, labels = np.round(draw.normal(size=5000)).astype(np.float32), draw.random(5000) < 0.2
    expected = rank(scores, labels, groups, METRICS, chunk, weights)
    for order in (np.arange(5000)[::-1], draw.permutation(5000), draw.permutation(5000)):
        assert rank(scores[order], labels[order], groups[order], METRICS, chunk, weights[order]) == expected


def test_equal_weights_of_all_rows_have_no_effect():
    scores, labels, groups = draw_rows(np.random.default_rng(12), 50)
    plain = rank(scores, labels, groups, METRICS)
    for weight in (1, 0.25, 3):
        found = rank(scores, labels, groups, METRICS, weights=np.full(len(scores), weight, np.float32))
        assert list(found.values.values()) == pytest.approx(list(plain.values.values()), abs=1e-14)


def test_weights_that_are_whole_numbers_repeat_rows_in_aucs():
    draw = np.random.default_rng(13)
    rows, metrics = draw_rows(draw, 50), parse(["group_auc", "gauc"])
    times = draw.integers(0, 5, len(rows[0]))
    found, plain = rank(*rows, metrics, weights=times.astype(np.float32)), rank(*(np.repeat(column, times) for column in rows), metrics)
    assert list(found.values.values()) == pytest.approx(list(plain.values.values()), abs=1e-15)
    assert (found.groups, found.with_positive) == (plain.groups, plain.with_positive)


def test_weighted_metrics_equal_those_of_scikit_learn():
    draw = np.random.default_rng(14)
    groups, labels, scores = np.repeat(np.arange(80), 25), draw.random(2000) < 0.2, draw.integers(0, 6, 2000).astype(np.float32)
    labels[::25] = True
    weights = draw.exponential(size=2000).astype(np.float32)
    truth, predicted, wide = labels.reshape(80, 25), scores.reshape(80, 25), weights.astype(np.float64).reshape(80, 25)
    found = by_name(rank(scores, labels, groups, parse(["ndcg@10", "group_auc", "gauc"]), weights=weights))
    assert found["ndcg_at_10"] == pytest.approx(sklearn.metrics.ndcg_score(truth, predicted, k=10, sample_weight=wide.sum(axis=1)), abs=1e-12)
    aucs = [sklearn.metrics.roc_auc_score(y, x, sample_weight=w) for y, x, w in zip(truth, predicted, wide, strict=True)]
    assert found["group_auc"] == pytest.approx(np.mean(aucs), abs=1e-12)
    assert found["gauc"] == pytest.approx(np.average(aucs, weights=wide.sum(axis=1)), abs=1e-12)


def test_all_weighted_rows_in_one_group_have_the_auc_of_all_rows():
    draw = np.random.default_rng(2)
    scores, labels = np.round(draw.normal(size=3000), 2).astype(np.float32), draw.random(3000) < 0.3
    weights = draw_weights(draw, 3000)
    found = rank(scores, labels, np.full(3000, -5), parse(["group_auc", "gauc"]), weights=weights)
    assert list(found.values.values()) == pytest.approx([evaluate(scores, labels, weights=weights).auc] * 2, abs=1e-15)


def test_rows_without_any_weight_have_no_groups():
    found = rank(np.array([1, np.nan], np.float32), np.array([0, 1]), np.array([0, 0]), METRICS, weights=np.zeros(2, np.float32))
    assert set(found.values.values()) == {None} and found.groups == found.with_positive == 0


def columns(*rows):
    """Return scores, labels and groups from rows of all three."""
    scores, labels, groups = zip(*rows, strict=True)
    return np.array(scores, np.float32), np.array(labels, np.uint8), np.array(groups, np.int64)


def by_name(found):
    return {key: value for key, value in found.figures().items() if not key.startswith("groups")}


def test_by_hand():
    # Group 5, best first: 1 0 1 0. AP: (1/1 + 2/3) / 2. DCG: 1 + 1/2. Pairs: 3 of 4. Group 2: 0 and 1 tie: rank 1 or 2. Group 9: no positive.
    rows = columns((3, 1, 5), (0.5, 0, 2), (2, 0, 5), (9, 0, 9), (1, 1, 5), (0.5, 1, 2), (0, 0, 5))
    found = by_name(rank(*rows, parse(["map@12", "ndcg@10", "mrr", "recall@1", "group_auc", "gauc"])))
    best = 1 + 1 / math.log2(3)
    assert found["map_at_12"] == pytest.approx((5 / 6 + (1 + 1 / 2) / 2) / 2, abs=1e-15)
    assert found["ndcg_at_10"] == pytest.approx((1.5 / best + (1 + 1 / math.log2(3)) / 2) / 2, abs=1e-15)
    assert found["mrr"] == pytest.approx((1 + 3 / 4) / 2, abs=1e-15)
    assert found["recall_at_1"] == (1 / 2 + 1 / 2) / 2
    assert found["group_auc"] == (3 / 4 + 1 / 2) / 2
    assert found["gauc"] == (4 * 3 / 4 + 2 * 1 / 2) / 6


def test_map_at_12_cuts_after_rank_12():
    scores, groups = np.tile(-np.arange(15, dtype=np.float32), 2), np.repeat([0, 1], 15)
    labels = np.zeros(30, np.uint8)
    labels[[11, 15 + 12]] = 1
    assert by_name(rank(scores, labels, groups, [DEFAULT])) == {"map_at_12": 1 / 12 / 2}


def test_best_order_is_1_and_worst_pairs_0():
    draw = np.random.default_rng(3)
    groups, labels = draw.integers(0, 400, 20_000), draw.random(20_000) < 0.4
    distinct = draw.permutation(20_000).astype(np.float32) / 20_000
    metrics = parse(["map@12", "ndcg@100", "mrr", "recall@400", "group_auc", "gauc"])
    assert set(rank(labels + distinct, labels, groups, metrics).values.values()) == {1.0}
    worst = by_name(rank(distinct - labels, labels, groups, metrics))
    assert worst["group_auc"] == worst["gauc"] == 0.0 and worst["recall_at_400"] == 1.0


@pytest.mark.parametrize("tied", [False, True])
def test_ndcg_equals_scikit_learn(tied):
    draw = np.random.default_rng(11)
    groups, labels = np.repeat(np.arange(80), 25), draw.random(2000) < 0.2
    scores = (draw.integers(0, 6, 2000) if tied else draw.permutation(2000)).astype(np.float32)
    labels[::25] = True
    truth, predicted = labels.reshape(80, 25), scores.reshape(80, 25)
    found = by_name(rank(scores, labels, groups, parse(["ndcg@10", "ndcg@25", "map@25", "group_auc"])))
    for k in (10, 25):
        assert found[f"ndcg_at_{k}"] == pytest.approx(sklearn.metrics.ndcg_score(truth, predicted, k=k), abs=1e-12)
    aucs = [sklearn.metrics.roc_auc_score(y, x) for y, x in zip(truth, predicted, strict=True) if not y.all()]
    assert found["group_auc"] == pytest.approx(np.mean(aucs), abs=1e-12)
    if not tied:
        assert found["map_at_25"] == pytest.approx(sklearn.metrics.label_ranking_average_precision_score(truth, predicted), abs=1e-12)


def test_all_rows_in_one_group_have_the_auc_of_all_rows():
    draw = np.random.default_rng(2)
    scores, labels = np.round(draw.normal(size=3000), 2).astype(np.float32), draw.random(3000) < 0.3
    found = rank(scores, labels, np.full(3000, -5), parse(["group_auc", "gauc"]))
    assert list(found.values.values()) == [exact_auc(scores, labels)] * 2
    assert (found.groups, found.with_positive) == (1, 1)


def test_minus_zero_ties_with_zero_and_infinities_are_scores():
    rows = columns((0.0, 0, 1), (-0.0, 1, 1), (np.inf, 0, 2), (3e38, 1, 2), (-np.inf, 0, 3), (-3e38, 1, 3))
    assert by_name(rank(*rows, parse(["mrr"]))) == {"mrr": (3 / 4 + 1 / 2 + 1) / 3}


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1]])
def test_labels_of_one_kind(labels):
    found = rank(np.array([1, 2, 2], np.float32), np.array(labels), np.array([4, 4, 5]), parse(["map@2", "group_auc"]))
    assert by_name(found) == {"map_at_2": 1.0 if labels[0] else None, "group_auc": None}
    assert (found.groups, found.with_positive) == (2, 2 if labels[0] else 0)


def test_no_rows_or_a_nan_score_gives_none():
    nothing = rank(np.empty(0, np.float32), np.empty(0, np.uint8), np.empty(0, np.int32), METRICS)
    assert set(nothing.values.values()) == {None} and nothing.groups == nothing.with_positive == 0
    found = rank(np.array([1, np.nan], np.float32), np.array([0, 1]), np.array([0, 1]), METRICS)
    assert set(found.values.values()) == {None} and (found.groups, found.with_positive) == (2, 1)


def test_names():
    metrics = parse(["map@12", " NDCG@10", "mrr", "mrr@5", "recall@3", "group_auc", "gauc"])
    assert [metric.key for metric in metrics] == ["map_at_12", "ndcg_at_10", "mrr", "mrr_at_5", "recall_at_3", "group_auc", "gauc"]
    assert ", ".join(map(str, metrics)) == "MAP@12, NDCG@10, MRR, MRR@5, recall@3, group AUC, GAUC"
    assert metrics[0] == DEFAULT == RankingMetric("map", 12) and parse(["none"]) == ()


@pytest.mark.parametrize("word", ["map", "map@0", "map@", "map@1.5", "map@-1", "map@2147483648", "group_auc@3", "auc", "", "none,", "map@012", None])
def test_unknown_names_are_rejected(word):
    with pytest.raises(ValueError, match=r"is not one of map@K, ndcg@K, recall@K, mrr"):
        parse([] if word is None else [word])


def test_duplicate_names_are_rejected():
    with pytest.raises(ValueError, match="MAP@3 is given 2 times"):
        parse(["map@3", "mrr", "MAP@3"])
