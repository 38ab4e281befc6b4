"""Tests of dcnv2.py: DCN V2 with its own defaults trains, resumes, evaluates and scores as dlrm.py's models do."""

import subprocess
import sys

import numpy as np
import polars
import pytest
from runs import ROOT, SMALL, Result, here, read_log
from sklearn.metrics import roc_auc_score

import dcnv2
import dlrm
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from utils.checkpoint.reading import Checkpoint

CROSS = ("--num_cross_layers", "2", "--cross_layer_projection_dim", "6")
FLAGS = ("--cpu", *SMALL, *CROSS, "--batch_size", "256", "--valid_batch_size", "512", "--learning_rate", "0.01", "--warmup_steps", "0")


def run(folder, *flags):
    return here(folder, *flags, main=dcnv2.main, program="dcnv2.py")


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    """Train in a process of its own; return the folder of checkpoints and the final figures."""
    folder = tmp_path_factory.mktemp("dcnv2")
    flags = ("--dataset_path", dataset, *FLAGS, "--epochs", "2", "--save_checkpoint_path", folder / "c", "--log_path", folder / "log.json")
    command = [sys.executable, ROOT / "dcnv2.py", *flags]
    result = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return folder / "c", Result(result.returncode, result.stdout, result.stderr, read_log(folder / "log.json")).final


def test_dcnv2_learns_and_its_checkpoint_names_the_model(trained):
    path, figures = trained
    manifest = Checkpoint(path).manifest
    assert figures["auc"] > 0.6 and manifest["model"]["name"] == "dcnv2"
    assert (manifest["config"]["interaction"], manifest["config"]["optimizer"]) == ("cross", "adam")
    assert {name for name in Checkpoint(path).names("dense/cross/")} == {
        f"dense/cross/{i}/{part}" for i in (0, 1) for part in ("v/kernel", "u/kernel", "u/bias")
    }


def test_dlrm_evaluates_predicts_and_loads_it_without_model_flags(trained, dataset, tmp_path):
    path, figures = trained
    flags = ("--cpu", "--dataset_path", dataset, "--restore_checkpoint_path", path)
    assert here(tmp_path, "--mode", "eval", *flags).final["auc"] == figures["auc"]
    assert here(tmp_path, "--mode", "predict", "--predictions_path", tmp_path / "p.parquet", *flags).code == 0
    predictions = polars.read_parquet(tmp_path / "p.parquet")
    scores = predictions["score"].to_numpy()
    assert roc_auc_score(predictions["label"].to_numpy(), scores) == pytest.approx(figures["auc"], abs=1e-6)
    split = TfRawSplit(FeatureSpec.from_yaml(dataset / "feature_spec.yaml"), "test")
    count = split.num_samples
    samples = dict(zip(split.spec.numerical, split.read_numerical(0, count).T, strict=True))
    samples |= {feature.name: split.read_ids(i, 0, count) for i, feature in enumerate(split.spec.categorical)}
    split.close()
    for mmap in (False, True):
        model = dlrm.load(path, mmap=mmap)
        assert repr(model).startswith("dcnv2 of ")
        np.testing.assert_array_equal(model.score(samples), scores)
        np.testing.assert_allclose(model.score({name: values[3:8] for name, values in samples.items()}), scores[3:8], rtol=0, atol=1e-6)


def test_resume_is_exact(trained, dataset, tmp_path):
    path, _ = trained
    cut = ("--epochs", "2", "--max_steps", "9", "--save_checkpoint_path", tmp_path / "d")
    assert run(tmp_path, "--dataset_path", dataset, *FLAGS, *cut).code == 0
    flags = ("--restore_checkpoint_path", tmp_path / "d", "--save_checkpoint_path", tmp_path / "d")
    assert run(tmp_path, "--cpu", "--dataset_path", dataset, *flags).code == 0
    whole, cut = Checkpoint(path), Checkpoint(tmp_path / "d")
    assert whole.names("") == cut.names("") and whole.step == cut.step
    for name in whole.names(""):
        np.testing.assert_array_equal(cut.read(name), whole.read(name), err_msg=name)


def test_help_shows_its_defaults_and_flags_override_them(dataset, tmp_path):
    text = subprocess.run([sys.executable, ROOT / "dcnv2.py", "--help"], capture_output=True, text=True, timeout=240, check=True).stdout
    for words in ("default: cross", "default: adam", "default: 0.0001", "default: 100;"):
        assert words in " ".join(text.split()), words
    result = run(tmp_path, "--dataset_path", dataset, *FLAGS, "--interaction", "dot", "--optimizer", "sgd", "--max_steps", "1")
    assert result.code == 0 and "--num_cross_layers has no effect without --interaction cross" in result.err


@pytest.mark.parametrize(
    "flags", [("--interaction", "cat"), ("--interaction", "cat", "--bottom_mlp_dims", "16,5"), ("--interaction", "dot_tensorflow")]
)
def test_other_interactions_train(dataset, tmp_path, flags):
    result = here(tmp_path, "--dataset_path", dataset, *SMALL, "--cpu", "--batch_size", "256", "--max_steps", "3", *flags)
    assert result.code == 0, result.err


def test_a_checkpoint_of_another_interaction_is_refused(trained, dataset, tmp_path):
    result = here(tmp_path, "--mode", "eval", "--cpu", "--dataset_path", dataset, "--restore_checkpoint_path", trained[0], "--interaction", "dot")
    assert result.code == 1 and "--interaction dot: the checkpoint's model has cross; drop the flag" in result.err


def test_mlp_width_other_than_embedding_dim_is_an_error_with_dot(dataset, tmp_path):
    result = here(tmp_path, "--dataset_path", dataset, "--cpu", "--embedding_dim", "8", "--bottom_mlp_dims", "16,5", "--top_mlp_dims", "4,1")
    assert result.code == 1 and "the last width must be --embedding_dim 8, because the dot interaction takes products of both" in result.err
