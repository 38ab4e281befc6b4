"""dlrm.py on NVIDIA's split (model_size.json) and split_tfrecords datasets gives the bits of tf_raw; flags of its DLRM for PyTorch."""

import json
import shutil

import numpy as np
import pytest
from runs import TRAIN, Result, edit_spec

from dataloading import transcribe
from dataloading.feature_spec import FeatureSpec

SIZE = 256  # batch and record


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """Write the dataset's first 3,840 and 512 rows, whole batches, and as split_tfrecords; return both folders."""
    folder = tmp_path_factory.mktemp("whole")
    flags = ["--src_dataset_path", str(dataset), "--src_batch_size", str(SIZE), "--max_batches_train", "15", "--max_batches_test", "2"]
    assert transcribe.main([*flags, "--dst_dataset_path", str(folder / "raw")]) == 0
    assert transcribe.main([*flags, "--dst_dataset_path", str(folder / "records"), "--dst_dataset_type", "split_tfrecords"]) == 0
    return folder / "raw", folder / "records"


@pytest.fixture(scope="module")
def split(dataset, tmp_path_factory):
    """Write the dataset in the form of NVIDIA's DLRM for PyTorch: model_size.json instead of a specification."""
    folder = tmp_path_factory.mktemp("split") / "dataset"
    shutil.copytree(dataset, folder)
    cardinalities = FeatureSpec.from_yaml(folder / "feature_spec.yaml").cardinalities
    (folder / "model_size.json").write_text(json.dumps({f"_c{14 + i}": rows - 1 for i, rows in enumerate(cardinalities)}))
    (folder / "feature_spec.yaml").unlink()
    return folder


def train(run, tmp_path, name, *flags):
    result = run(*TRAIN, "--epochs", "2", "--save_checkpoint_path", tmp_path / name, *flags)
    return result, figures(result), arrays(tmp_path / name)


def figures(result: Result):
    return {key: value for key, value in result.final.items() if key in ("auc", "train_loss", "validation_loss", "samples")}


def arrays(folder):
    step = max(folder.glob("step-*"))
    return {str(path.relative_to(step)): path.read_bytes() for path in sorted(step.rglob("*")) if path.is_file() and path.parent.name.isdigit()}


@pytest.mark.parametrize(
    "flags", [(), ("--shuffle_batch_order", "--shuffle_window", "3"), ("--valid_fraction", "0.2")], ids=["plain", "shuffled", "valid"]
)
def test_records_train_to_the_bits_of_tf_raw(run, whole, tmp_path, flags):
    raw, records = whole
    _, expected, expected_arrays = train(run, tmp_path, "raw", "--dataset_path", raw, *flags)
    result, found, found_arrays = train(run, tmp_path, "records", "--dataset_path", records, "--dataset_type", "split_tfrecords", *flags)
    assert found == expected and found_arrays == expected_arrays and len(expected_arrays) > 5
    assert result.err.count("test: records have 256 rows, and batches 512; batches of the records' size are read faster") == 1


def test_resumed_training_on_records_keeps_the_bits(run, whole, tmp_path):
    flags = ("--dataset_path", whole[1], "--dataset_type", "split_tfrecords")
    _, expected, expected_arrays = train(run, tmp_path, "whole", *flags)
    assert run(*TRAIN, "--epochs", "2", *flags, "--save_checkpoint_path", tmp_path / "cut", "--max_steps", "11").code == 0
    _, found, found_arrays = train(run, tmp_path, "cut", *flags, "--resume", "auto")
    assert found["auc"] == expected["auc"] and found_arrays == expected_arrays


def test_another_batch_size_is_one_line_and_the_same_bits(run, whole, tmp_path):
    raw, records = whole
    flags = ("--batch_size", "100")
    _, expected, expected_arrays = train(run, tmp_path, "raw", "--dataset_path", raw, *flags)
    result, found, found_arrays = train(run, tmp_path, "records", "--dataset_path", records, "--dataset_type", "split_tfrecords", *flags)
    assert found == expected and found_arrays == expected_arrays
    assert result.err.count("train: records have 256 rows, and batches 100") == 1


def test_split_dataset_trains_to_the_bits_of_tf_raw(run, dataset, split, tmp_path):
    _, expected, expected_arrays = train(run, tmp_path, "raw", "--dataset_path", dataset)
    for name, flags in (("named", ("--dataset_type", "split")), ("found", ())):
        _, found, found_arrays = train(run, tmp_path, name, "--dataset_path", split, *flags)
        assert found == expected and found_arrays == expected_arrays
    assert not (split / "feature_spec.yaml").exists()


def test_split_type_of_a_width_that_nvidias_scripts_disagree_on(run, dataset, split, tmp_path):
    """A table of 127 rows: `split_dataset.py` writes int8, and NVIDIA's trainer expects int16. The files' sizes tell."""
    folder = shutil.copytree(split, tmp_path / "d")
    sizes = json.loads((folder / "model_size.json").read_text())
    for width in ("int8", "int16"):
        for name in ("train", "test"):
            ids = np.fromfile(split / name / "cat_0.bin", np.int8)
            ids.astype(width).tofile(folder / name / "cat_0.bin")
        (folder / "model_size.json").write_text(json.dumps(sizes | {"_c14": 126}))
        result = run(*TRAIN, "--dataset_path", folder, "--dataset_type", "split")
        assert result.final["samples"] == 4000, result.err


def test_mode_test_without_a_checkpoint_evaluates_the_initial_model(run, dataset, split):
    result = run("--mode", "test", "--dataset", split, "--cpu", *TRAIN[1:7])
    assert 0.3 < result.final["auc"] < 0.7 and result.final["samples"] == 900
    assert "--mode test is --mode eval --untrained here" in result.err
    assert "--untrained: the initial weights are evaluated; the metrics say nothing about a trained model" in result.err
    without = run("--mode", "eval", "--dataset_path", dataset, "--cpu")
    assert without.code == 1 and "--restore_checkpoint_path is missing: --mode eval needs a trained model" in without.err


def test_mode_test_with_a_checkpoint_evaluates_it(run, dataset, trained):
    folder, result = trained
    found = run("--mode", "test", "--dataset", dataset, "--cpu", "--load_checkpoint_path", folder)
    assert found.final["auc"] == result.final["auc"] and "--untrained" not in found.err


@pytest.mark.parametrize("kind", ["binary", "memmap"])
def test_binary_names_the_command_to_type(run, tmp_path, kind):
    result = run("--dataset", tmp_path / "d", "--dataset_type", kind)
    command = f"python -m dataloading.transcribe --src_dataset_type binary --src_dataset_path {tmp_path / 'd'} --dst_dataset_path DATASET"
    assert result.code == 2 or result.code == 1
    assert f"--dataset_type {kind} is not read directly; make a dataset of it with {command}, then" in result.err and result.err.count("error: ") == 1


ERRORS = {
    "split without its file": (
        lambda split, records: (split / "model_size.json").unlink(),
        "split",
        "model_size.json: No such file or directory; expected the greatest id of each categorical feature",
    ),
    "split that lacks a file": (lambda split, records: (split / "test" / "cat_2.bin").unlink(), "split", "test/cat_2.bin: No such file or directory"),
    "records without a feature": (
        lambda split, records: shutil.rmtree(records / "test" / "categorical_1"),
        "records",
        "categorical_1/format.json: No such file or directory; expected NVIDIA's pre-batched TFRecords",
    ),
    "records without a specification": (
        lambda split, records: (records / "feature_spec.yaml").unlink(),
        "records",
        "feature_spec.yaml: no such file",
    ),
    "records of another cardinality": (
        lambda split, records: edit_spec(records, lambda found: found["feature_spec"]["cat_1"].update(cardinality=20)),
        "records",
        "feature cat_1, row ",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_damaged_datasets_are_one_line(run, split, whole, tmp_path, case):
    damage, kind, message = ERRORS[case]
    folders = {"split": shutil.copytree(split, tmp_path / "split"), "records": shutil.copytree(whole[1], tmp_path / "records")}
    damage(folders["split"], folders["records"])
    result = run(*TRAIN, "--dataset_path", folders[kind], "--dataset_type", "split" if kind == "split" else "split_tfrecords")
    assert result.code == 1 and message in result.err and result.err.count("error: ") == 1 and "Traceback" not in result.err


# Synthetic data on disk ---------------------------------------------------------------------------------------------------

DISK = """--dataset_type synthetic_disk --synthetic_dataset_table_sizes 50,9,300 --num_numerical_features 2 --synthetic_dataset_num_entries 640
    --batch_size 64 --test_batch_size 64""".split()
MODEL = ("--cpu", "--embedding_dim", "4", "--bottom_mlp_sizes", "8,4", "--top_mlp_sizes", "8,1", "--lr", "0.1", "--warmup_steps", "0")


def test_synthetic_dataset_is_stored_once_and_trained_on(run, tmp_path):
    folder = tmp_path / "stored"
    flags = (*DISK, *MODEL, "--synthetic_dataset_dir", folder)
    first = run("--mode", "train", *flags, "--save_checkpoint_path", tmp_path / "c")
    assert f"{folder}: the synthetic dataset is written" in first.out and first.final["samples"] == 640
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = run("--mode", "train", *flags)
    assert f"{folder}: holds the synthetic dataset already" in again.out and figures(again) == figures(first)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    fly = run("--mode", "train", "--dataset_type", "synthetic", *DISK[2:], *MODEL, "--synthetic_dataset_valid_batches", "10")
    assert figures(fly) == figures(first)  # the rows are those that are drawn on the fly
    tested = run("--mode", "test", *flags, "--load_checkpoint_path", tmp_path / "c")
    assert tested.final["auc"] == first.final["auc"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--seed", "3"), "holds another dataset: seed 0, expected 3; choose another folder (--synthetic_dataset_dir)"),
        (("--num_numerical_features", "5"), "holds another dataset: numerical features 2, expected 5"),
        (("--synthetic_dataset_num_entries", "1280"), "holds another dataset: rows "),
    ],
)
def test_stored_dataset_with_other_parameters_is_an_error(run, tmp_path, changed, message):
    folder = tmp_path / "stored"
    assert run(*DISK, *MODEL, "--synthetic_dataset_dir", folder).code == 0
    result = run(*DISK, *MODEL, "--synthetic_dataset_dir", folder, *changed)
    assert result.code == 1 and message in result.err and result.err.count("error: ") == 1


def test_folder_that_cannot_be_written_is_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    result = run(*DISK, *MODEL, "--synthetic_dataset_dir", tmp_path / "file")
    assert result.code == 1 and result.err.count("error: ") == 1 and str(tmp_path / "file") in result.err and "Traceback" not in result.err


def test_untrained_with_a_checkpoint_is_an_error(run, dataset, trained):
    result = run("--mode", "eval", "--untrained", "--dataset_path", dataset, "--cpu", "--restore_checkpoint_path", trained[0])
    assert result.code != 0 and "--untrained and --restore_checkpoint_path exclude each other; drop one of them" in result.err


def test_last_mode_counts(run, dataset, trained):
    result = run("--mode", "test", "--mode", "eval", "--dataset_path", dataset, "--cpu")
    assert result.code == 1 and "--restore_checkpoint_path is missing" in result.err
