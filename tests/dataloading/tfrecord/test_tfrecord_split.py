"""--dataset_type tfrecord: records of NVIDIA's two pipelines, made with tf.train.Example alone, are read by rows; errors name damaged records."""

import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal

from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from dataloading.row_range import hold_out
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from dataloading.tfrecord.index import masked_crc32c
from dataloading.tfrecord.spec import outbrain_spec, pattern_spec, tfrecord_spec, unread_features
from dataloading.tfrecord.split import TfRecordSplit
from tests.dataloading.readers import batch_reader
from tests.dataloading.tfrecord.example_records import OUTBRAIN, example, outbrain_columns, write_file, write_outbrain

SPEC_NAME = "feature_spec.yaml"


def opened(folder, split="train"):
    return TfRecordSplit(tfrecord_spec(folder, SPEC_NAME), split)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Write records of at most 64 rows in two files; return their folder, the columns, and the specification of the same rows as tf_raw."""
    folder = tmp_path_factory.mktemp("outbrain")
    columns = write_outbrain(folder / "records")
    with TfRawWriter(folder / "raw", OUTBRAIN) as writer:
        for split, name in (("train", "train"), ("test", "eval")):
            rows = columns[name]
            numerical = np.stack([rows[feature] for feature in OUTBRAIN.numerical], axis=1)
            writer.append(split, numerical, [rows[feature.name] for feature in OUTBRAIN.categorical], rows["label"], rows["display_id"])
        spec = writer.publish({})
    return folder, columns, spec


def assert_rows(split, columns, start, stop):
    for i, feature in enumerate(OUTBRAIN.categorical):
        assert_array_equal(split.read_ids(i, start, stop), columns[feature.name][start:stop])
    assert_array_equal(split.read_numerical(start, stop), np.stack([columns[name] for name in OUTBRAIN.numerical], 1)[start:stop])
    assert_array_equal(split.read_labels(start, stop), columns["label"][start:stop])
    assert_array_equal(split.read_group(start, stop), columns["display_id"][start:stop])


@pytest.mark.parametrize(("split", "name", "count"), [("train", "train", 273), ("test", "eval", 73)])
def test_any_range_of_rows_is_read(source, split, name, count):
    folder, columns, _ = source
    found = opened(folder / "records", split)
    assert found.num_samples == count and found.labelled
    draw = np.random.default_rng(0)
    for _ in range(30):
        start, stop = sorted(draw.choice(count + 1, 2, replace=False).tolist())
        assert_rows(found, columns[name], start, stop)
    assert found.read_numerical(0, 5).dtype == np.float32 and found.read_labels(0, 5).dtype == np.uint8
    assert found.read_group(0, 5).dtype == np.int64 and found.read_ids(3, 0, 5).dtype == np.int8
    found.close()


def test_records_of_nvidias_other_pipeline_are_read(tmp_path):
    """The other pipeline has float32 labels, features that are not read, another number of files, and other names of parts."""
    folder = tmp_path / "records"
    columns = write_outbrain(folder, float_label=True, extra=lambda count: {"uuid_hash": np.arange(count), "ad_views": np.ones(count, np.float32)})
    for path in sorted((folder / "train").iterdir()):
        path.rename(path.with_name(path.name.replace("part-r-", "part-") + "-c000.tfrecord"))
    found = opened(folder)
    assert_rows(found, columns["train"], 0, 273)
    assert found.read_labels(0, 273).dtype == np.uint8
    assert unread_features(tfrecord_spec(folder, SPEC_NAME)) == ("ad_views", "uuid_hash")


def test_patterns_select_the_files(source, tmp_path):
    folder, columns, _ = source
    spec = pattern_spec(
        {"train": [f"{folder}/records/train/part-r-00001", f"{folder}/records/train/part*"], "test": [f"{folder}/records/eval/part*"]}
    )
    assert [feature.embedding_dim for feature in spec.categorical] == [128, 64, 128, 16, 128, 64, 64, 64, 64, 64, 64, 64, 64]
    found = TfRecordSplit(spec, "train")
    first = np.concatenate(
        [columns["train"]["ad_id"][128:], columns["train"]["ad_id"][:128]]
    )  # a file that several patterns match is read once, at the position of its first match
    assert_array_equal(found.read_ids(0, 0, 273), first)
    with pytest.raises(DatasetError, match=r"nothing\*: matches no file; expected TFRecords"):
        pattern_spec({"train": [f"{folder}/records/train/nothing*"]})


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("order", [{}, {"shuffle_seed": 3, "window": 2, "window_seed": 5}])
def test_every_worker_count_reads_the_batches_of_tf_raw(source, workers, order):
    """The batches are equal bit by bit, and every row comes once, also when reading starts in the middle of an epoch."""
    folder, columns, raw = source
    seen = []
    for rank in range(workers):
        mine = {"features": range(rank, 13, workers), "local_features": (0, 5), "rank": rank, "num_workers": workers, **order}
        reader, other = batch_reader(opened(folder / "records"), 60, **mine), batch_reader(TfRawSplit(raw, "train"), 60, **mine)
        batches = list(reader.epoch(1))
        assert len(batches) == 5
        for one, two in zip(batches, other.epoch(1), strict=True):
            for a, b in zip(one, two, strict=True):
                assert_array_equal(a, b)
                assert np.asarray(a).dtype == np.asarray(b).dtype
            seen.append(one.numerical[one.weights > 0])
        for one, two in zip(batch_reader(opened(folder / "records"), 60, **mine).epoch(1, first=3), batches[3:], strict=True):
            assert_array_equal(one.ids, two.ids)
    rows = np.concatenate(seen)
    expected = np.stack([columns["train"][name] for name in OUTBRAIN.numerical], 1)
    assert_array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])


def test_batches_within_a_record_and_held_out_rows_are_read(source):
    folder, columns, _ = source
    found = opened(folder / "records")
    ids = np.concatenate([batch.ids[0, : batch.num_samples] for batch in batch_reader(found, 7).epoch()])
    assert_array_equal(ids, columns["train"]["ad_id"])
    train, valid = hold_out(found, 0.3)
    assert_array_equal(valid.read_ids(0, 0, valid.num_samples), columns["train"]["ad_id"][train.num_samples :])


def test_more_records_than_are_parsed_at_once_are_read(tmp_path):
    count = 150 * 2
    columns = outbrain_columns(count)
    write_file(tmp_path / "train/part-0", [{name: column[i : i + 2] for name, column in columns.items()} for i in range(0, count, 2)])
    assert_rows(opened(tmp_path), columns, 0, count)
    assert_rows(opened(tmp_path), columns, 101, 299)


def test_specification_beside_the_records_is_used(source, tmp_path):
    """The specification has other names and fewer features, and its source_spec names no files."""
    shutil.copytree(source[0] / "records", tmp_path / "records")
    spec = replace(outbrain_spec(), categorical=outbrain_spec().categorical[:2], numerical=("pop_ad_id",), group=None)
    (tmp_path / "records" / SPEC_NAME).write_text(spec.to_yaml())
    found = opened(tmp_path / "records")
    assert found.read_numerical(3, 9).shape == (6, 1) and len(unread_features(found.spec)) == 13 + 13 + 1 - 3


def test_fingerprint_differs_for_other_rows(source, tmp_path):
    before = opened(source[0] / "records").fingerprint()
    assert opened(source[0] / "records").fingerprint() == before
    write_outbrain(tmp_path, sizes=(64, 64, 64, 64, 18))
    assert opened(tmp_path).fingerprint() != before


# Damaged records ----------------------------------------------------------------------------------------------------------


def read_everything(folder):
    found = opened(folder)
    return [batch for batch in batch_reader(found, 64).epoch()]


def refused(folder, message):
    with pytest.raises(DatasetError, match=message) as error:
        read_everything(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def rewritten(folder, change, sizes=(64, 64)):
    """Write two records, the second changed by a callback."""
    columns = outbrain_columns(sum(sizes))
    records = [{name: column[:64] for name, column in columns.items()}, {name: column[64:] for name, column in columns.items()}]
    change(records[1])
    write_file(folder / "train/part-r-00000", records)


def test_truncated_file_is_an_error(tmp_path):
    write_outbrain(tmp_path)
    path = tmp_path / "train/part-r-00001"
    path.write_bytes(path.read_bytes()[:-1])
    refused(tmp_path, r"train/part-r-00001, record 2: begins at byte \d+, and the file ends within it; the file is truncated")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3 * 3 - 5])
    path.write_bytes(path.read_bytes()[:7])
    refused(tmp_path, r"record 0: begins at byte 0, and the file ends within it")


@pytest.mark.parametrize(("place", "message"), [(40_000, "record [0-9]+: corrupted record at "), (3, "record 0: no record length at byte 0")])
def test_flipped_bit_is_an_error(tmp_path, place, message):
    write_outbrain(tmp_path, sizes=(3000,) * 2)
    path = tmp_path / "train/part-r-00000"
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    assert "part-r-00000" in refused(tmp_path, f"{message}.*; the file is truncated, damaged, compressed or not a TFRecord file")


def test_empty_missing_and_foreign_files_are_errors(tmp_path):
    write_outbrain(tmp_path)
    path = tmp_path / "train/part-r-00001"
    path.write_bytes(b"")
    refused(tmp_path, "part-r-00001: the file is empty; expected TFRecords")
    path.write_bytes(b"PAR1" * 100)
    refused(tmp_path, "part-r-00001, record 0: no record length at byte 0; the file is truncated, damaged, compressed or not a TFRecord file")
    content = b"no Example at all"
    header = struct.pack("<Q", len(content))
    framed = header + struct.pack("<I", masked_crc32c(header)) + content + struct.pack("<I", masked_crc32c(content))
    path.write_bytes(framed)
    refused(tmp_path, "part-r-00001, record 0: not a tf.train.Example: .*; the record is damaged or has another format")
    shutil.rmtree(tmp_path / "train")
    with pytest.raises(DatasetError, match="no split train; splits found: test"):
        opened(tmp_path)
    shutil.rmtree(tmp_path / "eval")
    refused(tmp_path, "no folder train or eval; expected TFRecords in the layout of NVIDIA's Wide & Deep")
    (tmp_path / "train").mkdir()
    refused(tmp_path, r"train/part\*: matches no file")


def test_missing_features_and_wrong_kinds_are_errors(tmp_path):
    rewritten(tmp_path, lambda record: record.pop("campaign_id"))
    refused(
        tmp_path,
        "part-r-00000, record 1: no feature campaign_id, but NVIDIA's Outbrain data has it; list the features of the records in a "
        "feature_spec.yaml beside",
    )
    rewritten(tmp_path, lambda record: record.update(pop_ad_id=np.ones(64, np.int64)))
    refused(tmp_path, "record 1: feature pop_ad_id is a list of int64, expected float")
    columns = outbrain_columns(64)
    del columns["display_id"]
    write_file(tmp_path / "train/part-r-00000", [columns])
    refused(tmp_path, "record 0: no feature display_id")
    (tmp_path / SPEC_NAME).write_text(outbrain_spec().to_yaml())
    refused(tmp_path, r"no feature display_id, but .*feature_spec.yaml lists it")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.replace(b"pop_ad_id", b"pop\xaaad_id"), "a feature's name is not UTF-8"),
        (lambda record: record + b"\xaa\xff", "a varint without an end"),  # TensorFlow's message quotes the bytes
        (lambda record: record[:-30], "a field is longer than its message"),
    ],
)
def test_malformed_record_with_a_valid_checksum_is_an_error(tmp_path, change, message):
    columns = outbrain_columns(64)
    (tmp_path / "train").mkdir()
    with tf.io.TFRecordWriter(str(tmp_path / "train/part-r-00000")) as writer:
        writer.write(example(columns))
        writer.write(change(example(columns)))
    refused(tmp_path, f"part-r-00000, record 1: not a tf.train.Example: {message}; the record is damaged or has another format")


def test_lists_of_different_lengths_are_an_error(tmp_path):
    rewritten(tmp_path, lambda record: record.update(doc_id=record["doc_id"][:50]))
    assert " values, others have " in refused(tmp_path, "part-r-00000, record 1: feature ")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "campaign_id",
            5000,
            r"part-r-00000, record 1: feature campaign_id, row 70: id 5000 is not in \[0, 5000\); correct the dataset, or map such ids",
        ),
        ("campaign_id", -1, r"record 1: feature campaign_id, row 70: id -1 is not in \[0, 5000\)"),
        ("campaign_id", 2**40, r"record 1: feature campaign_id, row 70: id 1099511627776 is not in"),
        ("label", 256, "record 1: feature label, row 70: label 256 is not 0 or 1"),
        ("pop_ad_id", np.inf, "record 1: feature pop_ad_id, row 70: value inf is not finite"),
    ],
)
def test_values_out_of_range_are_errors(tmp_path, name, value, message):
    rewritten(tmp_path, lambda record: record[name].__setitem__(6, value))
    refused(tmp_path, message)
    if name == "campaign_id":
        found = batch_reader(opened(tmp_path), 128, out_of_range="hash")
        assert next(found.epoch()).ids[1, 70] == value % 5000 and found.out_of_range == 1


def test_file_truncated_while_read_is_an_error(tmp_path):
    write_outbrain(tmp_path, sizes=(64,) * 8)
    found = opened(tmp_path)
    path = tmp_path / "train/part-r-00000"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)
    with pytest.raises(DatasetError, match=r"part-r-00000, record 3: .*the file is truncated, damaged"):
        found.read_labels(0, 512)


def test_lists_of_ids_are_refused(tmp_path):
    write_outbrain(tmp_path)
    first, *others = outbrain_spec().categorical
    (tmp_path / SPEC_NAME).write_text(replace(outbrain_spec(), categorical=(replace(first, hotness=3), *others)).to_yaml())
    refused(tmp_path, "feature ad_id has hotness 3; pre-batched TFRecords hold one id per sample")
    (tmp_path / SPEC_NAME).write_text("feature_spec: 3")
    with pytest.raises(Exception, match="section channel_spec is missing"):
        FeatureSpec.from_yaml(tmp_path / SPEC_NAME)
