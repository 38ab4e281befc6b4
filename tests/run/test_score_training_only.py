"""Tests of scores and explanations of models with features for training only: they may be left out, and have no effect if they are there."""

import numpy as np
import polars
import pytest

import dlrm
from dataloading.feature_spec import FeatureSpec
from dataloading.id_weights import ids_and_weights
from dataloading.tf_raw import TfRawSplit
from dataloading.training_only import as_served
from run.explain_units import units_of
from serving.split_inputs import split_inputs
from tests.cli.runs import here
from tests.serving.served_models import train
from tests.serving.training_only_models import FEATURES, NUMERICAL, SERVED, raw_data, write_training_only
from tests.serving.weighted_models import slow_scores
from training.features import ModelFeatures

SMALL = {"embedding_dim": 4, "bottom_mlp_dims": "16,4", "top_mlp_dims": "16,1", "learning_rate": 0.03}
MODELS = {
    "dlrm": {},
    "wide and deep": {"interaction": "wide_and_deep", "optimizer": "rmsprop"},
    "deepfm": {"interaction": "fm", "bottom_mlp_dims": None},
    "clipped": {"out_of_range": "clip"},
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return request.param


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """Train a model; return the folder of its `data` and its checkpoints `c`."""
    folder = tmp_path_factory.mktemp("scored")
    train(write_training_only(folder / "data"), folder / "c", **SMALL | MODELS[model])
    return folder


@pytest.fixture(scope="module")
def split(folder):
    return TfRawSplit(FeatureSpec.from_yaml(folder / "data/feature_spec.yaml"), "test")


@pytest.fixture(scope="module")
def logged(split):
    """Return the test split by feature."""
    found = dict(zip(NUMERICAL, split.read_numerical(0, split.num_samples).T, strict=True))
    for place, one in enumerate(FEATURES):
        column = split.read_ids(place, 0, split.num_samples)
        found[one.name] = ids_and_weights(column) if one.weights else column
    return found


@pytest.fixture(scope="module")
def samples(logged):
    """Return the test split without the features for training only."""
    return {name: values for name, values in logged.items() if name not in SERVED}


@pytest.fixture(scope="module")
def expected(folder, split, model):
    """Return the scores by `--mode predict`; a slow model gives the same."""
    flags = ("--dataset_path", folder / "data", "--restore_checkpoint_path", folder / "c", "--predictions_path", folder / "p.parquet")
    assert here(folder, "--mode", "predict", "--cpu", *flags).code == 0
    found = polars.read_parquet(folder / "p.parquet")["score"].to_numpy()
    if model != "deepfm":
        inputs = split_inputs(as_served(split), 0, split.num_samples)
        np.testing.assert_allclose(slow_scores(folder / "c", inputs, FEATURES), found, atol=1e-6, rtol=0)
    assert np.ptp(found) > 0.05
    return found


def taken(samples, count):
    return {name: tuple(part[:count] for part in values) if isinstance(values, tuple) else values[:count] for name, values in samples.items()}


GIVEN = {
    "as logged": lambda logged, n: {name: logged[name] for name in SERVED},
    "one of them": lambda logged, n: {"slot": logged["slot"]},
    "what cannot be": lambda logged, n: {"position": np.full(n, 10**9), "slot": np.full(n, -7), "height": np.full(n, np.nan)},
    "texts": lambda logged, n: {"position": ["?"] * n, "slot": polars.Series([None] * n), "height": [None] * n},
    "lists": lambda logged, n: {"position": [[1, 2]] * n, "height": np.ones((n, 3))},
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("mmap", [False, True])
def test_scores_equal_mode_predict_whatever_is_given(folder, logged, samples, expected, mmap, given):
    model = dlrm.load(folder / "c", mmap=mmap)
    more = GIVEN[given](logged, len(expected))
    np.testing.assert_array_equal(model.score(samples), expected)
    np.testing.assert_array_equal(model.score(samples | more), expected)
    few = model.score(taken(samples, 9))
    np.testing.assert_array_equal(model.score(taken(samples | more, 9)), few)
    np.testing.assert_allclose(few, expected[:9], atol=1e-6, rtol=0)


def test_a_model_says_what_it_always_scores_with(folder, samples):
    model = dlrm.load(folder / "c", mmap=True)
    assert model.served == {"position": 3, "slot": 6, "height": pytest.approx(0.7, abs=1e-3)} and type(model.served["position"]) is int
    assert model.columns == ("x", "y", "user", "liked", "seen") == tuple(samples)
    assert "for training only, scored as position = 3, slot = 6, height = 0.7" in repr(model)
    assert model.numerical == NUMERICAL and "position" in model.categorical


def test_frames_with_more_columns(folder, samples, expected):
    pairs = [[{"id": one, "weight": weight} for one, weight in zip(*row, strict=True)] for row in zip(*samples["liked"], strict=True)]
    frame = polars.DataFrame({**samples, "liked": pairs})
    model = dlrm.load(folder / "c")
    np.testing.assert_array_equal(model.score(frame), expected)
    np.testing.assert_array_equal(model.score(frame.with_columns(position=polars.lit("top"))), expected)
    np.testing.assert_array_equal(model.score(frame.with_columns(position=0, z=1)[list(model.columns)]), expected)
    np.testing.assert_array_equal(model.score(frame.lazy().with_columns(height=polars.lit(None))), expected)


BAD = {
    "another length": ({"position": [1, 2, 3]}, r"feature position: has shape \[3\], expected \[400\] as x has"),
    "one number": ({"height": 0.5}, "feature height: holds '0.5', expected one value a sample, or no column: it is for training only"),
    "a text": ({"slot": "top"}, "feature slot: holds 'top', expected one value a sample, or no column: it is for training only"),
    "unknown": ({"slots": [1] * 400}, "feature slots: is unknown; the model has x, y, user, liked, seen"),
    "another feature": ({"x": [np.nan] * 400}, "feature x: value nan of sample 0 is not a finite float16"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(folder, samples, case):
    given, message = BAD[case]
    with pytest.raises(ValueError, match="^" + message):
        dlrm.load(folder / "c", mmap=True).score(samples | given)


def test_a_missing_feature_is_still_missing(folder, logged):
    with pytest.raises(ValueError, match=r"^feature y: is missing; the model has x, y, user, liked, seen$"):
        dlrm.load(folder / "c").score({name: values for name, values in logged.items() if name != "y"})


def test_a_server_scores_as_python_does(folder, samples, expected, split):
    scorer = dlrm.load(folder / "c", mmap=True, cpu=True).over_arrays()
    inputs = split_inputs(split, 0, split.num_samples)
    inputs["numerical"][:, 1], inputs["categorical"][:, 5], inputs["categorical"][:, 9] = np.nan, 10**12, -1
    found = scorer.score(*scorer.checked(inputs["numerical"], inputs["categorical"], inputs["id_weights"]))
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)


def logit(scores):
    return np.log(scores.astype(np.float64)) - np.log1p(-scores.astype(np.float64))


def test_contributions_are_of_the_other_features(folder, samples, expected):
    model = dlrm.load(folder / "c", mmap=True)
    few = taken(samples, 5)
    found = model.explain(few | {"position": ["?"] * 5})
    assert set(found.contributions) == set(found.features) == set(model.columns)
    np.testing.assert_allclose(found.logits, logit(expected[:5]), atol=1e-5)
    background = {name: tuple(part[20:50] for part in values) if isinstance(values, tuple) else values[20:50] for name, values in samples.items()}
    found = model.explain(few, background | {"height": np.full(30, np.inf)})
    without = [logit(model.score(few | {"user": np.repeat(background["user"][row], 5)})) for row in range(30)]
    np.testing.assert_allclose(found.contributions["user"], logit(model.score(few)) - np.mean(without, axis=0), atol=2e-5)


def test_mode_explain_leaves_them_out_and_says_so(folder):
    flags = ("--cpu", "--dataset_path", folder / "data", "--restore_checkpoint_path", folder / "c")
    auc = here(folder, "--mode", "eval", *flags).final["auc"]
    found = here(folder, "--mode", "explain", "--explain_repeats", "1", *flags)
    assert found.code == 0 and found.final["auc"] == pytest.approx(auc, abs=1e-6)
    logged = found.log[-2]["data"]
    assert {one["name"] for one in logged["features"]} == {"x", "y", "user", "liked", "seen"} and logged["served"]["slot"] == 6
    assert "for training only, so without effect on scores: position = 3, slot = 6, height = 0.7" in found.out


def test_units_are_of_features_that_move():
    features = ModelFeatures({"place": 9, "user": 9, "user_place": 9}, ("price",), served={"place": 1})
    made = {"place": {"kind": "categorical", "column": "place"}, "user": {"kind": "categorical", "column": "user"}}
    made |= {"user_place": {"kind": "cross", "columns": ["user", "place"], "parts": [made["user"], made["place"]]}, "price": {"kind": "numerical"}}
    units = {unit.name: unit.features for unit in units_of(features, made)}
    assert units["user"] == ("user", "user_place") and not any("place" in together for together in units.values())


def test_a_model_of_nothing_else(tmp_path):
    every = {"user": 1, "position": 2, "price": 9.0, "height": 1.5}
    model = dlrm.load(train(raw_data(tmp_path, every), tmp_path / "c", **SMALL), mmap=True)
    found = model.score({"user": ["?"] * 400})
    assert model.columns == () and found.shape == (400,) and np.ptp(found) == 0
    np.testing.assert_array_equal(model.score_raw({"price": [None] * 400}), found)
    for score in (model.score, model.score_raw):
        with pytest.raises(ValueError, match=r"how many|number is not known"):
            score({})


def test_raw_values_score_alike_with_and_without_the_columns(tmp_path):
    model = dlrm.load(train(raw_data(tmp_path), tmp_path / "c", **SMALL), mmap=True)
    frame = polars.read_csv(tmp_path / "test.csv").drop("label")
    assert set(model.raw_columns) == {"user", "price"}
    expected = model.score_raw(frame["user", "price"])
    np.testing.assert_array_equal(model.score_raw(frame), expected)
    np.testing.assert_array_equal(model.score_raw(frame.with_columns(height=polars.lit("tall"), position=None)), expected)
    explained = model.explain_raw(frame[:3]["user", "price"])
    assert set(explained.contributions) == {"user", "price"}
    scorer = model.over_raw_arrays()
    given = {"user": frame["user"].to_list(), "price": frame["price"].to_numpy().astype(np.float32)}
    np.testing.assert_allclose(scorer.score(*scorer.checked(given)), expected, atol=1e-6, rtol=0)
