"""transcribe --src_dataset_type binary: the records of NVIDIA's DLRM for PyTorch, whose numericals are float32."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dataloading import transcribe
from dataloading.tf_raw import TfRawSplit
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from utils.errors import UserError

GREATEST = {f"_c{14 + i}": 2 + i for i in range(26)}


def write(folder, greatest=GREATEST):
    folder.mkdir(exist_ok=True)
    found = {}
    for split, rows in {"train": 30, "test": 11}.items():
        draw = np.random.default_rng(rows)
        labels, ids = draw.integers(0, 2, rows), (draw.random((rows, 26)) * (np.arange(26) + 3)).astype(np.int32)
        numerical = np.log(draw.integers(0, 900, (rows, 13)) + 1).astype(np.float16).astype("<f4")
        np.concatenate([labels[:, None].astype("<i4"), numerical.view("<i4"), ids.astype("<i4")], axis=1).tofile(folder / f"{split}_data.bin")
        found[split] = labels, numerical, ids
    (folder / "model_size.json").write_text(json.dumps(greatest))
    return found


def transcribed(folder, *flags):
    arguments = ["--src_dataset_type", "binary", "--src_dataset_path", folder, "--dst_dataset_path", folder / "raw", *flags]
    assert do(transcribe, *arguments) == 0
    return spec_in(folder / "raw")


@pytest.mark.parametrize("texts", [False, True])  # NVIDIA's synthetic_disk writes the numbers of model_size.json as texts
def test_records_become_a_dataset(tmp_path, texts):
    rows = write(tmp_path / "d", greatest={name: str(value) if texts else value for name, value in GREATEST.items()})
    spec = transcribed(tmp_path / "d", "--src_batch_size", 8)
    assert spec.cardinalities == tuple(range(3, 29))
    for split, (labels, numerical, ids) in rows.items():
        found, count = TfRawSplit(spec, split), len(labels)
        assert_array_equal(found.read_labels(0, count), labels)
        assert_array_equal(found.read_numerical(0, count), numerical)
        assert_array_equal(np.stack([found.read_ids(i, 0, count) for i in range(26)], axis=1), ids)
        found.close()


@pytest.mark.parametrize("name", ["validation_data.bin", "val_data.bin"])
def test_validation_rows_by_both_names(tmp_path, name):
    rows = write(tmp_path / "d")
    (tmp_path / "d" / name).write_bytes((tmp_path / "d" / "test_data.bin").read_bytes())
    found = TfRawSplit(transcribed(tmp_path / "d"), "valid")
    assert_array_equal(found.read_labels(0, 11), rows["test"][0])
    found.close()


def test_two_files_of_validation_rows_are_an_error(tmp_path):
    write(tmp_path / "d")
    for name in ("validation_data.bin", "val_data.bin"):
        (tmp_path / "d" / name).write_bytes((tmp_path / "d" / "test_data.bin").read_bytes())
    with pytest.raises(UserError, match=r"d: holds validation_data.bin and val_data.bin; expected one of them"):
        transcribed(tmp_path / "d")


def facebooks(folder):
    records = np.fromfile(folder / "train_data.bin", "<i4").reshape(-1, 40)
    records[:, 1:14] = 7
    records.tofile(folder / "train_data.bin")


def not_finite(folder):
    records = np.fromfile(folder / "test_data.bin", "<i4").reshape(-1, 40)
    records[4, 3:4] = np.array([np.inf], "<f4").view("<i4")
    records.tofile(folder / "test_data.bin")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model_size.json").unlink(), "model_size.json: No such file or directory; expected the greatest id"),
        (lambda folder: (folder / "model_size.json").write_text('{"_c14": 3}'), "model_size.json: 1 features, expected 26: so many ids has a record"),
        (lambda folder: (folder / "model_size.json").write_text('{"_c14": "3.5"}'), "_c14 is 3.5, expected the greatest id, a whole number"),
        (lambda folder: (folder / "train_data.bin").unlink(), "train_data.bin: No such file or directory; expected records of 160 bytes"),
        (facebooks, "its numerical values look like integers; read it with --src_dataset_type facebook"),
        (not_finite, "test_data.bin: feature num_2, row 4: value inf is not finite"),
    ],
)
def test_bad_files_are_one_line(tmp_path, damage, message):
    write(tmp_path / "d")
    damage(tmp_path / "d")
    with pytest.raises(UserError, match=message) as caught:
        transcribed(tmp_path / "d")
    assert "\n" not in str(caught.value) and not (tmp_path / "d" / "raw").exists()
