"""Tests that the scorer measured by `--mode inference` scores as TensorFlow does."""

import numpy as np
import pytest

from model.native_scorer import native_scorer_library
from tests.model.tiny_model import NUM_NUMERICAL, batch, config, model_and_trainer
from training.evaluator import Evaluator
from training.native_evaluator import NativeEvaluator


@pytest.mark.parametrize("flags", [(), ("--interaction", "cross", "--cross_layer_projection_dim", "3"), ("--interaction", "cat")])
def test_logits_equal_tensorflows(flags):
    if native_scorer_library() is None:
        pytest.skip("DLRM_NATIVE_OPS=0")
    model, _ = model_and_trainer(*flags)
    evaluator = NativeEvaluator(model, config(*flags).model, NUM_NUMERICAL)
    for size in (1, 5, 64):
        expected = Evaluator(model).logits(batch(size, seed=size))
        np.testing.assert_allclose(evaluator.logits(batch(size, seed=size)), expected, atol=1e-6, rtol=0)
        assert size == 1 or np.ptp(expected) > 1e-3
