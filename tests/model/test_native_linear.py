"""Tests of the C++ scorer on models with a linear part: its logits are those of TensorFlow's forward pass, and a sample's bits depend on it alone."""

import numpy as np
import pytest

from model.build import build_model
from model.embedding.placement import single
from model.native_scorer import native_scorer_library
from tests.model.test_fm import CAT, CROSS, DEEPFM, DOT, FM, configured, distinct_start, rows_of_step
from training.native_evaluator import NativeEvaluator
from utils.distributed import World

WIDE_AND_DEEP = ("--interaction", "wide_and_deep", "--top_mlp_dims", "16,8,1")
MODELS = {"fm": FM, "deepfm": DEEPFM, "dot": DOT, "cat": CAT, "cross": CROSS, "wide_and_deep": WIDE_AND_DEEP}


@pytest.fixture(params=[(name, count) for name in MODELS for count in (4, 0)], ids=lambda case: f"{case[0]}, {case[1]} numericals")
def scored(request):
    """Build a model with other than its initial weights; return the C++ scorer of it, rows, and TensorFlow's logits of these."""
    if native_scorer_library() is None:
        pytest.skip("the scorer is not built: run .venv/bin/python ops/build")
    name, num_numerical = request.param
    config, tables, features = configured(*MODELS[name], num_numerical=num_numerical)
    model = build_model(config.model, single(tables, features), World(), num_numerical, 7)
    distinct_start(model)
    rows = [rows_of_step(step, num_numerical) for step in range(5)]
    numerical, ids = np.concatenate([one[0] for one in rows]), np.concatenate([one[1] for one in rows], axis=1).T
    return NativeEvaluator(model, config.model, num_numerical), numerical, np.ascontiguousarray(ids), model((numerical, ids)).numpy()


def test_logits_are_those_of_tensorflow(scored):
    scorer, numerical, ids, expected = scored
    assert np.ptp(expected) > 1
    for count in (1, 2, 3, 12, 25, 300):
        np.testing.assert_allclose(scorer.logits_of(numerical[:count], ids[:count]), expected[:count], rtol=2e-6, atol=1e-5)


def test_a_sample_has_the_same_bits_in_any_batch(scored):
    scorer, numerical, ids, _ = scored
    together = scorer.logits_of(numerical, ids)
    alone = np.concatenate([scorer.logits_of(numerical[i : i + 1], ids[i : i + 1]) for i in range(0, len(ids), 7)])
    np.testing.assert_array_equal(together[::7], alone)
    np.testing.assert_array_equal(scorer.logits_of(numerical[:130], ids[:130]), together[:130])
