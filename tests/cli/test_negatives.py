"""Tests of training on sampled negatives: shifted logits wherever the model scores, reweighed negatives, and the checks of resumed runs."""

import math

import numpy as np
import polars
import pytest
from runs import TRAIN, edit_spec, write_dataset

import dlrm
from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.tf_raw import TfRawWriter
from utils.checkpoint.reading import Checkpoint

RATE = 0.2
MODELS = {
    "dot": (),
    "fm": ("--interaction", "fm", "--top_mlp_dims", "1"),
    "finalmlp": ("--interaction", "finalmlp", "--stream1_dims", "8", "--stream2_dims", "8", "--num_heads", "2", "--gate1_features", "cat_0"),
    "none": ("--interaction", "none"),
    "batch norm": ("--batch_norm",),
    "wide and deep": ("--interaction", "wide_and_deep"),
}


def stated(folder, rate=RATE):
    """State a rate in the specification of a dataset."""
    edit_spec(folder, lambda spec: spec["metadata"].update(negative_rate=rate))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("plain") / "d", rows={"train": 1500, "test": 400})


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    return stated(write_dataset(tmp_path_factory.mktemp("sampled") / "d", rows={"train": 1500, "test": 400}))


def logits_of(run, folder, checkpoint, tmp_path, *flags):
    path = tmp_path / "p.parquet"
    found = run("--dataset_path", folder, "--cpu", "--mode", "predict", "--restore_checkpoint_path", checkpoint, "--predictions_path", path, *flags)
    assert found.code == 0, found.err
    scores = polars.read_parquet(path)["score"].to_numpy().astype(np.float64)
    return np.log(scores / (1 - scores))


@pytest.mark.parametrize("model", MODELS)
def test_every_scorer_adds_the_shift(run, plain, sampled, tmp_path, model):
    """Training is that of the dataset without a rate; scores of predictions, `dlrm.load` and the C++ scorer differ by log(rate) in the logit."""
    flags = (*TRAIN, *MODELS[model])
    before, after = (run("--dataset_path", data, *flags, "--save_checkpoint_path", tmp_path / data.parent.name) for data in (plain, sampled))
    assert before.final["train_loss"] == after.final["train_loss"]
    assert f"negatives were kept at the rate {RATE} (--negatives recalibrate)" in after.out
    assert f"logits are shifted by {math.log(RATE):.6g} wherever the model scores" in after.out
    of_plain = logits_of(run, plain, tmp_path / plain.parent.name, tmp_path)
    of_sampled = logits_of(run, sampled, tmp_path / sampled.parent.name, tmp_path)
    np.testing.assert_allclose(of_sampled - of_plain, math.log(RATE), atol=2e-5)
    if model == "dot":
        np.testing.assert_array_equal(logits_of(run, sampled, tmp_path / sampled.parent.name, tmp_path, "--logit_shift", "0"), of_plain)
    draw = np.random.default_rng(0)
    rows = {f"num_{i}": draw.random(300) for i in range(3)} | {f"cat_{i}": draw.integers(0, rows, 300) for i, rows in enumerate((50, 300, 7))}
    for mapped in (False, True):
        loaded = [dlrm.load(tmp_path / data.parent.name, cpu=True, mmap=mapped) for data in (plain, sampled)]
        for count in (1, 300):  # the C++ scorer scores few rows, TensorFlow many
            scores = [np.float64(one.score({name: values[:count] for name, values in rows.items()})) for one in loaded]
            shifts = [np.log(score / (1 - score)) for score in scores]
            np.testing.assert_allclose(shifts[1] - shifts[0], math.log(RATE), atol=2e-5)


def test_inference_by_the_scorer_has_the_auc_of_evaluation(run, sampled, tmp_path):
    trained = run("--dataset_path", sampled, *TRAIN, "--save_checkpoint_path", tmp_path / "c")
    restored = ("--dataset_path", sampled, "--cpu", "--restore_checkpoint_path", tmp_path / "c")
    evaluated = run(*restored, "--mode", "eval")
    assert evaluated.final["auc"] == trained.final["auc"] and evaluated.final["test_loss"] == trained.final["validation_loss"]
    measured = run(*restored, "--mode", "inference", "--inference_benchmark_batch_sizes", "64", "--max_steps", "20")
    assert measured.final["auc"] == pytest.approx(evaluated.final["auc"], abs=1e-6)


def test_reweighed_negatives_are_those_of_a_weight_column(run, sampled, tmp_path):
    from test_sample_weights_cli import write_weighted

    rows = {"train": 1500, "valid": 300, "test": 400}
    by_column = write_weighted(tmp_path / "w", rows)
    for split in rows:
        labels = np.fromfile(by_column / split / "label.bin", np.uint8)
        np.where(labels, 1, 1 / RATE if split == "train" else 1).astype(np.float32).tofile(by_column / split / "weight.bin")
    by_rate = stated(write_dataset(tmp_path / "r", rows=rows))
    found = run("--dataset_path", by_rate, *TRAIN, "--negatives", "reweigh", "--save_checkpoint_path", tmp_path / "c")
    expected = run("--dataset_path", by_column, *TRAIN)
    assert found.final["train_loss"] == expected.final["train_loss"] and found.final["auc"] == expected.final["auc_unweighted"]
    assert "each counts 5 times in the loss (--negatives reweigh)" in found.out
    resumed = ("--dataset_path", by_rate, *TRAIN, "--epochs", "2", "--save_checkpoint_path", tmp_path / "c", "--resume", "exact")
    assert (
        "its run had negatives reweigh, this one has as_is" in run(*resumed, "--negatives", "as_is", "--restore_checkpoint_path", tmp_path / "c").err
    )
    stated(by_rate, 0.3)
    assert "its run had negative_rate 0.2, this one has 0.3" in run(*resumed, "--restore_checkpoint_path", tmp_path / "c").err


def test_held_out_rows_are_weighed_and_test_rows_are_not(run, sampled):
    found = run("--dataset_path", sampled, *TRAIN, "--valid_fraction", "0.2")
    labels = np.fromfile(sampled / "train" / "label.bin", np.uint8)[1200:]
    weight = labels.sum() + (1 - labels.astype(int)).sum() / RATE
    assert f"valid by the weights, {weight:,.6g} in all; unweighted: AUC" in found.out
    assert "test by the weights" not in found.out and "valid_auc_unweighted" in found.final


def test_lines_about_the_rate(run, plain, sampled, tmp_path):
    assert (
        "--negatives as_is: negatives were kept at the rate 0.2, so the odds of scores will be 5 times those of all rows"
        in run("--dataset_path", sampled, *TRAIN, "--negatives", "as_is").err
    )
    assert (
        "--negatives reweigh has no effect: the dataset states no negative_rate" in run("--dataset_path", plain, *TRAIN, "--negatives", "reweigh").err
    )
    for rate in (0, 1.5, -1, "x", True):
        folder = stated(write_dataset(tmp_path / str(rate), rows={"train": 600, "test": 300}), rate)
        found = run("--dataset_path", folder, *TRAIN)
        assert found.code == 1 and "metadata.negative_rate: expected a number above 0 and up to 1" in found.err


@pytest.mark.parametrize("model", ["batch norm", "finalmlp"])
def test_exports_score_with_the_shift(run, sampled, tmp_path, model):
    """An export is proved against its checkpoint's scores, which have the shift (see above)."""
    assert run("--dataset_path", sampled, *TRAIN, *MODELS[model], "--save_checkpoint_path", tmp_path / "c").code == 0
    flags = ("--mode", "export", "--restore_checkpoint_path", tmp_path / "c", "--export_path", tmp_path / "e", "--formats", "triton,savedmodel,onnx")
    found = run("--dataset_path", sampled, "--cpu", *flags)
    assert found.code == 0, found.err
    differences = [
        float(line.partition("largest difference ")[2].partition(";")[0]) for line in found.out.splitlines() if "largest difference" in line
    ]
    assert len(differences) == 3 and max(differences) < 1e-6


def test_wide_and_deep_without_numerical_features_has_the_shift_everywhere(run, tmp_path):
    folder = stated(write_without_numericals(tmp_path / "d"))
    flags = (*TRAIN, "--interaction", "wide_and_deep", "--save_checkpoint_path", tmp_path / "c")
    assert run("--dataset_path", folder, *flags).code == 0
    loaded = dlrm.load(tmp_path / "c", cpu=True, mmap=True)
    rows = {"a": np.arange(300) % 40, "b": np.arange(300) % 7}
    np.testing.assert_allclose(loaded.score({name: column[:2] for name, column in rows.items()}), loaded.score(rows)[:2], rtol=1e-5)
    export = ("--mode", "export", "--restore_checkpoint_path", tmp_path / "c", "--export_path", tmp_path / "e")
    assert run("--dataset_path", folder, "--cpu", *export).code == 0


def write_without_numericals(folder):
    spec = FeatureSpec((Categorical("a", 40, "int8"), Categorical("b", 7, "int8")), (), "label", {"a": "int8", "b": "int8", "label": "bool"})
    draw = np.random.default_rng(0)
    with TfRawWriter(folder, spec) as writer:
        for split, count in {"train": 1000, "test": 300}.items():
            writer.append(split, np.empty((count, 0)), [draw.integers(0, 40, count), draw.integers(0, 7, count)], draw.random(count) < 0.3)
        writer.publish({})
    return folder


def test_weights_keep_their_shift_in_training_that_goes_on_from_them(run, plain, sampled, tmp_path):
    given = run("--dataset_path", plain, *TRAIN, "--logit_shift=-2.5", "--save_checkpoint_path", tmp_path / "a")
    assert "logits are shifted by -2.5 wherever the model scores (--logit_shift)" in given.out
    restored = ("--restore_checkpoint_path", tmp_path / "a", "--resume", "weights")
    kept = run("--dataset_path", plain, *TRAIN, *restored, "--save_checkpoint_path", tmp_path / "b")
    assert "logits are shifted by -2.5 wherever the model scores, from the checkpoint" in kept.out
    assert Checkpoint(tmp_path / "b").manifest["config"]["logit_shift"] == -2.5
    other = run("--dataset_path", sampled, *TRAIN, *restored, "--save_checkpoint_path", tmp_path / "c")
    assert "the checkpoint's logits are shifted by -2.5; this run's by -1.60944, by the dataset's rate" in other.err


def test_the_log_of_wide_and_deep_has_the_loss_of_training(run, plain, sampled):
    flags = (*TRAIN, "--interaction", "wide_and_deep", "--print_freq", "1", "--max_steps", "2")
    before, after = (run("--dataset_path", data, *flags) for data in (plain, sampled))
    losses = [[line["data"]["loss"] for line in result.log if "mean_loss" in line.get("data", {})] for result in (before, after)]
    assert losses[0] == losses[1] and len(losses[0]) == 2


def test_as_is_weighs_nothing(run, sampled):
    found = run("--dataset_path", sampled, *TRAIN, "--valid_fraction", "0.2", "--negatives", "as_is")
    assert found.code == 0 and "by the weights" not in found.out and "auc_unweighted" not in found.final
