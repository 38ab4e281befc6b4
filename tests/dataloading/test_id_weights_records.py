"""Weights of ids in other forms of a dataset: records with a folder for each feature hold them, the other forms refuse them."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal

from dataloading import transcribe
from dataloading.batches import BatchReader, Ids, Order, Share
from dataloading.feature_spec import Categorical, FeatureSpec, FeatureSpecError
from dataloading.features import DatasetError
from dataloading.id_weights import ids_and_weights, joined
from dataloading.parquet.spec import parquet_spec
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from dataloading.tfrecord.batch_folders import batch_spec
from dataloading.tfrecord.batch_split import BatchRecordSplit
from dataloading.tfrecord.spec import tfrecord_spec
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.folders import tree
from utils.errors import UserError

FEATURES = (
    Categorical("user", 50, "int8"),
    Categorical("tags", 90, "int8", hotness=3, weights=True),
    Categorical("plain", 300, "int16", hotness=2),
    Categorical("topics", 9, "int8", hotness=2, pooling="mean", weights=True),
    Categorical("one", 40_000, "int32", weights=True),
)
ROWS = {"train": 60, "test": 20}


def spec_of(features=FEATURES):
    dtypes = {one.name: one.dtype for one in features} | {"n": "float16", "label": "bool"}
    return FeatureSpec(features, ("n",), "label", dtypes)


def drawn(count, seed):
    """Draw ids and weights of each feature, the ids first in their lists, some absent, some of weight 0."""
    draw, found = np.random.default_rng(seed), []
    for one in FEATURES:
        ids = draw.integers(0, one.cardinality, (count, one.hotness)).astype(np.int32)
        if one.is_list:
            ids[np.arange(one.hotness) >= draw.integers(0, one.hotness + 1, count)[:, np.newaxis]] = -1
        weights = draw.lognormal(0, 1, ids.shape).astype(np.float32) * (draw.random(ids.shape) > 0.2)
        if one.name == "tags":
            ids[0], weights[0] = (4, 5, 6), (-1.5, -0.0, 1e-30)
        found.append(joined(ids, weights) if one.weights else ids.astype(one.dtype).reshape((count, -1) if one.is_list else count))
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write a dataset as tf_raw, as records, and back; return the three folders."""
    raw, records, back = (tmp_path_factory.mktemp("weights") / name for name in ("raw", "records", "back"))
    with TfRawWriter(raw, spec_of()) as writer:
        for seed, (split, count) in enumerate(ROWS.items()):
            writer.append(split, np.ones((count, 1), np.float16), drawn(count, seed), np.arange(count) % 2)
        writer.publish({})
    assert transcribed(raw, records, "--dst_dataset_type", "split_tfrecords", "--dst_prebatch_size", "20", "--src_batch_size", "7") == 0
    assert transcribed(records, back, "--src_dataset_type", "split_tfrecords", "--src_batch_size", "13") == 0
    return raw, records, back


def transcribed(source, destination, *flags):
    return do(transcribe, "--src_dataset_path", source, "--dst_dataset_path", destination, *flags)


def opened(records):
    return BatchRecordSplit(batch_spec(spec_in(records)), "train")


@pytest.fixture
def records(folders, tmp_path):
    """Copy the records, to damage them."""
    return shutil.copytree(folders[1], tmp_path / "records")


def changed(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


# Records with a folder for each feature -----------------------------------------------------------------------------------


def test_rows_survive_the_round_trip_to_the_byte(folders):
    raw, _, back = map(tree, folders)
    assert raw == back and sum(name.endswith("weights.bin") for name in raw) == 6


def test_weights_have_a_folder_with_the_row_splits_of_the_ids(folders):
    _, records, _ = folders
    assert sorted(path.name for path in (records / "train").glob("categorical_weights_*")) == [f"categorical_weights_{i}" for i in (1, 3, 4)]
    expected = {"dtype": "float32", "multihot": True, "feature_name": "data", "num_features": 1, "batches_per_file": 3, "format": "tfrecords"}
    assert json.loads((records / "train/categorical_weights_1/format.json").read_text()) == expected
    tensors = {}
    for name, kind in (("categorical_1", tf.int32), ("categorical_weights_1", tf.float32)):
        first = next(iter(tf.data.TFRecordDataset(str(records / "train" / name / "data_0.tfrecords"))))
        (content,) = tf.train.Example.FromString(first.numpy()).features.feature["data"].bytes_list.value
        values, splits = tf.unstack(tf.io.parse_tensor(content, tf.string))
        tensors[name] = tf.io.parse_tensor(values, kind).numpy(), tf.io.parse_tensor(splits, tf.int32).numpy()
    ids, weights = ids_and_weights(drawn(60, 0)[1][:20])
    assert_array_equal(tensors["categorical_1"][0], ids[ids >= 0])
    assert_array_equal(tensors["categorical_weights_1"][0], weights[ids >= 0])
    assert_array_equal(tensors["categorical_1"][1], tensors["categorical_weights_1"][1])


def test_batches_are_those_of_tf_raw(folders):
    raw, records, _ = folders
    stored = TfRawSplit(spec_in(raw), "train")
    for order in (Order(), Order(shuffle_seed=3, window=2)):
        for share in (None, Share(features=(1, 4), local_features=(3,), rank=1, num_workers=2)):
            options = {"order": order} | ({} if share is None else {"share": share})
            for one, other in zip(BatchReader(stored, 16, **options).epoch(), BatchReader(opened(records), 16, **options).epoch(), strict=True):
                assert_array_equal(one.ids, other.ids)
                assert_array_equal(one.labels, other.labels)
    assert len({split.fingerprint() for split in (opened(records), stored)}) == 2


def test_other_weights_make_another_fingerprint(records):
    before = opened(records).fingerprint()
    path = records / "train/categorical_weights_4/data_0.tfrecords"
    content = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in content[::-1]:
            writer.write(record)
    assert opened(records).fingerprint() != before


def refused_by_nvidias_reader(folder, split, features):
    """Return whether NVIDIA's reader stops: it takes only the format `tfrecords` for each folder that it reads, of which none holds weights."""
    names = ("numerical", "label", *(f"categorical_{i}" for i in range(len(features))))
    return any(json.loads((folder / split / name / "format.json").read_text())["format"] != "tfrecords" for name in names)


def test_nvidias_reader_refuses_such_records(folders, tmp_path):
    """Without the refusal it would train on the ids alone."""
    assert refused_by_nvidias_reader(folders[1], "train", FEATURES)
    spec = spec_of(FEATURES[:1])
    with TfRawWriter(tmp_path / "raw", spec, ("train",)) as writer:
        writer.append("train", np.ones((20, 1), np.float16), drawn(20, 0)[:1], np.arange(20) % 2)
        writer.publish({})
    assert transcribed(tmp_path / "raw", tmp_path / "records", "--dst_dataset_type", "split_tfrecords", "--dst_prebatch_size", "20") == 0
    assert not refused_by_nvidias_reader(tmp_path / "records", "train", FEATURES[:1])


def test_missing_weights_are_named(records):
    shutil.rmtree(records / "train/categorical_weights_3")
    with pytest.raises(DatasetError, match=r"train/categorical_weights_3/format\.json: No such file or directory; expected the weights .* topics"):
        opened(records)


@pytest.mark.parametrize(
    ("folder", "entries", "message"),
    [
        ("categorical_1", {"format": "tfrecords"}, "of feature tags the specification says `weights: true`, but the records hold none"),
        ("categorical_2", {"format": "weighted_tfrecords"}, "of feature plain the specification says no `weights: true`, but the records hold them"),
        ("categorical_4", {"multihot": False}, "multihot is false, expected true"),
        ("categorical_weights_4", {"multihot": False}, "multihot is false, expected true"),
        ("categorical_weights_4", {"dtype": "float16"}, 'dtype is "float16", expected float32'),
        ("label", {"format": "weighted_tfrecords"}, 'format is "weighted_tfrecords", expected tfrecords$'),
    ],
)
def test_formats_that_contradict_the_specification_are_named(records, folder, entries, message):
    changed(records / "train" / folder / "format.json", **entries)
    with pytest.raises(DatasetError, match=rf"train/{folder}/format\.json: .*{message}"):
        opened(records)


def test_weights_of_other_lists_than_the_ids_are_named(records):
    for name in ("data_0.tfrecords", "format.json"):
        shutil.copy(records / "train/categorical_weights_3" / name, records / "train/categorical_weights_1" / name)
    (ids, _), (others, _) = (ids_and_weights(drawn(60, 0)[i]) for i in (1, 3))
    lengths, found = (ids >= 0).sum(axis=1), (others >= 0).sum(axis=1)
    row = int(np.argmax(lengths != found))
    message = rf"categorical_weights_1/data_0\.tfrecords, record {row // 20}: feature tags, row {row}: {found[row]} weights of {lengths[row]} ids"
    with pytest.raises(DatasetError, match=message):
        opened(records).read_ids(1, 0, 60)
    for name in ("data_0.tfrecords", "format.json"):
        shutil.copy(records / "train/categorical_weights_1" / name, records / "train/categorical_weights_4" / name)
    with pytest.raises(DatasetError, match=r"categorical_weights_4/.*: feature one, row \d+: 2 weights, expected at most 1, its hotness in "):
        opened(records).read_ids(4, 0, 60)


def test_weights_that_cannot_be_are_named_with_their_place(records):
    """The weights of `tags`, some negative, are none of a mean."""
    spec = spec_in(records)
    features = tuple(replace(one, pooling="mean") if one.name == "tags" else one for one in spec.categorical)
    split = BatchRecordSplit(batch_spec(replace(spec, categorical=features)), "train")
    with pytest.raises(DatasetError, match=r"record 0: feature tags, row 0, place 0 of its list: weight -1\.5 is not a finite number of"):
        list(BatchReader(split, 20, ids=Ids()).epoch())


# Forms that hold no weights -----------------------------------------------------------------------------------------------


def test_records_of_wide_and_deep_refuse_weights(folders, tmp_path):
    raw = tmp_path / "raw"
    with TfRawWriter(raw, spec_of(FEATURES[-1:])) as writer:
        for split in ("train", "test"):
            writer.append(split, np.ones((60, 1), np.float16), drawn(60, 0)[-1:], np.arange(60) % 2)
        writer.publish({})
    message = "feature one has weights of its ids: pre-batched TFRecords hold one id per sample; write tf_raw$"
    with pytest.raises(UserError, match=message):
        transcribed(raw, tmp_path / "records", "--dst_dataset_type", "tfrecord")
    assert not (tmp_path / "records").exists()
    for name in ("train", "eval"):
        (tmp_path / "there" / name).mkdir(parents=True)
        (tmp_path / "there" / name / "part-r-00000").write_bytes(b"")
    (tmp_path / "there/feature_spec.yaml").write_text(replace(spec_of(FEATURES[-1:]), sources=None).to_yaml())
    with pytest.raises(DatasetError, match=r"feature_spec\.yaml: feature one has weights of its ids; pre-batched TFRecords hold one id per sample$"):
        tfrecord_spec(tmp_path / "there", "feature_spec.yaml")


@pytest.mark.parametrize("channel", ["onehot_categorical", "multihot_categorical"])
def test_parquet_files_hold_no_weights(tmp_path, channel):
    others = {"onehot_categorical", "multihot_categorical", "numerical", "label", "map"} - {channel}
    content = {
        "feature_spec": {"tags": {"cardinality": 9, "weights": True} | ({"max_hotness": 3} if channel.startswith("multi") else {}), "y": {}, "g": {}},
        "channel_spec": {channel: ["tags"]} | {name: {"label": ["y"], "map": ["g"]}.get(name, []) for name in sorted(others)},
        "source_spec": {name: [{"type": "parquet", "features": ["tags", "y", "g"], "files": [f"{name}.parquet"]}] for name in ("train", "test")},
    }
    (tmp_path / "feature_spec.yaml").write_text(json.dumps(content))
    with pytest.raises(FeatureSpecError, match=r"feature_spec\.tags: key 'weights' is not known, expected one of cardinality"):
        parquet_spec(tmp_path, "feature_spec.yaml", "")
