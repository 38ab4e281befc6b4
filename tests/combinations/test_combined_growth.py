"""Tests that models with batch normalisation grow: old samples keep their scores, the moving statistics are carried over, training goes on."""

import contextlib
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import tensorflow as tf

import dlrm
from dataloading.feature_spec import Categorical
from tests.combinations.combined import NUMERICAL, ROWS, features_of, write_data
from tests.combinations.test_pairs import ARRAY, NORMALISED, samples
from training.build import build_trainer
from utils.checkpoint.reading import Checkpoint

TRAINED_ON = ("parallel", "wide_and_deep")  # tracing their steps takes seconds; of the others the scores are compared, and training is not begun
FRESH = Categorical("fresh", 30, "int32", alpha=1.2)


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """Write the datasets with more rows in every table, a new feature between the others and a new numerical feature; return their folders."""
    folder = tmp_path_factory.mktemp("larger")
    found = {}
    for lists in (False, True):
        first, *others = (replace(feature, cardinality=feature.cardinality + 50) for feature in features_of(lists))
        found[lists] = write_data(folder / f"{lists}", (first, FRESH, *others), ("w", *NUMERICAL), ROWS)
    return found


class NotTrained(Exception):
    """Ends a run before its first step."""


@pytest.mark.parametrize("model", NORMALISED)
def test_a_grown_model_keeps_scores_and_statistics_and_trains_on(unbroken, datasets, larger, tmp_path, model):
    one, run = ARRAY[NORMALISED[model]], unbroken(NORMALISED[model])
    numerical, ids = samples(datasets[one.lists])
    draw, old = np.random.default_rng(0), Checkpoint(run.checkpoints)
    first = features_of(one.lists)[0].hotness
    inputs = np.insert(numerical, 0, draw.random(len(ids)), axis=1), np.insert(ids, first, draw.integers(0, FRESH.cardinality, len(ids)), axis=1)
    seen = {}

    def built(config, grown, *arguments):
        seen["scores"] = grown((tf.constant(inputs[0]), tf.constant(inputs[1], tf.int32))).numpy()
        seen["statistics"] = {f"dense/{name}": variable.numpy() for name, variable in grown.statistics().items()}
        if model not in TRAINED_ON:
            raise NotTrained
        return build_trainer(config, grown, *arguments)

    flags = one.flags | {"dataset_path": larger[one.lists], "max_steps": 3, "log_path": "", "save_checkpoint_path": tmp_path / "c"}
    flags["table_storage"] = "memory"  # this test calls the model; test_lazy_tables has growth with lazy tables
    with patch("run.train.build_trainer", built), contextlib.nullcontext() if model in TRAINED_ON else pytest.raises(NotTrained):
        result = dlrm.train(restore_checkpoint_path=run.checkpoints, allow_growth=True, **flags)
    np.testing.assert_allclose(seen["scores"], run.scores.logits, rtol=1e-5, atol=2e-6)
    assert seen["statistics"].keys() == {name for name in old.names("dense/") if "moving" in name} != set()
    for name, values in seen["statistics"].items():
        np.testing.assert_array_equal(values, old.read(name), err_msg=name)
    if model in TRAINED_ON:
        new = Checkpoint(tmp_path / "c")
        assert result.figures["steps"] == new.step == 3 and np.isfinite(result.figures["train_loss"])
        for name, values in seen["statistics"].items():
            assert (new.read(name) != values).any() and np.isfinite(new.read(name)).all(), name
        assert new.shape("tables/fresh/weights")[0] == FRESH.cardinality
        for name in old.names("tables/"):
            assert new.shape(name)[0] == old.shape(name)[0] + 50 and np.isfinite(new.read(name)).all(), name
