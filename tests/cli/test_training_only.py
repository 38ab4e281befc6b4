"""Features for training only: trained on as logged, scored with the value that is served, and evaluated both ways."""

import numpy as np
import polars
import pytest
import yaml
from runs import TRAIN, edit_spec

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.tf_raw import TfRawWriter
from utils.checkpoint.reading import Checkpoint

POSITIONS, ITEMS = 5, 30
CATEGORICAL = (Categorical("item", ITEMS, "int8"), Categorical("position", POSITIONS, "int8", serve=0))


def write(folder, served=True, position=None, height=None, rows=None):
    """Write rows whose clicks fall with the position and rise with the height; both can be set to one value in all rows."""
    spec = FeatureSpec(
        tuple(one if served or one.serve is None else Categorical("position", POSITIONS, "int8") for one in CATEGORICAL),
        ("x", "height"),
        "label",
        {"item": "int8", "position": "int8", "x": "float16", "height": "float16", "label": "bool"},
        serve={"height": 1.5} if served else {},
    )
    with TfRawWriter(folder, spec, ("train", "test")) as writer:
        for split, count in (rows or {"train": 4000, "test": 1000}).items():
            draw = np.random.default_rng(len(split))
            item, place, x = draw.integers(0, ITEMS, count), draw.integers(0, POSITIONS, count), draw.random((count, 2)).round(2)
            labels = draw.random(count) < 1 / (1 + np.exp(place + item % 3 - 2 * x[:, 1]))
            place = np.full(count, position) if position is not None else place
            x[:, 1] = x[:, 1] if height is None else height
            writer.append(split, x, [item, place], labels)
        writer.publish({})
    return folder


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    return write(tmp_path_factory.mktemp("logged") / "d")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """Return the same rows, all with the values that are served, in a dataset without features for training only."""
    return write(tmp_path_factory.mktemp("fixed") / "d", served=False, position=0, height=1.5)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write(tmp_path_factory.mktemp("plain") / "d", served=False)


def predicted(run, dataset, checkpoint, path, *flags):
    found = run("--dataset_path", dataset, "--cpu", "--mode", "predict", "--restore_checkpoint_path", checkpoint, "--predictions_path", path, *flags)
    assert found.code == 0, found.err
    return polars.read_parquet(path)["score"].to_numpy()


def figures(run, dataset, checkpoint):
    found = run("--dataset_path", dataset, "--cpu", "--mode", "eval", "--restore_checkpoint_path", checkpoint)
    assert found.code == 0, found.err
    return found


def test_training_reads_the_logged_values_and_scores_take_those_served(run, logged, fixed, plain, tmp_path):
    of_logged, of_plain = (
        run("--dataset_path", data, *TRAIN, "--save_checkpoint_path", tmp_path / name) for data, name in ((logged, "logged"), (plain, "plain"))
    )
    assert of_logged.final["train_loss"] == of_plain.final["train_loss"]
    assert Checkpoint(tmp_path / "logged").manifest["features"]["served"] == {"position": 0, "height": 1.5}
    scores = predicted(run, logged, tmp_path / "logged", tmp_path / "a.parquet")
    np.testing.assert_array_equal(scores, predicted(run, fixed, tmp_path / "plain", tmp_path / "b.parquet"))
    assert np.abs(scores - predicted(run, plain, tmp_path / "plain", tmp_path / "c.parquet")).max() > 0.01


def test_an_evaluation_tells_both(run, logged, fixed, plain, tmp_path):
    trained = run("--dataset_path", logged, *TRAIN, "--save_checkpoint_path", tmp_path / "m")
    assert run("--dataset_path", plain, *TRAIN, "--save_checkpoint_path", tmp_path / "p").code == 0
    found, as_served, as_logged = figures(run, logged, tmp_path / "m"), *(figures(run, data, tmp_path / "p") for data in (fixed, plain))
    assert found.final["auc"] == as_served.final["auc"] and found.final["test_loss"] == as_served.final["test_loss"]
    assert found.final["auc_as_logged"] == as_logged.final["auc"] and found.final["log_loss_as_logged"] == as_logged.final["test_loss"]
    assert found.final["auc_as_logged"] > found.final["auc"]
    assert f"test as served (position = 0, height = 1.5); as logged: AUC {as_logged.final['auc']:.10f}" in found.out
    assert trained.final["auc"] == found.final["auc"] and trained.final["auc_as_logged"] == found.final["auc_as_logged"]
    assert "auc_as_logged" not in as_served.final


def changed(folder, tmp_path, change):
    """Return a dataset with the same rows and another specification."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for entry in folder.iterdir():
        (copy / entry.name).symlink_to(entry) if entry.is_dir() else (copy / entry.name).write_bytes(entry.read_bytes())
    edit_spec(copy, lambda spec: change(spec["feature_spec"]))
    return copy


CHANGES = {
    "another value": (
        lambda features: features["position"].update(training_only={"serve": 1}),
        "scores take 0 for feature position, the dataset says 1",
    ),
    "none": (lambda features: features["height"].pop("training_only"), "scores take 1.5 for feature height, the dataset says the logged value"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", ["resume", "predict"])
def test_a_dataset_that_says_otherwise_is_refused(run, logged, tmp_path, mode, change):
    assert run("--dataset_path", logged, *TRAIN, "--save_checkpoint_path", tmp_path / "m").code == 0
    data = changed(logged, tmp_path, CHANGES[change][0])
    flags = (*TRAIN, "--epochs", "2") if mode == "resume" else ("--cpu", "--mode", "predict", "--predictions_path", tmp_path / "p.parquet")
    found = run("--dataset_path", data, *flags, "--restore_checkpoint_path", tmp_path / "m")
    assert found.code == 1 and CHANGES[change][1] in found.err and "Traceback" not in found.err


FAULTS = {
    "beyond the table": ("position", {"serve": 5}, "training_only.serve: expected an id from 0 to 4, found int '5'"),
    "negative": ("position", {"serve": -1}, "training_only.serve: expected an id from 0 to 4, found int '-1'"),
    "no id": ("position", {"serve": 0.5}, "training_only.serve: expected an id from 0 to 4, found float '0.5'"),
    "no value": ("position", {}, "training_only.serve: expected the value that scores take, found nothing"),
    "a word": ("height", {"serve": "high"}, "training_only.serve: expected the value that scores take, found str 'high'"),
    "another key": ("height", {"serves": 1}, "training_only: key 'serves' is not known"),
    "no mapping": ("height", 1.5, "training_only: expected a mapping of names to values, found float '1.5'"),
    "too large": ("height", {"serve": 1e6}, "training_only.serve: expected a finite float16, found float '1000000.0'"),
    "not finite": ("height", {"serve": float("nan")}, "training_only.serve: expected a finite float16, found float 'nan'"),
    "the label": ("label", {"serve": 1}, "key 'training_only' is not known"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_value_that_cannot_be_is_one_line(run, logged, tmp_path, fault):
    feature, only, message = FAULTS[fault]
    found = run("--dataset_path", changed(logged, tmp_path, lambda features: features[feature].update(training_only=only)), *TRAIN)
    assert found.code == 1 and message in found.err and "Traceback" not in found.err


def test_lists_are_refused(run, logged, tmp_path):
    only = {"hotness": 2, "training_only": {"serve": 1}}
    found = run("--dataset_path", changed(logged, tmp_path, lambda features: features["position"].update(only)), *TRAIN)
    assert found.code == 1 and "training_only: expected a feature of one id per sample, this one has lists" in found.err


def test_the_specification_keeps_the_values(logged):
    text = (logged / "feature_spec.yaml").read_text()
    spec = FeatureSpec.from_yaml(logged / "feature_spec.yaml")
    assert yaml.safe_load(text) == spec.to_dict() and spec.categorical[1].serve == 0 and spec.serve == {"height": 1.5}


def test_growth_keeps_the_values_and_a_new_run_may_change_them(run, logged, tmp_path):
    assert run("--dataset_path", logged, *TRAIN, "--save_checkpoint_path", tmp_path / "m").code == 0
    data = changed(logged, tmp_path, lambda features: features["position"].update(training_only={"serve": 4}))
    restored = ("--dataset_path", data, *TRAIN, "--restore_checkpoint_path", tmp_path / "m", "--save_checkpoint_path", tmp_path / "n")
    grown = run(*restored, "--allow_growth")
    assert grown.code == 1 and "scores take 0 for feature position, the dataset says 4" in grown.err
    assert run(*restored, "--resume", "weights").code == 0
    assert Checkpoint(tmp_path / "n").manifest["features"]["served"]["position"] == 4
