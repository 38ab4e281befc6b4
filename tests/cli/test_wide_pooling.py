"""Tests that Wide & Deep sums the rows of its linear part, whichever pooling a feature has in the deep part.

Models of older checkpoints, which averaged them, still do.
"""

import json
import subprocess
import sys

import numpy as np
import polars
import pytest
from runs import ROOT, child, here
from test_lists import write  # a dataset whose feature tags has lists and pooling: mean

import dlrm
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from utils.checkpoint import manifest
from utils.checkpoint.folder import pointed
from utils.checkpoint.reading import Checkpoint

MODEL = ("--interaction", "wide_and_deep", "--embedding_dim", "4", "--top_mlp_dims", "8,1", "--optimizer", "rmsprop", "--linear_learning_rate", "0.5")
FLAGS = ("--cpu", *MODEL, "--batch_size", "256", "--valid_batch_size", "500", "--learning_rate", "0.001", "--warmup_steps", "0")
FEATURES = ("user", "bought", "item", "tags", "seen")
AVERAGES = "the linear part averages the rows of tags, as it did when the checkpoint was trained (--wide_pooling feature)"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists") / "data"
    write(folder, ("price", "age"), {"train": 4000, "test": 500})
    return folder


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    result = child(folder, "--dataset_path", data, *FLAGS, "--epochs", "2", "--save_checkpoint_path", folder / "c")
    assert result.code == 0 and result.err == "", result.err
    return folder / "c", result


@pytest.fixture(scope="module")
def older(data, tmp_path_factory):
    """Write a checkpoint as older versions did, whose manifest does not say how the linear part pools; return the folder of checkpoints."""
    folder = tmp_path_factory.mktemp("older")
    flags = ("--dataset_path", data, *FLAGS, "--epochs", "1", "--wide_pooling", "feature")
    assert here(folder, *flags, "--save_checkpoint_path", folder / "c").code == 0
    path = pointed(folder / "c/latest") / manifest.NAME
    content = json.loads(path.read_text())
    del content["config"]["wide_pooling"], content["model"]["wide_pooling"], content["checksum"]
    path.write_text(json.dumps(content | {"checksum": manifest.checksum(content)}))
    return folder / "c"


def rows_of_test(data):
    """Return the columns of the test split by feature."""
    split = TfRawSplit(FeatureSpec.from_yaml(data / "feature_spec.yaml"), "test")
    count = split.num_samples
    columns = dict(zip(split.spec.numerical, split.read_numerical(0, count).T, strict=True))
    columns |= {feature.name: split.read_ids(place, 0, count) for place, feature in enumerate(split.spec.categorical)}
    split.close()
    return columns


def expected_scores(path, columns, wide_means):
    """Compute the scores with NumPy from the checkpoint's arrays, slowly; `wide_means` averages lists in the linear part."""
    found = Checkpoint(path)
    numbers = np.stack([columns["price"], columns["age"]], axis=1)
    deep, logits = [numbers], numbers @ found.read("dense/wide/0/kernel")[:, 0] + found.read("dense/wide/0/bias")[0]
    for name in FEATURES:
        table, wide = ("items" if name in ("bought", "item") else name), 0
        rows, flat = found.read(f"tables/{table}/weights"), found.read(f"tables/{table}_wide/weights")[:, 0]
        ids = columns[name] if columns[name].ndim == 2 else columns[name][:, None]
        there = (ids >= 0)[:, :, None]
        count = np.maximum(there.sum(axis=1), 1)
        vectors = np.where(there, rows[np.maximum(ids, 0)], 0).sum(axis=1)
        deep.append(vectors / count if name == "tags" else vectors)
        wide = np.where(there[:, :, 0], flat[np.maximum(ids, 0)], 0).sum(axis=1)
        logits = logits + (wide / count[:, 0] if name == "tags" and wide_means else wide)
    last = np.concatenate(deep, axis=1)
    hidden = np.maximum(last @ found.read("dense/deep/0/kernel") + found.read("dense/deep/0/bias"), 0)
    logits = logits + (hidden @ found.read("dense/deep/1/kernel") + found.read("dense/deep/1/bias"))[:, 0]
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def test_linear_part_sums_the_rows_of_a_list(data, trained):
    path, columns = trained[0], rows_of_test(data)
    expected, averaged = (expected_scores(path, columns, means) for means in (False, True))
    assert np.abs(expected - averaged).max() > 1e-2
    for mmap in (False, True):
        np.testing.assert_allclose(dlrm.load(path, mmap=mmap).score(columns), expected, atol=1e-6, rtol=0)
    assert Checkpoint(path).manifest["model"]["wide_pooling"] == "sum"


def test_gradient_of_the_linear_part_is_that_of_the_sum(tmp_path):
    """A row's gradient is that of the sum, not divided by the number of ids in its list; one step of FTRL from zero is computed by hand."""
    write(tmp_path / "data", (), {"train": 4000, "test": 500})
    flags = ("--dataset_path", tmp_path / "data", *FLAGS, "--embedding_zeros_initializer", "--batch_size", "4000", "--max_steps", "1")
    assert here(tmp_path, *flags, "--save_checkpoint_path", tmp_path / "c").code == 0
    split = TfRawSplit(FeatureSpec.from_yaml(tmp_path / "data/feature_spec.yaml"), "train")
    ids, labels = split.read_ids(3, 0, 4000), split.read_labels(0, 4000)
    split.close()
    errors = (0.5 - labels) / 4000  # all vectors and biases are zero, so all logits are zero, too
    gradient = np.zeros(50)
    np.add.at(gradient, ids[ids >= 0], np.repeat(errors, (ids >= 0).sum(axis=1)))
    # FTRL of power -1/2 and accumulator 0.1, from a weight of 0: w = -rate g / sqrt(0.1 + g^2)
    found = Checkpoint(tmp_path / "c").read("tables/tags_wide/weights")[:, 0]
    np.testing.assert_allclose(found, -gradient * 0.5 / np.sqrt(0.1 + gradient**2), rtol=1e-4, atol=1e-8)


def test_older_checkpoint_keeps_its_scores_with_one_warning(data, older, tmp_path, capfd):
    columns = rows_of_test(data)
    capfd.readouterr()
    found = dlrm.load(older, mmap=True)
    assert capfd.readouterr().err == f"dlrm.load: warning: {AVERAGES}; a new model sums them, as published\n"
    np.testing.assert_allclose(found.score(columns), expected_scores(older, columns, True), atol=1e-6, rtol=0)
    flags = ("--dataset_path", data, "--cpu", "--restore_checkpoint_path", older)
    predicted = here(tmp_path, *flags, "--mode", "predict", "--predictions_path", tmp_path / "p.parquet")
    assert predicted.err.count("\n") == 1 and AVERAGES in predicted.err
    np.testing.assert_array_equal(polars.read_parquet(tmp_path / "p.parquet")["score"].to_numpy(), found.score(columns))
    exported = here(tmp_path, *flags, "--mode", "export", "--export_path", tmp_path / "r")
    assert exported.code == 0 and exported.err.count(AVERAGES) == 1
    served = dlrm.load(tmp_path / "r/dlrm/1/checkpoint", mmap=True)
    np.testing.assert_allclose(served.score(columns), found.score(columns), atol=1e-6, rtol=0)


def test_older_run_resumes_with_its_pooling(data, older, tmp_path):
    flags = ("--dataset_path", data, "--cpu", "--restore_checkpoint_path", older, "--epochs", "2", "--save_checkpoint_path", tmp_path / "c")
    resumed = here(tmp_path, *flags)
    assert resumed.code == 0 and resumed.err.count("\n") == 1 and AVERAGES in resumed.err
    assert Checkpoint(tmp_path / "c").manifest["model"]["wide_pooling"] == "feature"
    whole = here(tmp_path, "--dataset_path", data, *FLAGS, "--epochs", "2", "--wide_pooling", "feature")
    assert resumed.final["auc"] == whole.final["auc"]
    changed = here(tmp_path, *flags, "--wide_pooling", "sum")
    assert changed.code == 1 and "--wide_pooling sum: the checkpoint's model has feature" in changed.err


def test_wide_pooling_without_effect_is_warned_about(data, tmp_path):
    flags = ("--dataset_path", data, "--cpu", "--interaction", "cat", "--embedding_dim", "4", "--bottom_mlp_dims", "8,4", "--top_mlp_dims", "8,1")
    result = here(tmp_path, *flags, "--max_steps", "1", "--wide_pooling", "feature")
    assert "--wide_pooling has no effect without --interaction wide_and_deep" in result.err
    help_text = subprocess.run([sys.executable, ROOT / "wide_and_deep.py", "--help"], capture_output=True, text=True, check=True).stdout
    assert "--wide_pooling" in help_text
