"""Tests that a run on several workers restores and tests the best weights at its end, even if they were found before a resume."""

import json

from small_data import FLAGS, write_dataset

from tests.distributed.resident import do_in_turn
from utils.checkpoint.folder import pointed
from utils.checkpoint.reading import Checkpoint


def in_turn(workers, folder, *commands):
    """Run command lines of dlrm.py; return the figures of their logs' last lines, and the output."""
    words = [["--log_path", str(folder / f"log-{number}.json"), *map(str, flags)] for number, flags in enumerate(commands)]
    result = do_in_turn(workers, words)
    assert result.code == 0 and "Traceback" not in result.err, result.err
    logs = [(folder / f"log-{number}.json").read_text().splitlines()[-1] for number in range(len(words))]
    return [json.loads(line.removeprefix("DLLL "))["data"] for line in logs], result.out


def test_two_workers_end_with_the_best_weights_figures_bit_for_bit(tmp_path):
    data = write_dataset(tmp_path / "data", {"train": 960, "test": 397})
    flags = ("--dataset_path", data, *FLAGS, "--learning_rate", "0.1", "--epochs", "6", "--valid_fraction", "0.25", "--early_stop_patience", "4")
    flags += ("--column_slice_threshold", "800", "--data_parallel_threshold", "504")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (whole, best, last), _ = in_turn(
        1,
        tmp_path / "one",
        (*flags, "--save_checkpoint_path", tmp_path / "a"),
        ("--cpu", "--mode", "eval", "--dataset_path", data, "--restore_checkpoint_path", tmp_path / "a"),
        ("--cpu", "--mode", "eval", "--dataset_path", data, "--restore_checkpoint_path", tmp_path / "a", "--checkpoint_choice", "latest"),
    )
    step = whole["tested_step"]
    assert step < whole["steps"] and whole["auc"] == best["auc"] != whole["last_auc"] == last["auc"]
    save = ("--save_checkpoint_path", tmp_path / "b")
    (_, resumed), out = in_turn(2, tmp_path / "two", (*flags, *save, "--max_steps", step + 2), (*flags, *save, "--resume", "auto"))
    names = {name for name in whole if "auc" in name or "validation_loss" in name} | {"tested_step", "steps", "valid_loss", "last_valid_loss"}
    assert {name: resumed[name] for name in names} == {name: whole[name] for name in names}
    assert (
        out.count(f"testing the best weights: {tmp_path / 'b' / f'step-{step:08d}'} (step {step})") == 2
    )  # once for each command: only one worker prints it
    assert Checkpoint(tmp_path / "b", "best").folder == pointed(tmp_path / "b/best")
