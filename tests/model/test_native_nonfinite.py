"""Tests that NaN and infinity pass through the C++ operations as through TensorFlow's, and leave finite values beside them unchanged."""

import numpy as np
import pytest
import tensorflow as tf
from test_native import OPTIMIZERS, Piece, by_native, by_tensorflow

from model.layers.interaction import pair_indices
from model.native import Lookup
from model.ordered_sums import pairwise_sum
from tests.model.native_library import built_operations

DTYPES = ("float32", "bfloat16", "float16")
# Both signs of NaN, infinity and zero, values that overflow in a narrower type, and the largest and smallest values of each type.
VALUES = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5, 3.4e38, -3.4e38, 65519.0, 65520.0, 6e-8, 2.9e-8, 1e-30], np.float32)


@pytest.fixture(scope="module")
def native():
    return built_operations()


def exact(tensor):
    return tf.cast(tensor, tf.float64).numpy()


def mixed(shape, dtype, seed, values=VALUES):
    """Draw a tensor of normal random numbers, a fifth of them replaced by the given values."""
    draw = np.random.default_rng(seed)
    drawn = draw.standard_normal(shape).astype(np.float32)
    where = draw.random(shape) < 0.2
    drawn[where] = draw.choice(values, where.sum())
    return tf.cast(tf.constant(drawn), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_relu_passes_nonfinite_values_like_relu(native, dtype):
    products, bias = mixed((70, 300), dtype, 0), tf.constant(np.where(np.arange(300) % 50 == 7, np.nan, 0.5).astype(np.float32))
    expected = tf.cast(tf.nn.relu(tf.cast(products, tf.float32) + bias), dtype)
    found = native.bias_relu(products, bias)
    assert np.isnan(exact(expected)).sum() > 500
    np.testing.assert_array_equal(exact(found), exact(expected))


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_gradient_passes_nonfinite_values_like_tensorflow(native, dtype):
    # Every pair of values occurs; some columns are finite, others are not.
    upstream, outputs = (tf.cast(tf.constant(grid), dtype) for grid in np.meshgrid(VALUES, VALUES, indexing="ij"))
    gradient, by_bias = native.relu_gradient(upstream, outputs)
    expected = tf.raw_ops.ReluGrad(gradients=upstream, features=outputs)
    np.testing.assert_array_equal(exact(gradient), exact(expected))
    np.testing.assert_array_equal(np.isfinite(by_bias), np.isfinite(tf.reduce_sum(tf.cast(expected, tf.float32), axis=0)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_and_gradient_give_positive_zero(native, dtype):
    negative = tf.cast(tf.constant([[-0.0, -1.0, 0.0]]), dtype)
    assert not np.signbit(exact(native.bias_relu(negative, tf.constant([-0.0, 0.0, 0.0])))).any()
    assert not np.signbit(exact(native.relu_gradient(negative, negative)[0])).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_sums_keep_nonfinite_values(native, dtype, count):
    parts = [mixed((33, 70), dtype, seed) for seed in range(count)]
    np.testing.assert_array_equal(native.sum_in_pairs(parts), pairwise_sum([tf.cast(part, tf.float32) for part in parts]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(20, 26, 128), (5, 3, 17)], ids=str)
def test_interaction_and_gradient_keep_nonfinite_values(native, dtype, shape):
    samples, features, width = shape
    few = VALUES[:6]
    draw = np.random.default_rng(3)
    z = draw.standard_normal((samples, features + 1, width)).astype(np.float32)
    z[::2, 1 + draw.integers(features), draw.integers(width)] = draw.choice(few, (samples + 1) // 2)
    z[1, 0, width - 1] = np.nan
    upstream = draw.standard_normal((samples, width + (features + 1) * features // 2)).astype(np.float32)
    upstream[2, -1], upstream[3, 0] = np.nan, np.inf
    z, upstream = tf.cast(tf.constant(z), dtype), tf.cast(tf.constant(upstream), dtype)
    bottom, embeddings = z[:, 0], z[:, 1:]
    with tf.GradientTape() as tape:
        tape.watch([bottom, embeddings])
        out = native.interact(bottom, embeddings)
    by_bottom, by_embeddings = tape.gradient(out, [bottom, embeddings], upstream)

    forward, inverse = pair_indices(features + 1)
    with np.errstate(invalid="ignore"):
        dots = (exact(z) @ exact(z).swapaxes(1, 2)).reshape(samples, -1)[:, forward]
        padded = np.concatenate([exact(upstream)[:, width:], np.zeros((samples, 1))], axis=1)
        gradient = padded[:, inverse].reshape(samples, features + 1, features + 1) @ exact(z)
        gradient[:, 0] += exact(upstream)[:, :width]
    expected = (np.concatenate([exact(bottom), dots], axis=1), gradient[:, 0], gradient[:, 1:])
    for found, wanted in zip((out, by_bottom, by_embeddings), expected, strict=True):
        assert np.isnan(wanted).any() and np.isfinite(wanted).any()
        np.testing.assert_array_equal(np.isnan(exact(found)), np.isnan(wanted))
        np.testing.assert_array_equal(exact(found)[np.isinf(wanted)], wanted[np.isinf(wanted)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [128, 21])
def test_lookup_keeps_nonfinite_values(native, dtype, width):
    table = mixed((64, width), "float32", 0)
    ids = tf.constant(np.random.default_rng(1).integers(0, 64, (1, 100)), tf.int32)
    found = native.look_up([tf.Variable(table)], ids, [Lookup(0, 0)], tf.as_dtype(dtype))
    np.testing.assert_array_equal(exact(found), exact(tf.cast(tf.gather(table, ids[0]), dtype)))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss_scale", [1.0, 1024.0, 3.0])
def test_update_keeps_nonfinite_values(native, name, dtype, loss_scale):
    optimizer = OPTIMIZERS[name](128)
    pieces = [Piece(optimizer, 40, 128, 0, 0)] + [Piece(optimizer, 40, 21, 1, 128)] * (
        name != "rowwise_adagrad"
    )  # row-wise Adagrad is built for one width
    pieces[0].start[0][3, 5] = np.nan
    ids = np.random.default_rng(0).integers(0, 40, (2, 64)).astype(np.int32)
    gradients = tf.cast(tf.constant(np.where(np.arange(64)[:, np.newaxis] % 9 == 4, exact(mixed((64, 149), dtype, 1)), 0.25)), dtype)
    expected = by_tensorflow(optimizer, pieces, ids, gradients, loss_scale)
    assert np.isnan(expected[0]).any() and np.isfinite(expected[0]).any()
    for found, wanted in zip(by_native(native, optimizer, pieces, ids, gradients, loss_scale), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
