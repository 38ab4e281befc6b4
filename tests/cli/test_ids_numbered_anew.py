"""Tests that a dataset is refused, with the feature's name, where its ids stand for other values than the model's rows."""

import shutil

import numpy as np
import polars as pl
import pytest
from runs import CARDINALITIES, TRAIN, edit_spec

from utils.checkpoint.reading import Checkpoint

ONE_STEP = (*TRAIN, "--max_steps", "1", "--evals_per_epoch", "0")


def write_vocabularies(folder, sizes, change=None):
    """Write vocabularies of the features cat_0, cat_1 and so on; `change` edits the values of cat_1."""
    (folder / "vocabulary").mkdir(exist_ok=True)
    for feature, size in enumerate(sizes):
        values = np.random.default_rng(feature).permutation(10_000).astype(np.uint32)
        values = change(values) if change and feature == 1 else values
        frame = pl.DataFrame({"value": values[: size - 1], "id": np.arange(1, size, dtype=np.int32)})
        frame.with_columns(count=pl.lit(1, pl.UInt32)).write_parquet(folder / f"vocabulary/cat_{feature}.parquet")
    return folder


def swapped(values):
    """Swap values 100 and 101."""
    values[[100, 101]] = values[[101, 100]]
    return values


@pytest.fixture
def named(copy):
    """Return a copy of the dataset with vocabularies."""
    return write_vocabularies(copy, CARDINALITIES)


@pytest.fixture
def model(run, named, tmp_path):
    """Train one step on the dataset with vocabularies; return the checkpoint's folder."""
    result = run("--dataset_path", named, *ONE_STEP, "--save_checkpoint_path", tmp_path / "c")
    assert result.code == 0 and result.err == ""
    return tmp_path / "c"


def grown(folder, cardinality=400):
    edit_spec(folder, lambda spec: spec["feature_spec"]["cat_1"].update(cardinality=cardinality))
    return (CARDINALITIES[0], cardinality, CARDINALITIES[2])


def recorded(path):
    return {name: fact["values"] for name, fact in Checkpoint(path).manifest["vocabularies"].items()}


def refused(result, *words):
    assert result.code == 1 and result.err.count("dlrm.py: error: ") == 1 and "Traceback" not in result.err, result.err
    for word in words:
        assert word in result.err.splitlines()[-1], result.err


def test_a_model_grows_with_its_vocabularies(run, named, model, tmp_path):
    assert recorded(model) == {"cat_0": 49, "cat_1": 299, "cat_2": 6}
    write_vocabularies(named, grown(named))
    flags = ("--dataset_path", named, *ONE_STEP, "--restore_checkpoint_path", model, "--allow_growth")
    result = run(*flags, "--save_checkpoint_path", tmp_path / "d")
    assert result.code == 0 and result.err == "" and "new rows: cat_1 +100" in result.out
    assert recorded(tmp_path / "d") == {"cat_0": 49, "cat_1": 399, "cat_2": 6}
    write_vocabularies(named, grown(named), swapped)
    refused(run(*flags), f"feature cat_1: the first 299 values of {named}/vocabulary/cat_1.parquet, in the order of the ids, are not those that")
    write_vocabularies(named, (*CARDINALITIES[:1], 200, *CARDINALITIES[2:]))
    refused(run(*flags), f"feature cat_1: {named}/vocabulary/cat_1.parquet has 199 values", "was trained with 299")


@pytest.mark.parametrize("flags", [("--cpu", "--mode", "eval"), TRAIN, (*TRAIN, "--resume", "weights")], ids=["eval", "resume", "weights"])
def test_changed_vocabulary_is_rejected_in_every_mode(run, named, model, flags):
    flags = ("--dataset_path", named, *flags, "--restore_checkpoint_path", model)
    assert run(*flags).err == ""
    write_vocabularies(named, CARDINALITIES, swapped)
    refused(run(*flags), "feature cat_1: the first 299 values", f"{model}/step-00000001 was trained with", "rows belong to other values")


def test_missing_vocabulary_is_warned_about_once(run, named, model, tmp_path):
    shutil.rmtree(named / "vocabulary")
    flags = ("--dataset_path", named, "--restore_checkpoint_path", model)
    for more in (("--cpu", "--mode", "eval"), (*ONE_STEP, "--max_steps", "2", "--save_checkpoint_path", tmp_path / "d")):
        result = run(*flags, *more)
        assert result.code == 0 and result.err.count("\n") == 1
        assert "warning: features cat_0, cat_1, cat_2: the dataset has no vocabulary/FEATURE.parquet, so its ids cannot be compared" in result.err
    assert recorded(tmp_path / "d") == recorded(model)  # the same rows, so the same ids
    grown(named)
    result = run(*flags, *ONE_STEP, "--allow_growth", "--save_checkpoint_path", tmp_path / "e")
    assert result.code == 0 and result.err.count("\n") == 1 and "the dataset has no vocabulary" in result.err
    assert recorded(tmp_path / "e") == {}


@pytest.mark.parametrize("older", [False, True], ids=["ready ids", "an older checkpoint"])
def test_growth_without_recorded_vocabularies_is_one_warning(run, dataset, copy, tmp_path, older):
    assert run("--dataset_path", dataset, *ONE_STEP, "--save_checkpoint_path", tmp_path / "c").code == 0
    if older:
        without_record(tmp_path / "c")
    evaluated = run("--cpu", "--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", tmp_path / "c")
    assert evaluated.code == 0 and evaluated.err == ""
    grown(copy)
    result = run("--dataset_path", copy, *ONE_STEP, "--restore_checkpoint_path", tmp_path / "c", "--allow_growth")
    assert result.code == 0 and result.err.count("\n") == 1
    assert "warning: --allow_growth: features cat_0, cat_1, cat_2: " in result.err and "keeps no record of its values" in result.err


def without_record(path):
    from utils.checkpoint import manifest

    folder = Checkpoint(path).folder
    manifest.write(folder, {name: value for name, value in manifest.read(folder).items() if name not in ("format", "files", "vocabularies")})


def test_vocabulary_of_another_dataset_is_rejected(run, named):
    write_vocabularies(named, (50, 301, 7))
    flags = ("--dataset_path", named, *ONE_STEP, "--save_checkpoint_path", named / "c")
    refused(run(*flags), "cat_1.parquet: id 300 is not in [0, 300), the feature's ids; the file is of another dataset: remove or replace it")
    assert run(*flags[:-2]).code == 0  # without a checkpoint to write, the vocabularies are not read
