"""Tests of scores and explanations in Python of a model whose ids have weights: every form of a column, what is refused, and what moves together."""

import numpy as np
import polars
import pytest

import dlrm
from dataloading.feature_spec import FeatureSpec
from dataloading.features import Categorical, DatasetError
from dataloading.id_weights import ids_and_weights, joined
from dataloading.memory_split import MemorySplit
from dataloading.tf_raw import TfRawSplit
from run.explain_sample import draw
from run.explain_units import Inputs, Places, copies_among, places_of
from run.explain_units import joined as side_by_side
from serving.split_inputs import split_inputs
from tests.cli.runs import here
from tests.serving.served_models import train
from tests.serving.weighted_models import WEIGHTED, slow_scores, write_weighted
from training.features import ModelFeatures

SMALL = {"embedding_dim": 4, "bottom_mlp_dims": "16,4", "top_mlp_dims": "16,1", "learning_rate": 0.03}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Train a model; return the folder of its `data` and its checkpoints `c`."""
    folder = tmp_path_factory.mktemp("scored")
    train(write_weighted(folder / "data"), folder / "c", **SMALL)
    return folder


@pytest.fixture(scope="module")
def split(folder):
    return TfRawSplit(FeatureSpec.from_yaml(folder / "data/feature_spec.yaml"), "test")


@pytest.fixture(scope="module")
def samples(split):
    """Return the test split by feature; of features whose ids have weights both as arrays."""
    found = dict(zip(split.spec.numerical, split.read_numerical(0, split.num_samples).T, strict=True))
    for place, one in enumerate(WEIGHTED):
        column = split.read_ids(place, 0, split.num_samples)
        found[one.name] = ids_and_weights(column) if one.weights else column
    return found


@pytest.fixture(scope="module")
def expected(folder, split):
    """Return the scores by `--mode predict`, which a slow model gives as well."""
    flags = ("--dataset_path", folder / "data", "--restore_checkpoint_path", folder / "c", "--predictions_path", folder / "p.parquet")
    assert here(folder, "--mode", "predict", "--cpu", *flags).code == 0
    found = polars.read_parquet(folder / "p.parquet")["score"].to_numpy()
    np.testing.assert_allclose(slow_scores(folder / "c", split_inputs(split, 0, split.num_samples)), found, atol=1e-6, rtol=0)
    assert np.ptp(found) > 0.1
    return found


def each(samples, form):
    """Return the samples with `form(ids, weights)` of each feature whose ids have weights."""
    return {name: form(*values) if isinstance(values, tuple) else values for name, values in samples.items()}


def lists(ids, weights):
    """Return ids and weights as two lists of lists without the empty places; of samples without ids None or an empty list."""
    return [
        [row[there].tolist() or (None if place % 2 else []) for place, (row, there) in enumerate(zip(column, ids >= 0, strict=True))]
        for column in (ids, weights)
    ]


def pairs(ids, weights):
    return [[*zip(some or [], theirs or [], strict=True)] for some, theirs in zip(*lists(ids, weights), strict=True)]


FORMS = {
    "arrays": lambda ids, weights: (ids, weights),
    "arrays of other types": lambda ids, weights: (ids.astype(np.int16), weights.astype(np.float64)),
    "lists": lambda ids, weights: tuple(lists(ids, weights)),
    "array and lists": lambda ids, weights: (ids, weights.tolist()),
    "series": lambda ids, weights: tuple(polars.Series(column) for column in lists(ids, weights)),
    "pairs": pairs,
    "pairs as lists": lambda ids, weights: [[list(pair) for pair in some] or None for some in pairs(ids, weights)],
    "structs": lambda ids, weights: polars.Series([[{"id": one, "weight": weight} for one, weight in some] for some in pairs(ids, weights)]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_column_scores_as_mode_predict(folder, samples, expected, form):
    given = each(samples, FORMS[form])
    for mmap in (False, True):
        model = dlrm.load(folder / "c", mmap=mmap)
        np.testing.assert_array_equal(model.score(given), expected)
        few = {name: tuple(part[:9] for part in values) if isinstance(values, tuple) else values[:9] for name, values in given.items()}
        np.testing.assert_allclose(model.score(few), expected[:9], atol=1e-6, rtol=0)


def test_frames(folder, samples, expected):
    frame = polars.DataFrame(each(samples, FORMS["structs"]))
    model = dlrm.load(folder / "c", mmap=True)
    assert model.id_weights == {"user": False, "liked": True, "item": False, "seen": False, "topics": True, "place": True}
    np.testing.assert_array_equal(model.score(frame), expected)
    np.testing.assert_array_equal(model.score(frame.lazy()), expected)
    np.testing.assert_array_equal(model.score({name: frame[name].to_list() for name in frame.columns}), expected)


def test_one_id_may_stand_without_a_list(folder, samples, expected):
    ids, weights = samples["place"]
    model = dlrm.load(folder / "c")
    np.testing.assert_array_equal(model.score(samples | {"place": (ids[:, 0], weights[:, 0])}), expected)
    np.testing.assert_array_equal(model.score(samples | {"place": (ids[:, 0].tolist(), weights[:, 0].tolist())}), expected)


def test_an_id_of_weight_0_and_the_weight_of_no_id_do_not_count(folder, samples):
    (ids, weights), model = samples["topics"], dlrm.load(folder / "c", mmap=True)
    expected = model.score(samples)
    np.testing.assert_array_equal(model.score(samples | {"topics": (np.where(weights == 0, -1, ids), weights)}), expected)
    np.testing.assert_array_equal(model.score(samples | {"topics": (ids, np.where(ids == -1, np.nan, weights))}), expected)
    np.testing.assert_array_equal(model.score(samples | {"topics": (ids, np.where(weights == 0, 1e-42, weights))}), expected)
    none = model.score(samples | {"topics": [[]] * len(ids)})
    np.testing.assert_array_equal(model.score(samples | {"topics": (ids, 0 * weights)}), none)
    assert np.abs(none - expected).max() > 1e-3


BAD = [
    ("liked", lambda i, w: [[(1, 0.5)] * 5] * len(i), "feature liked: sample 0 has 5 ids, expected at most 4"),
    ("liked", lambda i, w: (np.zeros((len(i), 5), int), np.ones((len(i), 5))), "feature liked: has 5 ids a sample, expected at most 4"),
    ("liked", lambda i, w: i, r"feature liked: sample 0 holds '\[.*', expected a list of at most 4 pairs \(id, weight\), the id a whole number"),
    ("liked", lambda i, w: i.tolist(), r"feature liked: sample 0 holds .* expected a list of at most 4 pairs \(id, weight\)"),
    ("liked", lambda i, w: [[(1.5, 0.5)]] * len(i), r"feature liked: sample 0 holds '\[\(1.5, 0.5\)\]', expected a list of at most 4 pairs"),
    ("liked", lambda i, w: [[(1, "a")]] * len(i), "feature liked: sample 0 holds .* pairs"),
    ("liked", lambda i, w: [[(1, 2, 3)]] * len(i), "feature liked: sample 0 holds .* pairs"),
    ("liked", lambda i, w: [["ab"]] * len(i), "feature liked: sample 0 holds .* pairs"),
    ("liked", lambda i, w: [[{"id": 1}]] * len(i), "feature liked: sample 0 holds .* pairs"),
    ("liked", lambda i, w: [[(None, 1.0)]] * len(i), "feature liked: sample 0 holds .* pairs"),
    ("liked", lambda i, w: [5] * len(i), "feature liked: sample 0 holds '5', expected a list of at most 4 pairs"),
    ("liked", lambda i, w: 5, "feature liked: is int, expected one list a sample"),
    ("liked", lambda i, w: (i, w, w), r"feature liked: is a tuple of 3, expected \(ids, weights\)"),
    ("liked", lambda i, w: (i, w[:, :3]), "feature liked: sample 0 has 4 ids and 3 weights"),
    ("liked", lambda i, w: ([[1]] * len(i), [[1.0]] * 3 + [[1.0, 2.0]] * (len(i) - 3)), "feature liked: sample 3 has 1 ids and 2 weights"),
    ("liked", lambda i, w: (i, w[:-1]), "feature liked: has ids of 400 samples and weights of 399"),
    ("liked", lambda i, w: (i[:3], w[:3]), r"feature liked: has shape \[3, 4\], expected \[400\] as x has"),
    ("liked", lambda i, w: (i, w.astype(str)), "feature liked: holds <U.*, expected numbers as weights"),
    ("liked", lambda i, w: (w, w), "feature liked: holds float32, expected whole numbers"),
    ("liked", lambda i, w: (i, [["a"] * 4] * len(i)), r"feature liked: sample 0 holds .* expected a list of at most 4 weights"),
    ("liked", lambda i, w: (i, None), "feature liked: is NoneType, expected one list a sample"),
    ("liked", lambda i, w: (i + 91, w), r"feature liked: id \d+ of sample 0 is not in \[0, 90\)"),
    ("liked", lambda i, w: (np.full_like(i, 2), w + np.inf), "feature liked: weight inf of sample 0 is not a finite number$"),
    (
        "liked",
        lambda i, w: (np.full_like(i, 2), np.full(w.shape, -1e39)),
        r"feature liked: weight -1e\+39 of sample 0 is not within the range of float32",
    ),
    (
        "topics",
        lambda i, w: (np.full_like(i, 2), w * 0 - 1),
        "feature topics: weight -1 of sample 0 is not a finite number of at least 0, as a weighted",
    ),
    ("place", lambda i, w: [[(1, 1.0), (2, 1.0)]] * len(i), "feature place: sample 0 has 2 ids, expected at most 1"),
    ("place", lambda i, w: i[:, 0], "feature place: sample 0 holds .*, expected a list of at most 1 pairs"),
    ("seen", lambda i, w: (i, np.ones(i.shape)), "feature seen: sample 0 holds .* ids; the ids of this feature have no weights"),
    ("seen", lambda i, w: [[(1, 2)]] * len(i), "feature seen: sample 0 holds .* ids; the ids of this feature have no weights"),
    ("seen", lambda i, w: [[(1, 0.5), (2, 0.5)]] * len(i), "feature seen: sample 0 holds .* ids; the ids of this feature have no weights"),
    ("user", lambda i, w: (i, np.ones(len(i))), r"feature user: has shape \[2, 400\], expected \[B\]; its ids have no weights"),
    ("user", lambda i, w: [[(1, 0.5)]] * (len(i) - 1) + [[]], "feature user: holds .*, expected one number a sample"),
]


@pytest.mark.parametrize(("name", "change", "message"), BAD, ids=[f"{number}-{name}" for number, (name, _, _) in enumerate(BAD)])
def test_error_names_the_feature_and_the_sample(folder, samples, name, change, message):
    values = samples[name] if isinstance(samples[name], tuple) else (samples[name], None)
    with pytest.raises(ValueError, match="^" + message):
        dlrm.load(folder / "c", mmap=True).score(samples | {name: change(*values)})


@pytest.mark.parametrize("how", ["clip", "hash"])
def test_ids_out_of_range_are_mapped_with_their_weights(tmp_path, samples, how):
    train(write_weighted(tmp_path / "data"), tmp_path / "c", out_of_range=how, **SMALL)
    (ids, weights), model = samples["liked"], dlrm.load(tmp_path / "c", mmap=True)
    beyond = np.where(ids == -1, -1, 7 * ids - 50)
    mapped = np.where(beyond == -1, -1, np.clip(beyond, 0, 89) if how == "clip" else beyond % 90)
    np.testing.assert_array_equal(model.score(samples | {"liked": (beyond, weights)}), model.score(samples | {"liked": (mapped, weights)}))
    np.testing.assert_array_equal(model.score(samples | {"place": ([[-1]] * 400, [[2.0]] * 400)}), model.score(samples | {"place": [[]] * 400}))


def test_modes_read_the_weights(folder, expected):
    flags = ("--cpu", "--dataset_path", folder / "data", "--restore_checkpoint_path", folder / "c")
    auc = here(folder, "--mode", "eval", *flags).final["auc"]
    timed = here(folder, "--mode", "inference", "--inference_benchmark_batch_sizes", "64", "--inference_benchmark_steps", "8", *flags)
    assert timed.final["auc"] == auc > 0.6
    result = here(folder, "--mode", "explain", "--explain_repeats", "2", *flags)
    assert result.code == 0 and result.final["auc"] == pytest.approx(auc, abs=1e-6)
    importance = {one["name"]: one["auc_lost"][0] for one in result.log[-2]["data"]["features"]}
    assert set(importance) == {"x", "y", *(one.name for one in WEIGHTED)} and max(importance, key=importance.get) == "liked"


def test_a_contribution_is_of_the_ids_with_their_weights(folder, samples):
    model = dlrm.load(folder / "c", mmap=True)
    few = {name: tuple(part[:5] for part in values) if isinstance(values, tuple) else values[:5] for name, values in samples.items()}
    background = {name: tuple(part[20:50] for part in values) if isinstance(values, tuple) else values[20:50] for name, values in samples.items()}
    found = model.explain(few, background)
    logits = logit(model.score(few))
    for name in ("liked", "topics", "place", "user"):
        without = []
        for row in range(30):
            (*donor,) = background[name] if isinstance(background[name], tuple) else (background[name],)
            given = tuple(np.repeat(part[row : row + 1], 5, axis=0) for part in donor)
            without.append(logit(model.score(few | {name: given if len(given) > 1 else given[0]})))
        np.testing.assert_allclose(found.contributions[name], logits - np.mean(without, axis=0), atol=2e-5)
    np.testing.assert_allclose(model.explain(few).logits, logits, atol=1e-5)  # the background of the training rows


def logit(scores):
    return np.log(scores.astype(np.float64)) - np.log1p(-scores.astype(np.float64))


FEATURES = ModelFeatures({"a": 50, "tags": 9, "one": 9, "b": 50}, ("x",), {"tags": {"hotness": 3, "weights": True}, "one": {"weights": True}})


def test_ids_and_weights_of_a_list_move_together():
    assert places_of(FEATURES, ["tags"]) == Places([], [1, 2, 3, 4, 5, 6]) and places_of(FEATURES, ["one", "b"]) == Places([], [7, 8, 9])
    draw_from = np.random.default_rng(0)
    tags = joined(draw_from.integers(0, 9, (6, 3)).astype(np.int32), draw_from.random((6, 3)))
    one = joined(draw_from.integers(0, 9, (6, 1)).astype(np.int32), draw_from.random((6, 1)))
    rows = side_by_side(np.zeros((6, 1)), [np.arange(6), tags, one, np.arange(6)])
    moved = rows.with_values(places_of(FEATURES, ["tags"]), rows.taken([5, 4, 3, 2, 1, 0]))
    columns = moved.by_feature(FEATURES)
    np.testing.assert_array_equal(columns[1], tags[::-1])
    np.testing.assert_array_equal(columns[2], one)
    assert [column.shape for column in columns] == [(6,), (6, 6), (6, 2), (6,)]


def test_lists_of_the_same_pairs_are_copies_in_any_order():
    random, count = np.random.default_rng(1), 3000
    ids, weights = random.integers(0, 9, (count, 3)).astype(np.int32), random.integers(1, 4, (count, 3)).astype(np.float32)
    features = ModelFeatures({"one": 9, "other": 9}, (), {name: {"hotness": 3, "weights": True} for name in ("one", "other")})

    def copies(*column):
        return copies_among(features, Inputs(np.zeros((count, 0), np.float32), np.concatenate([joined(ids, weights), joined(*column)], axis=1)))

    assert [pair[:2] for pair in copies(ids[:, ::-1], weights[:, ::-1])] == [("one", "other")]
    assert copies(ids, np.roll(weights, 1, axis=0)) == [] and copies(ids[:, ::-1], weights) == []


@pytest.fixture
def held():
    """Return a function that makes a split in memory of one feature from its ids and weights."""

    def split_of(ids, weights, pooling="sum"):
        feature = Categorical("tags", 90, "int32", 2, pooling=pooling, weights=True)
        return MemorySplit([feature], (), np.zeros((len(ids), 0), np.float16), [joined(np.array(ids), np.array(weights))])

    return split_of


def test_a_sample_of_rows_has_checked_weights(held):
    sample = draw(held([[1, 2], [-1, 95], [3, 4]], [[0.5, 0], [7, 2], [1, -1]]), 5, 0, [90], "clip")
    ids, weights = ids_and_weights(sample.inputs.ids)
    assert ids.tolist() == [[1, -1], [-1, 89], [3, 4]] and weights.tolist() == [[0.5, 0], [0, 2], [1, -1]] and sample.out_of_range == 1
    with pytest.raises(DatasetError, match=r"feature tags, row 1, place 0 of its list: weight -1 is not a finite number of at least 0"):
        draw(held([[1, 2], [3, 4]], [[1, 1], [-1, 1]], "mean"), 5, 0, [90], "error")
    with pytest.raises(DatasetError, match=r"feature tags, row 0, place 1 of its list: id 95 is not in \[0, 90\)"):
        draw(held([[1, 95]], [[1, 1]]), 5, 0, [90], "error")
