"""Tests of `--interaction none` against a plain Keras model, and of its C++ scorer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from model.build import build_model
from model.embedding.placement import single
from model.native_scorer import native_scorer_library
from tests.model.test_fm import NUM_NUMERICAL, RATE, STEPS, Plain, configured, rows_of_step, trained_beside
from tests.model.tiny_model import weights
from training.native_evaluator import NativeEvaluator
from utils.distributed import World

FLAGS = ("--interaction", "none")


class PlainRegression(Plain):
    def __init__(self, values):
        super().__init__(values, "none")
        self.groups = [(list(self.variables), keras.optimizers.Adam(RATE))]  # one for all weights, "wide" ones too
        self.groups[0][1].build(list(self.variables.values()))

    def logits(self, numerical, ids):
        found = tf.add_n(self.pooled(ids))
        if not numerical.shape[1]:
            return (found + self.of("dense/wide/bias"))[:, 0]
        return (found + numerical @ self.of("dense/wide/0/kernel") + self.of("dense/wide/0/bias"))[:, 0]


@pytest.mark.parametrize("num_numerical", [NUM_NUMERICAL, 0])
def test_50_steps_equal_keras_and_the_scorer_has_the_logits(num_numerical):
    def plain_of(start):
        assert not any(value.any() for value in start.values())
        return PlainRegression(start)

    model, plain = trained_beside(plain_of, FLAGS, num_numerical=num_numerical)
    assert all(value.any() for value in weights(model).values())
    numerical, ids, _ = rows_of_step(STEPS, num_numerical)
    expected = model((numerical, ids.T)).numpy()
    np.testing.assert_allclose(expected, plain.logits(numerical, ids).numpy(), rtol=1e-4, atol=1e-4)
    if native_scorer_library() is None:
        pytest.skip("the scorer is not built: run .venv/bin/python ops/build")
    scorer, ids = NativeEvaluator(model, configured(*FLAGS)[0].model, num_numerical), np.ascontiguousarray(ids.T)
    np.testing.assert_allclose(scorer.logits_of(numerical, ids), expected, rtol=2e-6, atol=1e-6)
    np.testing.assert_array_equal(scorer.logits_of(numerical[:1], ids[:1]), scorer.logits_of(numerical, ids)[:1])


def test_tables_have_one_column_whatever_embedding_dim_says():
    config, tables, features = configured(*FLAGS, "--embedding_dim", "32")
    assert {table.dim for table in tables} == {1} and len(features) == 3
    model = build_model(config.model, single(tables, features), World(), NUM_NUMERICAL, 7)
    assert {name for name in model.dense_weights()} == {"wide/0/kernel", "wide/0/bias"}
