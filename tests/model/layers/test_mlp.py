"""Tests of the MLPs: outputs against NumPy, sizes, and initial weights."""

import math

import numpy as np
import pytest
import tensorflow as tf

from model.layers.dense import layer_seed
from model.layers.mlp import Mlp

BOTTOM, TOP = (512, 256, 128), (1024, 1024, 512, 256, 1)


def built(units, activation, width, seed=0, name="mlp", dtype="float32"):
    mlp = Mlp(units, activation, seed, name, dtype)
    mlp.build((None, width))
    return mlp


def parameters(mlp):
    return sum(math.prod(weight.shape) for weight in mlp.trainable_variables)


@pytest.mark.parametrize("activation", ["relu", None])
def test_forward_equals_numpy(activation):
    mlp = built((6, 4, 2), activation, 3)
    values = x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for i, layer in enumerate(mlp.stack):
        values = values @ layer.kernel.numpy() + layer.bias.numpy()
        values = np.maximum(values, 0) if i < 2 or activation else values
    np.testing.assert_allclose(mlp(tf.constant(x)), values, rtol=1e-5, atol=1e-6)
    assert (values < 0).any() == (activation is None)


def test_parameter_counts_of_the_published_model():
    assert parameters(built(BOTTOM, "relu", 13)) == 171_392
    assert parameters(built(TOP, None, 128 + 27 * 26 // 2)) == 2_197_505


def test_weights_start_glorot_normal_and_biases_with_variance_one_over_out():
    mlp = built((1024, 1024), None, 479)
    for fan_in, layer in zip((479, 1024), mlp.stack, strict=True):
        kernel, bias = layer.kernel.numpy(), layer.bias.numpy()
        assert kernel.std() == pytest.approx(math.sqrt(2 / (fan_in + 1024)), rel=0.01)
        assert abs(kernel.mean()) < 5 * kernel.std() / math.sqrt(kernel.size)
        assert bias.std() == pytest.approx(math.sqrt(1 / 1024), rel=0.12)  # 5 standard errors of 1024 values
        assert abs(bias.mean()) < 5 * bias.std() / 32


def test_weights_depend_on_the_seed():
    def weights(*arguments):
        return [weight.numpy() for weight in built((4, 3), None, 5, *arguments).trainable_variables]

    first, again = weights(7, "a"), weights(7, "a")
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    for other in (weights(8, "a"), weights(7, "b")):
        assert not any(np.array_equal(x, y) for x, y in zip(first, other, strict=True))


def test_layers_of_equal_shape_start_differently():
    first, second = built((8, 8), None, 8).stack
    assert not np.array_equal(first.kernel, second.kernel)
    assert not np.array_equal(first.bias, second.bias)


def test_layer_seeds_fit_31_bits_and_differ():
    seeds = {layer_seed(seed, name) for seed in range(20) for name in ("a", "b")}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_logits_are_float32_under_mixed_precision_and_hidden_layers_are_not():
    top, bottom = (built((4, 4), activation, 4, dtype="mixed_bfloat16") for activation in (None, "relu"))
    assert top(tf.ones((2, 4))).dtype == "float32"
    assert bottom(tf.ones((2, 4))).dtype == "bfloat16"
    assert {weight.dtype for weight in (*top.trainable_variables, *bottom.trainable_variables)} == {"float32"}


def test_output_shape_is_known():
    assert Mlp((4, 3), None, 0, "mlp").compute_output_shape((None, 9)) == (None, 3)


@pytest.mark.parametrize("units", [(), (0,), (8, -1)])
def test_widths_below_one_are_refused(units):
    with pytest.raises(ValueError, match="positive layer widths"):
        Mlp(units, None, 0, "mlp")
