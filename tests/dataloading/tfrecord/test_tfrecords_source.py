"""transcribe --src_dataset_type split_tfrecords: every row of TFRecords as NVIDIA's transcriber writes them is read; errors name damaged files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal

from dataloading import transcribe, validate
from dataloading.blocks import stored_blocks
from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from dataloading.tf_raw import TfRawSplit
from dataloading.tfrecord.batch_folders import batch_columns
from dataloading.tfrecord.batch_split import BatchRecordSplit
from tests.dataloading.make_data import random_rows, small_spec, write_dataset
from tests.helpers.commands import do, help_of
from tests.helpers.datasets import spec_in
from tests.helpers.errors import refused
from tests.helpers.folders import tree

ROOT = Path(__file__).parents[3]


# Records of NVIDIA's transcriber ------------------------------------------------------------------------------------------


def serialized(tensor):
    return tf.io.serialize_tensor(tensor).numpy()


def write_column(folder, batches, dtype, multihot=False, num_features=1, batches_per_file=100):
    """Write a folder of one feature, one record per batch; lists are a tensor of two strings: their values and their row splits, each serialized."""
    folder.mkdir(parents=True)
    kind = {"format": "tfrecords", "dtype": dtype, "multihot": multihot, "feature_name": "data"}
    kind |= {"num_features": num_features, "batches_per_file": batches_per_file}
    (folder / "format.json").write_text(json.dumps(kind))
    for number, first in enumerate(range(0, len(batches), batches_per_file)):
        with tf.io.TFRecordWriter(str(folder / f"data_{number}.tfrecords")) as writer:
            for batch in batches[first : first + batches_per_file]:
                if not multihot:
                    content = serialized(tf.cast(batch, dtype))
                else:
                    lengths = tf.constant([len(ids) for ids in batch], tf.int32)
                    ragged = tf.RaggedTensor.from_row_lengths(tf.constant([i for ids in batch for i in ids], dtype), lengths)
                    content = serialized(tf.stack([tf.io.serialize_tensor(part) for part in tf.nest.flatten(ragged, expand_composites=True)]))
                feature = {"data": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))}
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def cut_up(rows, sizes):
    ends = np.cumsum(sizes)
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def write_split(folder, spec, rows, sizes, batches_per_file=100):
    """Write a split in batches of the given sizes; `rows` as `random_rows` returns them, but ids of features with hotness as lists of lists."""
    numerical, ids, labels = rows
    many = {"batches_per_file": batches_per_file}
    write_column(folder / "numerical", cut_up(numerical, sizes), "float16", num_features=len(spec.numerical), **many)
    write_column(folder / "label", cut_up(labels.reshape(-1, 1).astype(np.float32), sizes), "int8", **many)
    for i, (feature, column) in enumerate(zip(spec.categorical, ids, strict=True)):
        several = feature.hotness > 1
        write_column(folder / f"categorical_{i}", cut_up(column if several else column.reshape(-1, 1), sizes), "int32", several, **many)
    (folder / "length.json").write_text(json.dumps(len(sizes)))


SIZES = {"train": (16, 16, 16, 5), "test": (9, 9)}


@pytest.fixture
def source(tmp_path):
    """Write a dataset with one id per sample; return its folder and its rows by split."""
    spec, rows = small_spec(), {}
    for split, sizes in SIZES.items():
        rows[split] = random_rows(spec, sum(sizes), seed=len(split))
        write_split(tmp_path / "records" / split, spec, rows[split], sizes)
    (tmp_path / "records" / "feature_spec.yaml").write_text(spec.to_yaml())
    return tmp_path / "records", rows


def transcribed(folder, destination, *flags):
    arguments = ["--src_dataset_type", "split_tfrecords", "--src_dataset_path", folder, "--dst_dataset_path", destination, *flags]
    return do(transcribe, *arguments)


def check_written(destination, split, rows, count):
    numerical, ids, labels = rows
    written = TfRawSplit(spec_in(destination), split)
    assert written.num_samples == count
    assert_array_equal(written.read_numerical(0, count), numerical[:count])
    assert_array_equal(written.read_labels(0, count), labels[:count])
    for i, column in enumerate(ids):
        assert_array_equal(written.read_ids(i, 0, count), column[:count])
    written.close()


# Rows ---------------------------------------------------------------------------------------------------------------------


def test_every_row_is_written_including_the_last_short_batch(source, tmp_path, capsys):
    folder, rows = source
    assert transcribed(folder, tmp_path / "d") == 0
    assert "train 53 rows, test 18 rows" in capsys.readouterr().out
    for split, sizes in SIZES.items():
        check_written(tmp_path / "d", split, rows[split], sum(sizes))


@pytest.mark.parametrize(("flags", "train", "test"), [(("--max_batches_train", 2, "--max_batches_test", 1), 20, 10), (("--train_only",), 53, None)])
def test_first_batches_or_one_split_are_written(source, tmp_path, flags, train, test):
    folder, rows = source
    assert transcribed(folder, tmp_path / "d", "--src_batch_size", 10, *flags) == 0
    check_written(tmp_path / "d", "train", rows["train"], train)
    if test is None:
        assert not (tmp_path / "d" / "test").exists()
    else:
        check_written(tmp_path / "d", "test", rows["test"], test)


def test_files_are_read_in_the_order_of_their_numbers(tmp_path):
    spec = small_spec()
    rows, sizes = random_rows(spec, 24), (2,) * 12  # data_10 and data_11 come after data_9
    write_split(tmp_path / "train", spec, rows, sizes, batches_per_file=1)
    (tmp_path / "train" / "length.json").write_text("-1")  # NVIDIA's writer writes -1 for an unknown length
    (tmp_path / "feature_spec.yaml").write_text(spec.to_yaml())
    assert transcribed(tmp_path, tmp_path / "d", "--train_only") == 0
    check_written(tmp_path / "d", "train", rows, 24)


def lists(count, cardinality, hotness, seed):
    """Draw lists of 0 to `hotness` ids, some of which occur twice."""
    draw = np.random.default_rng(seed)
    found = [draw.integers(0, cardinality, draw.integers(0, hotness + 1)).tolist() for _ in range(count)]
    found[:4] = [[], [0] * hotness, [cardinality - 1], []]
    found[-1] = []
    return found


def hot_spec(folder, *hotness):
    spec = small_spec()
    categorical = tuple(replace(feature, hotness=h) for feature, h in zip(spec.categorical, hotness, strict=True))
    return replace(spec, categorical=categorical, path=folder / "feature_spec.yaml")


def test_lists_are_padded(tmp_path):
    spec = hot_spec(tmp_path, 3, 1, 2, 7, 1)
    numerical, ids, labels = random_rows(spec, 41)
    ids = [
        lists(41, f.cardinality, f.hotness, i) if f.hotness > 1 else column for i, (f, column) in enumerate(zip(spec.categorical, ids, strict=True))
    ]
    sizes = (16, 16, 9)
    write_split(tmp_path / "train", spec, (numerical, ids, labels), sizes)
    spec.path.write_text(spec.to_yaml())
    assert transcribed(tmp_path, tmp_path / "d", "--train_only") == 0
    expected = [
        np.array([row + [-1] * (feature.hotness - len(row)) for row in given]) if feature.hotness > 1 else given
        for feature, given in zip(spec.categorical, ids, strict=True)
    ]
    check_written(tmp_path / "d", "train", (numerical, expected, labels), 41)
    assert [feature.hotness for feature in spec_in(tmp_path / "d").categorical] == [3, 1, 2, 7, 1]
    assert do(validate, "--dataset_path", tmp_path / "d") == 0
    ids = BatchRecordSplit(spec, "train").read_ids(3, 0, 20)  # the range ends inside a record
    assert_array_equal(ids, expected[3][:20])


def test_no_numericals_and_float32_numericals_are_read(tmp_path):
    for count, dtype in ((0, "float16"), (2, "float32")):
        folder, spec = tmp_path / dtype, small_spec(num_numerical=count)
        spec = replace(spec, dtypes=spec.dtypes | dict.fromkeys(spec.numerical, dtype))
        _, ids, labels = random_rows(spec, 10)
        numerical = (np.arange(10 * count).reshape(10, count) / 7).astype(dtype)
        write_split(folder / "train", spec, (numerical, ids, labels), (5, 5))
        shutil.rmtree(folder / "train" / "numerical")
        if count:
            write_column(folder / "train" / "numerical", cut_up(numerical, (5, 5)), dtype, num_features=count)
        (folder / "feature_spec.yaml").write_text(spec.to_yaml())
        assert transcribed(folder, folder / "d", "--train_only") == 0
        check_written(folder / "d", "train", (numerical, ids, labels), 10)


def test_lists_of_one_id_are_ids(tmp_path):
    spec = hot_spec(tmp_path, 1, 1, 1, 1, 1)
    rows = random_rows(spec, 8)
    write_split(tmp_path / "train", spec, rows, (8,))
    (tmp_path / "train" / "categorical_0").rename(tmp_path / "away")
    write_column(tmp_path / "train" / "categorical_0", [rows[1][0].reshape(-1, 1).tolist()], "int32", multihot=True)
    assert_array_equal(BatchRecordSplit(spec, "train").read_ids(0, 0, 8), rows[1][0])


def test_help_loads_no_tensorflow():
    assert "split_tfrecords" in help_of(transcribe.NAME)


# Errors -------------------------------------------------------------------------------------------------------------------


def transcription_refused(folder, destination, message):
    with refused(message, DatasetError):
        transcribed(folder, destination)
    assert not [path for path in destination.rglob("*") if path.is_file()]


def change(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def record(path, content, count=1):
    """Write a file of records with the given tensor."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        feature = {"data": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))}
        for _ in range(count):
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def first_of_two(path):
    path.rename(path.with_name("data_1.tfrecords"))


CAT, LABEL, NUMBERS = "test/categorical_3/", "test/label/", "test/numerical/"
DATA = "data_0.tfrecords"
DAMAGE = {
    "no folder": (
        CAT,
        lambda path: [file.unlink() for file in path.iterdir()],
        "categorical_3/format.json: No such file or directory; expected NVIDIA's",
    ),
    "no format.json": (
        LABEL + "format.json",
        lambda path: path.unlink(),
        "test/label/format.json: No such file or directory; expected NVIDIA's pre-batched",
    ),
    "invalid JSON": (LABEL + "format.json", lambda path: cut(path, 9), "format.json: Expecting ':' delimiter: line 1 column 10"),
    "list instead of an object": (LABEL + "format.json", lambda path: path.write_text("[]"), "test/label/format.json: found []; expected NVIDIA's"),
    "other format": (LABEL + "format.json", lambda path: change(path, format="parquet"), 'format.json: format is "parquet", expected tfrecords'),
    "unknown dtype": (CAT + "format.json", lambda path: change(path, dtype="int4"), 'dtype is "int4", expected int8 or int16 or int32 or int64'),
    "wider numericals": (NUMBERS + "format.json", lambda path: change(path, dtype="float32"), 'dtype is "float32", expected float16'),
    "other numericals": (NUMBERS + "format.json", lambda path: change(path, num_features=13), "num_features is 13, expected 3"),
    "lists of labels": (LABEL + "format.json", lambda path: change(path, multihot=True), "multihot is true, expected false"),
    "number instead of a boolean": (CAT + "format.json", lambda path: change(path, multihot=1), "multihot is 1, expected false or true"),
    "no name": (CAT + "format.json", lambda path: change(path, feature_name=None), "format.json: feature_name is not a name"),
    "other name": (CAT + "format.json", lambda path: change(path, feature_name="ids"), "record 0: 0 tensors named 'ids', expected 1"),
    "no file": (CAT + DATA, lambda path: path.unlink(), "test/categorical_3/data_0.tfrecords: no such file"),
    "first file missing": (CAT + DATA, first_of_two, "test/categorical_3/data_0.tfrecords: no such file"),
    "other file": (
        CAT + DATA,
        lambda path: path.with_name("data_x.tfrecords").touch(),
        "data_x.tfrecords: expected files named data_0.tfrecords",
    ),
    "truncated within a record": (
        CAT + DATA,
        lambda path: cut(path, -5),
        "categorical_3/data_0.tfrecords, record 1: begins at byte 82, and the file ends within it",
    ),
    "truncated between records": (CAT + DATA, lambda path: cut(path, path.stat().st_size // 2), "categorical_3: ends after 1 batches, "),
    "damaged": (CAT + DATA, lambda path: flip(path, 40), "categorical_3/data_0.tfrecords, record 0: corrupted record at "),
    "no records": (
        CAT + DATA,
        lambda path: path.write_text("0123456789" * 9),
        "record 0: no record length at byte 0; the file is truncated, damaged, compressed or not a TFRecord file",
    ),
    "not a tensor": (CAT + DATA, lambda path: record(path, b"\xff", 2), "data_0.tfrecords, record 0: not a tensor: "),
    "no length": ("test/length.json", lambda path: path.unlink(), "test/length.json: No such file or directory"),
    "bad length": ("test/length.json", lambda path: path.write_text("true"), "test/length.json: True, expected the number of batches"),
    "other length": (
        "test/length.json",
        lambda path: path.write_text("3"),
        "test: 2 batches, its length.json says 3; a file is truncated or missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file_is_one_line_error_and_nothing_is_written(source, tmp_path, damage):
    place, damaging, message = DAMAGE[damage]
    damaging(source[0] / place)
    transcription_refused(source[0], tmp_path / "d", message)


def halves(values):
    return [tf.constant(values)[:9], tf.constant(values)[9:]]


VALUES = {
    "label 2": ("label", [[[0]] * 9, [[0]] * 8 + [[2]]], "int8", "label/data_0.tfrecords, record 1: feature label, row 17: label 2 is not 0 or 1"),
    "id too large": ("categorical_3", halves([[0]] * 17 + [[300]]), "int32", "record 1: feature cat_3, row 17: id 300 is not in [0, 300)"),
    "id below 0": ("categorical_3", halves([[0]] * 3 + [[-1]] + [[0]] * 14), "int32", "record 0: feature cat_3, row 3: id -1 is not in [0, 300)"),
    "wide id": ("categorical_3", halves([[2**32]] + [[0]] * 17), "int64", "record 0: feature cat_3, row 0: id 4294967296 is not in [0, 300)"),
    "not finite": ("numerical", [[[0.0] * 3] * 9, [[0.0, np.inf, 0.0]] * 9], "float16", "record 1: feature num_1, row 9: value inf is not finite"),
    "fewer samples": ("categorical_3", [[[0]] * 9, [[0]] * 8], "int32", "categorical_3/data_0.tfrecords, record 1: 8 samples, "),
    "fewer batches": ("categorical_3", [[[0]] * 18], "int32", "categorical_3: ends after 1 batches, "),
    "two ids": ("categorical_3", [[[0, 0]] * 9] * 2, "int32", "record 0: shape [9, 2], expected [9, 1]"),
    "other width": ("numerical", [[[0.0] * 4] * 9] * 2, "float16", "numerical/data_0.tfrecords, record 0: shape [9, 4], expected [9, 3]"),
}


@pytest.mark.parametrize("case", VALUES)
def test_bad_value_is_one_line_error_that_names_it(source, tmp_path, case):
    name, batches, dtype, message = VALUES[case]
    folder = source[0] / "test" / name
    folder.rename(tmp_path / "away")
    write_column(folder, batches, dtype, num_features=3 if name == "numerical" else 1)
    transcription_refused(source[0], tmp_path / "d", message)


def test_tensor_of_another_dtype_than_format_json_is_an_error(source, tmp_path):
    change(source[0] / "test/categorical_3/format.json", dtype="int64")
    transcription_refused(source[0], tmp_path / "d", "categorical_3/data_0.tfrecords, record 0: holds int32, format.json says int64")


def ragged(values, splits, count=2):
    parts = [serialized(tf.constant(values, tf.int32)), serialized(tf.constant(splits, tf.int32))][:count]
    return serialized(tf.constant(parts))


LISTS = {
    "too many": (ragged([1, 2, 3, 4], [0, 0, 4]), "feature cat_0, row 1: 4 ids, expected at most 3, its hotness in "),
    "id too large": (ragged([1, 2, 5], [0, 2, 3]), "feature cat_0, row 1, place 0 of its list: id 5 is not in [0, 5)"),
    "-1": (ragged([1, 2, -1], [0, 3, 3]), "feature cat_0, row 0: id -1 is not in [0, 5)"),
    "beyond the values": (ragged([1, 2], [0, 1, 3]), "feature cat_0: row splits [3] do not divide values [2]"),
    "not from 0": (ragged([1, 2], [1, 1, 2]), "feature cat_0: row splits [3] do not divide values [2]"),
    "falling": (ragged([1, 2], [0, 3, 2]), "feature cat_0: row splits [3] do not divide values [2]"),
    "no splits": (ragged([1, 2], []), "feature cat_0: row splits [0] do not divide values [2]"),
    "one number": (ragged([1, 2], 2), "feature cat_0: row splits [] do not divide values [2]"),
    "values alone": (ragged([1, 2], [0, 2], 1), "1 tensors named 'data', expected 2"),
    "no lists": (serialized(tf.constant([[1], [2]])), "record 0: not a tensor: "),
    "one sample": (ragged([1, 2], [0, 2]), "data_0.tfrecords, record 0: 1 samples, "),
}


@pytest.mark.parametrize("case", LISTS)
def test_bad_list_is_one_line_error(tmp_path, case):
    content, message = LISTS[case]
    spec = hot_spec(tmp_path, 3, 1, 1, 1, 1)
    numerical, ids, labels = random_rows(spec, 2)
    write_split(tmp_path / "train", spec, (numerical, [[[1], [2]], *ids[1:]], labels), (2,))
    record(tmp_path / "train/categorical_0/data_0.tfrecords", content)
    with refused(message, DatasetError):
        list(stored_blocks(BatchRecordSplit(spec, "train"), 2, 2))


def test_hotness_that_contradicts_the_records_is_an_error(tmp_path):
    spec = hot_spec(tmp_path, 1, 1, 1, 1, 1)
    write_split(tmp_path / "train", spec, random_rows(spec, 2), (2,))
    with pytest.raises(DatasetError, match="multihot is false: one id per sample, but feature cat_0 has hotness 2; set it to 1"):
        batch_columns(hot_spec(tmp_path, 2, 1, 1, 1, 1), "train")
    (tmp_path / "train" / "categorical_0").rename(tmp_path / "away")
    write_column(tmp_path / "train" / "categorical_0", [[[1], [1, 2]]], "int32", multihot=True)
    with pytest.raises(DatasetError, match="feature cat_0, row 1: 2 ids, expected exactly 1, its hotness in "):
        BatchRecordSplit(spec, "train").read_ids(0, 0, 2)


def test_a_group_is_refused(source, tmp_path):
    folder, _ = source
    spec = replace(small_spec(), group="session", dtypes=small_spec().dtypes | {"session": "int32"})
    (folder / "feature_spec.yaml").write_text(spec.to_yaml())
    transcription_refused(folder, tmp_path / "d", "has the group session, which split_tfrecords cannot hold; remove it from channel_spec")


def test_source_is_not_replaced_and_source_spec_is_ignored(source, tmp_path, capsys):
    folder, rows = source
    before = tree(folder)
    with pytest.raises(DatasetError, match="is a source file and would be replaced"):
        transcribed(folder, folder, "--overwrite")
    assert tree(folder) == before
    write_dataset(tmp_path / "raw", small_spec())
    (folder / "feature_spec.yaml").write_bytes(
        (tmp_path / "raw" / "feature_spec.yaml").read_bytes()
    )  # the specification of the dataset that the records were made from
    assert transcribed(folder, tmp_path / "d") == 0
    assert "feature_spec.yaml is ignored: the paths of split_tfrecords files are fixed" in capsys.readouterr().err
    check_written(tmp_path / "d", "train", rows["train"], 53)


def test_opening_records_as_tf_raw_names_the_transcribe_command(source, tmp_path):
    path = source[0] / "feature_spec.yaml"
    for spec in (small_spec(), write_dataset(tmp_path / "raw", small_spec())):  # the source_spec of the second one names files elsewhere
        path.write_text(spec.to_yaml())
        with pytest.raises(DatasetError) as caught:
            TfRawSplit(FeatureSpec.from_yaml(path), "train")
        command = f"python -m dataloading.transcribe --src_dataset_type split_tfrecords --src_dataset_path {source[0]} --dst_dataset_path NEW_FOLDER"
        assert f"train/label/format.json exists, so these are pre-batched TFRecords; transcribe them to tf_raw first: {command}" in str(caught.value)
