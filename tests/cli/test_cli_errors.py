"""Tests of dlrm.py's errors: one line, exit code 1, and no good checkpoint is overwritten."""

import shutil

import numpy as np
import pytest
from runs import SMALL, TRAIN, child, edit_spec, write_dataset


def assert_one_line(result, *words):
    assert result.code == 1
    assert result.err.startswith("dlrm.py: error: ") and result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err


def truncate(folder):
    path = folder / "train/cat_1.bin"
    path.write_bytes(path.read_bytes()[:-1])


def shorten(folder):
    path = folder / "test/label.bin"
    path.write_bytes(path.read_bytes()[:-3])


def poison_id(folder):
    ids = np.fromfile(folder / "train/cat_1.bin", np.int16)
    ids[1234] = 300
    ids.tofile(folder / "train/cat_1.bin")


def poison_label(folder):
    labels = np.fromfile(folder / "train/label.bin", np.uint8)
    labels[77] = 9
    labels.tofile(folder / "train/label.bin")


def poison_numerical(folder):
    numerical = np.fromfile(folder / "test/numerical.bin", np.float16)
    numerical[3 * 700 + 2] = np.nan
    numerical.tofile(folder / "test/numerical.bin")


def empty(folder):
    for path in folder.glob("*/*.bin"):
        path.write_bytes(b"")


def delete(folder):
    (folder / "train/cat_2.bin").unlink()


def wrong_dtype(folder):
    edit_spec(folder, lambda content: content["feature_spec"]["cat_0"].update(dtype="int64"))


def no_chunk(folder):
    edit_spec(folder, lambda content: content["source_spec"]["train"].pop(1))


def no_feature(folder):
    edit_spec(folder, lambda content: content["feature_spec"].pop("cat_0"))


def not_yaml(folder):
    (folder / "feature_spec.yaml").write_text("a: [")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, ["train/cat_1.bin", "truncated"]),
        (shorten, ["test/label.bin: 897 samples", "900"]),
        (poison_id, ["feature cat_1, row 1234: id 300 is not in [0, 300)"]),
        (poison_label, ["feature label, row 77: label 9 is not 0 or 1"]),
        (poison_numerical, ["feature num_2, row 700: value nan is not finite"]),
        (empty, ["split train is empty"]),
        (delete, ["train/cat_2.bin: No such file"]),
        (wrong_dtype, ["feature cat_0: dtype is int64", "int8, int16, int32"]),
        (no_chunk, ["feature cat_0 is in 0 chunks"]),
        (no_feature, ["feature cat_0 is in channel_spec but not in feature_spec"]),
        (not_yaml, ["feature_spec.yaml, line 1: not valid YAML"]),
        (shutil.rmtree, ["feature_spec.yaml: no such file"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_invalid_dataset_is_a_one_line_error(run, copy, tmp_path, damage, words):
    damage(copy)
    result = run("--dataset_path", copy, *TRAIN, "--save_checkpoint_path", tmp_path / "checkpoint")
    assert_one_line(result, *words)
    assert not list(tmp_path.glob("checkpoint/step-*"))


def flip(checkpoint):
    path = next(path for path in checkpoint.glob("step-*/tables/cat_1/weights/c/**/*") if path.is_file())
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def lose(checkpoint):
    next(path for path in checkpoint.glob("step-*/dense/top_mlp/0/kernel/c/**/*") if path.is_file()).unlink()


def garble(checkpoint):
    next(checkpoint.glob("step-*/manifest.json")).write_text("{")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, ["tables/cat_1/weights: its data do not match their checksum; the checkpoint is damaged"]),
        (lose, ["dense/top_mlp/0/kernel/c/0/0: No such file or directory; the checkpoint is damaged"]),
        (garble, ["manifest.json: cannot be read"]),
        (shutil.rmtree, ["checkpoint: no such folder"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damaged_checkpoint_is_a_one_line_error(run, trained, dataset, tmp_path, damage, words):
    checkpoint = shutil.copytree(trained[0], tmp_path / "checkpoint")
    damage(checkpoint)
    assert_one_line(run("--cpu", "--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", checkpoint), *words)


def test_checkpoint_of_other_tables_is_a_one_line_error(run, trained, tmp_path):
    dataset = write_dataset(tmp_path / "dataset", cardinalities=(50, 301, 7), rows={"train": 10, "test": 10})
    result = run("--cpu", "--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", trained[0])
    assert_one_line(result, "the table of feature cat_1 has 300 rows, the dataset needs 301")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--top_mlp_dims", "5,1"], ["--top_mlp_dims 5,1: the checkpoint's model has 16,1"]),
        (["--embedding_dim", "16", "--bottom_mlp_dims", "16,16"], ["--embedding_dim 16: the checkpoint's model has 8"]),
    ],
)
def test_flag_that_contradicts_the_checkpoint_is_a_one_line_error(run, trained, dataset, flags, words):
    result = run("--cpu", "--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", trained[0], *flags)
    assert_one_line(result, *words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--dataset_path is missing"]),
        (["--dataset_path", "{data}", "--mode", "eval"], ["--restore_checkpoint_path is missing"]),
        (["--dataset_path", "{data}", "--mode", "predict", "--restore_checkpoint_path", "{model}"], ["--predictions_path is missing"]),
        (
            ["--dataset_path", "{data}", "--mode", "predict", "--restore_checkpoint_path", "{model}", "--predictions_path", "{tmp}/none/x"],
            ["--predictions_path", "existing folder"],
        ),
        (
            ["--dataset_path", "{data}", "--mode", "predict", "--restore_checkpoint_path", "{model}", "--predictions_path", "/dev/null"],
            ["--predictions_path /dev/null: expected a file"],
        ),
        (["--dataset_path", "{data}", *TRAIN, "--save_checkpoint_path", "{tmp}/file"], ["{tmp}/file"]),
        (["--dataset_path", "{data}", *TRAIN, "--save_checkpoint_path", "{tmp}/file/below"], ["{tmp}/file"]),
        (["--dataset_path", "{data}", *TRAIN, "--log_path", "{tmp}/file/log.json"], ["--log_path {tmp}/file/log.json"]),
        (["--dataset_path", "{data}", *TRAIN, "--max_table_size", "10"], ["feature cat_0", "add --out_of_range hash"]),
        (["--dataset_path", "{data}", *TRAIN, "--feature_spec", "other.yaml"], ["other.yaml: no such file"]),
        (["--dataset_type", "synthetic", "--cpu", "--synthetic_dataset_cardinalities", "1" + 11 * "0"], ["cardinality"]),
        (["--dataset_type", "synthetic", "--cpu", "--synthetic_dataset_cardinalities", "2000000000", *SMALL, "--optimizer", "adam"], ["GiB"]),
        (["--config", "{tmp}/none.yaml"], ["--config {tmp}/none.yaml"]),
    ],
    ids=lambda value: " ".join(value)[-60:] if value and value[0].startswith("--") and len(value) > 1 else "",
)
def test_invalid_request_is_a_one_line_error(run, dataset, trained, tmp_path, flags, words):
    (tmp_path / "file").write_text("in the way")
    names = {"data": dataset, "model": trained[0], "tmp": tmp_path}
    assert_one_line(run(*(flag.format(**names) for flag in flags)), *(word.format(**names) for word in words))


def test_loss_that_is_not_finite_is_a_one_line_error_and_keeps_the_last_checkpoint(trained, dataset, tmp_path):
    checkpoint = shutil.copytree(trained[0], tmp_path / "checkpoint")
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    flags = (
        "--cpu",
        *SMALL,
        "--batch_size",
        "256",
        "--learning_rate",
        "1e30",
        "--warmup_steps",
        "0",
        "--overwrite_checkpoints",
        "--save_checkpoint_path",
        checkpoint,
    )
    result = child(tmp_path, "--dataset_path", dataset, *flags)
    assert_one_line(result, "step 1: the loss is ", "nothing is saved", "--learning_rate")
    assert {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "flags",
    [("--learning_rate", "1e38"), ("--learning_rate", "0.1", "--amp", "--amp_dtype", "float16", "--loss_scale", "1e38", "--evals_per_epoch", "0")],
    ids=["evaluated", "not evaluated"],
)
def test_weights_that_are_not_finite_after_the_last_step_are_not_saved(run, dataset, tmp_path, flags):
    # The loss of step 0 is finite: it was computed with the weights before the step.
    ruin = ("--cpu", *SMALL, "--batch_size", "256", "--warmup_steps", "0", "--max_steps", "1", "--optimizer", "adam", *flags)
    result = run("--dataset_path", dataset, *ruin, "--save_checkpoint_path", tmp_path / "checkpoint")
    assert result.code == 1
    last = result.err.splitlines()[-1]  # oneDNN may print a line before it: that float16 is slow on this processor
    assert "nothing is saved" in last and "--learning_rate" in last
    assert list((tmp_path / "checkpoint").iterdir()) == []


def test_unknown_flag_is_a_one_line_error(tmp_path):
    assert_one_line(child(tmp_path, "--bach_size", "3"), "unknown flag --bach_size; did you mean --batch_size?")
    assert list(tmp_path.iterdir()) == []


def test_truncated_file_is_a_one_line_error_in_a_child_process(copy, tmp_path):
    truncate(copy)
    assert_one_line(child(tmp_path, "--dataset_path", copy, *TRAIN), "train/cat_1.bin", "truncated")
