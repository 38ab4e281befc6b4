"""Tests of dlrm.py from end to end. Tests that need a process of their own start one; the others call the same `main` in this process."""

import re
import shutil

import numpy as np
import polars
import pytest
import sklearn.metrics
from runs import ROWS, SMALL, TRAIN, child, edit_spec, write_dataset


def test_training_logs_its_final_figures_and_learns(trained):
    _, result = trained
    assert result.err == ""
    assert {"throughput", "mean_step_time_ms", "auc", "validation_loss", "train_loss", "samples"} <= result.final.keys()
    assert result.final["samples"] == 3 * ROWS["train"] and result.final["steps"] == 3 * 16
    assert result.final["auc"] > 0.65 and result.final["throughput"] > 0
    assert result.log[0]["step"] == "PARAMETER" and result.log[0]["data"]["epochs"] == 3
    assert [line["data"]["samples"] for line in result.log if line["type"] == "LOG" and "test_loss" in line["data"]] == [ROWS["test"]] * 3
    losses = [line["data"]["loss"] for line in result.log if line["type"] == "LOG" and "loss" in line["data"]]
    assert len(losses) == 5 and losses[-1] < losses[0]
    for words in ("4,000 samples", "900 samples", "learning rate", "samples/s", "checkpoint written"):
        assert words in result.out


def same_as(evaluated, trained):
    """Return True if an evaluation's figures equal those of the end of training."""
    assert evaluated.pop("average_test_throughput") > 0 and evaluated.pop("avg_inference_latency") > 0
    return evaluated == {"auc": trained["auc"], "test_loss": trained["validation_loss"], "samples": ROWS["test"]}


def test_evaluation_in_another_process_repeats_the_auc_exactly_without_model_flags(trained, dataset, tmp_path):
    checkpoint, training = trained
    result = child(tmp_path, "--cpu", "--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", checkpoint)
    assert result.err == ""
    assert same_as(result.final, training.final)


@pytest.mark.parametrize(
    "flags",
    [
        ("--amp",),
        ("--amp", "--amp_dtype", "float16", "--loss_scale", "1024"),
        ("--xla",),
        ("--out_of_range", "hash", "--max_table_size", "20"),
        ("--optimizer", "adagrad"),
    ],
    ids=lambda flags: " ".join(flags),
)
def test_evaluation_inherits_training_flags(run, dataset, tmp_path, flags):
    checkpoint = tmp_path / "checkpoint"
    training = run("--dataset_path", dataset, *TRAIN, "--max_steps", "12", "--save_checkpoint_path", checkpoint, *flags).final
    result = run("--cpu", "--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", checkpoint)
    assert result.err == ""
    assert same_as(result.final, training)


def test_another_evaluation_batch_changes_no_more_than_rounding(run, trained, dataset):
    checkpoint, training = trained
    for size in (64, 900, 4096):
        result = run("--cpu", "--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", checkpoint, "--valid_batch_size", size)
        assert result.final["auc"] == pytest.approx(training.final["auc"], abs=1e-5)
        assert result.final["samples"] == ROWS["test"]


def test_inference_reports_latency_throughput_and_auc(run, trained, dataset):
    checkpoint, training = trained
    flags = ("--cpu", "--mode", "inference", "--dataset_path", dataset, "--restore_checkpoint_path", checkpoint, "--max_steps", "20")
    figures = run(*flags, "--inference_benchmark_batch_sizes", "64,512").final
    names = {
        "mean_inference_throughput",
        "mean_inference_latency",
        "avg_inference_latency",
        *(f"p{q}_inference_latency" for q in (90, 95, 99)),
        "auc",
        "samples",
        "inference_batches",
    }
    assert names | {f"{name}_batch_{size}" for name in names for size in (64, 512)} == figures.keys()
    assert figures["samples_batch_512"] == ROWS["test"]
    assert figures["auc_batch_512"] == pytest.approx(training.final["auc"], abs=1e-5)
    assert 0 < figures["p90_inference_latency"] <= figures["p99_inference_latency"] < 10


def test_inference_announces_its_duration_and_keeps_the_time_limit(run, trained, dataset):
    flags = ("--cpu", "--mode", "inference", "--dataset_path", dataset, "--restore_checkpoint_path", trained[0], "--inference_seconds", "0.5")
    result = run(*flags, "--max_steps", "100000")
    found = re.search(r"batch 512: 100,000 batches would take ([\d,]+) s; only ([\d,]+) are measured, in \d s \(--inference_seconds, ", result.out)
    count = int(found[2].replace(",", ""))
    assert result.final["inference_batches"] == count and 3 <= count < 100000
    assert f" over {count:,} batches; AUC " in result.out
    assert run(*flags, "--max_steps", "4").final["inference_batches"] == 4 and "would take" not in result.err


def test_inference_without_checkpoint_warns_that_weights_are_random(run, dataset):
    result = run("--cpu", "--mode", "inference", "--dataset_path", dataset, *SMALL, "--max_steps", "2", "--benchmark_warmup_steps", "0")
    assert result.final["mean_inference_latency"] > 0
    assert "random weights" in result.err


def test_predictions_are_the_probabilities_of_every_row_in_file_order(run, trained, dataset, tmp_path):
    checkpoint, training = trained
    path = tmp_path / "predictions.parquet"
    result = run("--cpu", "--mode", "predict", "--dataset_path", dataset, "--restore_checkpoint_path", checkpoint, "--predictions_path", path)
    assert result.code == 0 and result.err == ""
    frame = polars.read_parquet(path)
    assert frame.schema == {"row": polars.UInt64, "score": polars.Float32, "label": polars.UInt8}
    assert frame["row"].to_list() == list(range(ROWS["test"]))
    labels = np.fromfile(dataset / "test/label.bin", np.uint8)
    np.testing.assert_array_equal(frame["label"].to_numpy(), labels)
    scores = frame["score"].to_numpy()
    assert sklearn.metrics.roc_auc_score(labels, scores) == pytest.approx(training.final["auc"], abs=1e-5)
    assert sklearn.metrics.log_loss(labels, scores.astype(np.float64)) == pytest.approx(training.final["validation_loss"], abs=1e-5)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_predictions_have_the_group_of_every_row(run, trained, copy, tmp_path):
    groups = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, ROWS["test"])
    groups.tofile(copy / "test" / "group.bin")
    np.zeros(ROWS["train"], np.int64).tofile(copy / "train" / "group.bin")

    def add_group(content):
        content["feature_spec"]["display"], content["channel_spec"]["group"] = {"dtype": "int64"}, ["display"]
        for split, chunks in content["source_spec"].items():
            chunks.append({"type": "split_binary", "features": ["display"], "files": [f"{split}/group.bin"]})

    path = tmp_path / "predictions.parquet"
    flags = ("--cpu", "--mode", "predict", "--dataset_path", copy, "--restore_checkpoint_path", trained[0], "--predictions_path", path)
    assert run(*flags).code == 0
    without = polars.read_parquet(path)
    edit_spec(copy, add_group)
    assert run(*flags).code == 0
    frame = polars.read_parquet(path)
    assert frame.columns == ["row", "score", "label", "group"] and frame.drop("group").equals(without)
    np.testing.assert_array_equal(frame["group"].to_numpy(), groups)


def test_training_starts_from_the_weights_of_a_checkpoint(run, trained, dataset):
    checkpoint, training = trained
    flags = TRAIN[: TRAIN.index("--batch_size")]
    result = run(
        "--dataset_path",
        dataset,
        *flags,
        "--restore_checkpoint_path",
        checkpoint,
        "--resume",
        "weights",
        "--batch_size",
        "256",
        "--learning_rate",
        "1e-9",
        "--warmup_steps",
        "0",
    )
    assert "weights restored" in result.out
    assert result.final["auc"] == pytest.approx(training.final["auc"], abs=1e-4)


def test_dataset_smaller_than_a_batch_is_one_step(run, dataset):
    result = run(
        "--dataset_path", dataset, "--cpu", *SMALL, "--batch_size", "8192", "--optimizer", "adam", "--learning_rate", "0.01", "--warmup_steps", "0"
    )
    assert (result.final["samples"], result.final["steps"]) == (ROWS["train"], 1)


def test_synthetic_data_needs_no_files(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(
        *("--dataset_type", "synthetic", *TRAIN, "--synthetic_dataset_cardinalities", "50,20,7", "--synthetic_dataset_num_numerical_features", "4"),
        *("--synthetic_dataset_train_batches", "20", "--synthetic_dataset_valid_batches", "2", "--auc_thresholds", "100"),
    )
    assert result.final["samples"] == 20 * 256 and result.final["auc"] > 0.6
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_the_same_command_gives_the_same_model(run, dataset):
    first, second = (run("--dataset_path", dataset, *TRAIN, "--max_steps", "5").final for _ in range(2))
    assert (first["auc"], first["train_loss"]) == (second["auc"], second["train_loss"])
    other = run("--dataset_path", dataset, *TRAIN, "--max_steps", "5", "--seed", "1").final
    assert other["train_loss"] != first["train_loss"]


def test_a_dataset_without_a_test_split_is_trained_on_with_a_warning(run, tmp_path):
    dataset = write_dataset(tmp_path / "dataset", rows={"train": 300})
    result = run("--dataset_path", dataset, *TRAIN)
    assert result.final["auc"] is None and result.final["samples"] == 300
    assert "there is no test split" in result.err


def test_a_dataset_without_a_train_split_is_evaluated(run, trained, copy):
    checkpoint, training = trained
    edit_spec(copy, lambda content: content["source_spec"].pop("train"))
    shutil.rmtree(copy / "train")
    result = run("--cpu", "--mode", "eval", "--dataset_path", copy, "--restore_checkpoint_path", checkpoint)
    assert result.final["auc"] == training.final["auc"]


def test_flags_without_effect_are_warned_about_on_standard_error(run, dataset):
    result = run("--dataset_path", dataset, *TRAIN, "--max_steps", "1", "--tfdata_debug", "--predictions_path", "x")
    assert result.code == 0
    assert [line.split(" has no effect")[0] for line in result.err.splitlines()] == [
        "dlrm.py: warning: --tfdata_debug",
        "dlrm.py: warning: --predictions_path",
    ]
