"""transcribe --src_dataset_type facebook: files as Facebook's DLRM writes them become datasets with the values that it would train on."""

import io
import math
import zipfile
from types import MappingProxyType

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dataloading import transcribe, validate
from dataloading.tf_raw import TfRawSplit
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from utils.errors import UserError

COUNTS = np.arange(3, 29, dtype=np.int32)  # rows of the 26 tables


def drawn(rows, seed=0):
    """Draw labels, counts and ids in the form of Facebook's files."""
    draw = np.random.default_rng(seed)
    integers = np.where(draw.random((rows, 13)) < 0.2, 0, draw.integers(0, 5000, (rows, 13))).astype(np.int32)
    return draw.integers(0, 2, rows).astype(np.int32), integers, (draw.random((rows, 26)) * COUNTS).astype(np.int64)


def write_records(path, labels, integers, ids):
    np.concatenate([labels[:, None], integers, ids], axis=1).astype("<i4").tofile(path)


def write_terabyte(folder, sizes=MappingProxyType({"train": 70, "test": 21, "val": 20}), names="terabyte_processed_{}.bin"):
    rows = {split: drawn(count, len(split)) for split, count in sizes.items()}
    for split, columns in rows.items():
        write_records(folder / names.format(split), *columns)
    np.savez_compressed(folder / "day_fea_count.npz", counts=COUNTS)
    return rows


def write_archive(folder, rows, name="kaggleAdDisplayChallenge_processed.npz", ids_as=np.float64, by_column=True, **changes):
    """Write an archive as `data_utils.py` does, which collects columns, and transposes them before it saves."""
    labels, integers, ids = columns = drawn(rows)
    laid = (lambda array: np.transpose(np.ascontiguousarray(array.T))) if by_column else np.ascontiguousarray
    arrays = {"X_int": laid(integers), "X_cat": laid(ids.astype(ids_as)), "y": labels, "counts": COUNTS} | changes
    np.savez_compressed(folder / name, **{key: value for key, value in arrays.items() if value is not None})
    return columns


def transcribed(folder, *flags):
    arguments = ["--src_dataset_type", "facebook", "--src_dataset_path", folder, "--dst_dataset_path", folder / "raw", *flags]
    assert do(transcribe, *arguments) == 0
    assert do(validate, "--dataset_path", folder / "raw") == 0
    return spec_in(folder / "raw")


def check(spec, split, columns, modulo=None):
    labels, integers, ids = columns
    found, count = TfRawSplit(spec, split), len(labels)
    assert found.num_samples == count
    assert_array_equal(found.read_labels(0, count), labels)
    expected = np.array([[math.log(value + 1) for value in row] for row in integers.tolist()])
    np.testing.assert_allclose(found.read_numerical(0, count), expected, rtol=1e-3 if spec.numerical_dtype == "float16" else 1e-6)
    for i, column in enumerate(ids.T):
        assert_array_equal(found.read_ids(i, 0, count), column if modulo is None else column % modulo)
    found.close()


def part(columns, start, stop):
    return [column[start:stop] for column in columns]


@pytest.mark.parametrize("names", ["terabyte_processed_{}.bin", "my_{}.bin", "{}_data.bin"])
def test_records_become_a_dataset(tmp_path, names):
    rows = write_terabyte(tmp_path, names=names)
    spec = transcribed(tmp_path, "--src_batch_size", 16)
    assert spec.cardinalities == tuple(COUNTS) and spec.numerical_dtype == "float16"
    for split, name in (("train", "train"), ("test", "test"), ("valid", "val")):
        check(spec, split, rows[name])


def test_float32_values_and_ids_modulo_max_ind_range(tmp_path):
    rows = write_terabyte(tmp_path, {"train": 50})
    spec = transcribed(tmp_path, "--max_ind_range", 10, "--numerical_dtype", "float32")
    assert spec.cardinalities == tuple(min(count, 10) for count in COUNTS) and list(spec.sources) == ["train"]
    check(spec, "train", rows["train"], modulo=10)


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("ids_as", [np.float64, np.int32, np.int64])
def test_archive_is_cut_into_seven_days_and_the_last_into_test_and_valid(tmp_path, ids_as, by_column):
    columns = write_archive(
        tmp_path, 40, ids_as=ids_as, by_column=by_column
    )  # days of 6, 6, 6, 6, 6, 5, 5 rows; the last: 3 for testing, 2 for validation
    spec = transcribed(tmp_path, "--src_batch_size", 7)
    for split, start, stop in (("train", 0, 35), ("test", 35, 38), ("valid", 38, 40)):
        check(spec, split, part(columns, start, stop))


def test_stated_days_win(tmp_path):
    columns = write_archive(tmp_path, 30, name="terabyte_processed.npz")
    with pytest.raises(UserError, match=r"day_day_count\.npz: no such file; expected the rows of each day"):
        transcribed(tmp_path)
    np.savez_compressed(tmp_path / "day_day_count.npz", total_per_file=np.array([9, 12, 9]))
    spec = transcribed(tmp_path)
    for split, start, stop in (("train", 0, 21), ("test", 21, 26), ("valid", 26, 30)):
        check(spec, split, part(columns, start, stop))


def test_first_batches(tmp_path):
    columns = write_archive(tmp_path, 70)
    spec = transcribed(tmp_path, "--src_batch_size", 8, "--max_batches_train", 2, "--splits", "train")
    check(spec, "train", part(columns, 0, 16))


# Errors -------------------------------------------------------------------------------------------------------------------


def with_value(folder, split, row, column, value):
    """Replace a number of a file of records."""
    path = folder / f"terabyte_processed_{split}.bin"
    records = np.fromfile(path, "<i4").reshape(-1, 40)
    records[row, column] = value
    records.tofile(path)


def floats(folder):
    path = folder / "terabyte_processed_train.bin"
    records = np.fromfile(path, "<i4").reshape(-1, 40)
    records[:, 1:14] = np.log(records[:, 1:14].astype(np.float32) + 1).astype("<f4").view("<i4")
    records.tofile(path)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


RECORDS = {
    "no file": (lambda folder: [path.unlink() for path in folder.glob("*.bin")], "holds no such dataset; expected what Facebook's DLRM writes"),
    "two datasets": (
        lambda folder: write_archive(folder, 9),
        "holds terabyte_processed_train.bin, kaggleAdDisplayChallenge_processed.npz; expected one",
    ),
    "no counts": (lambda folder: (folder / "day_fea_count.npz").unlink(), "day_fea_count.npz: no such file; expected the rows of the tables"),
    "25 counts": (lambda folder: np.savez(folder / "day_fea_count.npz", counts=COUNTS[:25]), r"counts is int32 \[25\]; expected 26 whole numbers"),
    "count of 0": (lambda folder: np.savez(folder / "day_fea_count.npz", counts=COUNTS - 3), r"counts is int32 \[26\]; expected 26 whole numbers of"),
    "huge count": (lambda folder: np.savez(folder / "day_fea_count.npz", counts=[2**32] * 26), "a table of 4,294,967,296 rows, expected at most"),
    "other counts": (lambda folder: np.savez(folder / "day_fea_count.npz", rows=COUNTS), "there is no array counts"),
    "cut": (lambda folder: cut(folder / "terabyte_processed_test.bin", 161), "test.bin: 161 bytes, expected whole records of 160 bytes"),
    "empty": (lambda folder: cut(folder / "terabyte_processed_val.bin", 0), "val.bin: 0 bytes, expected whole records of 160 bytes"),
    "NVIDIA's": (floats, "its numerical values look like float32 values; read it with --src_dataset_type binary"),
    "label": (lambda folder: with_value(folder, "test", 3, 0, 2), "test.bin: feature label, row 3: label 2 is not 0 or 1"),
    "negative count": (
        lambda folder: with_value(folder, "train", 69, 2, -1),
        "train.bin: feature num_1, row 69: found -1, expected a count of 0 or more",
    ),
    "id": (lambda folder: with_value(folder, "train", 5, 14, 3), "feature cat_0, row 5: found 3, expected an id below the 3 rows of its table"),
    "negative id": (
        lambda folder: with_value(folder, "val", 5, 39, -1),
        "val.bin: feature cat_25, row 5: found -1, expected an id below the 28 rows",
    ),
}


@pytest.mark.parametrize("case", RECORDS)
def test_bad_records_are_one_line(tmp_path, case):
    write_terabyte(tmp_path)
    damage, message = RECORDS[case]
    damage(tmp_path)
    refused(tmp_path, message)


def refused(folder, message, *flags):
    with pytest.raises(UserError, match=message) as caught:
        transcribed(folder, *flags)
    assert "\n" not in str(caught.value) and not (folder / "raw").exists()


def without_end(folder):
    cut(folder / "kaggleAdDisplayChallenge_processed.npz", 900)


def damaged(folder):
    """Change a byte in the compressed ids."""
    path = folder / "kaggleAdDisplayChallenge_processed.npz"
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("X_cat.npy").header_offset + 300
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def short(folder):
    """Write an archive whose array of labels ends before its header says."""
    path, content = folder / "kaggleAdDisplayChallenge_processed.npz", io.BytesIO()
    np.save(content, np.zeros(40, np.int32))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | {"y.npy": content.getvalue()[:-8]}
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)


ARCHIVES = {
    "no labels": ({"y": None}, "there is no array y; expected an archive that Facebook's DLRM wrote"),
    "no counts": ({"counts": None}, "there is no array counts"),
    "12 integers": ({"X_int": np.zeros((40, 12), np.int32)}, r"X_int is int32 \[40, 12\]; expected numbers \[rows, 13\]"),
    "other rows": ({"X_int": np.zeros((39, 13), np.int32)}, "X_cat has 40 rows, X_int has 39; expected the same"),
    "texts": ({"X_cat": np.full((40, 26), "a")}, r"X_cat is <U1 \[40, 26\]; expected numbers"),
    "half an id": ({"X_cat": np.full((40, 26), 0.5)}, "feature cat_0, row 0: found 0.5, expected a whole number"),
    "no id": ({"X_cat": np.full((40, 26), np.nan)}, "feature cat_0, row 0: found nan, expected a whole number"),
    "no rows": ({"X_int": np.zeros((0, 13)), "X_cat": np.zeros((0, 26)), "y": np.zeros(0)}, "holds no rows"),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_bad_archives_are_one_line(tmp_path, case):
    changes, message = ARCHIVES[case]
    write_archive(tmp_path, 40, **changes)
    refused(tmp_path, message)


@pytest.mark.parametrize(("damage", "message"), [(without_end, "X_int cannot be read: File is not a zip file"), (damaged, "X_cat cannot be read: ")])
def test_damaged_archive_is_one_line(tmp_path, damage, message):
    write_archive(tmp_path, 40)
    damage(tmp_path)
    refused(tmp_path, message)


def test_archive_that_ends_too_early_is_one_line(tmp_path):
    write_archive(tmp_path, 40)
    short(tmp_path)
    refused(tmp_path, "y cannot be read: it ends too early; the archive is truncated or damaged")


def test_days_that_do_not_add_up_are_one_line(tmp_path):
    write_archive(tmp_path, 40)
    np.savez(tmp_path / "train_day_count.npz", total_per_file=np.array([20, 19]))
    refused(tmp_path, "train_day_count.npz: 2 days, 39 rows; kaggleAdDisplayChallenge_processed.npz has 40; expected the same rows")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max_ind_range", "0"), "--max_ind_range is 0, expected at least 1"),
        (("--splits", "train,day_1"), "--splits train,day_1: expected names of train, valid, test"),
        (("--dst_dataset_type", "split_tfrecords", "--src_batch_size", "35"), "split valid has 20 rows, fewer than a record of 35"),
    ],
)
def test_bad_flags_are_one_line(tmp_path, flags, message):
    write_terabyte(tmp_path)
    refused(tmp_path, message, *flags)


def test_flags_of_other_sources_are_named(tmp_path, capsys):
    write_terabyte(tmp_path)
    transcribed(tmp_path, "--seed", 3, "--dst_prebatch_size", 8)
    err = capsys.readouterr().err
    assert "--seed has no effect with --src_dataset_type facebook" in err
    assert (
        "--dst_prebatch_size has no effect with --dst_dataset_type tf_raw; --dst_dataset_type split_tfrecords, NVIDIA's default, writes records"
        in err
    )
