"""Tests of rows held out for choosing the best model, of early stopping, and of `--out_of_range` for ids."""

import numpy as np
import pytest
from runs import TRAIN, edit_spec, write_dataset

from utils.checkpoint.reading import Checkpoint


def rows_of(folder, split, first, last):
    """Move rows first to last of `train` to a new split; `train` keeps the rest."""
    (folder / split).mkdir()
    count = (folder / "train/label.bin").stat().st_size
    for path in (folder / "train").iterdir():
        content = path.read_bytes()
        width = len(content) // count
        (folder / split / path.name).write_bytes(content[first * width : last * width])
        path.write_bytes(content[: first * width] + content[last * width :])

    def add(spec):
        chunks = spec["source_spec"]["train"]
        spec["source_spec"][split] = [chunk | {"files": [name.replace("train/", f"{split}/") for name in chunk["files"]]} for chunk in chunks]

    edit_spec(folder, add)


def test_valid_split_and_valid_fraction_give_the_same_run(run, dataset, copy):
    rows_of(copy, "valid", 3000, 4000)
    flags = (*TRAIN, "--epochs", "2", "--evals_per_epoch", "2")
    by_fraction = run("--dataset_path", dataset, *flags, "--valid_fraction", "0.25")
    by_split = run("--dataset_path", copy, *flags)
    assert by_fraction.final["samples"] == by_split.final["samples"] == 6000
    for figure in ("auc", "validation_loss", "best_auc", "valid_auc", "valid_loss"):
        assert by_fraction.final[figure] == by_split.final[figure], figure
    assert by_fraction.out.count("valid AUC") == 4 and by_fraction.out.count("test AUC") == 1
    assert by_fraction.final["best_auc"] >= by_fraction.final["valid_auc"] != by_fraction.final["auc"]
    points = [line["data"]["valid_auc"] for line in by_split.log if "valid_auc" in line.get("data", {}) and line["step"]]
    assert len(points) == 4 and max(points) == by_split.final["best_auc"]


def test_dataset_subset_trains_on_the_first_rows(run, dataset, copy, tmp_path):
    rows_of(copy, "valid", 3000, 4000)
    rows_of(copy, "rest", 1500, 3000)
    edit_spec(copy, lambda spec: spec["source_spec"].pop("rest"))
    by_flag = run("--dataset_path", dataset, *TRAIN, "--valid_fraction", "0.25", "--dataset_subset", "0.5", "--save_checkpoint_path", tmp_path / "c")
    by_files = run("--dataset_path", copy, *TRAIN)
    assert by_flag.final["samples"] == by_files.final["samples"] == 1500
    for figure in ("auc", "valid_auc", "train_loss", "best_epoch"):
        assert by_flag.final[figure] == by_files.final[figure], figure
    other = run("--dataset_path", dataset, *TRAIN, "--dataset_subset", "0.4", "--restore_checkpoint_path", tmp_path / "c")
    assert other.code == 1 and "its run" in other.err and "cannot be resumed exactly" in other.err
    none = run("--dataset_path", dataset, *TRAIN, "--dataset_subset", "0.00001")
    assert none.code == 1 and "--dataset_subset 1e-05: none of the 4000 rows of train would be left" in none.err


def test_valid_split_and_valid_fraction_exclude_each_other(run, copy):
    rows_of(copy, "valid", 3000, 4000)
    result = run("--dataset_path", copy, *TRAIN, "--valid_fraction", "0.1")
    assert result.code == 1 and "has a valid split, so --valid_fraction 0.1 cannot hold out another" in result.err


def test_early_stopping_keeps_its_count_after_a_resume(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *TRAIN, "--epochs", "40", "--learning_rate", "0.3", "--evals_per_epoch", "2", "--early_stop_patience", "3")
    often = ("--checkpoint_every_steps", "5", "--keep_checkpoints", "1000")
    whole = run(*flags, "--save_checkpoint_path", tmp_path / "c", "--keep_best_checkpoint", *often)
    assert "evaluations (--early_stop_patience) at step" in whole.out and "training stops" in whole.out
    aucs = [line["data"]["auc"] for line in whole.log if line.get("step") and "test_loss" in line.get("data", {})]
    best = int(np.argmax(aucs))
    assert len(aucs) == best + 4 < 80 and whole.final["best_auc"] == aucs[best]
    assert Checkpoint(tmp_path / "c/best").manifest["position"]["best_auc"] == aucs[best]
    evaluated = run("--dataset_path", dataset, "--cpu", "--mode", "eval", "--restore_checkpoint_path", tmp_path / "c/best")
    assert evaluated.final["auc"] == aucs[best]
    # A run resumed between the two evaluations that early stopping counts stops at the same step.
    between = f"step-{(8 * (best + 2) + 7) // 5 * 5:08d}"
    resumed = run(*flags, "--restore_checkpoint_path", tmp_path / "c" / between)
    assert resumed.final["steps"] == whole.final["steps"] and resumed.final["best_auc"] == aucs[best]


@pytest.mark.parametrize("how", ["clip", "hash"])
def test_clip_and_hash_match_a_dataset_with_the_changed_ids(run, dataset, copy, tmp_path, how):
    path, fitting = copy / "train/cat_1.bin", tmp_path / "fitting"
    ids = np.fromfile(path, np.int16)
    ids[[5, 900, 3999]] = 300, -1, 20_000
    ids.tofile(path)
    write_dataset(fitting)
    np.where((ids < 0) | (ids > 299), np.clip(ids, 0, 299) if how == "clip" else ids % 300, ids).astype(np.int16).tofile(fitting / "train/cat_1.bin")
    flags = (*TRAIN, "--print_freq", "8", "--save_checkpoint_path")
    result = run("--dataset_path", copy, *flags, tmp_path / "one", "--out_of_range", how)
    other = run("--dataset_path", fitting, *flags, tmp_path / "other")
    assert result.final["ids_out_of_range"] == 3 and "ids_out_of_range" not in other.final
    assert result.final["auc"] == other.final["auc"] and result.final["train_loss"] == other.final["train_loss"]
    counted = [line["data"]["ids_out_of_range"] for line in result.log if "loss" in line.get("data", {})]
    assert counted == [2, 3] and "2 ids out of range, " in result.out
    one, two = Checkpoint(tmp_path / "one"), Checkpoint(tmp_path / "other")
    for name in one.names(""):
        np.testing.assert_array_equal(one.read(name), two.read(name))


def test_id_out_of_range_is_an_error_with_advice(run, copy):
    path = copy / "train/cat_1.bin"
    ids = np.fromfile(path, np.int16)
    ids[900] = 300
    ids.tofile(path)
    result = run("--dataset_path", copy, *TRAIN)
    assert result.code == 1 and result.err.count("\n") == 1
    assert f"{path}: feature cat_1, row 900: id 300 is not in [0, 300); correct the dataset, or map such ids" in result.err


def test_damaged_checkpoint_is_skipped_only_with_restore_fallback(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *TRAIN, "--epochs", "1")
    assert run(*flags, "--save_checkpoint_path", tmp_path / "c", "--checkpoint_every_steps", "6").code == 0
    whole = Checkpoint(tmp_path / "c")
    expected = {name: whole.read(name) for name in whole.names("")}
    chunk = tmp_path / "c/step-00000016/tables/cat_1/weights/c/0/0"
    content = bytearray(chunk.read_bytes())
    content[100] ^= 1
    chunk.write_bytes(content)
    for mode in (["--epochs", "2"], ["--mode", "eval"]):  # two epochs: with one the run would be finished, and no weights would be read
        refused = run(*flags, *mode, "--restore_checkpoint_path", tmp_path / "c")
        assert refused.code == 1 and "damaged" in refused.err and "(there is step-00000012)" in refused.err
    result = run(*flags, "--restore_checkpoint_path", tmp_path / "c", "--restore_fallback", "--save_checkpoint_path", tmp_path / "d")
    assert "damaged" in result.err and "step-00000012 instead" in result.err and "step 12" in result.out
    found = Checkpoint(tmp_path / "d")
    for name, values in expected.items():
        np.testing.assert_array_equal(found.read(name), values, name)
    for step in ("step-00000006", "step-00000012"):
        (tmp_path / "c" / step / "manifest.json").write_text("{")
    nothing = run(*flags, "--restore_checkpoint_path", tmp_path / "c", "--restore_fallback")
    assert nothing.code == 1 and "damaged" in nothing.err.splitlines()[-1] and "Traceback" not in nothing.err


def test_checkpoint_folder_in_use_is_an_error(run, dataset, tmp_path):
    from utils.checkpoint.lock import Lock

    (tmp_path / "c").mkdir()
    held = Lock(tmp_path / "c")
    result = run("--dataset_path", dataset, *TRAIN, "--save_checkpoint_path", tmp_path / "c")
    assert result.code == 1 and "another run writes its checkpoints there" in result.err
    held.release()


def test_allow_growth_trains_on_from_the_old_weights(run, dataset, copy, tmp_path):
    flags = (*TRAIN, "--epochs", "1")
    assert run("--dataset_path", dataset, *flags, "--save_checkpoint_path", tmp_path / "c").code == 0
    edit_spec(copy, lambda spec: spec["feature_spec"]["cat_1"].update(cardinality=400))
    plain = run("--dataset_path", copy, *flags, "--restore_checkpoint_path", tmp_path / "c")
    assert plain.code == 1 and "the table of feature cat_1 has 300 rows, the dataset needs 400; --allow_growth" in plain.err
    grown = run(
        "--dataset_path", copy, *flags, "--restore_checkpoint_path", tmp_path / "c", "--allow_growth", "--save_checkpoint_path", tmp_path / "d"
    )
    assert "new rows: cat_1 +100; training starts at step 0" in grown.out
    assert grown.final["steps"] == 16
    assert Checkpoint(tmp_path / "d").shape("tables/cat_1/weights") == (400, 8)
