"""Tests of fm.py, deepfm.py and finalmlp.py, and of --linear: they train, resume, evaluate, predict, grow, load and are exported as dlrm.py does."""

import numpy as np
import polars
import pytest
from runs import here
from sklearn.metrics import roc_auc_score

import deepfm
import dlrm
import finalmlp
import fm
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from tests.combinations.combined import NUMERICAL, PLAIN, write_data
from tests.combinations.test_pairs import samples
from tests.serving.served_models import export
from utils.checkpoint.reading import Checkpoint

GATED = (
    "--stream1_dims",
    "16",
    "--stream2_dims",
    "8",
    "--gate_dims",
    "4",
    "--num_heads",
    "2",
    "--gate1_features",
    "cat_0",
    "--gate2_features",
    "cat_1",
)
PROGRAMS = {
    "fm.py": (fm.main, ()),
    "deepfm.py": (deepfm.main, ("--top_mlp_dims", "16,1")),
    "finalmlp.py": (finalmlp.main, GATED),
}
FLAGS = ("--cpu", "--embedding_dim", "4", "--batch_size", "256", "--valid_batch_size", "512", "--learning_rate", "0.01", "--warmup_steps", "0")


def run(program, folder, *flags):
    main, own = PROGRAMS[program]
    return here(folder, *FLAGS, *own, *flags, main=main, program=program)


@pytest.fixture(scope="module", params=PROGRAMS)
def trained(request, dataset, tmp_path_factory):
    """Train two epochs at once; return the program, the folder of checkpoints and the final figures."""
    folder = tmp_path_factory.mktemp("fm")
    flags = ("--dataset_path", dataset, "--epochs", "2", "--save_checkpoint_path", folder / "c")
    result = run(request.param, folder, *flags)
    assert result.code == 0 and result.final["auc"] > 0.6
    return request.param, folder / "c", result.final


def test_checkpoint_names_the_model_and_its_weights(trained):
    program, path, _ = trained
    manifest, names = Checkpoint(path).manifest, Checkpoint(path).names("dense/")
    assert manifest["model"]["name"] == ("finalmlp" if program == "finalmlp.py" else "fm")
    assert manifest["config"]["linear_optimizer"] == "ftrl"
    own = {"dense/bilinear/1/kernel", "dense/gate2/1/bias"} if program == "finalmlp.py" else {"dense/wide/0/kernel"}
    assert {"dense/numerical_vectors/kernel", *own} <= set(names)
    assert any(name.startswith("dense/top_mlp/") for name in names) == (program == "deepfm.py")


def test_resumed_run_ends_with_the_same_figures(trained, dataset, tmp_path):
    program, _, figures = trained
    flags = ("--dataset_path", dataset, "--epochs", "2", "--save_checkpoint_path", tmp_path / "c", "--checkpoint_every_steps", "3")
    assert run(program, tmp_path, *flags, "--max_steps", "5").code == 0
    resumed = run(program, tmp_path, *flags, "--resume", "auto")
    assert resumed.code == 0 and resumed.final["auc"] == figures["auc"] and resumed.final["train_loss"] == figures["train_loss"]


def test_dlrm_evaluates_predicts_explains_and_loads_it_without_model_flags(trained, dataset, tmp_path):
    _, path, figures = trained
    flags = ("--cpu", "--dataset_path", dataset, "--restore_checkpoint_path", path)
    assert here(tmp_path, "--mode", "eval", *flags).final["auc"] == figures["auc"]
    assert here(tmp_path, "--mode", "predict", "--predictions_path", tmp_path / "p.parquet", *flags).code == 0
    assert here(tmp_path, "--mode", "explain", *flags).code == 0
    predictions = polars.read_parquet(tmp_path / "p.parquet")
    scores = predictions["score"].to_numpy()
    assert roc_auc_score(predictions["label"].to_numpy(), scores) == pytest.approx(figures["auc"], abs=1e-6)
    split = TfRawSplit(FeatureSpec.from_yaml(dataset / "feature_spec.yaml"), "test")
    samples = dict(zip(split.spec.numerical, split.read_numerical(0, split.num_samples).T, strict=True))
    samples |= {feature.name: split.read_ids(i, 0, split.num_samples) for i, feature in enumerate(split.spec.categorical)}
    split.close()
    np.testing.assert_allclose(dlrm.load(path).score(samples), scores, rtol=1e-5, atol=1e-6)


def test_another_linear_optimizer_cannot_resume(trained, dataset, tmp_path):
    program, path, _ = trained
    flags = ("--dataset_path", dataset, "--epochs", "3", "--restore_checkpoint_path", path)
    result = run(program, tmp_path, *flags, *(("--num_heads", "4") if program == "finalmlp.py" else ("--linear_optimizer", "adam")))
    said = "num_heads" if program == "finalmlp.py" else "its run had linear_optimizer ftrl, this one has adam"
    assert result.code != 0 and said in result.err and "Traceback" not in result.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--linear_learning_rate", "1"), "--linear_learning_rate has no effect without --linear or --interaction fm or --interaction wide_and_deep"),
        (("--interaction", "fm", "--linear"), "--linear has no effect with --interaction fm"),
        (("--interaction", "fm", "--bottom_mlp_dims", "4"), "--bottom_mlp_dims has no effect with --interaction fm"),
    ],
    ids=" ".join,
)
def test_flags_without_effect_are_said(dataset, tmp_path, flags, said):
    words = ("--cpu", "--embedding_dim", "4", "--bottom_mlp_dims", "8,4", "--top_mlp_dims", "8,1", "--batch_size", "256", "--max_steps", "1")
    words = words if "--bottom_mlp_dims" not in flags else tuple(word for word in words if word not in ("--bottom_mlp_dims", "8,4"))
    result = here(tmp_path, "--dataset_path", dataset, *words, *flags)
    assert result.code == 0 and said in result.out + result.err


@pytest.mark.parametrize(
    "model",
    [{"top_mlp_dims": "1"}, {"top_mlp_dims": "8,1"}, {"interaction": "finalmlp", "gate2_features": "c", "num_heads": 20}, {"interaction": "none"}],
    ids=str,
)
def test_exports_without_numerical_features_score_as_the_evaluator(tmp_path, model):
    from tests.serving.real_server import packages

    packages("onnx", "onnxruntime")
    from serving.onnx_model import OnnxModel
    from serving.saved_model import LoadedModel

    data = write_data(tmp_path / "data", PLAIN, ())
    flags = {"interaction": "fm", "embedding_dim": 4, "optimizer": "adam", "learning_rate": 0.05, "linear_learning_rate": 0.5} | model
    flags |= {"batch_size": 64, "valid_batch_size": 200, "warmup_steps": 0, "cpu": True, "log_path": ""}
    dlrm.train(dataset_path=data, save_checkpoint_path=tmp_path / "c", **flags)
    assert "interaction" in model or Checkpoint(tmp_path / "c").read("dense/wide/bias")[0] != 0
    model = dlrm.load(tmp_path / "c", mmap=True)
    _, ids = samples(data)
    scores = model.over_arrays().score(np.zeros((len(ids), 0), np.float32), ids.astype(np.int32))
    assert np.ptp(scores) > 0.01
    export(tmp_path / "c", tmp_path / "r", "--formats", "onnx,savedmodel")
    for found in (OnnxModel(tmp_path / "r/dlrm_onnx/1/model.onnx"), LoadedModel(tmp_path / "r/dlrm_savedmodel/1/model.savedmodel")):
        np.testing.assert_allclose(found.score({"categorical": ids}).reshape(-1), scores, atol=1e-6, rtol=0)


@pytest.mark.parametrize("model", [{}, {"top_mlp_dims": "8,1"}, {"interaction": "finalmlp", "gate2_features": "b"}, {"interaction": "none"}], ids=str)
def test_grown_model_scores_old_samples_as_before(tmp_path, model):
    flags = {"interaction": "fm", "embedding_dim": 4, "optimizer": "adam", "learning_rate": 0.05, "batch_size": 64, "valid_batch_size": 200}
    flags |= {"warmup_steps": 0, "cpu": True, "log_path": ""} | model
    flags |= {"top_mlp_dims": "1", "linear_optimizer": "adam", "linear_learning_rate": 0.5} | model if flags["interaction"] == "fm" else {}
    old, grown = write_data(tmp_path / "old", PLAIN[:2], NUMERICAL[:2]), write_data(tmp_path / "grown", PLAIN, NUMERICAL)
    dlrm.train(dataset_path=old, save_checkpoint_path=tmp_path / "c", **flags)
    rates = {name: 1e-30 for name in ("learning_rate", "linear_learning_rate") if name in flags}
    facts = {"restore_checkpoint_path": tmp_path / "c", "allow_growth": True, "save_checkpoint_path": tmp_path / "g", "max_steps": 1}
    dlrm.train(dataset_path=grown, **(flags | rates | facts))
    numerical, ids = samples(grown)
    before = dlrm.load(tmp_path / "c", mmap=True).over_arrays().score(numerical[:, :2].copy(), ids[:, :2].astype(np.int32))
    after = dlrm.load(tmp_path / "g", mmap=True).over_arrays().score(numerical, ids.astype(np.int32))
    assert np.ptp(before) > 0.05
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
