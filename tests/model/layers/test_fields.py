"""Tests of the vectors of all features and of the gates: the C++ operations against TensorFlow's."""

import numpy as np
import pytest
import tensorflow as tf

from model.layers.dense import LayerWeights
from model.layers.fields import ScaledVectors, Wanted, fields
from model.layers.gate import gated
from tests.model.native_library import built_operations

NUM_NUMERICAL, FEATURES, BATCH = 4, 5, 96
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2, "float16": 2e-3}
KINDS = {
    "fm": {"weighs": True, "pairs": True},
    "deepfm": {"weighs": True, "pairs": True, "joined": ""},
    "finalmlp": {"joined": "float32", "picks": (3, 0, 3)},
}


@pytest.fixture(scope="module")
def native():
    return built_operations()


def results(kind, dtype, dim, num_numerical, native, slices=None, change=None):
    """Return the outputs of `fields`, and the gradients of a random weighing of them by the embeddings and by the kernel."""
    draw = np.random.default_rng(0)
    facts = {name: dtype if value == "" else value for name, value in KINDS[kind].items()}
    wanted = Wanted(FEATURES, dim, native=native, **facts)
    columns = FEATURES * (dim + wanted.weighs)
    embeddings = draw.normal(size=(BATCH, columns)).astype(np.float32)
    if change:
        embeddings[change] = np.nan
    embeddings, numerical = tf.cast(embeddings, dtype), tf.constant(draw.normal(size=(BATCH, num_numerical)).astype(np.float32))
    scaled, kernel = None, tf.constant(draw.normal(size=(num_numerical, dim)).astype(np.float32))
    if num_numerical:
        scaled = ScaledVectors(dim, 0.1, 0, "numerical_vectors", native)
    with tf.GradientTape() as tape:
        tape.watch([embeddings, kernel])
        found = [one for one in fields(wanted, numerical, scaled, [LayerWeights(kernel, None, None)], embeddings, slices) if one is not None]
        found = [tf.cast(one, tf.float32) for one in found if 0 not in one.shape]
        total = tf.add_n([tf.reduce_sum(one * draw.normal(size=one.shape).astype(np.float32)) for one in found])
    gradients = tape.gradient(total, [embeddings, *([kernel] if num_numerical else [])])
    return [one.numpy() for one in found], [tf.cast(one, tf.float32).numpy() for one in gradients]


@pytest.mark.parametrize("num_numerical", [NUM_NUMERICAL, 0])
@pytest.mark.parametrize("dim", [10, 16])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
def test_native_vectors_and_gradients_equal_tensorflow_s(native, kind, dtype, dim, num_numerical):
    for ours, plain in zip(results(kind, dtype, dim, num_numerical, native), results(kind, dtype, dim, num_numerical, None), strict=True):
        assert len(ours) == len(plain)
        for a, b in zip(ours, plain, strict=True):
            np.testing.assert_allclose(a, b, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype] * np.abs(b).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_slices_sum_the_gradient_of_the_kernel_alike(native, kind):
    for ours, plain in zip(results(kind, "float32", 16, 4, native, slices=8), results(kind, "float32", 16, 4, None, slices=8), strict=True):
        for a, b in zip(ours, plain, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_sample(native, kind):
    for found in results(kind, "float32", 16, 4, native, change=(7, 3)):
        assert np.isnan(np.concatenate([one.reshape(one.shape[0], -1) for one in found if len(one) == BATCH], axis=1)).any(axis=1)[:7].sum() == 0
    assert np.isnan(results(kind, "float32", 16, 4, native, change=(7, 3))[0][0][7]).any()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("count", [1, 2])
def test_native_gates_and_gradients_equal_tensorflow_s(native, dtype, count):
    draw = np.random.default_rng(1)
    inputs = tf.constant(draw.normal(size=(37, 53)).astype(np.float32))
    logits = [tf.constant(draw.normal(scale=3, size=inputs.shape).astype(np.float32)) for _ in range(count)]
    upstream = [tf.cast(draw.normal(size=inputs.shape), dtype) for _ in range(count)]
    found = []
    for operations in (native, None):
        with tf.GradientTape() as tape:
            tape.watch([inputs, *logits])
            outputs = gated(inputs, logits, dtype, operations)
        found.append([*outputs, *tape.gradient(outputs, [inputs, *logits], output_gradients=upstream)])
    assert [one.dtype for one in found[0]] == [one.dtype for one in found[1]]
    for ours, plain in zip(*found, strict=True):
        np.testing.assert_allclose(tf.cast(ours, tf.float32), tf.cast(plain, tf.float32), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_operations_refuse_shapes_that_do_not_fit(native):
    facts = {"features": 2, "weighs": False, "pairs": True, "joins": True, "picks": []}
    with pytest.raises(tf.errors.InvalidArgumentError, match="columns of 2 features"):
        native._library.dlrm_fields(numerical=tf.zeros([3, 1]), kernel=tf.zeros([1, 4]), embeddings=tf.zeros([3, 7]), U="float32", **facts)
    with pytest.raises(tf.errors.InvalidArgumentError, match="numbers of features below 2"):
        native._library.dlrm_fields(
            numerical=tf.zeros([3, 1]), kernel=tf.zeros([1, 4]), embeddings=tf.zeros([3, 8]), U="float32", **facts | {"picks": [2]}
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="equal shapes"):
        native._library.dlrm_gate(inputs=tf.zeros([3, 2]), logits=[tf.zeros([2, 3])], T="float32")
