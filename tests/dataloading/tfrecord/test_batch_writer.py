"""transcribe --dst_dataset_type split_tfrecords: NVIDIA's reader, by the rules written down here, finds every row; no row is lost silently."""

import json

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal

from dataloading import transcribe
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from dataloading.tfrecord.batch_split import BatchRecordSplit
from tests.dataloading.make_data import random_groups, random_rows, rich_spec, small_spec
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.folders import tree
from utils.errors import UserError

ROWS = {"train": 64, "test": 32}


def write_dataset(folder, spec, rows, draw=random_rows):
    """Write a tf_raw dataset with so many rows of each split; return its specification."""
    with TfRawWriter(folder, spec, tuple(rows)) as writer:
        for seed, (split, count) in enumerate(rows.items()):
            writer.append(split, *draw(spec, count, seed), random_groups(spec, count, seed))
        return writer.publish({})


def nvidias_reader(folder, split, batch_size):
    """Read a split as NVIDIA's `split_tfrecords` reader does, and yield its batches: numericals, labels, and ids, ragged if a feature has lists.

    It takes the order and the cardinalities of the features from the specification, and from format.json the type, the number of features and
    whether there are lists. It takes all files that match data_*.tfrecords. A record is an Example whose feature `data` is one serialized tensor,
    which it reshapes to [batch size, number of features]; of lists, a serialized tensor of two texts, which are the serialized values and row splits,
    both int32. An epoch has as many batches as length.json says.
    """
    spec = spec_in(folder)
    steps = json.loads((folder / split / "length.json").read_text())
    streams = []
    for name in ("numerical", "label", *(f"categorical_{i}" for i in range(len(spec.categorical)))):
        form = json.loads((folder / split / name / "format.json").read_text())
        assert set(form) == {"format", "dtype", "multihot", "feature_name", "num_features", "batches_per_file"} and form["format"] == "tfrecords"
        files = [str(path) for path in sorted((folder / split / name).glob("data_*.tfrecords"))]
        streams.append((form, iter(tf.data.TFRecordDataset(files))))
    for _ in range(steps):
        batch = []
        for form, stream in streams:
            record = tf.io.parse_single_example(next(stream), {form["feature_name"]: tf.io.FixedLenFeature([], tf.string)})[form["feature_name"]]
            if form["multihot"]:
                values, splits = tf.unstack(tf.io.parse_tensor(record, tf.string))
                ids = tf.RaggedTensor.from_row_splits(tf.io.parse_tensor(values, tf.int32), tf.io.parse_tensor(splits, tf.int32))
                assert ids.nrows() == batch_size
                batch.append(ids.to_list())
            else:
                tensor = tf.io.parse_tensor(record, {"float16": tf.float16, "int8": tf.int8, "int32": tf.int32}[form["dtype"]])
                batch.append(tf.reshape(tensor, [batch_size, form["num_features"]]).numpy())
        yield batch
    assert all(next(stream, None) is None for _, stream in streams)


def transcribed(source, destination, *flags):
    flags = ["--src_dataset_path", source, "--dst_dataset_path", destination, "--dst_dataset_type", "split_tfrecords", *flags]
    return do(transcribe, *flags)


def rows_of(spec, split):
    found = TfRawSplit(spec, split)
    count = found.num_samples
    return found.read_numerical(0, count), found.read_labels(0, count), [found.read_ids(i, 0, count) for i in range(len(spec.categorical))]


@pytest.fixture(params=[(1, 1, 1, 1), (1, 3, 1, 12)], ids=["one id", "lists"])
def source(request, tmp_path):
    return write_dataset(tmp_path / "raw", rich_spec(request.param, group=None), ROWS)


@pytest.mark.parametrize("flags", [("--dst_prebatch_size", 16), ("--src_batch_size", 16), ("--src_batch_size", 10, "--dst_prebatch_size", 16)])
def test_nvidias_reader_finds_every_row(source, tmp_path, flags):
    assert transcribed(source.base_directory, tmp_path / "records", *flags) == 0
    for split, count in ROWS.items():
        numerical, labels, ids = rows_of(source, split)
        batches = list(nvidias_reader(tmp_path / "records", split, 16))
        assert len(batches) == count // 16
        assert_array_equal(np.concatenate([batch[0] for batch in batches]), numerical)
        assert_array_equal(np.concatenate([batch[1] for batch in batches])[:, 0], labels)
        for i, column in enumerate(ids):
            found = [row for batch in batches for row in (batch[2 + i] if isinstance(batch[2 + i], list) else batch[2 + i].tolist())]
            assert found == [[int(value) for value in np.atleast_1d(row) if value >= 0] for row in column]


def test_specification_names_no_files(source, tmp_path):
    assert transcribed(source.base_directory, tmp_path / "records", "--dst_prebatch_size", 16) == 0
    spec = spec_in(tmp_path / "records")
    assert spec.sources is None and spec.cardinalities == source.cardinalities and spec.hotness == source.hotness
    assert {feature.dtype for feature in spec.categorical} == {"int32"} and spec.dtypes[spec.label] == "int8"


def test_bytes_of_a_record(tmp_path):
    """A serialized int8 tensor [[1], [0]]: type 6, the shape [2, 1], and the two bytes of its content."""
    spec = small_spec((2,), num_numerical=1)
    write_dataset(tmp_path / "raw", spec, {"train": 2}, lambda *_: (np.zeros((2, 1), np.float16), [np.array([1, 0])], np.array([1, 0])))
    assert transcribed(tmp_path / "raw", tmp_path / "records", "--dst_prebatch_size", 2, "--splits", "train") == 0
    (record,) = tf.data.TFRecordDataset(str(tmp_path / "records/train/label/data_0.tfrecords"))
    (content,) = tf.train.Example.FromString(record.numpy()).features.feature["data"].bytes_list.value
    assert content == bytes.fromhex("08061208120208021202080122020100")


def test_what_was_written_is_read_back_by_ranges(source, tmp_path):
    assert transcribed(source.base_directory, tmp_path / "records", "--dst_prebatch_size", 16) == 0
    assert (
        do(transcribe, "--src_dataset_type", "split_tfrecords", "--src_dataset_path", tmp_path / "records", "--dst_dataset_path", tmp_path / "back")
        == 0
    )
    for split in ROWS:
        for one, other in zip(rows_of(source, split), rows_of(spec_in(tmp_path / "back"), split), strict=True):
            for left, right in zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]:
                assert_array_equal(np.sort(left, axis=-1) if left.ndim > 1 else left, np.sort(right, axis=-1) if right.ndim > 1 else right)


# Remainders and refusals --------------------------------------------------------------------------------------------------


def refused(source, destination, message, *flags):
    with pytest.raises(UserError, match=message) as caught:
        transcribed(source, destination, *flags)
    assert "\n" not in str(caught.value) and not [path for path in destination.rglob("*") if path.is_file()]


def test_remainder_is_an_error_that_names_the_count(source, tmp_path):
    message = "split train has 64 rows: the last 14 do not fill a record of 25, .* or leave them out with --drop_remainder"
    refused(source.base_directory, tmp_path / "records", message, "--dst_prebatch_size", 25)


def test_drop_remainder_leaves_the_last_rows_out_with_a_line(source, tmp_path, capsys):
    assert transcribed(source.base_directory, tmp_path / "records", "--dst_prebatch_size", 25, "--drop_remainder") == 0
    captured = capsys.readouterr()
    assert "split train: the last 14 rows, which do not fill a record, are left out (--drop_remainder)" in captured.err
    assert "train 50 rows, test 25 rows" in captured.out
    numerical = rows_of(source, "train")[0]
    assert_array_equal(np.concatenate([batch[0] for batch in nvidias_reader(tmp_path / "records", "train", 25)]), numerical[:50])


def test_number_of_rows_that_is_known_only_after_reading(tmp_path, capsys):
    """CSV files do not say how many rows they have: a remainder is found at the end, and nothing is written."""
    spec = small_spec((5,), num_numerical=1)
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "train.csv").write_text("cat_0,num_0,label\n" + "1,0.5,1\n" * 10)
    (tmp_path / "csv" / "feature_spec.yaml").write_text(spec.to_yaml())
    flags = ("--src_dataset_type", "csv", "--splits", "train", "--dst_prebatch_size")
    refused(tmp_path / "csv", tmp_path / "records", "split train has 10 rows: the last 2 do not fill a record of 4", *flags, 4)
    refused(tmp_path / "csv", tmp_path / "records", "split train has 10 rows, fewer than a record of 16", *flags, 16)
    assert transcribed(tmp_path / "csv", tmp_path / "records", *flags, 5) == 0
    assert len(list(nvidias_reader(tmp_path / "records", "train", 5))) == 2


def test_value_that_float16_does_not_hold_is_an_error(tmp_path):
    spec = rich_spec((1, 1, 1, 1), numerical_dtype="float32", group=None)

    def rows(spec, count, seed):
        numerical, ids, labels = random_rows(spec, count, seed)
        numerical[:] = 0.5
        numerical[5, 1] = 0.1
        return numerical, ids, labels

    source = write_dataset(tmp_path / "raw", spec, ROWS, rows)
    message = "feature num_1, row 5: float16 does not hold 0.1, and split_tfrecords has float16 values only"
    refused(source.base_directory, tmp_path / "records", message.replace("0.1", r"0\.1\d*"), "--dst_prebatch_size", 16)


def test_group_is_refused(tmp_path):
    source = write_dataset(tmp_path / "raw", rich_spec((1, 1, 1, 1)), ROWS)
    refused(source.base_directory, tmp_path / "records", "has the group session, which split_tfrecords cannot hold", "--dst_prebatch_size", 16)


def test_used_folder_is_refused_without_overwrite(source, tmp_path):
    assert transcribed(source.base_directory, tmp_path / "records", "--dst_prebatch_size", 16) == 0
    before = tree(tmp_path / "records")
    with pytest.raises(UserError, match="already"):
        transcribed(source.base_directory, tmp_path / "records", "--dst_prebatch_size", 32)
    assert tree(tmp_path / "records") == before
    assert transcribed(source.base_directory, tmp_path / "records", "--dst_prebatch_size", 32, "--overwrite") == 0
    assert len(list(nvidias_reader(tmp_path / "records", "train", 32))) == 2


def test_records_beyond_length_json_are_not_read(source, tmp_path):
    """NVIDIA's writer repeats rows where more batches are asked for than the source has; length.json says how many are its rows."""
    assert transcribed(source.base_directory, tmp_path / "records", "--dst_prebatch_size", 16) == 0
    (tmp_path / "records" / "train" / "length.json").write_text("3")
    spec = spec_in(tmp_path / "records")
    split = BatchRecordSplit(spec, "train")
    assert split.num_samples == 48 and "1 further records are not read" in split.notes()[0]
