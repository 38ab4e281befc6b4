"""Tests of wide_and_deep.py: NVIDIA's flags mapped to this application's; training, evaluation, resuming and scoring by its commands."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from runs import ROOT, Result, read_log, write_dataset, write_grouped

import dlrm
import wide_and_deep
from dataloading import transcribe
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from utils.checkpoint.reading import Checkpoint
from utils.commands import run_command
from utils.dialects.command_line import parse
from utils.dialects.wide_and_deep import DEFAULTS, translated
from utils.errors import UserError

SMALL = ("--cpu", "--deep_hidden_units", "16", "8", "--embedding_dim", "8", "--global_batch_size", "256", "--eval_batch_size", "512")
FLAGS = (*SMALL, "--num_epochs", "2", "--deep_warmup_epochs", "0.2", "--deep_learning_rate", "0.01", "--affinity", "disabled")


def configured(*words):
    return parse(words, "", "wide_and_deep.py", DEFAULTS, translated)


def words(*given):
    return " ".join(translated(given).words)


def test_defaults_are_the_published_run():
    config = configured()
    assert (config.data.dataset_type, config.data.patterns) == (
        "tfrecord",
        {"train": ("/outbrain/tfrecords/train/part*",), "test": ("/outbrain/tfrecords/eval/part*",)},
    )
    assert (config.data.batch_size, config.data.valid_batch_size, config.training.epochs) == (131072, 131072, 20)
    assert config.model.top_mlp_dims == (1024, 1024, 1024, 1024, 1024, 1) and config.regularisation.dropout == 0.1
    options = config.optimizer
    assert (options.optimizer, options.rho, config.schedule.learning_rate, options.linear_learning_rate) == ("rmsprop", 0.5, 0.00012, 0.02)
    assert options.epsilon_outside_root and config.schedule.deep_warmup_epochs == 6 and config.device.affinity == "socket_unique_interleaved"
    assert (config.run.log_path, config.run.args_path) == ("/results/log.json", "/results/args.json")
    assert config.training.save_checkpoint_path == "/outbrain/checkpoints/checkpoint" and config.training.keep_checkpoints == 1
    assert config.training.checkpoint_every_epoch and config.training.steps_per_epoch is None


def test_nvidias_flags_are_translated():
    config = configured("--training_set_size", "1000", "--global_batch_size", "300", "--deep_hidden_units", "16 8", "--deep_dropout", "0.2")
    assert (config.training.steps_per_epoch, config.model.top_mlp_dims, config.regularisation.dropout) == (3, (16, 8, 1), 0.2)
    config = configured("--dataset_path", "D", "--model_dir", "M", "--use_checkpoint", "--results_dir", "R", "--log_filename", "l")
    assert (config.data.dataset_type, config.data.patterns, config.training.resume) == ("tf_raw", {}, "auto")
    assert (config.training.save_checkpoint_path, config.run.log_path, config.run.args_path) == ("M/checkpoint", "R/l", "R/args.json")
    assert configured("--train_data_pattern", "a*", "b*", "--xla").data.train_data_pattern == ("a*", "b*")


def test_evaluate_and_benchmark_set_the_mode():
    assert "--mode eval --restore_checkpoint_path /outbrain/checkpoints/checkpoint" in words("--evaluate", "--use_checkpoint")
    assert words("--evaluation", "--use_checkpoint") == words("--evaluate", "--use_checkpoint")
    trained = configured("--benchmark", "--benchmark_steps", "20", "--benchmark_warmup_steps", "5").training
    assert (trained.max_steps, trained.benchmark_warmup_steps, trained.evals_per_epoch, trained.save_checkpoint_path) == (20, 5, 0, None)
    measured = configured("--benchmark", "--evaluate", "--benchmark_steps", "20", "--benchmark_warmup_steps", "0", "--eval_batch_size", "64")
    assert (measured.run.mode, measured.training.inference_benchmark_steps, measured.training.benchmark_warmup_steps) == ("inference", 19, 1)


def test_model_dir_holds_the_checkpoint_in_every_mode():
    assert configured("--mode", "predict", "--use_checkpoint", "--model_dir", "M").training.restore_checkpoint_path == "M/checkpoint"
    assert configured("--mode=inference", "--model_dir", "M").training.restore_checkpoint_path is None
    assert configured("--benchmark", "--use_checkpoint", "--model_dir", "M").training.resume == "weights"
    grown = configured("--model_dir", "N", "--restore_checkpoint_path", "O", "--allow_growth").training
    assert (grown.save_checkpoint_path, grown.restore_checkpoint_path) == ("N/checkpoint", "O") and grown.allow_growth
    planned = configured("--mode", "plan", "--feature_spec", "f", "--use_checkpoint")
    assert planned.legacy == ("--use_checkpoint has no effect with --mode plan",) and planned.run.args_path is None and not planned.data.patterns


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--deep_learning_rate 1 --learning_rate 1", "--deep_learning_rate and --learning_rate set the same option; drop one of them"),
        ("--deep_hidden_units 16 no", "--deep_hidden_units 16 no: expected positive layer widths separated by blanks"),
        ("--train_data_pattern a --dataset_path D", "--train_data_pattern and --dataset_path exclude each other"),
        ("--training_set_size 10 --global_batch_size 20", "--training_set_size 10: expected at least --global_batch_size 20"),
        ("--benchmark --benchmark_warmup_steps 1000", "--benchmark_warmup_steps 1000: expected 0 or more, and less than --benchmark_steps 1000"),
        ("--dataset_path D --evaluate", "--evaluate needs a trained model: --use_checkpoint evaluates the one in --model_dir"),
        ("--benchmark_steps 7", "--benchmark_steps needs --benchmark"),
        ("--benchmark --num_epochs none", "--num_epochs none: expected a whole number of at least 1"),
        ("--benchmark --num_epochs 0", "--num_epochs 0: expected a whole number of at least 1"),
        ("--benchmark --num_epochs 3 --epochs 3", "--num_epochs and --epochs set the same option; drop one of them"),
        ("--model_dir M --save_checkpoint_path C", "--model_dir and --save_checkpoint_path set the same option"),
        ("--model_dir M --restore_checkpoint_path C --use_checkpoint", "--model_dir and --restore_checkpoint_path set the same option"),
        ("--model_dir M --restore_checkpoint_path C --evaluate", "--model_dir and --restore_checkpoint_path set the same option"),
        ("--results_dir R --log_path C", "--log_path and --results_dir or --log_filename set the same option"),
        ("--num_epochs 1", "--deep_warmup_epochs 6 (the default): expected at most --num_epochs 1; give --deep_warmup_epochs, 0 to 1"),
        ("--epochs 2", "--deep_warmup_epochs 6 (the default): expected at most --epochs 2; give --deep_warmup_epochs, 0 to 2"),
        ("--num_epochs 2 --deep_warmup_epochs 3", "--deep_warmup_epochs 3: expected at most --num_epochs 2"),
        ("--global_batch_size 0", "--global_batch_size 0: expected"),
        ("--eval_batch_size -3", "--eval_batch_size -3: expected"),
        ("--deep_hidden_units 9999999999999", "--deep_hidden_units 9999999999999,1: expected"),
        ("--deep_dropout 2", "--deep_dropout 2.0: expected"),
        ("--deep_learning_rate fast", "--deep_learning_rate: 'fast' is not a number"),
        ("--num_epoch 2", "unknown flag --num_epoch"),
        ("--affinity core", "'core' is not one of socket, single"),
        ("--dataset_path D --train_data_pattern a", "exclude each other"),
    ],
)
def test_invalid_flags_are_a_one_line_error(given, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        configured(*given.split(" ") if "16 no" not in given else ["--deep_hidden_units", "16 no"])
    assert "\n" not in str(error.value)


def test_flags_without_effect_are_noted():
    lines = translated(["--use_checkpoint", "--model_dir", "nothing"]).lines
    assert lines == ["--use_checkpoint: there is no checkpoint in nothing/checkpoint; a new run starts"]
    lines = translated(["--transformed_metadata_path", "x"]).lines
    assert lines == ["--transformed_metadata_path has no effect: the features are read from the records"]


def test_num_epochs_has_no_effect_with_benchmark():
    for more in ((), ("--evaluate",)):
        without, given = configured("--benchmark", *more), configured("--benchmark", "--num_epochs", "20", *more)
        assert given.flat() == without.flat()
        assert given.legacy == ("--num_epochs 20 has no effect with --benchmark, which takes --benchmark_steps steps",)


def test_export_needs_no_dataset():
    config = configured("--mode", "export", "--use_checkpoint", "--export_path", "R")
    assert config.data.patterns == {} and config.data.dataset_path is None and not {"dataset_type", "train_data_pattern"} & config.given
    named = configured("--mode", "export", "--use_checkpoint", "--export_path", "R", "--eval_data_pattern", "p*")
    assert named.data.eval_data_pattern == ("p*",)


@pytest.mark.parametrize("program", ["main.py", "wide_and_deep.py"])
def test_messages_begin_with_the_programs_name(program, tmp_path):
    """Errors, warnings and the usage of a program name the file that was run."""
    folders = ("--model_dir", tmp_path / "m", "--results_dir", tmp_path / "r")
    for flags in (("--num_epochs", "0"), ("--nothing", "1"), ("--dataset_path", tmp_path / "d", "--use_checkpoint", *folders)):
        command = [sys.executable, ROOT / program, *map(str, flags)]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert result.returncode == 1 and all(line.startswith(f"{program}: ") for line in result.stderr.splitlines()), result.stderr
    result = subprocess.run([sys.executable, ROOT / program, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert result.stdout.startswith(f"usage: {program} ")


def test_help_needs_no_tensorflow():
    code = """
import runpy, sys
sys.argv = ["main.py", "-h"]
try:
    runpy.run_path("main.py", run_name="__main__")
finally:
    print("tensorflow" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert result.stdout.rstrip().endswith("False") and "--deep_warmup_epochs" in result.stdout and "--use_checkpoint" in result.stdout, result


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Return a function that runs wide_and_deep.py's main in this process and returns its Result with the log."""

    def call(*flags):
        (tmp_path / "results/log.json").unlink(missing_ok=True)
        monkeypatch.setattr(sys, "argv", ["wide_and_deep.py", "--results_dir", str(tmp_path / "results"), *map(str, flags)])
        capfd.readouterr()
        code = run_command(wide_and_deep.main, "wide_and_deep.py")
        return Result(code, *capfd.readouterr(), read_log(tmp_path / "results/log.json"))

    return call


def arrays(path):
    checkpoint = Checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.names("")}


def test_train_evaluate_resume_and_score(command, dataset, tmp_path):
    whole = command("--dataset_path", dataset, *FLAGS, "--model_dir", tmp_path / "whole")
    assert whole.final["auc"] > 0.55 and whole.err == ""
    assert whole.final["auc_val"] == whole.final["auc"] and 0.5 < whole.final["binary_accuracy_val"] < 1
    evaluations = [line for line in whole.log if "auc_val" in line.get("data", {}) and line["step"]]
    assert [line["step"] for line in evaluations] == [[16, 32], [32, 32]]
    assert json.loads((tmp_path / "results/args.json").read_text())["interaction"] == "wide_and_deep"
    path = tmp_path / "whole/checkpoint"
    assert Checkpoint(path).manifest["model"]["name"] == "wide_and_deep"

    assert command("--dataset_path", dataset, *FLAGS, "--model_dir", tmp_path / "parts", "--max_steps", "21").code == 0
    resumed = command("--dataset_path", dataset, *FLAGS, "--model_dir", tmp_path / "parts", "--use_checkpoint")
    assert resumed.final["auc"] == whole.final["auc"]
    expected, found = arrays(path), arrays(tmp_path / "parts/checkpoint")
    assert found.keys() == expected.keys() and {"tables/cat_0_wide/linear", "tables/cat_0/velocity", "optimizer/wide/0/kernel/linear"} <= set(found)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)

    evaluated = command(
        "--dataset_path", dataset, "--cpu", "--evaluate", "--use_checkpoint", "--model_dir", tmp_path / "whole", "--affinity", "disabled"
    )
    assert evaluated.final["auc_val"] == whole.final["auc"]
    many = command("--dataset_path", dataset, "--cpu", "--evaluate", "--use_checkpoint", "--model_dir", tmp_path / "whole", "--eval_batch_size", "8")
    check_evaluation_log(many, whole.final, path, dataset)
    scores = [dlrm.load(path, mmap=mmap).score({name: [0, 1] for name in dlrm.load(path).columns}) for mmap in (False, True)]
    np.testing.assert_allclose(*scores, rtol=0, atol=1e-6)  # few rows of a mapped model are scored in C++


def test_messages_name_the_users_flags(command, dataset, tmp_path):
    path = tmp_path / "m"
    flags = ("--dataset_path", dataset, *FLAGS, "--model_dir", path)
    assert command(*flags).code == 0
    again = command(*flags)
    assert again.code == 1 and f"--model_dir {path}/checkpoint: holds checkpoints of another run" in again.err
    assert "--use_checkpoint continues from them" in again.err
    finished = command(*flags, "--use_checkpoint")
    assert finished.code == 0 and "To train longer, increase --num_epochs" in finished.out
    assert (path / "checkpoint").rename(path / "elsewhere")
    evaluated = ("--dataset_path", dataset, "--cpu", "--affinity", "disabled", "--evaluate", "--use_checkpoint", "--deep_dropout", "0.3")
    missing = command(*evaluated, "--model_dir", path)
    assert missing.code == 1 and missing.err.endswith("/checkpoint: no such folder; expected a checkpoint (--model_dir writes one)\n")
    (path / "elsewhere").rename(path / "checkpoint")
    assert "--deep_dropout has no effect with --evaluate" in command(*evaluated, "--model_dir", path).err
    predicted = ("--dataset_path", dataset, "--cpu", "--affinity", "disabled", "--mode", "predict", "--model_dir", path)
    without = command(*predicted, "--predictions_path", tmp_path / "p")
    assert without.code == 1 and "--use_checkpoint is missing: --mode predict needs a trained model" in without.err
    measured = command(*flags, "--benchmark", "--evaluate", "--benchmark_steps", "3", "--benchmark_warmup_steps", "1")
    assert "no --use_checkpoint: the benchmark runs with random weights" in measured.err + measured.out
    for result in (again, finished, missing):
        assert not any(f"--{name}" in result.err + result.out for name in ("save_checkpoint_path", "restore_checkpoint_path", "epochs", "resume"))


def check_evaluation_log(result, final, checkpoint, dataset):
    """Check that an evaluation's log has a line every 100 batches of 8, with the metrics of all rows so far, and a line at the end."""
    lines = [line for line in result.log if isinstance(line.get("step"), list) and line["step"]]
    split = TfRawSplit(FeatureSpec.from_yaml(dataset / "feature_spec.yaml"), "test")
    count = split.num_samples
    samples = dict(zip(split.spec.numerical, split.read_numerical(0, count).T, strict=True))
    samples |= {feature.name: split.read_ids(i, 0, count) for i, feature in enumerate(split.spec.categorical)}
    positive = np.asarray(split.read_labels(0, count)).astype(bool)
    split.close()
    assert [line["step"] for line in lines] == [*([100 * (i + 1)] for i in range(count // 800)), [-(-count // 8)]] and count > 800
    scores = dlrm.load(checkpoint).score(samples).astype(np.float64)
    for i, line in enumerate(lines[:-1]):
        some = slice(0, 800 * (i + 1))
        right = np.where(positive[some], scores[some], 1 - scores[some])
        assert float(line["data"]["loss"]) == pytest.approx(-np.log(right).mean(), abs=6e-5)
        assert float(line["data"]["binary_accuracy"]) == pytest.approx((right > 0.5).mean(), abs=6e-5)
        pairs = scores[some][positive[some]][:, None] - scores[some][~positive[some]]
        assert float(line["data"]["auc"]) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2, abs=6e-5)
    assert set(lines[-1]["data"]) == {"binary_accuracy_val", "auc_val", "loss_val"} and lines[-1]["data"]["auc_val"] == pytest.approx(final["auc"])


def test_training_set_size_epochs_continue_in_the_data(command, dataset, tmp_path):
    """Epochs of `--training_set_size` rows follow on in the data: 4,000 rows are 16 batches, so three epochs of 10 steps end in the second pass."""
    flags = ("--dataset_path", dataset, *SMALL, "--deep_warmup_epochs", "0.5", "--affinity", "disabled", "--training_set_size", "2600")
    result = command(*flags, "--num_epochs", "3", "--model_dir", tmp_path / "m")
    assert result.final["steps"] == 30
    assert result.final["samples"] == 4000 + 14 * 256
    assert Checkpoint(tmp_path / "m/checkpoint").manifest["position"]["epoch"] == 3


def test_log_has_the_metrics_of_the_reported_batch(command, dataset, tmp_path):
    """The second step's logged metrics are those of its rows under the weights after the first step; the log does not change training's bits."""
    flags = ("--dataset_path", dataset, *SMALL, "--affinity", "disabled", "--num_epochs", "1", "--deep_warmup_epochs", "0.5")
    assert command(*flags, "--model_dir", tmp_path / "m", "--max_steps", "1").code == 0
    flags = (*flags, "--max_steps", "3")
    result = command(*flags, "--model_dir", tmp_path / "a", "--print_freq", "1")
    lines = [line["data"] for line in result.log if "mean_loss" in line.get("data", {})]
    assert len(lines) == 3 and all(value == f"{float(value):.4f}" for line in lines for value in (line["binary_accuracy"], line["auc"], line["loss"]))
    split = TfRawSplit(FeatureSpec.from_yaml(dataset / "feature_spec.yaml"), "train")
    samples = dict(zip(split.spec.numerical, split.read_numerical(256, 512).T, strict=True))
    samples |= {feature.name: split.read_ids(i, 256, 512) for i, feature in enumerate(split.spec.categorical)}
    positive = np.asarray(split.read_labels(256, 512)).astype(bool)
    split.close()
    scores = dlrm.load(tmp_path / "m/checkpoint").score(samples).astype(np.float64)
    assert float(lines[1]["loss"]) == pytest.approx(-np.log(np.where(positive, scores, 1 - scores)).mean(), abs=6e-5)
    assert float(lines[1]["binary_accuracy"]) == pytest.approx(((scores > 0.5) == positive).mean(), abs=6e-5)
    pairs = scores[positive][:, None] - scores[~positive]
    assert float(lines[1]["auc"]) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2, abs=6e-5)
    assert command(*flags, "--model_dir", tmp_path / "b").code == 0
    expected, found = arrays(tmp_path / "a/checkpoint"), arrays(tmp_path / "b/checkpoint")
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def average_precision(scores, labels, groups):
    """Compute MAP@12 group by group, as defined: the mean over the groups with a click."""
    values = []
    for group in np.unique(groups):
        order = np.argsort(-scores[groups == group], kind="stable")
        clicked = labels[groups == group][order]
        hits = [clicked[: rank + 1].sum() / (rank + 1) for rank in range(min(12, len(clicked))) if clicked[rank]]
        values += [sum(hits) / min(12, clicked.sum())] if clicked.any() else []
    return np.mean(values)


def test_log_has_map_of_the_reported_batch(command, tmp_path):
    data = write_grouped(tmp_path / "d", ("train", "test"))
    flags = ("--dataset_path", data, *SMALL, "--affinity", "disabled", "--num_epochs", "1", "--deep_warmup_epochs", "0.5")
    assert command(*flags, "--model_dir", tmp_path / "m", "--max_steps", "1").code == 0
    result = command(*flags, "--model_dir", tmp_path / "a", "--max_steps", "2", "--print_freq", "1")
    lines = [line["data"] for line in result.log if "mean_loss" in line.get("data", {})]
    split = TfRawSplit(FeatureSpec.from_yaml(data / "feature_spec.yaml"), "train")
    samples = dict(zip(split.spec.numerical, split.read_numerical(256, 512).T, strict=True))
    samples |= {feature.name: split.read_ids(i, 256, 512) for i, feature in enumerate(split.spec.categorical)}
    labels, groups = np.asarray(split.read_labels(256, 512)).astype(int), np.asarray(split.read_group(256, 512))
    split.close()
    scores = dlrm.load(tmp_path / "m/checkpoint").score(samples)
    assert len(lines) == 2 and float(lines[1]["streaming_map"]) == pytest.approx(average_precision(scores, labels, groups), abs=6e-5)
    without = command(*flags, "--model_dir", tmp_path / "b", "--max_steps", "2", "--print_freq", "1", "--ranking_metrics", "none")
    assert not any("streaming_map" in line.get("data", {}) for line in without.log) and without.code == 0


def speeds(result):
    """Return the log's lines of single steps."""
    return [line for line in result.log if line.get("data", {}).get("batch_samplesps", 0) > 0]


def test_benchmarks(command, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *SMALL, "--affinity", "disabled", "--benchmark", "--benchmark_steps", "20", "--benchmark_warmup_steps", "4")
    trained = command(*flags, "--model_dir", tmp_path / "m")
    assert trained.final["train_throughput"] > 0 and trained.final["steps"] == 20 and not (tmp_path / "m").exists()
    assert [line["step"] for line in speeds(trained)] == [[1, step] for step in range(5, 21)]
    assert not any("binary_accuracy" in line.get("data", {}) for line in trained.log)
    repeated = command(*flags, "--num_epochs", "20", "--print_freq", "10", "--model_dir", tmp_path / "m")
    assert repeated.final["steps"] == 20 and repeated.err.count("--num_epochs 20 has no effect with --benchmark") == 1
    assert [line["step"] for line in repeated.log if "step_time_ms" in line.get("data", {})] == [[1, 10], [1, 20]]
    measured = command(*flags, "--evaluate")
    assert [line["step"] for line in speeds(measured)] == [[1, step] for step in range(5, 21)]
    assert measured.final["validation_throughput"] > 0 and measured.final["inference_batches"] == 16


def test_tfrecords_train_the_same_bits(command, tmp_path):
    data = write_dataset(tmp_path / "d", rows={"train": 700, "test": 300})
    words = ["--src_dataset_type", "tf_raw", "--src_dataset_path", data, "--dst_dataset_path", tmp_path / "r", "--dst_dataset_type", "tfrecord"]
    assert not transcribe.main([str(word) for word in words])
    records = ("--train_data_pattern", tmp_path / "r/train/part*", "--eval_data_pattern", tmp_path / "r/eval/part*")
    for name, source in (("a", ("--dataset_path", data)), ("b", records)):
        trained = command(*source, *FLAGS, "--model_dir", tmp_path / name)
        assert trained.code == 0
        said = " ".join(str(word) for word in source[1::2])
        assert f"data: {said}, train 700, test 300 rows" in trained.out + trained.err
        assert next(line["data"]["dataset"] for line in trained.log if "dataset" in line.get("data", {})) == said
    expected, found = arrays(tmp_path / "a/checkpoint"), arrays(tmp_path / "b/checkpoint")
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
