"""Tests of the dot interaction: values computed by hand and with NumPy, and its own gradient against two others."""

import numpy as np
import pytest
import tensorflow as tf

from model.layers.interaction import DotInteraction, lower_triangle_dots, pair_indices
from model.native import native_operations


def numpy_interaction(bottom, embeddings):
    rows = []
    for z0, rest in zip(bottom, embeddings, strict=True):
        z = [z0, *rest]
        rows.append(np.concatenate([z0, [z[i] @ z[j] for i in range(len(z)) for j in range(i)]]))
    return np.array(rows)


def test_values_worked_out_by_hand():
    # D = 2, F = 3, two samples
    bottom = [[1.0, 2.0], [0.0, -1.0]]
    embeddings = [
        [[3.0, 0.0], [0.0, 4.0], [1.0, -1.0]],
        [[5.0, 1.0], [2.0, 2.0], [0.0, 0.0]],
    ]
    expected = [
        # bottom    (1,0)  (2,0)  (2,1)  (3,0)  (3,1)  (3,2)
        [1.0, 2.0, 3.0, 8.0, 0.0, -1.0, 3.0, -4.0],
        [0.0, -1.0, -1.0, -2.0, 12.0, 0.0, 0.0, 0.0],
    ]
    np.testing.assert_array_equal(DotInteraction()(tf.constant(bottom), tf.constant(embeddings)), expected)


def test_pairs_are_numbered_along_the_rows_of_the_lower_triangle():
    forward, inverse = pair_indices(3)
    assert forward.tolist() == [3, 6, 7]  # (1,0), (2,0), (2,1) in a flattened 3 x 3 matrix
    assert inverse.reshape(3, 3).tolist() == [[3, 0, 1], [0, 3, 2], [1, 2, 3]]


@pytest.mark.parametrize(("batch", "num_features", "dim"), [(1, 1, 1), (3, 1, 4), (5, 4, 3), (2, 26, 16)])
def test_random_values_equal_numpy(batch, num_features, dim):
    draw = np.random.default_rng(num_features)
    bottom, embeddings = draw.normal(size=(batch, dim)).astype(np.float32), draw.normal(size=(batch, num_features, dim)).astype(np.float32)
    found = DotInteraction()(tf.constant(bottom), tf.constant(embeddings)).numpy()
    assert found.shape == (batch, dim + (num_features + 1) * num_features // 2)
    np.testing.assert_allclose(found, numpy_interaction(bottom, embeddings), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("native", [None, native_operations()], ids=["TensorFlow", "C++"])
@pytest.mark.parametrize(("num_features", "dim"), [(2, 3), (5, 16)])
def test_without_bottom_output_only_products_of_embeddings_remain(num_features, dim, native):
    values = np.random.default_rng(dim).normal(size=(4, num_features, dim)).astype(np.float32)
    layer, embeddings = DotInteraction(native=native), tf.constant(values)
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        found = layer(None, embeddings)
    expected = numpy_interaction(values[:, 0], values[:, 1:])[:, dim:]
    assert layer.compute_output_shape(None, embeddings.shape) == found.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    others = values.sum(axis=1, keepdims=True) - values  # the derivative of the sum of all products by z_i
    np.testing.assert_allclose(tape.gradient(found, embeddings), others, rtol=2e-5, atol=1e-5)


def test_output_shape_is_known_before_any_input():
    assert DotInteraction().compute_output_shape((None, 128), (None, 26, 128)) == (None, 479)


def test_gradient_equals_finite_differences():
    draw = np.random.default_rng(1)
    z, weights = draw.normal(size=(2, 4, 3)), draw.normal(size=(2, 6))
    variable = tf.constant(z, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        total = tf.reduce_sum(lower_triangle_dots(variable) * weights)
    found = tape.gradient(total, variable).numpy()
    epsilon = 1e-6
    for index in np.ndindex(z.shape):
        step = np.zeros_like(z)
        step[index] = epsilon
        up, down = (float(tf.reduce_sum(lower_triangle_dots(tf.constant(z + sign * step)) * weights)) for sign in (1, -1))
        assert found[index] == pytest.approx((up - down) / (2 * epsilon), rel=1e-6, abs=1e-8)


def test_gradient_equals_autodiff_of_the_plain_formula():
    draw = np.random.default_rng(2)
    z, weights = tf.constant(draw.normal(size=(5, 7, 4))), tf.constant(draw.normal(size=(5, 21)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        fast = tf.reduce_sum(lower_triangle_dots(z) * weights)
        product = tf.einsum("bid,bjd->bij", z, z)
        plain = tf.reduce_sum(tf.stack([product[:, i, j] for i in range(7) for j in range(i)], axis=1) * weights)
    np.testing.assert_allclose(tape.gradient(fast, z), tape.gradient(plain, z), rtol=1e-12)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_output_has_the_compute_dtype(policy):
    out = DotInteraction(policy)(tf.ones((2, 4)), tf.ones((2, 3, 4)))
    assert out.dtype == policy.removeprefix("mixed_")
    np.testing.assert_array_equal(tf.cast(out, tf.float32), [[1] * 4 + [4] * 6] * 2)


def test_unequal_widths_are_refused():
    with pytest.raises(ValueError, match="8 wide, embeddings 4"):
        DotInteraction()(tf.ones((2, 8)), tf.ones((2, 3, 4)))
