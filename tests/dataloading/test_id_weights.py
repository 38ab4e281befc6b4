"""Weights of ids: the files of tf_raw, what the reader passes on, and the values that are refused."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dataloading import validate
from dataloading.batches import BatchReader, Ids, Order, Share
from dataloading.blocks import stored_rows
from dataloading.contract import check_quick, spec_faults
from dataloading.feature_spec import Categorical, FeatureSpec, FeatureSpecError
from dataloading.features import DatasetError
from dataloading.id_weights import ids_and_weights, joined, without_idle
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml, spec_in

TAGS = Categorical("tags", 90, "int8", hotness=3, weights=True)
TOPICS = Categorical("topics", 9, "int8", hotness=2, pooling="mean", weights=True)
ONE = Categorical("one", 40_000, "int32", weights=True)  # a single id with a weight, or none
FEATURES = (Categorical("user", 50, "int8"), TAGS, TOPICS, ONE)
SAMPLES = 23


def spec_of(features=FEATURES):
    dtypes = {one.name: one.dtype for one in features} | {"n": "float16", "label": "bool"}
    return FeatureSpec(features, ("n",), "label", dtypes)


def drawn(count=SAMPLES, features=FEATURES, seed=0):
    """Draw ids and weights of each feature, some absent, some of weight 0, as the reader returns them."""
    draw, found = np.random.default_rng(seed), []
    for one in features:
        ids = draw.integers(0, one.cardinality, (count, one.hotness)).astype(np.int32)
        if not one.weights:
            found.append(ids[:, 0].astype(one.dtype))
            continue
        ids[draw.random(ids.shape) < 0.3] = -1
        weights = draw.lognormal(0, 1, ids.shape).astype(np.float32)
        weights[draw.random(ids.shape) < 0.2] = 0
        found.append(joined(ids, weights))
    return found


@pytest.fixture
def dataset(tmp_path):
    columns = drawn()
    with TfRawWriter(tmp_path / "d", spec_of(), ("train",)) as writer:
        for first, last in ((0, 10), (10, SAMPLES)):
            labels = np.arange(first, last) % 2
            writer.append("train", np.ones((last - first, 1), np.float16), [column[first:last] for column in columns], labels)
        writer.publish({})
    return tmp_path / "d"


def split_of(folder):
    return TfRawSplit(spec_in(folder), "train")


def test_ids_and_weights_lie_in_a_file_each(dataset):
    content = read_yaml(dataset / "feature_spec.yaml")
    assert content["feature_spec"]["tags"] == {"cardinality": 90, "hotness": 3, "weights": True, "dtype": "int8"}
    assert content["feature_spec"]["one"] == {"cardinality": 40_000, "weights": True, "dtype": "int32"}
    assert "weights" not in content["feature_spec"]["user"]
    chunks = {chunk["features"][0]: chunk["files"] for chunk in content["source_spec"]["train"]}
    assert chunks["tags"] == ["train/tags.bin", "train/tags.weights.bin"] and chunks["user"] == ["train/user.bin"]
    ids, weights = ids_and_weights(drawn()[1])
    assert_array_equal(np.fromfile(dataset / "train/tags.bin", np.int8).reshape(-1, 3), ids)
    assert_array_equal(np.fromfile(dataset / "train/tags.weights.bin", np.float32).reshape(-1, 3), weights)
    assert (weights[ids == -1] == 0).all() and spec_in(dataset).to_dict() == content
    split = split_of(dataset)
    for number, column in enumerate(drawn()):
        assert_array_equal(split.read_ids(number, 3, 19), column[3:19])
    assert check_quick(split.spec, ("train",)) == {"train": SAMPLES} and do(validate, "--dataset_path", dataset) == 0


def test_nvidia_s_reader_refuses_such_a_dataset(dataset):
    """Its check of a specification demands one file in each chunk; it would ignore the unknown entry `weights`."""
    chunks = read_yaml(dataset / "feature_spec.yaml")["source_spec"]["train"]
    assert any(len(chunk["files"]) != 1 for chunk in chunks)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_batch_holds_the_bits_of_the_weights_below_the_ids(dataset, shuffled):
    """An id of weight 0 is none; every worker's part is cut out of the same rows."""
    order = Order(shuffle_seed=1, window=2) if shuffled else Order()
    whole = list(BatchReader(split_of(dataset), 8, order=order).epoch())
    assert whole[0].ids.shape == (1 + 6 + 4 + 2, 8) and whole[0].ids.dtype == np.int32
    expected = np.concatenate([column.reshape(SAMPLES, -1) for column in map(without_idle, drawn()[1:])], axis=1)
    found = np.concatenate([batch.ids[1:, : min(8, batch.num_samples)] for batch in whole], axis=1).T
    order_of = np.lexsort(found.T), np.lexsort(expected.T)
    assert_array_equal(found[order_of[0]], expected[order_of[1]])
    for rows in (whole[0].ids[1:7], whole[0].ids[7:11], whole[0].ids[11:]):
        ids, weights = np.split(rows, 2)
        assert ((ids == -1) == (weights.view(np.float32) == 0)).all() and (ids == -1).any() and (ids >= 0).any()
    for rank in range(2):
        share = Share(features=(2,), local_features=(1, 3), rank=rank, num_workers=2)
        for batch, all_of_it in zip(BatchReader(split_of(dataset), 8, share, order).epoch(), whole, strict=True):
            assert_array_equal(batch.ids, all_of_it.ids[7:11])
            assert_array_equal(batch.local_ids, all_of_it.ids[[*range(1, 7), 11, 12], 4 * rank : 4 * rank + 4])


@pytest.mark.parametrize(("feature", "value"), [("tags", np.nan), ("tags", np.inf), ("topics", -0.5), ("topics", -np.inf), ("one", np.nan)])
def test_a_weight_that_cannot_be_is_named_with_its_place(dataset, capsys, feature, value):
    number = [one.name for one in FEATURES].index(feature)
    hotness, path = FEATURES[number].hotness, dataset / f"train/{feature}.weights.bin"
    weights, ids = np.fromfile(path, np.float32).reshape(-1, hotness), np.fromfile(dataset / f"train/{feature}.bin", FEATURES[number].dtype)
    row, place = (int(one) for one in np.argwhere(ids.reshape(-1, hotness) >= 0)[-1])
    weights[row, place] = value
    weights.tofile(path)
    message = rf"feature {feature}, row {row}, place {place} of its list: weight {value:g} is not a finite number"
    with pytest.raises(DatasetError, match=message):
        list(BatchReader(split_of(dataset), 8).epoch())
    with pytest.raises(DatasetError, match=message):
        stored_rows(split_of(dataset))(0, SAMPLES)
    assert do(validate, "--dataset_path", dataset) == 1
    assert f"{feature}.weights.bin: feature {feature}, row {row}, place {place} of its list: weight {value:g}" in capsys.readouterr().err


def test_a_sum_takes_negative_weights_and_an_id_out_of_range_is_mapped_without_them(dataset):
    path = dataset / "train/tags.weights.bin"
    (-np.fromfile(path, np.float32)).tofile(path)
    np.full(SAMPLES, 40_001, np.int32).tofile(dataset / "train/one.bin")
    with pytest.raises(DatasetError, match="feature one, row 0, place 0 of its list: id 40001 is not in"):
        list(BatchReader(split_of(dataset), 8).epoch())
    batch = next(BatchReader(split_of(dataset), 8, ids=Ids(out_of_range="hash")).epoch())
    assert (batch.ids[4:7].view(np.float32) < 0).any() and set(batch.ids[11]) <= {-1, 1} and batch.out_of_range > 0


def test_validate_counts_the_weights_of_ids_only(dataset, capsys, monkeypatch):
    """Not the 0 of padding; in any number of blocks."""
    monkeypatch.setattr("dataloading.scan.BLOCK_BYTES", 40)
    assert do(validate, "--dataset_path", dataset) == 0
    lines = {line[:27].strip(): line[27:].split() for line in capsys.readouterr().out.splitlines()}
    for feature, column in zip(FEATURES[1:], drawn()[1:], strict=True):
        ids, weights = ids_and_weights(column)
        there = weights[ids >= 0].astype(np.float64)
        figures = [f"{value:.6g}" for value in (there.min(), there.max())]
        expected = [*figures, "-", f"{there.mean():.6g}", f"{100 * (there == 0).mean():.2f}", "%"]
        assert lines[f"train  {feature.name} (weights)"] == expected
    path = dataset / "train/tags.weights.bin"
    weights, ids = np.fromfile(path, np.float32), np.fromfile(dataset / "train/tags.bin", np.int8)
    row, place = divmod(int(np.flatnonzero(ids == -1)[2]), 3)
    weights[3 * row + place] = -7
    weights.tofile(path)
    assert do(validate, "--dataset_path", dataset) == 1
    message = f"tags.weights.bin: feature tags, row {row}, place {place} of its list: weight -7 where there is no id, expected 0; 1 bad row"
    assert message in capsys.readouterr().err


def test_a_file_of_weights_that_is_missing_or_short_is_named(dataset, capsys):
    path = dataset / "train/topics.weights.bin"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DatasetError, match=r"topics\.weights\.bin: 22 samples, the other files of train hold 23"):
        split_of(dataset)
    path.unlink()
    assert do(validate, "--dataset_path", dataset) == 1
    assert "topics.weights.bin: No such file" in capsys.readouterr().err
    (dataset / "train/tags.bin").unlink()  # its weights are scanned without it
    assert do(validate, "--dataset_path", dataset) == 1
    captured = capsys.readouterr()
    assert "tags.bin: No such file" in captured.err and "tags (weights)" in captured.out


def test_a_specification_must_say_what_its_files_hold(dataset):
    content = read_yaml(dataset / "feature_spec.yaml")
    content["source_spec"]["train"][2]["files"].pop()
    expected = ["source_spec.train: chunk [tags]: 1 file, expected two: of the ids and of their weights, since feature_spec says `weights: true`"]
    assert spec_faults(FeatureSpec.from_dict(content), ("train",)) == expected
    content["feature_spec"]["user"]["weights"] = "yes"
    with pytest.raises(FeatureSpecError, match=r"feature_spec\.user: weights: expected true or false, found str 'yes'"):
        FeatureSpec.from_dict(content)
    with pytest.raises(FeatureSpecError, match=r"feature one\.weights would be written to one\.weights\.bin, which another feature needs; rename it"):
        spec_of((ONE, Categorical("one.weights", 5, "int8"))).as_tf_raw(("train",))


@pytest.mark.parametrize("features", [(TAGS,), (ONE,)], ids=["tags", "one"])
def test_weights_of_rows_and_of_ids_do_not_mix(tmp_path, features):
    spec, weights = spec_of(features), np.arange(SAMPLES, dtype=np.float32) / 8
    spec = replace(spec, weight="w", dtypes={**spec.dtypes, "w": "float32"})
    columns = drawn(features=features)
    with TfRawWriter(tmp_path, spec, ("train",)) as writer:
        writer.append("train", np.ones((SAMPLES, 1)), columns, np.arange(SAMPLES) % 2, None, weights)
        split = TfRawSplit(writer.publish({}), "train")
    assert_array_equal(split.read_weights(0, SAMPLES), weights)
    assert_array_equal(split.read_ids(0, 0, SAMPLES), columns[0])
