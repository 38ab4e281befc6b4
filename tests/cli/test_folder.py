"""Tests of the folder of checkpoints: paths of every form, folders that are in use, finished runs, and the flags of a resumed run."""

import os
import re

import pytest
from runs import TRAIN

from utils.checkpoint.reading import Checkpoint

RUN = (*TRAIN, "--max_steps", "4", "--evals_per_epoch", "0")


@pytest.fixture
def flags(dataset):
    return ("--dataset_path", dataset, *RUN)


def steps(folder):
    return sorted(entry.name for entry in folder.iterdir())


# Paths -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["here/../c", "../c", "./c/.", "link/../c", "c//d", "ü ☃/c"])
def test_any_form_of_path_works(run, flags, tmp_path, monkeypatch, path):
    (tmp_path / "work/here").mkdir(parents=True)
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    (tmp_path / "work/link").symlink_to(tmp_path / "elsewhere/deep")  # `link/..` is `elsewhere`, not `work`
    monkeypatch.chdir(tmp_path / "work")
    result = run(*flags, "--save_checkpoint_path", path)
    assert result.code == 0, result.err
    assert Checkpoint(os.path.realpath(path)).step == 4
    result = run("--dataset_path", flags[1], "--cpu", "--mode", "eval", "--restore_checkpoint_path", path)
    assert result.code == 0, result.err
    result = run(*flags, "--max_steps", "6", "--save_checkpoint_path", path, "--resume", "auto", "--restore_fallback")
    assert result.code == 0 and "damaged" not in result.err, result.err
    assert Checkpoint(os.path.realpath(path)).step == 6


def test_path_that_is_not_utf8_is_rejected_before_training(run, flags, tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff"
    result = run(*flags, "--save_checkpoint_path", os.fsdecode(path))
    assert result.code == 1 and "is not UTF-8" in result.err and "damaged" not in result.err
    assert "step" not in result.out and result.err.count("\n") == 1


def test_feature_name_too_long_for_a_file_is_rejected_before_training(run, copy, tmp_path):
    name = "ü" * 60  # 360 bytes as a file name, since a checkpoint escapes ü as %C3%BC
    spec = (copy / "feature_spec.yaml").read_text()
    (copy / "feature_spec.yaml").write_text(re.sub(r"\bcat_0\b(?!\.bin)", name, spec))
    result = run("--dataset_path", copy, *RUN, "--save_checkpoint_path", tmp_path / "c")
    assert result.code == 1 and "--save_checkpoint_path" in result.err and "File name too long" in result.err, result.err
    assert result.err.count("\n") == 1 and steps(tmp_path / "c") == []


def test_error_of_an_unusable_folder_names_the_flag(run, flags, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file/c", "/proc/c"):
        result = run(*flags, "--save_checkpoint_path", path)
        assert result.code == 1 and f"--save_checkpoint_path {path}: " in result.err and result.err.count("\n") == 1, result.err


def test_trial_leaves_no_files(run, flags, tmp_path):
    assert run(*flags, "--save_checkpoint_path", tmp_path / "c").code == 0
    assert steps(tmp_path / "c") == ["latest", "step-00000004"]


# Folders in use ----------------------------------------------------------------------------------------------------------


def test_checkpoints_of_another_run_are_not_replaced_by_default(run, flags, trained, tmp_path):
    folder = ("--save_checkpoint_path", tmp_path / "c")
    assert run(*flags, *folder).code == 0
    for more in ((), ("--restore_checkpoint_path", trained[0]), ("--restore_checkpoint_path", tmp_path / "c", "--resume", "weights")):
        result = run(*flags, *folder, *more, "--epochs", "4", "--max_steps", "60")
        assert result.code == 1 and result.err.count("\n") == 1, result.err
        assert (
            "holds checkpoints of another run (the newest is step-00000004); --resume auto" in result.err and "--overwrite_checkpoints" in result.err
        )
    assert steps(tmp_path / "c") == ["latest", "step-00000004"]


def test_overwrite_removes_the_other_checkpoints_after_the_first_new_one(run, flags, tmp_path):
    folder = ("--save_checkpoint_path", tmp_path / "c")
    many = ("--checkpoint_every_steps", "4", "--evals_per_epoch", "4", "--keep_best_checkpoint")
    assert run(*flags, *folder, *many, "--max_steps", "12").code == 0
    before = steps(tmp_path / "c")
    assert "best" in before and len(before) > 3
    assert run(*flags, *folder, "--overwrite_checkpoints", "--learning_rate", "3e38").code == 1  # it fails before it saves
    assert steps(tmp_path / "c") == before
    assert run(*flags, *folder, "--overwrite_checkpoints", "--checkpoint_every_steps", "1", "--max_steps", "3").code == 0
    assert steps(tmp_path / "c") == ["latest", "step-00000001", "step-00000002", "step-00000003"]


def test_overwrite_checkpoints_and_resume_auto_exclude_each_other(run, flags, tmp_path):
    result = run(*flags, "--save_checkpoint_path", tmp_path / "c", "--overwrite_checkpoints", "--resume", "auto")
    assert result.code == 1 and "exclude each other" in result.err


# Resuming ----------------------------------------------------------------------------------------------------------------


def test_resume_auto_prefers_own_checkpoints_to_restore_checkpoint_path(run, flags, tmp_path):
    assert run(*flags, "--save_checkpoint_path", tmp_path / "a").code == 0
    again = (*flags, "--restore_checkpoint_path", tmp_path / "a", "--save_checkpoint_path", tmp_path / "b", "--resume", "auto")
    first = run(*again, "--max_steps", "6")
    assert "resuming at epoch 0, batch 4, step 4" in first.out, first.err
    second = run(*again, "--max_steps", "9")
    assert "resuming at epoch 0, batch 6, step 6" in second.out, second.err


@pytest.mark.parametrize(
    "limit", [("--epochs", "1"), ("--max_steps", "7"), ("--epochs", "50", "--early_stop_patience", "1"), ("--auc_threshold", "0.2")]
)
def test_resuming_a_finished_run_changes_nothing(run, dataset, tmp_path, limit):
    command = ("--dataset_path", dataset, *TRAIN, "--save_checkpoint_path", tmp_path / "c", "--resume", "auto", "--learning_rate", "0.05", *limit)
    first = run(*command)
    manifest = Checkpoint(tmp_path / "c").folder / "manifest.json"
    before = manifest.read_bytes(), manifest.stat().st_mtime_ns
    for _ in range(2):
        again = run(*command)
        assert again.code == 0 and "the run is finished" in again.out and "nan" not in again.out, again.err
        assert "samples/s" not in again.out and "log loss" not in again.out
        assert again.log == []  # the fixture removed the first run's log, and the second run writes none
    assert (manifest.read_bytes(), manifest.stat().st_mtime_ns) == before
    if limit == ("--epochs", "1"):
        more = run(*command, "--epochs", "2", "--early_stop_patience", "2")
        assert more.final["steps"] == 2 * first.final["steps"]


def test_reached_auc_threshold_holds_after_a_resume(run, dataset, tmp_path):
    command = ("--dataset_path", dataset, *TRAIN, "--epochs", "4", "--test_freq", "5", "--save_checkpoint_path", tmp_path / "c", "--resume", "auto")
    first = run(*command, "--auc_threshold", "0.2")
    assert first.final["steps"] == 5
    assert "reached --auc_threshold 0.2" in run(*command).out  # the threshold is taken over from the checkpoint
    assert run(*command, "--auc_threshold", "1").final["steps"] == 64


def test_flags_are_inherited_and_changes_are_announced(run, dataset, tmp_path):
    path = ("--dataset_path", dataset, "--cpu", "--save_checkpoint_path", tmp_path / "c", "--resume", "auto")
    given = ("--beta1", "0.8", "--amp", "--epochs", "3", "--shuffle_batch_order", "--seed", "5", "--max_steps", "9")
    whole = run("--dataset_path", dataset, *TRAIN, *given, "--save_checkpoint_path", tmp_path / "whole", "--max_steps", "20")
    assert run(*path, *TRAIN[1:], *given).code == 0
    result = run(*path, "--max_steps", "20")
    assert "taken over from the checkpoint: " in result.out
    for name, value in (
        ("learning_rate", "0.01"),
        ("optimizer", "adam"),
        ("beta1", "0.8"),
        ("seed", "5"),
        ("epochs", "3"),
        ("amp", "True"),
        ("batch_size", "256"),
    ):
        assert f"{name} {value}" in result.out
    one, other = Checkpoint(tmp_path / "whole"), Checkpoint(tmp_path / "c")
    assert one.step == other.step == whole.final["steps"] == 20
    assert all((one.read(name) == other.read(name)).all() for name in one.names(""))
    result = run(*path, "--max_steps", "22", "--learning_rate", "24", "--warmup_steps", "7", "--noamp")
    for name, new, old in (("learning_rate", "24.0", "0.01"), ("warmup_steps", "7", "0"), ("amp", "False", "True")):
        assert f"--{name} {new} from here on; the checkpoint's run had {old}\n" in result.out, result.out


def test_resume_weights_inherits_no_training_flags(run, dataset, trained, tmp_path):
    flags = ("--dataset_path", dataset, "--cpu", "--batch_size", "256", "--max_steps", "2", "--warmup_steps", "0", "--learning_rate", "0.5")
    result = run(*flags, "--restore_checkpoint_path", trained[0], "--resume", "weights")
    assert result.code == 0 and "taken over" not in result.out, result.err
    assert result.log[0]["data"]["optimizer"] == "sgd"
