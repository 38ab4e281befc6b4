"""Tests of the products of dense layers by matrix tiles, against sums in float64 and TensorFlow's products."""

import numpy as np
import pytest
import tensorflow as tf

from model.layers.dense import dense, prepared
from tests.model.native_library import built_operations

DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def native():
    operations = built_operations()
    if not operations.tiles:
        pytest.skip("no matrix tiles, or DLRM_AMX=0")
    return operations


def drawn(shape, dtype, seed):
    return tf.cast(tf.constant(np.random.default_rng(seed).standard_normal(shape), tf.float32), dtype)


def exact(tensor):
    return tf.cast(tensor, tf.float64).numpy()


def error(found, expected):
    return np.abs(exact(found) - expected).max() / np.abs(expected).max()


def test_float32_products_are_as_exact_as_tensorflows(native):
    """Three bfloat16 pieces a number: the error is that of float32 sums."""
    x, kernel, upstream = drawn((512, 700), "float32", 0), drawn((700, 300), "float32", 1), drawn((512, 300), "float32", 2)
    packed = native.products.packed(kernel, "float32")
    found = [
        (native.products.product(x, packed), exact(x) @ exact(kernel), tf.matmul(x, kernel)),
        (
            native.products.product(upstream, packed, transposed=True),
            exact(upstream) @ exact(kernel).T,
            tf.matmul(upstream, kernel, transpose_b=True),
        ),
        (native.products.by_kernel(x, upstream), exact(x).T @ exact(upstream), tf.matmul(x, upstream, transpose_a=True)),
    ]
    for by_tiles, expected, by_tensorflow in found:
        assert error(by_tiles, expected) < min(1e-6, 2 * error(by_tensorflow, expected))


@pytest.mark.parametrize("scale", [2.0**-90, 2.0**-33, 1.0, 2.0**33, 2.0**50])
def test_float32_products_keep_small_differences(native, scale):
    """(1 + d) x - x, where d is the last digit: it is lost if any piece is."""
    x = tf.constant([[scale, -scale]], tf.float32)
    for digit in (2**-8, 2**-16, 2**-23):
        packed = native.products.packed(tf.constant([[1 + digit], [1.0]], tf.float32), "float32")
        assert native.products.product(x, packed).numpy().item() == np.float32(scale) * np.float32(digit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slices", [None, 1, 4])
@pytest.mark.parametrize("relu", [False, True])
def test_a_layer_equals_tensorflows(native, dtype, slices, relu):
    """Outputs and gradients, of a layer whose sizes are no multiples of a tile."""
    x, kernel, bias = drawn((120, 77), dtype, 0), drawn((77, 45), "float32", 1), drawn((45,), "float32", 2)
    upstream, found = drawn((120, 45), dtype, 3), []
    for operations in (native, None):
        weights = prepared(kernel, bias, dtype, native=operations)
        with tf.GradientTape() as tape:
            tape.watch([x, *weights.trained])
            outputs = dense(x, weights, relu, operations, slices)
        found.append([outputs, *tape.gradient(outputs, [x, *weights.trained], upstream)])
    for number, (by_tiles, by_tensorflow) in enumerate(zip(*found, strict=True)):
        assert by_tiles.shape == by_tensorflow.shape
        flips = 0.1 if relu and number else 0.02  # TensorFlow rounds the product before it adds the bias, so outputs about 0 are 0 in one only
        assert error(by_tiles, exact(by_tensorflow)) < (1e-6 if dtype == "float32" else flips)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_samples_bits_do_not_depend_on_the_batch(native, dtype):
    x, kernel, bias = drawn((1000, 130), dtype, 0), drawn((130, 513), "float32", 1), drawn((513,), "float32", 2)
    packed = native.products.packed(kernel, dtype)
    upstream = drawn((1000, 513), dtype, 3)
    whole, by_inputs = native.products.product(x, packed, bias, True), native.products.product(upstream, packed, transposed=True)
    for rows in (
        slice(0, 1),
        slice(1, 4),
        slice(17, 50),
        slice(0, 256),
        slice(3, 260),
        slice(100, 700),
        slice(999, 1000),
    ):  # up to 256 pack the kernel
        np.testing.assert_array_equal(exact(native.products.product(x[rows], packed, bias, True)), exact(whole[rows]))
        np.testing.assert_array_equal(exact(native.products.product(upstream[rows], packed, transposed=True)), exact(by_inputs[rows]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slices", [2, 3, 8])
@pytest.mark.parametrize("samples", [1, 16, 33, 120])
def test_the_gradient_of_slices_is_the_sum_of_theirs_in_pairs(native, dtype, slices, samples):
    x, upstream = drawn((slices * samples, 70), dtype, 0), drawn((slices * samples, 40), dtype, 1)
    parts = [native.products.by_kernel(*part) for part in zip(tf.split(x, slices), tf.split(upstream, slices), strict=True)]
    found = native.products.by_kernel(x, upstream, slices)
    np.testing.assert_array_equal(found.numpy(), native.sum_in_pairs(parts).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_in_a_graph_that_does_not_know_the_number_of_samples(native, dtype):
    kernel, bias = drawn((50, 20), "float32", 1), drawn((20,), "float32", 2)

    @tf.function(input_signature=[tf.TensorSpec([None, 50], dtype)])
    def gradients(x):
        weights = prepared(kernel, bias, dtype, native=native)
        with tf.GradientTape() as tape:
            tape.watch([x, *weights.trained])
            outputs = dense(x, weights, True, native)
        return tape.gradient(outputs, [x, *weights.trained])

    for samples in (3, 70):
        assert [value.shape for value in gradients(drawn((samples, 50), dtype, 0))] == [(samples, 50), (50, 20), (20,)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_very_many_slices(native, dtype):
    """So many that the packed samples of all slices are more than a task keeps."""
    x, upstream = drawn((600, 300), dtype, 0), drawn((600, 900), dtype, 1)
    parts = [native.products.by_kernel(*part) for part in zip(tf.split(x, 300), tf.split(upstream, 300), strict=True)]
    np.testing.assert_array_equal(native.products.by_kernel(x, upstream, 300).numpy(), native.sum_in_pairs(parts).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_samples(native, dtype):
    x, upstream = tf.zeros((0, 5), dtype), tf.zeros((0, 7), dtype)
    packed = native.products.packed(tf.ones((5, 7)), dtype)
    assert native.products.product(x, packed).shape == (0, 7)
    np.testing.assert_array_equal(native.products.by_kernel(x, upstream).numpy(), np.zeros((5, 7)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so_and_touches_no_other_sample(native, bad):
    x = np.ones((40, 50), np.float32)
    x[7, 3] = bad
    packed = native.products.packed(tf.ones((50, 20)), "float32")
    outputs = native.products.product(tf.constant(x), packed, tf.zeros(20), True).numpy()
    assert not np.isfinite(outputs[7]).any()
    np.testing.assert_array_equal(np.delete(outputs, 7, axis=0), 50)


def test_shapes_that_do_not_fit_are_refused(native):
    packed = native.products.packed(tf.ones((50, 20)), "float32")
    for rows, named in ((4, "a matrix of 20 columns"), (400, "a packed matrix of 20 columns")):
        for inputs, bias in ((tf.ones((rows, 80)), None), (tf.ones((rows, 50)), tf.ones(21))):
            with pytest.raises(tf.errors.InvalidArgumentError, match=named):
                native.products.product(inputs, packed, bias)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a packed matrix of 20 columns"):
        native.products.product(tf.ones((400, 50)), packed._replace(forward=packed.backward[:-1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="equal slices"):
        native.products.by_kernel(tf.ones((6, 5)), tf.ones((6, 7)), 4)
