"""A dataset of NVIDIA's DLRM for PyTorch gets a specification; its files stay as they are."""

import json
import shutil

import numpy as np
import pytest

from dataloading import transcribe, validate
from dataloading.tf_raw import TfRawSplit
from tests.dataloading.make_data import CARDINALITIES, small_spec, write_dataset
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.errors import refused
from tests.helpers.folders import tree
from utils.errors import UserError


@pytest.fixture
def split(tmp_path):
    """Write a dataset in the layout of NVIDIA's DLRM for PyTorch: `model_size.json` and the splits train, test and val."""
    folder = tmp_path / "split"
    write_dataset(folder, small_spec())
    (folder / "feature_spec.yaml").unlink()
    shutil.copytree(folder / "test", folder / "val")
    (folder / "model_size.json").write_text(json.dumps({f"_c{14 + i}": rows - 1 for i, rows in enumerate(CARDINALITIES)}))
    return folder


def described(folder, *flags):
    return do(transcribe, "--src_dataset_type", "split", "--src_dataset_path", folder, *flags)


def test_the_specification_is_written_beside_the_files(split, capsys):
    before = tree(split)
    assert described(split) == 0
    assert (
        f"wrote {split / 'feature_spec.yaml'}: train 50 rows, test 20 rows, valid 20 rows, 5 categorical and 3 numerical" in capsys.readouterr().out
    )
    after = tree(split)
    assert after.pop("feature_spec.yaml") and after == before
    spec = spec_in(split)
    assert tuple(spec.cardinalities) == CARDINALITIES and [feature.dtype for feature in spec.categorical] == [
        "int8",
        "int8",
        "int16",
        "int16",
        "int32",
    ]
    assert do(validate, "--dataset_path", split) == 0
    for name, folder in (("train", "train"), ("valid", "val")):
        rows = TfRawSplit(spec, name)
        np.testing.assert_array_equal(rows.read_labels(0, 20), np.fromfile(split / folder / "label.bin", np.uint8)[:20])
        rows.close()


def test_dataset_is_copied_to_another_folder(split, tmp_path, capsys):
    assert described(split, "--dst_dataset_path", str(tmp_path / "d"), "--max_batches_train", "1", "--src_batch_size", "30") == 0
    spec = spec_in(tmp_path / "d")
    assert {split: TfRawSplit(spec, split).num_samples for split in spec.sources} == {"train": 30, "valid": 20, "test": 20}


def spoil(folder, name, content):
    (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "model_size.json").unlink(), "model_size.json: No such file or directory; expected the greatest id"),
        (lambda f: spoil(f, "model_size.json", "{"), "expected JSON"),
        (lambda f: spoil(f, "model_size.json", "[1]"), "expected a mapping of categorical features"),
        (lambda f: spoil(f, "model_size.json", '{"a": -1}'), "a is -1, expected the greatest id"),
        (lambda f: spoil(f, "model_size.json", '{"a": 1.5}'), "a is 1.5, expected the greatest id"),
        (lambda f: shutil.rmtree(f / "train"), "train: no such folder; expected a dataset of NVIDIA's DLRM for PyTorch"),
        (lambda f: (f / "train/numerical.bin").write_bytes(b"123"), "numerical.bin: 3 bytes for 50 samples"),
        (lambda f: (f / "train/label.bin").write_bytes(b""), "for 0 samples"),
        (lambda f: (f / "test/cat_3.bin").write_bytes(b"123"), "cat_3.bin: 3 bytes, not a whole number of samples"),
        (lambda f: (f / "val/cat_0.bin").unlink(), "cat_0.bin: No such file"),
        (lambda f: spoil(f, "feature_spec.yaml", "mine"), "feature_spec.yaml: already exists; --overwrite replaces it"),
    ],
)
def test_invalid_source_is_one_line_error_and_writes_nothing(split, change, message):
    change(split)
    before = tree(split)
    with refused(message):
        described(split)
    assert tree(split) == before


def test_copy_flags_need_a_destination(split):
    with pytest.raises(UserError, match="--max_batches_train needs a separate --dst_dataset_path"):
        described(split, "--max_batches_train", "1")
    with pytest.raises(UserError, match="--dst_dataset_path is missing"):
        do(transcribe, "--src_dataset_path", split)
