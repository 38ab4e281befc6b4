"""Tests of checks made before training begins, not hours later; and of files and output that a run must not replace or fail on."""

import itertools
import sys

import pytest
from runs import SMALL, TRAIN, child, read_log, write_dataset

import dlrm
import wide_and_deep
from utils.commands import run_command

PROFILE = ("--profiler_start_step", "2")


def refused(result, *words):
    assert result.code == 1 and result.err.count("dlrm.py: error: ") == 1 and "Traceback" not in result.err, result.err
    for word in words:
        assert word in result.err.splitlines()[-1]


def test_profiled_rank_out_of_range_is_an_error(run, dataset):
    refused(run("--dataset_path", dataset, *TRAIN, *PROFILE, "--profiled_rank", "7"), "--profiled_rank 7: there is one worker, 0")


@pytest.mark.parametrize("in_the_way", ["profile", "profile/plugins", "profile/plugins/profile"])
def test_unwritable_profile_folder_is_an_error(run, dataset, tmp_path, monkeypatch, in_the_way):
    monkeypatch.chdir(tmp_path)
    (tmp_path / in_the_way).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / in_the_way).write_text("a file")
    result = run("--dataset_path", dataset, *TRAIN, *PROFILE)
    refused(result, f"--profiler_start_step: the profile cannot be written to {tmp_path / in_the_way}: Not a directory")
    assert "samples/s" not in result.out


def test_profile_folder_is_ignored_without_a_profile(run, dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile").write_text("a file")
    assert run("--cpu", "--mode", "inference", *SMALL, "--max_steps", "1", "--dataset_path", dataset, *PROFILE).code == 0


def test_flags_based_on_evaluations_need_rows_to_evaluate(run, tmp_path):
    dataset = write_dataset(tmp_path / "dataset", rows={"train": 600})
    result = run("--dataset_path", dataset, *TRAIN, "--auc_threshold", "0.9")
    refused(result, "--auc_threshold needs rows to evaluate", "no valid and no test split; add --valid_fraction")
    assert run("--dataset_path", dataset, *TRAIN, "--auc_threshold", "0.9", "--valid_fraction", "0.5").code == 0


def test_unencodable_path_is_escaped_in_output(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    monkeypatch.chdir(tmp_path)
    result = child(tmp_path, "--dataset_path", dataset, *TRAIN, "--max_steps", "1", "--save_checkpoint_path", tmp_path / "日本")
    assert result.code == 0, result.err
    assert f"checkpoint written: {tmp_path}/\\u65e5\\u672c/step-00000001" in result.out
    assert child(tmp_path, "--help").code == 0


def test_each_mode_writes_its_own_default_log(trained, dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for mode in (TRAIN, ("--cpu", "--mode", "eval", "--restore_checkpoint_path", trained[0])):
        monkeypatch.setattr(sys, "argv", ["dlrm.py", "--dataset_path", str(dataset), *map(str, mode)])
        assert run_command(dlrm.main, "dlrm.py") == 0
    assert "throughput" in read_log(tmp_path / "dlrm_tf_log.json")[-1]["data"]
    assert "test_loss" in read_log(tmp_path / "dlrm_tf_log_eval.json")[-1]["data"]


HUGE = ("--dataset_type", "synthetic", *TRAIN, "--synthetic_dataset_cardinalities", "50,20,7", "--synthetic_dataset_num_numerical_features", "3")
MANY = str(2**31 - 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--synthetic_dataset_train_batches", MANY, "--shuffle_window", MANY],
            f"--shuffle_window {MANY}: the 549,755,813,632 rows of a window need",
        ),
        (["--synthetic_dataset_train_batches", MANY, "--batch_size", MANY], f"--batch_size {MANY}: the rows of a batch need"),
        (["--synthetic_dataset_valid_batches", MANY], "the scores of the 1,099,511,627,264 rows of the test split need"),
    ],
    ids=["window", "batch", "scores"],
)
def test_size_beyond_memory_is_an_error_at_once(run, flags, message):
    refused(run(*HUGE, *flags), message, " short")


def test_many_batches_and_large_windows_train(run, dataset):
    few = ("--max_steps", "2", "--evals_per_epoch", "0")
    assert run(*HUGE, "--synthetic_dataset_train_batches", MANY, *few, "--synthetic_dataset_valid_batches", MANY).final["steps"] == 2
    assert run("--dataset_path", dataset, *TRAIN, "--shuffle_window", MANY, "--shuffle_batch_order", *few).final["steps"] == 2


def test_resume_without_evaluations_names_the_flag_that_needs_them(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *TRAIN, "--save_checkpoint_path", tmp_path / "c")
    assert run(*flags, "--max_steps", "1", "--early_stop_patience", "3").code == 0
    result = run(*flags, "--resume", "auto", "--evals_per_epoch", "0")
    refused(result, "are not valid together: --early_stop_patience needs evaluations, and --evals_per_epoch 0 turns them off")


def test_plateau_without_a_valid_split_is_one_line(run, dataset):
    result = run("--dataset_path", dataset, *TRAIN, "--lr_schedule", "plateau")
    refused(result, "--lr_schedule plateau: ", "has no valid split to evaluate on; add --valid_fraction 0.1")
    flags = ("--valid_fraction", "0.1", "--test_freq", "1", "--max_steps", "6", "--learning_rate", "1e-9")
    trained = run("--dataset_path", dataset, *TRAIN, "--lr_schedule", "plateau", *flags, "--decay_steps", "5")
    assert "warning: --decay_steps has no effect with --lr_schedule plateau" in trained.err


def test_batch_larger_than_the_training_rows_is_one_warning_with_a_proposal(run, dataset, tmp_path, capfd):
    flags = ("--dataset_path", dataset, *TRAIN, "--batch_size", "5000", "--save_checkpoint_path", tmp_path / "c")
    result = run(*flags)
    proposed = (
        "the training split has only 4,000 rows, so a step takes all of them: an epoch is one step; try --batch_size 32, 125 steps for all rows"
    )
    assert result.final["steps"] == 1
    assert result.err == f"dlrm.py: warning: --batch_size 5000: {proposed}, and a learning rate to match\n"
    assert run("--dataset_path", dataset, *TRAIN, "--batch_size", "32", "--max_steps", "1").err == ""
    assert run("--dataset_path", dataset, *TRAIN, "--batch_size", "4000").err == ""  # an epoch is one step too, but its batch has no padding
    resumed = run(*flags, "--resume", "auto", "--epochs", "2")  # no warning: a resumed run cannot change its batch size
    assert resumed.final["steps"] == 2 and resumed.err == ""
    cut = run("--dataset_path", dataset, *TRAIN, "--batch_size", "1000", "--dataset_subset", "0.1", "--steps_per_epoch", "3")
    assert cut.err.count("\n") == 1 and "has only 400 rows, so a step takes all of them; try --batch_size 4, 100 steps" in cut.err
    capfd.readouterr()
    names = {name.removeprefix("--"): value for name, value in itertools.pairwise(TRAIN) if name.startswith("--") and not value.startswith("--")}
    dlrm.train(dataset_path=str(dataset), cpu=True, log_path="", **names | {"batch_size": 70_000, "valid_batch_size": 512})
    assert capfd.readouterr().err.startswith("dlrm.train: warning: --batch_size 70000: the training split has only 4,000 rows")


def test_warning_about_a_large_batch_names_the_users_flag(dataset, tmp_path, capfd, monkeypatch):
    flags = ["--dataset_path", dataset, "--cpu", "--num_epochs", "1", "--deep_warmup_epochs", "0", "--embedding_dim", "4", "--deep_hidden_units", "8"]
    words = [*flags, "--model_dir", tmp_path / "m", "--results_dir", tmp_path, "--affinity", "disabled"]
    monkeypatch.setattr(sys, "argv", ["wide_and_deep.py", *map(str, words)])
    assert run_command(wide_and_deep.main, "wide_and_deep.py") == 0
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and err.startswith("wide_and_deep.py: warning: --batch_size 131072: the training split has only 4,000 rows")
    monkeypatch.setattr(sys, "argv", ["wide_and_deep.py", *map(str, words), "--overwrite_checkpoints", "--global_batch_size", "8000"])
    assert run_command(wide_and_deep.main, "wide_and_deep.py") == 0
    assert "--global_batch_size 8000: the training split has only 4,000 rows" in capfd.readouterr().err
