"""Tests of the best checkpoint: a run's final figures are those of its best weights, and a folder of checkpoints is read as its best one."""

import json
import shutil
import subprocess
import sys

import numpy as np
import polars
import pytest
from runs import ROOT, TRAIN, edit_spec, here, write_dataset

import dlrm
from utils.checkpoint.folder import complete_steps, pointed
from utils.checkpoint.reading import Checkpoint
from utils.errors import UserError

# A learning rate at which the AUC soon falls: the best model is not the last.
WORSENS = (*TRAIN, "--epochs", "6", "--learning_rate", "0.1", "--evals_per_epoch", "2")


def evaluations(result, key="auc"):
    return [line["data"][key] for line in result.log if isinstance(line.get("step"), list) and line["step"] and key in line.get("data", {})]


@pytest.fixture(scope="module")
def kept(dataset, tmp_path_factory):
    """Train with `--keep_best_checkpoint`; return the folder of checkpoints and the run's Result."""
    folder = tmp_path_factory.mktemp("kept")
    result = here(folder, "--dataset_path", dataset, *WORSENS, "--keep_best_checkpoint", "--save_checkpoint_path", folder / "c")
    assert result.code == 0, result.err
    assert pointed(folder / "c/best") != pointed(folder / "c/latest")
    return folder / "c", result


def evaluated(run, dataset, path, *flags):
    return run("--dataset_path", dataset, "--cpu", "--mode", "eval", "--restore_checkpoint_path", path, *flags)


def test_final_figures_are_of_the_best_weights_beside_those_of_the_last(run, dataset, kept):
    path, result = kept
    aucs, final = evaluations(result), result.final
    best, last = (evaluated(run, dataset, pointed(path / name)).final for name in ("best", "latest"))
    assert final["auc"] == final["best_auc"] == max(aucs) == best["auc"] and final["validation_loss"] == best["test_loss"]
    assert final["last_auc"] == aucs[-1] == last["auc"] != final["auc"] and final["last_validation_loss"] == last["test_loss"]
    assert final["tested_step"] == Checkpoint(path / "best").step < final["steps"]
    line = (
        f"test AUC {final['auc']:.10f}, log loss {final['validation_loss']:.6f}, of the best weights, step {final['tested_step']}; of the last, step "
    )
    assert line + f"{final['steps']}: AUC {final['last_auc']:.10f}" in result.out


def test_folder_is_read_as_its_best_checkpoint_unless_checkpoint_choice_is_latest(run, dataset, kept, tmp_path):
    path, result = kept
    best, latest = pointed(path / "best"), pointed(path / "latest")
    line = f"{path}: using its best checkpoint, {best.name}; --checkpoint_choice latest uses {latest.name}\n"
    found = evaluated(run, dataset, path)
    assert found.out.count(line) == 1 and found.final["auc"] == result.final["auc"] and found.err == ""
    assert evaluated(run, dataset, path, "--restore_fallback").final["auc"] == result.final["auc"]
    found = evaluated(run, dataset, path, "--checkpoint_choice", "latest")
    assert "best checkpoint" not in found.out and found.final["auc"] == result.final["last_auc"]
    for named in (latest, path / "latest", path / "best"):
        found = evaluated(run, dataset, named)
        assert "best checkpoint" not in found.out and found.final["auc"] == result.final["auc" if named.name == "best" else "last_auc"]
    scores = {}
    for name, flags in (("folder", (path,)), ("best", (best,)), ("latest", (path, "--checkpoint_choice", "latest"))):
        flags = ("--mode", "predict", "--cpu", "--predictions_path", tmp_path / "p.parquet", "--restore_checkpoint_path", *flags)
        predicted = run("--dataset_path", dataset, *flags)
        assert predicted.code == 0 and (line in predicted.out) == (name == "folder")
        scores[name] = polars.read_parquet(tmp_path / "p.parquet")["score"].to_numpy()
    np.testing.assert_array_equal(scores["folder"], scores["best"])
    assert not np.array_equal(scores["folder"], scores["latest"])
    measured = run("--dataset_path", dataset, "--cpu", "--mode", "inference", "--max_steps", "2", "--restore_checkpoint_path", path)
    assert measured.code == 0 and line in measured.out


def test_load_and_export_take_the_best(run, kept, tmp_path, capfd):
    path, _ = kept
    best, latest = pointed(path / "best"), pointed(path / "latest")
    capfd.readouterr()
    model = dlrm.load(path, mmap=True)
    out, err = capfd.readouterr()
    assert model.checkpoint == best and out == ""
    assert err == f'dlrm.load: {path}: using its best checkpoint, {best.name}; checkpoint_choice="latest" uses {latest.name}\n'
    assert dlrm.load(path, mmap=True, checkpoint_choice="latest").checkpoint == latest and dlrm.load(latest, mmap=True).checkpoint == latest
    assert capfd.readouterr().err == ""
    with pytest.raises(UserError, match="--checkpoint_choice newest: expected one of best, latest"):
        dlrm.load(path, checkpoint_choice="newest")
    for flags, step in (((), best), (("--checkpoint_choice", "latest"), latest)):
        repository = tmp_path / step.name
        result = run("--mode", "export", "--cpu", "--restore_checkpoint_path", path, "--export_path", repository, "--formats", "savedmodel", *flags)
        assert result.code == 0 and ("using its best checkpoint" in result.out) == (step == best), result.err
        card = next(repository.rglob("MODEL.md")).read_text()
        assert f"step {Checkpoint(step).step}" in card or str(step) in card


def test_early_stopping_keeps_the_best_and_a_folder_without_one_is_read_as_its_latest(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *WORSENS, "--early_stop_patience", "2", "--save_checkpoint_path", tmp_path / "c")
    result = run(*flags)
    final, best = result.final, pointed(tmp_path / "c/best")
    assert final["auc"] == final["best_auc"] > final["last_auc"] and Checkpoint(best).step == final["tested_step"] < final["steps"]
    (tmp_path / "c/best").unlink()
    assert evaluated(run, dataset, tmp_path / "c").final["auc"] == final["last_auc"]


def test_run_without_keep_best_checkpoint_reports_no_best_figures(run, dataset, tmp_path):
    plain = run("--dataset_path", dataset, *WORSENS, "--save_checkpoint_path", tmp_path / "c")
    assert plain.final["auc"] == evaluations(plain)[-1] < plain.final["best_auc"]
    assert not (tmp_path / "c/best").exists() and not {"last_auc", "tested_step"} & set(plain.final)


def test_best_weights_are_tested_once_if_they_are_the_last(run, dataset, tmp_path):
    flags = (*TRAIN, "--epochs", "1", "--learning_rate", "0.001", "--keep_best_checkpoint", "--valid_fraction", "0.25")
    result = run("--dataset_path", dataset, *flags, "--save_checkpoint_path", tmp_path / "c")
    assert result.out.count("samples\ncheckpoint written") == 1 and result.out.count(", 900 samples") == 1
    assert f"the last weights are the best, step 12: test AUC {result.final['auc']:.10f}" in result.out
    assert result.final["last_auc"] == result.final["auc"] and result.final["tested_step"] == 12
    assert "best checkpoint" not in evaluated(run, dataset, tmp_path / "c").out


def test_best_by_held_out_rows_is_restored_and_tested(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *WORSENS, "--valid_fraction", "0.25", "--keep_best_checkpoint")
    result = run(*flags, "--save_checkpoint_path", tmp_path / "c")
    final, valid = result.final, evaluations(result, "valid_auc")
    assert final["valid_auc"] == final["best_auc"] == max(valid) and final["last_valid_auc"] == valid[-1]
    best, last = (evaluated(run, dataset, pointed(tmp_path / "c" / name)).final for name in ("best", "latest"))
    assert (final["auc"], final["validation_loss"]) == (best["auc"], best["test_loss"])
    assert (final["last_auc"], final["last_validation_loss"]) == (last["auc"], last["test_loss"])
    nowhere = run(*flags[:-1], "--early_stop_patience", "30")
    assert "the best weights are not kept (there is no --save_checkpoint_path): the test figures are of the last weights" in nowhere.err
    assert nowhere.final["auc"] == nowhere.final["last_auc"] == last["auc"] and nowhere.final["tested_step"] == nowhere.final["steps"]


def held_out(run, dataset, *flags):
    return run("--dataset_path", dataset, *WORSENS, "--valid_fraction", "0.25", "--keep_best_checkpoint", *flags)


def figures_of(result):
    return {
        name: value for name, value in result.final.items() if "auc" in name or "validation_loss" in name or name in ("tested_step", "best_epoch")
    }


def test_best_from_before_a_resume_is_tested_and_copied_to_another_folder(run, dataset, tmp_path):
    whole = held_out(run, dataset, "--save_checkpoint_path", tmp_path / "whole")
    step, first = whole.final["tested_step"], held_out(run, dataset, "--save_checkpoint_path", tmp_path / "c", "--max_steps", "50")
    assert first.final["tested_step"] == step < 50
    before = pointed(tmp_path / "c/best")
    moved = held_out(run, dataset, "--restore_checkpoint_path", tmp_path / "c", "--save_checkpoint_path", tmp_path / "d")
    assert figures_of(moved) == figures_of(whole)
    best = pointed(tmp_path / "d/best")
    assert best.name == before.name and [step.name for step in complete_steps(tmp_path / "d")][-1] == best.name
    for path in before.rglob("*"):
        assert path.is_dir() or (best / path.relative_to(before)).read_bytes() == path.read_bytes()
    assert evaluated(run, dataset, tmp_path / "d").final["auc"] == whole.final["auc"]
    there = held_out(run, dataset, "--resume", "auto", "--save_checkpoint_path", tmp_path / "c")
    assert figures_of(there) == figures_of(whole)
    unsaved = held_out(run, dataset, "--restore_checkpoint_path", tmp_path / "whole" / pointed(tmp_path / "whole/best").name)
    assert figures_of(unsaved) == figures_of(whole)


def test_best_of_another_branch_is_not_used(run, dataset, tmp_path):
    """A run that resumes before the best step, with other flags, does not count the first run's best as its own."""
    often = ("--save_checkpoint_path", tmp_path / "c", "--checkpoint_every_steps", "2", "--keep_checkpoints", "100")
    whole = held_out(run, dataset, *often)
    step = whole.final["tested_step"]
    earlier = tmp_path / f"c/step-{step - 2:08d}"
    branch = ("--restore_checkpoint_path", earlier, "--learning_rate", "3", "--max_steps", str(step + 1))
    other = held_out(run, dataset, *branch, "--save_checkpoint_path", tmp_path / "c", "--evals_per_epoch", "1")
    position = Checkpoint(tmp_path / "c/latest").manifest["position"]
    named = pointed(tmp_path / "c/best")
    assert other.final["tested_step"] == (Checkpoint(named).step if named else other.final["steps"])
    assert named is None or Checkpoint(named).manifest["position"]["best_auc"] == position["best_auc"]
    assert other.final["auc"] != whole.final["auc"]


def test_run_without_keep_best_checkpoint_removes_an_old_best(run, dataset, tmp_path):
    first = held_out(run, dataset, "--save_checkpoint_path", tmp_path / "c", "--max_steps", "50")
    assert first.code == 0 and (tmp_path / "c/best").exists()
    flags = ("--save_checkpoint_path", tmp_path / "c", "--resume", "auto", "--nokeep_best_checkpoint")
    last = run("--dataset_path", dataset, *WORSENS, "--valid_fraction", "0.25", *flags)
    assert "last_auc" not in last.final and not (tmp_path / "c/best").exists()


def test_damaged_best_is_reported_and_the_last_is_tested(run, dataset, tmp_path):
    first = held_out(run, dataset, "--save_checkpoint_path", tmp_path / "c", "--max_steps", "50")
    best = pointed(tmp_path / "c/best")
    chunk = next((best / "tables/cat_1/weights/c").rglob("0"))
    chunk = chunk if chunk.is_file() else next(path for path in chunk.rglob("*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[100] ^= 1
    chunk.write_bytes(content)
    last = held_out(run, dataset, "--save_checkpoint_path", tmp_path / "c", "--resume", "auto")
    assert first.final["tested_step"] == Checkpoint(best).step
    assert "damaged" in last.err and "the test figures are of the last weights" in last.err and last.err.count("\n") == 1
    assert last.final["auc"] == last.final["last_auc"] and last.final["tested_step"] == last.final["steps"]


def test_wide_and_deep_log_has_the_best_by_map_at_12(dataset, tmp_path):
    write_dataset(tmp_path / "grouped")
    for split, count in (("train", 4000), ("test", 900)):
        (np.arange(count) // 6).astype(np.int32).tofile(tmp_path / "grouped" / split / "group.bin")

    def grouped(spec):
        spec["feature_spec"]["display"] = {"dtype": "int32"}
        spec["channel_spec"]["group"] = ["display"]
        for split in ("train", "test"):
            spec["source_spec"][split].append({"type": "split_binary", "features": ["display"], "files": [f"{split}/group.bin"]})

    edit_spec(tmp_path / "grouped", grouped)
    flags = ["--dataset_path", tmp_path / "grouped", "--cpu", "--global_batch_size", "256", "--eval_batch_size", "512", "--embedding_dim", "8"]
    flags += ["--deep_hidden_units", "16", "--num_epochs", "5", "--deep_warmup_epochs", "0", "--deep_learning_rate", "0.1", "--linear_learning_rate"]
    flags += ["3", "--keep_best_checkpoint", "--best_metric", "map@12", "--model_dir", tmp_path / "m", "--results_dir", tmp_path]

    result = subprocess.run([sys.executable, ROOT / "wide_and_deep.py", *map(str, flags)], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    log = [json.loads(line.removeprefix("DLLL ")) for line in (tmp_path / "log.json").read_text().splitlines()]
    points = [line["data"] for line in log if "map_at_12" in line.get("data", {}) and line["step"]]
    maps, final = [point["map_at_12"] for point in points], log[-1]["data"]
    best = int(np.argmax(maps))
    assert len(maps) == 5 and best < 4, maps
    assert final["map_at_12"] == final["streaming_map_val"] == final["best_map_at_12"] == maps[best]
    assert (final["auc"], final["auc_val"], final["loss_val"]) == (points[best]["auc"], points[best]["auc_val"], points[best]["loss_val"])
    assert (final["last_auc"], final["last_map_at_12"]) == (points[-1]["auc"], maps[-1])


def test_best_that_was_not_kept_is_reported(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *WORSENS, "--valid_fraction", "0.25", "--save_checkpoint_path", tmp_path / "c")
    assert run(*flags, "--max_steps", "66").code == 0
    last = run(*flags, "--resume", "auto", "--keep_best_checkpoint")
    assert "warning: the best weights are not kept (no checkpoint has them): the test figures are of the last weights\n" in last.err
    assert last.final["tested_step"] == last.final["steps"] and last.final["auc"] == last.final["last_auc"]


def test_invalid_file_best_is_ignored(run, dataset, kept, tmp_path):
    path, result = kept
    for number, content in enumerate(("", "step-00000099\n", "../c\n", b"\xff\xfe")):
        folder = shutil.copytree(path, tmp_path / str(number))
        (folder / "best").write_bytes(content if isinstance(content, bytes) else content.encode())
        assert evaluated(run, dataset, folder).final["auc"] == result.final["last_auc"], content
