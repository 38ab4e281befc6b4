"""Tests that a model's weights are saved to a checkpoint and restored bit for bit."""

import numpy as np
import pytest

from tests.model.tiny_model import NUMERICAL, ROWS, assert_equal, batch, model_and_trainer, weights
from training.features import ModelFeatures, check_features, check_lookups
from training.state import parts, restore
from utils.checkpoint import manifest
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint


def test_restoring_gives_the_same_weights_bit_for_bit(saved):
    model, checkpoint = saved
    other, _ = model_and_trainer(seed=99)
    before = weights(other)
    restore(other, checkpoint)
    expected, found = weights(model), weights(other)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name].view(np.uint32), expected[name].view(np.uint32), err_msg=name)
        assert not np.array_equal(before[name], found[name]), name


def test_a_restored_model_trains_on_like_the_saved_one(saved):
    _, checkpoint = saved
    first, second = (model_and_trainer(seed=seed) for seed in (1, 2))
    for one, _ in (first, second):
        restore(one, checkpoint)
    for _, trainer in (first, second):
        trainer.step(batch(16, seed=5), 0, 0.1)
    assert_equal(weights(second[0]), weights(first[0]))


def test_whole_tables_are_stored_under_their_features_names(saved):
    _, checkpoint = saved
    assert set(checkpoint.names("tables/")) == {f"tables/{name}/weights" for name in ROWS}
    assert [checkpoint.shape(f"tables/{name}/weights") for name in ROWS] == [(rows, 4) for rows in ROWS.values()]


def test_equal_features_are_accepted(saved):
    check_features(saved[1], ModelFeatures(ROWS, NUMERICAL))


@pytest.mark.parametrize(
    ("categorical", "numerical", "message"),
    [
        (ROWS | {"new": 3}, NUMERICAL, "no table for feature new"),
        ({"user": 7, "item": 5}, NUMERICAL, "table for feature page, which the dataset lacks"),
        (ROWS | {"item": 6}, NUMERICAL, "feature item has 5 rows, the dataset needs 6"),
        (ROWS, (*NUMERICAL, "num_2"), r"2 numerical features \(num_0, num_1\).*the dataset has 3"),
        (ROWS, tuple(reversed(NUMERICAL)), "numerical features"),
        (dict(reversed(ROWS.items())), NUMERICAL, "in the order user, item, page, the dataset has page, item, user"),
    ],
    ids=["new", "missing", "rows", "more numerical", "order of numerical", "categorical order"],
)
def test_other_features_are_refused(saved, categorical, numerical, message):
    with pytest.raises(CheckpointError, match=message):
        check_features(saved[1], ModelFeatures(categorical, numerical))


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"page": {"table": "item"}}, "feature page was looked up in table page, the dataset says item"),
        ({"page": {"pooling": "mean"}}, "the vectors of feature page were pooled by sum, the dataset says mean"),
    ],
)
def test_changed_lookup_is_an_error_even_if_other_features_are_missing(saved, now, message):
    before = ModelFeatures(ROWS, NUMERICAL)
    check_lookups(saved[1], before, ModelFeatures({"item": 5, "page": ROWS["page"]}, NUMERICAL))
    with pytest.raises(CheckpointError, match=message):
        check_lookups(saved[1], before, ModelFeatures({"page": ROWS["page"], "new": 4}, NUMERICAL, now))


PARTICULARS = ({"hotness": 2, "table": 3}, {"hotness": 2, "colour": "red"}, {"hotness": True}, {"hotness": 0}, {"pooling": "max"}, [2])


@pytest.mark.parametrize(
    "features",
    [
        None,
        [],
        {},
        {"categorical": 3, "numerical": []},
        {"categorical": ROWS, "numerical": None},
        *({"categorical": ROWS, "numerical": list(NUMERICAL), "particulars": {"user": one}} for one in PARTICULARS),
        {"categorical": ROWS, "numerical": list(NUMERICAL), "particulars": {"nobody": {}}},
    ],
)
def test_a_manifest_that_does_not_name_the_features_is_an_error(saved, features):
    saved[1].manifest["features"] = features
    with pytest.raises(CheckpointError, match="does not name the model's features"):
        check_features(saved[1], ModelFeatures(ROWS, NUMERICAL))


@pytest.mark.parametrize("flags", [(), ("--data_parallel_threshold", "1000000")], ids=["sharded", "replicated"])
def test_part_returns_only_the_requested_rows(flags):
    expected = weights(model_and_trainer(*flags)[0])
    for part in parts(model_and_trainer(*flags)[0]):
        whole = part.read(0, len(expected[part.array]))
        np.testing.assert_array_equal(whole, expected[part.array], err_msg=part.array)
        for start, stop in (0, 1), (1, 3), (2, 2):
            np.testing.assert_array_equal(part.read(start, stop), whole[start:stop], err_msg=part.array)


def test_weights_of_another_shape_are_refused(saved, tmp_path):
    content = saved[1].manifest
    content["arrays"]["dense/top_mlp/0/kernel"]["shape"] = [1, 1]
    manifest.write(saved[1].folder, content)
    with pytest.raises(CheckpointError, match=r"dense/top_mlp/0/kernel.*shape"):
        restore(model_and_trainer()[0], Checkpoint(tmp_path))


def test_a_missing_array_is_named(saved, tmp_path):
    content = saved[1].manifest
    del content["arrays"]["tables/item/weights"]
    manifest.write(saved[1].folder, content)
    with pytest.raises(CheckpointError, match="no array tables/item/weights"):
        restore(model_and_trainer()[0], Checkpoint(tmp_path))
