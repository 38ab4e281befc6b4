"""Tests of the C++ fusion of FinalMLP's streams, forward and backward, against float64 and against the layers that it replaces."""

import numpy as np
import pytest
import tensorflow as tf

from model.native import native_operations

DTYPES = {"float32": 2e-6, "bfloat16": 8e-3, "float16": 1e-3}  # with the error of one rounding
SIZES = {"of the paper's model": (64, 8, 50, 50), "of unequal streams": (24, 3, 5, 17), "of one head": (40, 1, 33, 2), "of one column": (16, 2, 1, 1)}

native = native_operations()
pytestmark = pytest.mark.skipif(native is None, reason="the C++ operations are not built: run .venv/bin/python ops/build")


def drawn(samples, heads, left, right, dtype):
    """Return streams, linear weights, bias and kernels."""
    draw = np.random.default_rng(samples + left)
    streams = [tf.cast(draw.normal(size=(samples, heads * width)), dtype) for width in (left, right)]
    kernels = [tf.cast(draw.normal(size=(left, right)) / left, dtype) for _ in range(heads)]
    linear, bias = (tf.constant(draw.normal(size=shape), tf.float32) for shape in ((heads * (left + right), 1), (1,)))
    return [*streams, linear, bias, *kernels]


def fused(weights, slices=1):
    left, right, linear, bias, *kernels = weights
    return native.vectors.fused(left, right, linear, bias, kernels, slices)


def gradients(weights, upstream, slices):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = fused(weights, slices)
    return tape.gradient(logits, weights, output_gradients=upstream)


def exact(weights):
    """Return the logits in float64, from the formula."""
    left, right, linear, bias, *kernels = (tf.cast(one, tf.float64) for one in weights)
    of_heads = zip(tf.split(left, len(kernels), axis=1), kernels, tf.split(right, len(kernels), axis=1), strict=True)
    bilinear = tf.add_n([tf.einsum("bi,ij,bj->b", *head) for head in of_heads])
    return bilinear + tf.linalg.matvec(tf.concat([left, right], axis=1), linear[:, 0]) + bias


@pytest.mark.parametrize("slices", [1, 4])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_and_gradients_are_those_of_the_formula(dtype, size, slices):
    weights = drawn(*SIZES[size], dtype)
    upstream = tf.constant(np.random.default_rng(1).uniform(0.5, 1.5, size=SIZES[size][0]), tf.float32)
    wide = [tf.cast(one, tf.float64) for one in weights]
    with tf.GradientTape() as tape:
        tape.watch(wide)
        logits = exact(wide)
    np.testing.assert_allclose(fused(weights), logits, rtol=0, atol=2e-6 * np.abs(logits).max())
    found = gradients(weights, upstream, slices)
    for number, (mine, expected) in enumerate(zip(found, tape.gradient(logits, wide, output_gradients=tf.cast(upstream, tf.float64)), strict=True)):
        assert mine.dtype == (dtype if number < 2 else "float32") and mine.shape == expected.shape
        error = np.abs(mine.numpy().astype(np.float64) - expected).max() / np.abs(expected).max()
        assert error < (DTYPES[dtype] if number < 2 else 2e-6), number


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_a_sample_do_not_depend_on_the_batch(dtype):
    left, right, *rest = drawn(200, 8, 50, 50, dtype)
    together, upstream = fused([left, right, *rest]), tf.ones([200])
    by_left, by_right, *_ = gradients([left, right, *rest], upstream, 1)
    for first, last in ((0, 1), (199, 200), (3, 130), (64, 128)):
        part = [left[first:last], right[first:last], *rest]
        np.testing.assert_array_equal(fused(part), together[first:last])
        mine = gradients(part, upstream[first:last], 1)
        np.testing.assert_array_equal(mine[0], by_left[first:last])
        np.testing.assert_array_equal(mine[1], by_right[first:last])


@pytest.mark.parametrize(("samples", "slices"), [(64, 8), (4096, 4), (30, 5), (7, 1)])
def test_gradients_of_slices_are_added_in_pairs(samples, slices):
    left, right, *rest = drawn(samples, 8, 50, 50, "float32")
    upstream = tf.constant(np.random.default_rng(2).normal(size=samples), tf.float32)
    parts = [
        gradients([x, z, *rest], u, 1)[2:]
        for x, z, u in zip(tf.split(left, slices), tf.split(right, slices), tf.split(upstream, slices), strict=True)
    ]
    for number, mine in enumerate(gradients([left, right, *rest], upstream, slices)[2:]):
        expected = native.sum_in_pairs([part[number] for part in parts]) if slices > 1 else parts[0][number]
        np.testing.assert_array_equal(mine, expected)


def test_no_sample_has_no_logits_and_gradients_of_zero():
    weights = drawn(0, 2, 3, 4, "float32")
    assert fused(weights).shape == (0,)
    assert all(not gradient.numpy().any() for gradient in gradients(weights, tf.zeros([0]), 2))


def test_nan_and_infinity_stay_in_their_samples():
    left, right, *rest = drawn(5, 2, 3, 4, "float32")
    odd = left.numpy()
    odd[1, 2], odd[3, 0] = np.nan, np.inf
    logits = fused([tf.constant(odd), right, *rest]).numpy()
    assert np.isnan(logits[1]) and not np.isfinite(logits[3]) and np.isfinite(logits[[0, 2, 4]]).all()


@pytest.mark.parametrize("wrong", range(5))
def test_wrong_shapes_are_one_message(wrong):
    weights = drawn(6, 2, 3, 4, "float32")
    weights[wrong] = tf.zeros([5, 7])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected \[b, 2 i\]"):
        fused(weights)
    with pytest.raises(tf.errors.InvalidArgumentError, match="equal slices"):
        gradients(drawn(6, 2, 3, 4, "float32"), tf.ones([6]), 4)
