"""TFRecords written from a tf_raw dataset: read back to the same bytes, every row counted, in files and records of the published sizes."""

import itertools
import resource
import sys

import numpy as np
import polars as pl
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from numpy.testing import assert_array_equal

from dataloading import transcribe, validate
from dataloading.features import DatasetError
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from dataloading.tfrecord.spec import tfrecord_spec
from dataloading.tfrecord.split import TfRecordSplit
from dataloading.tfrecord.writer import TfRecordWriter, records_of_files
from tests.children import child, found, wait_for
from tests.dataloading.make_data import random_groups, random_rows, rich_spec, write_dataset
from tests.dataloading.tfrecord.example_records import write_outbrain
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml, spec_in
from tests.helpers.folders import tree
from utils.errors import UserError

ROWS = {"train": 3 * 4096 + 100, "test": 4096}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write a tf_raw dataset with float32 numericals and a group, and records from it."""
    folder = tmp_path_factory.mktemp("records")
    spec = rich_spec(hotness=(1, 1, 1, 1), numerical_dtype="float32")
    write_dataset(folder / "raw", spec, ROWS["train"], ROWS["test"], {"origin": "drawn"})
    to_records(folder, "--num_files", "3")
    return folder


def to_records(folder, *flags, source="raw", target="records"):
    paths = ("--src_dataset_path", str(folder / source), "--dst_dataset_path", str(folder / target))
    assert do(transcribe, *paths, "--dst_dataset_type", "tfrecord", *flags) == 0


def to_raw(folder, target="back", source="records"):
    paths = ("--src_dataset_path", str(folder / source), "--dst_dataset_path", str(folder / target))
    assert do(transcribe, "--src_dataset_type", "tfrecord", *paths) == 0


def test_records_convert_back_to_the_same_bytes(written, capsys):
    to_raw(written)
    assert "train 12,388 rows, test 4,096 rows" in capsys.readouterr().out
    assert tree(written / "back") == tree(written / "raw")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_dtypes_of_numericals_and_groups_convert_back(tmp_path, dtype):
    write_dataset(tmp_path / "raw", rich_spec((1, 1, 1, 1), numerical_dtype=dtype, group="int32" if dtype == "float16" else None))
    to_records(tmp_path)
    to_raw(tmp_path)
    assert tree(tmp_path / "back") == tree(tmp_path / "raw")


def test_records_and_files_have_the_published_sizes(written):
    """Full records come first; the remainder is alone in the last file, because NVIDIA's reader cannot take it."""
    folder = written / "records"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "eval/part-r-00000",
        "feature_spec.yaml",
        "train/part-r-00000",
        "train/part-r-00001",
        "train/part-r-00002",
        "transformed_metadata/schema.pbtxt",
    ]
    sizes = []
    for path in sorted((folder / "train").iterdir()):
        records = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]
        sizes.append([len(record.features.feature["session"].int64_list.value) for record in records])
    assert sizes == [[4096], [4096, 4096], [100]]


@pytest.mark.parametrize(
    ("rows", "files", "expected"),
    [(1, 40, [1]), (4096, 40, [1]), (4097, 1, [2]), (4097, 2, [1, 1]), (10 * 4096, 3, [3, 3, 4]), (10 * 4096 + 1, 4, [3, 3, 4, 1])],
)
def test_records_of_files(rows, files, expected):
    assert records_of_files(rows, files) == expected


def schema_class():
    """Build the used messages of tensorflow_metadata's schema, with its names and field numbers."""
    file = descriptor_pb2.FileDescriptorProto(name="schema_of_a_test.proto", syntax="proto2", package="test")
    optional, repeated = 1, 3
    for message, fields in {
        "Dim": [("size", 1, 3, optional, "")],
        "FixedShape": [("dim", 2, 11, repeated, ".test.Dim")],
        "FeaturePresence": [("min_fraction", 1, 1, optional, "")],
        "Feature": [
            ("name", 1, 9, optional, ""),
            ("type", 6, 14, optional, ".test.FeatureType"),
            ("presence", 14, 11, optional, ".test.FeaturePresence"),
            ("shape", 23, 11, optional, ".test.FixedShape"),
        ],
        "Schema": [("feature", 1, 11, repeated, ".test.Feature")],
    }.items():
        described = file.message_type.add(name=message)
        for name, number, kind, label, of in fields:
            described.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
    kinds = file.enum_type.add(name="FeatureType")
    for number, name in enumerate(("TYPE_UNKNOWN", "BYTES", "INT", "FLOAT")):
        kinds.value.add(name=name, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Schema"))


def test_nvidias_reader_can_parse_full_records_by_the_schema(written):
    """NVIDIA's TFTransformOutput makes `FixedLenFeature([4096, 1])` of each feature in the schema, and this parses every full record."""
    schema = text_format.Parse((written / "records/transformed_metadata/schema.pbtxt").read_text(), schema_class()())
    form = {}
    for feature in schema.feature:
        assert feature.presence.min_fraction == 1
        form[feature.name] = tf.io.FixedLenFeature([dim.size for dim in feature.shape.dim], {2: tf.int64, 3: tf.float32}[feature.type])
    assert sorted(form) == ["cat_0", "cat_1", "cat_2", "cat_3", "label", "num_0", "num_1", "session"]
    record = next(iter(tf.data.TFRecordDataset(str(written / "records/train/part-r-00001"))))
    parsed = tf.io.parse_single_example(record, form)
    rows = slice(4096, 8192)
    assert parsed["cat_3"].shape == (4096, 1)
    assert_array_equal(parsed["cat_3"][:, 0], np.fromfile(written / "raw/train/cat_3.bin", np.int32)[rows])
    assert_array_equal(parsed["num_1"][:, 0], np.fromfile(written / "raw/train/numerical.bin", np.float32).reshape(-1, 2)[rows, 1])


def test_specification_is_written_beside_the_records(written):
    content = read_yaml(written / "records/feature_spec.yaml")
    assert content["metadata"] == {"origin": "drawn"} and content["channel_spec"]["group"] == ["session"]
    assert content["source_spec"]["test"] == [
        {"type": "tfrecord", "features": ["num_0", "num_1", "cat_0", "cat_1", "cat_2", "cat_3", "label", "session"], "files": ["eval/part-r-00000"]}
    ]
    with pytest.raises(DatasetError, match=r"source_spec.train: type is tfrecord, expected split_binary; --dataset_type tfrecord reads such"):
        TfRawSplit(spec_in(written / "records"), "train")
    assert do(validate, "--dataset_path", written / "records") == 1


def test_missing_file_of_the_specification_is_an_error(written, tmp_path):
    to_records(written, "--num_files", "3", target=tmp_path / "records")
    (tmp_path / "records/train/part-r-00001").unlink()
    with pytest.raises(DatasetError, match=r"train/part-r-00001: no such file; expected a file of TFRecords"):
        TfRecordSplit(tfrecord_spec(tmp_path / "records", "feature_spec.yaml"), "train")


def test_sizes_of_appended_blocks_do_not_change_the_records(tmp_path):
    spec = rich_spec((1, 1, 1, 1))
    numerical, ids, labels = random_rows(spec, 9000)
    groups = random_groups(spec, 9000)
    for name, cuts in (("whole", [0, 9000]), ("parts", [0, 1, 4000, 4096, 4097, 8192, 8999, 9000])):
        with TfRecordWriter(tmp_path / name, spec, {"train": 9000}, 2) as writer:
            for a, b in itertools.pairwise(cuts):
                writer.append("train", numerical[a:b], [column[a:b] for column in ids], labels[a:b], groups[a:b])
            writer.publish({})
    assert tree(tmp_path / "whole") == tree(tmp_path / "parts")


@pytest.mark.parametrize(
    ("flags", "hotness", "message"),
    [
        (["--num_files", "0"], (1, 1, 1, 1), "--num_files is 0, expected at least 1"),
        ([], (1, 3, 1, 1), "feature cat_1 has hotness 3: pre-batched TFRecords hold one id per sample; write tf_raw"),
        (["--src_dataset_type", "csv"], (1, 1, 1, 1), "the number of rows of csv is not known in advance; transcribe it to tf_raw first"),
    ],
)
def test_unsupported_conversion_is_rejected(tmp_path, flags, hotness, message):
    write_dataset(tmp_path / "raw", rich_spec(hotness))
    with pytest.raises(UserError, match=message):
        to_records(tmp_path, *flags)
    assert not (tmp_path / "records").exists()


def test_existing_files_are_replaced_with_overwrite_only(tmp_path):
    write_dataset(tmp_path / "raw", rich_spec((1, 1, 1, 1)), train=30)
    (tmp_path / "records/eval").mkdir(parents=True)
    (tmp_path / "records/eval/mine").write_text("")
    with pytest.raises(DatasetError, match="eval exists and would be replaced"):
        to_records(tmp_path)
    to_records(tmp_path, "--overwrite")
    with pytest.raises(DatasetError, match="holds a dataset already"):
        to_records(tmp_path)
    write_dataset(tmp_path / "other", rich_spec((1, 1, 1, 1)), train=31)
    to_records(tmp_path, "--overwrite", source="other")
    assert TfRecordSplit(tfrecord_spec(tmp_path / "records", "feature_spec.yaml"), "train").num_samples == 31


def test_wrong_number_of_rows_is_an_error(tmp_path):
    spec = rich_spec((1, 1, 1, 1))
    with TfRecordWriter(tmp_path / "records", spec, {"train": 20}) as writer:
        writer.append("train", *random_rows(spec, 10), random_groups(spec, 10))
        with pytest.raises(ValueError, match="21 rows, expected at most 20 more"):
            writer.append("train", *random_rows(spec, 11), random_groups(spec, 11))
        with pytest.raises(DatasetError, match="split train has 0 rows, expected 20"):
            writer.publish({})
    assert not (tmp_path / "records").exists()


# The command, except that it sleeps instead of publishing: even a late signal arrives before it ends.
ENDLESS = """
import runpy, time
from dataloading.tfrecord.writer import TfRecordWriter

TfRecordWriter.publish = lambda *_: time.sleep(1000)
runpy.run_module("dataloading.transcribe", run_name="__main__", alter_sys=True)
"""


def test_terminated_run_leaves_no_files(tmp_path):
    write_dataset(tmp_path / "raw", rich_spec((1, 1, 1, 1)), train=600_000)
    paths = ("--src_dataset_path", tmp_path / "raw", "--dst_dataset_path", tmp_path / "records")
    with child([sys.executable, "-c", ENDLESS, *paths, "--dst_dataset_type", "tfrecord"]) as process:
        wait_for(lambda: found(tmp_path / "records", ".writing-*/train/part*"), process)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert err.count("\n") == 1 and process.returncode == 128 + 15, err
    assert not (tmp_path / "records").exists()


def test_failed_write_is_one_line_error(written, tmp_path):
    """A limit on file sizes makes a write fail, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(DatasetError, match=r"train/part-r-00000: cannot be written: File too large$"):
            to_records(written, "--num_files", "1", target=tmp_path / "records")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_splits_without_labels_are_copied(tmp_path):
    spec = rich_spec((1, 1, 1, 1))
    with TfRawWriter(tmp_path / "raw", spec, ("train", "today"), unlabelled=("today",)) as writer:
        for split, count in (("train", 50), ("today", 5000)):
            numerical, ids, labels = random_rows(spec, count)
            writer.append(split, numerical, ids, labels if split == "train" else None, random_groups(spec, count))
        writer.publish({})
    to_records(tmp_path)
    found = TfRecordSplit(tfrecord_spec(tmp_path / "records", "feature_spec.yaml"), "today")
    assert not found.labelled and not found.read_labels(0, 5000).any() and (tmp_path / "records/today/part-r-00001").is_file()
    to_raw(tmp_path)
    assert tree(tmp_path / "back") == tree(tmp_path / "raw")


def test_nvidias_records_convert_to_tf_raw(tmp_path, capsys):
    columns = write_outbrain(tmp_path / "records", float_label=True, extra=lambda count: {"uuid": np.arange(count)})
    to_raw(tmp_path)
    told = capsys.readouterr()
    assert told.err.count("feature_spec.yaml does not list are ignored: uuid\n") == 1 and "train 273 rows, test 73 rows" in told.out
    assert do(validate, "--dataset_path", tmp_path / "back") == 0
    assert_array_equal(np.fromfile(tmp_path / "back/test/ad_id.bin", np.int32), columns["eval"]["ad_id"])
    with pytest.raises(DatasetError, match="is source and destination"):
        to_raw(tmp_path, target="records")


def test_keys_are_not_copied_and_give_a_warning(tmp_path, capsys):
    write_dataset(tmp_path / "raw", rich_spec((1, 1, 1, 1)), train=3, test=2)
    pl.DataFrame({"user": [1, 2]}).write_parquet(tmp_path / "raw/test/keys.parquet")
    to_records(tmp_path)
    assert "test/keys.parquet is not copied: TFRecords cannot hold it" in capsys.readouterr().err
    assert not list((tmp_path / "records").rglob("keys.parquet"))
