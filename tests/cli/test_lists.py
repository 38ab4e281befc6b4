"""Tests of features with lists of ids, a shared table, several widths and no numerical features, in training, resuming and scoring; their errors."""

import json

import numpy as np
import polars
import pytest
from runs import child, edit_spec, here

import dlrm
from dataloading.bayes import bayes_metrics
from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter
from utils.checkpoint.reading import Checkpoint

FEATURES = (
    Categorical("user", 2000, "int32", alpha=1.2),
    Categorical("bought", 300, "int32", 20, 1.1, table="items"),
    Categorical("item", 300, "int32", alpha=1.1, table="items"),
    Categorical("tags", 50, "int32", 5, 1.2, pooling="mean"),
    Categorical("seen", 500, "int32", 10, 1.3),
)
ROWS = {"train": 120_000, "test": 20_000}
MODEL = ("--embedding_dim", "16", "--bottom_mlp_dims", "32,16", "--top_mlp_dims", "64,1")
CROSS = ("--interaction", "cross", "--cross_layer_projection_dim", "16")
SCHEDULE = ("--optimizer", "adam", "--learning_rate", "0.01", "--warmup_steps", "10", "--decay_start_step", "100", "--decay_steps", "140")
FLAGS = ("--cpu", "--batch_size", "512", "--valid_batch_size", "20000", *SCHEDULE)


def spec(numerical):
    dtypes = {feature.name: "int32" for feature in FEATURES} | dict.fromkeys(numerical, "float32") | {"label": "int8"}
    return FeatureSpec(FEATURES, numerical, "label", dtypes)


def write(folder, numerical, rows=ROWS):
    """Write a synthetic dataset; return the Bayes AUC of its last split, which no model can beat."""
    with TfRawWriter(folder, spec(numerical), tuple(rows)) as writer:
        for split, count in rows.items():
            *columns, labels, probabilities = SyntheticSplit(spec(numerical), split, count, seed=1).read_rows(0, count)
            writer.append(split, *columns, labels)
        writer.publish({})
    return bayes_metrics(probabilities, labels)["bayes_auc"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists") / "data"
    return folder, write(folder, ("price", "age"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Write a small dataset without numerical features; return its folder."""
    folder = tmp_path_factory.mktemp("bare") / "data"
    write(folder, (), {"train": 4000, "test": 500})
    return folder


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    result = child(folder, "--dataset_path", data[0], *FLAGS, *MODEL, *CROSS, "--save_checkpoint_path", folder / "c")
    return folder / "c", result.final["auc"]


def test_auc_comes_within_a_hundredth_of_the_bayes_auc(trained, data):
    _, best = data
    assert best > 0.8 and best - 0.01 < trained[1] <= best + 0.002


def columns(folder, numerical=("price", "age"), count=None):
    """Return samples of the test split as arrays by feature; lists are padded with −1."""
    found = SyntheticSplit(spec(numerical), "test", ROWS["test"], seed=1)
    count = count or ROWS["test"]
    arrays = {feature.name: found.read_ids(place, 0, count) for place, feature in enumerate(FEATURES)}
    numbers = found.read_numerical(0, count)
    return arrays | {name: numbers[:, place] for place, name in enumerate(numerical)}


def test_evaluation_predictions_and_python_api_agree(trained, data, tmp_path):
    path, auc = trained
    flags = ("--cpu", "--dataset_path", data[0], "--restore_checkpoint_path", path)
    assert here(tmp_path, "--mode", "eval", *flags).final["auc"] == auc
    assert here(tmp_path, "--mode", "predict", "--predictions_path", tmp_path / "p.parquet", *flags).code == 0
    predicted = polars.read_parquet(tmp_path / "p.parquet")["score"].to_numpy()
    given = columns(data[0])
    lists = given | {name: values.tolist() for name, values in given.items() if values.ndim == 2}
    lists["tags"] = [ids[:2] for ids in lists["tags"]]
    for mmap in (False, True):
        model = dlrm.load(path, mmap=mmap)
        np.testing.assert_array_equal(model.score(given), predicted)
        padded = given | {"tags": np.where(np.arange(5) < 2, given["tags"], -1)}
        np.testing.assert_array_equal(model.score(lists), model.score(padded))
    assert model.hotness == {"user": 1, "bought": 20, "item": 1, "tags": 5, "seen": 10} and "items [300, 16]" in repr(model)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tags", lambda values: [[0] * 6] * len(values), "feature tags: sample 0 has 6 ids, expected at most 5"),
        ("tags", lambda values: np.zeros((len(values), 6), int), "feature tags: has 6 ids a sample, expected at most 5"),
        ("tags", lambda values: [["a"]] * len(values), "feature tags: sample 0 holds .* expected a list of at most 5 ids"),
        ("tags", lambda values: np.where(values == values, 50, values), r"feature tags: id 50 of sample 0 is not in \[0, 50\)"),
        ("tags", lambda values: np.where(values == values, -2, values), r"feature tags: id -2 of sample 0"),
        ("item", lambda values: -1 - 0 * values, r"feature item: id -1 of sample 0"),
        ("bought", lambda values: [[]] * 3, "feature bought: has shape"),
    ],
)
def test_invalid_samples_are_rejected(trained, data, name, change, message):
    given = columns(data[0], count=10)
    with pytest.raises(ValueError, match=message):
        dlrm.load(trained[0]).score(given | {name: change(given[name])})


@pytest.mark.parametrize("flags", [(*MODEL, "--optimizer", "rowwise_adagrad"), ("--embedding_dim", "4,8,8,3,5", "--interaction", "cat")])
def test_resume_is_exact(run, bare, tmp_path, flags):
    flags = ("--dataset_path", bare, "--cpu", "--batch_size", "256", "--learning_rate", "0.05", "--top_mlp_dims", "16,1", *flags)
    flags += ("--warmup_steps", "3", "--checkpoint_every_steps", "2")
    assert run(*flags, "--save_checkpoint_path", tmp_path / "whole").code == 0
    assert run(*flags, "--max_steps", "7", "--save_checkpoint_path", tmp_path / "cut").code == 0
    assert run(*flags, "--resume", "auto", "--save_checkpoint_path", tmp_path / "cut").code == 0
    whole, cut = Checkpoint(tmp_path / "whole"), Checkpoint(tmp_path / "cut")
    assert whole.step == cut.step and "dense/bottom_mlp/0/kernel" not in whole.names("")
    for name in whole.names(""):
        np.testing.assert_array_equal(cut.read(name), whole.read(name), err_msg=name)


def test_widths_from_a_json_file_and_from_the_specification(run, bare, tmp_path):
    (tmp_path / "widths.json").write_text(json.dumps([4, 8, 8, 3, 5]))
    flags = ("--dataset_path", bare, "--cpu", "--interaction", "cat", "--batch_size", "256", "--max_steps", "2", "--top_mlp_dims", "4,1")
    assert run(*flags, "--embedding_dim", tmp_path / "widths.json", "--save_checkpoint_path", tmp_path / "c").code == 0
    found = Checkpoint(tmp_path / "c")
    shapes = {name: found.shape(f"tables/{name}/weights") for name in ("user", "items", "tags", "seen")}
    assert shapes == {"user": (2000, 4), "items": (300, 8), "tags": (50, 3), "seen": (500, 5)}
    edit_spec(bare, lambda content: content["feature_spec"]["item"].update(embedding_dim=6))
    try:
        result = run(*flags, "--embedding_dim", "4,8,8,3,5")
        assert result.code == 1 and "--embedding_dim: 8 columns for feature bought, the feature specification says 6 for its table" in result.err
        assert run(*flags, "--embedding_dim", "4", "--save_checkpoint_path", tmp_path / "d").code == 0
        assert Checkpoint(tmp_path / "d").shape("tables/items/weights") == (300, 6)
        dot = ("--dataset_path", bare, "--cpu", "--batch_size", "256", "--max_steps", "1", "--top_mlp_dims", "4,1")
        result = run(*dot, "--embedding_dim", "4", "--save_checkpoint_path", tmp_path / "e")
        assert result.code == 0 and "--interaction dot takes tables of one width: all have the 4 columns of --embedding_dim" in result.err
        assert "(6 for some) has no effect" in result.err
        assert {Checkpoint(tmp_path / "e").shape(f"tables/{name}/weights")[1] for name in shapes} == {4}
    finally:
        edit_spec(bare, lambda content: content["feature_spec"]["item"].pop("embedding_dim"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--embedding_dim", "4,8"), "--embedding_dim 4,8: --interaction dot takes tables of one width"),
        (("--embedding_dim", "4,8", "--interaction", "cat"), "--embedding_dim lists 2 widths, the dataset has 5 categorical features"),
        (("--embedding_dim", "4,8,9,3,5", "--interaction", "cat"), "feature item: --embedding_dim gives it 9 columns, but its table items has 8"),
        (("--embedding_dim", "4,0,0,3,5"), "--embedding_dim 4,0,0,3,5: expected at least 1 column"),
        (("--embedding_dim", "nowhere.json"), "nowhere.json: No such file or directory"),
        (("--embedding_dim", "wide"), "'wide' is not a whole number, a list of them separated by commas, or a JSON file of either"),
    ],
)
def test_invalid_widths_are_a_one_line_error(run, bare, flags, message):
    result = run("--dataset_path", bare, "--cpu", *flags)
    assert result.code == 1 and message in result.err and len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: facts["tags"].pop("pooling"), "the vectors of feature tags were pooled by mean, the dataset says sum"),
        (lambda facts: facts["bought"].pop("table"), "feature bought was looked up in table items, the dataset says bought"),
    ],
)
def test_dataset_with_other_pooling_or_tables_is_rejected(run, trained, data, change, message):
    path = data[0] / "feature_spec.yaml"
    before = path.read_text()
    edit_spec(data[0], lambda content: change(content["feature_spec"]))
    try:
        result = run("--mode", "eval", "--cpu", "--dataset_path", data[0], "--restore_checkpoint_path", trained[0])
    finally:
        path.write_text(before)
    assert result.code == 1 and message in result.err and len(result.err.splitlines()) == 1
