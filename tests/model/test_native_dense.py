"""Tests of the C++ operations of the dense part against slow, obvious ones."""

import numpy as np
import pytest
import tensorflow as tf

from model.embedding.blocks import Blocks
from model.embedding.placement import Placement, Shard
from model.embedding.table import Table
from model.layers.dropout import Dropout, Place
from model.layers.interaction import pair_indices
from model.native_layers import Mask
from model.ordered_sums import pairwise_sum
from tests.model.native_library import built_operations
from tests.model.tiny_model import batch, model_and_trainer, weights

MASK = Mask(1, 5, 1.5, tf.constant(0, tf.int64), tf.constant(0, tf.int64))
ROUNDING = {"float32": 2**-22, "bfloat16": 2**-8, "float16": 2**-11}  # relative error of rounding one number


@pytest.fixture(scope="module")
def native():
    return built_operations()


def drawn(shape, dtype, seed):
    return tf.cast(tf.constant(np.random.default_rng(seed).standard_normal(shape), tf.float32), dtype)


def exact(tensor):
    return tf.cast(tensor, tf.float64).numpy()


def assert_rounded(found, expected, terms, dtype):
    """Check that values are as close as sums of so many terms of about 1 in float32 are, once rounded to the dtype."""
    np.testing.assert_allclose(exact(found), expected, rtol=ROUNDING[dtype], atol=terms * 2**-20)


# (samples, features, width): sizes that are no multiple of a vector register, sizes above one tile, and 1 of everything
SHAPES = [(1, 1, 1), (3, 26, 128), (70, 26, 128), (5, 15, 16), (5, 16, 40), (7, 31, 33), (4, 40, 128), (9, 2, 500)]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_interaction_and_gradient_equal_the_definition(native, shape, dtype):
    samples, features, width = shape
    pairs = features * (features + 1) // 2
    bottom, embeddings = drawn((samples, width), dtype, 0), drawn((samples, features, width), dtype, 1)
    upstream = drawn((samples, width + pairs), dtype, 2)
    with tf.GradientTape() as tape:
        tape.watch([bottom, embeddings])
        out = native.interact(bottom, embeddings)
    by_bottom, by_embeddings = tape.gradient(out, [bottom, embeddings], upstream)

    z = np.concatenate([exact(bottom)[:, np.newaxis], exact(embeddings)], axis=1)
    forward, inverse = pair_indices(features + 1)
    dots = (z @ z.swapaxes(1, 2)).reshape(samples, -1)[:, forward]
    assert out.dtype == by_bottom.dtype == by_embeddings.dtype == dtype
    assert_rounded(out, np.concatenate([exact(bottom), dots], axis=1), width, dtype)
    padded = np.concatenate([exact(upstream)[:, width:], np.zeros((samples, 1))], axis=1)
    gradient = padded[:, inverse].reshape(samples, features + 1, features + 1) @ z
    assert_rounded(by_bottom, gradient[:, 0] + exact(upstream)[:, :width], features, dtype)
    assert_rounded(by_embeddings, gradient[:, 1:], features, dtype)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_sample_has_the_same_bits_in_every_batch(native, dtype):
    bottom, embeddings = drawn((100, 128), dtype, 0), drawn((100, 26, 128), dtype, 1)
    whole = native.interact(bottom, embeddings)
    parts = [native.interact(bottom[i : i + 20], embeddings[i : i + 20]) for i in range(0, 100, 20)]
    np.testing.assert_array_equal(exact(whole), exact(tf.concat(parts, axis=0)))


def test_operations_leave_tensorflows_matrix_products_unchanged(native):
    """An operation leaves TensorFlow's products as they were, though both use the processor's matrix tiles, which each thread configures."""
    left, right = drawn((512, 512), "bfloat16", 0), drawn((512, 512), "bfloat16", 1)
    before = tf.matmul(left, right)
    native.interact(drawn((2000, 128), "bfloat16", 2), drawn((2000, 26, 128), "bfloat16", 3))
    np.testing.assert_array_equal(exact(tf.matmul(left, right)), exact(before))


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", [(1, 1), (65, 33), (300, 1024), (4096, 512)], ids=str)
def test_bias_and_relu_and_their_gradient(native, shape, dtype):
    products, upstream, bias = drawn(shape, dtype, 0), drawn(shape, dtype, 1), drawn(shape[1:], "float32", 2)
    outputs = native.bias_relu(products, bias)
    np.testing.assert_array_equal(outputs, tf.cast(tf.nn.relu(tf.cast(products, tf.float32) + bias), dtype))
    gradient, by_bias = native.relu_gradient(upstream, outputs)
    kept = np.where(exact(outputs) > 0, exact(upstream), 0)
    assert gradient.dtype == dtype and by_bias.dtype == "float32"
    np.testing.assert_array_equal(exact(gradient), kept)
    np.testing.assert_allclose(by_bias, kept.sum(axis=0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1.5])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("slices", "samples"), [(1, 70), (2, 65), (3, 5), (8, 200)])
def test_the_bias_gradient_of_slices_is_the_sum_of_theirs_in_pairs(native, slices, samples, dtype, scale):
    upstream, outputs = drawn((slices * samples, 33), dtype, 0), tf.maximum(drawn((slices * samples, 33), dtype, 1), 0)
    gradient, by_bias = native.relu_gradient(upstream, outputs, scale, slices)
    parts = zip(tf.split(upstream, slices), tf.split(outputs, slices), strict=True)
    alone = [native.relu_gradient(*part, scale) for part in parts]
    np.testing.assert_array_equal(exact(gradient), exact(tf.concat([masked for masked, _ in alone], axis=0)))
    np.testing.assert_array_equal(by_bias, native.sum_in_pairs([of_slice for _, of_slice in alone]))


@pytest.mark.parametrize("rate", [0.1, 0.9])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (65, 33), (129, 700), (1100, 1024)], ids=str)
def test_dropout_after_bias_and_relu_has_the_bits_of_its_definition(native, shape, dtype, rate):
    """Dropout sets units to -0, by which the gradient tells them from those that the ReLU set to 0."""
    products, upstream, bias = drawn(shape, dtype, 0), drawn(shape, dtype, 1), drawn(shape[1:], "float32", 2)
    products = tf.where(drawn(shape, "float32", 3) > 2, tf.constant(np.nan, dtype), products)
    upstream = tf.where(drawn(shape, "float32", 4) > 2, tf.constant(np.inf, dtype), upstream)
    dropout, place = Dropout(rate, seed=5), Place(tf.constant(2**33 + 7, tf.int64), tf.constant(2**34 + 3, tf.int64))
    active = native.bias_relu(products, bias)
    with tf.GradientTape() as tape:
        tape.watch(active)
        expected = dropout(active, "layer", place)
    mask = dropout.mask("layer", place)
    outputs = native.bias_relu_dropout(products, bias, mask)
    np.testing.assert_array_equal(exact(outputs), exact(expected))
    kept = dropout.kept("layer", place, products.shape).numpy()
    np.testing.assert_array_equal(np.signbit(exact(outputs)) & (exact(outputs) == 0), ~kept)
    gradient, by_bias = native.relu_gradient(upstream, outputs, mask.scale)
    expected = native.relu_gradient(tape.gradient(expected, active, upstream), active)
    np.testing.assert_array_equal(exact(gradient), exact(expected[0]))
    np.testing.assert_array_equal(by_bias, expected[1])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_sums_have_the_same_bits_as_a_balanced_tree(native, count, dtype):
    parts = [drawn((130, 257), dtype, seed) for seed in range(count)]
    np.testing.assert_array_equal(native.sum_in_pairs(parts), pairwise_sum([tf.cast(part, tf.float32) for part in parts]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda native: native.interact(tf.zeros([3, 4]), tf.zeros([2, 5, 4])), r"expected \[b, D\] and \[b, F, D\]"),
        (lambda native: native.interact(tf.zeros([3, 4]), tf.zeros([3, 5, 8])), r"expected \[b, D\] and \[b, F, D\]"),
        (lambda native: native.bias_relu(tf.zeros([3, 4]), tf.zeros([3])), r"expected \[b, out\] and \[out\]"),
        (lambda native: native.bias_relu_dropout(tf.zeros([3, 4]), tf.zeros([3]), MASK), r"expected \[b, out\], \[out\] and \[2\]"),
        (lambda native: native.bias_relu_dropout(tf.zeros([3, 4]), tf.zeros([4]), MASK._replace(threshold=2**32)), "a threshold of 32 bits"),
        (lambda native: native.relu_gradient(tf.zeros([3, 4]), tf.zeros([4, 3])), r"expected \[b, out\] twice"),
        (lambda native: native.sum_in_pairs([tf.zeros([3]), tf.zeros([4])]), "expected equal shapes"),
    ],
    ids=["samples", "widths", "bias", "bias of dropout", "threshold", "outputs", "parts"],
)
def test_invalid_shapes_are_an_error(native, call, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(native)


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("sgd", "bfloat16"), ("adam", "float32"), ("sgd --dropout 0.3", "float32"), ("sgd --dropout 0.3 --gradient_slices 4", "bfloat16")],
)
def test_training_equals_that_with_tensorflows_operations(native, monkeypatch, flags, dtype):
    fast = model_and_trainer("--optimizer", *flags.split(), dtype=dtype)
    monkeypatch.setattr("model.build.native_operations", lambda: None)
    plain = model_and_trainer("--optimizer", *flags.split(), dtype=dtype)
    start = weights(fast[0])
    for step in range(3):
        losses = [float(trainer.step(batch(64, seed=step), step, 0.01)) for _, trainer in (fast, plain)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5 if dtype == "float32" else 1e-2)
    moved = [np.concatenate([(weights(model)[name] - start[name]).ravel() for name in start]) for model, _ in (fast, plain)]
    assert np.linalg.norm(moved[0]) > 0
    assert np.linalg.norm(moved[1] - moved[0]) < (1e-4 if dtype == "float32" else 0.05) * np.linalg.norm(moved[0])


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("samples", [1, 6, 200])
def test_samples_to_blocks_inverts_blocks_to_samples(native, samples, dtype):
    # Worker 0 has features 1 and 2 (adjacent, so one block) and half of feature 4, worker 1 nothing, worker 2 the other half and feature 0. Feature 3
    # is replicated.
    workers = ((Shard(1, 9, 0, 4), Shard(2, 9, 0, 4), Shard(4, 9, 0, 2)), (), (Shard(0, 9, 0, 4), Shard(4, 9, 2, 4)))
    placement = Placement(tuple(Table(f"cat_{i}", 9, 4) for i in range(5)), workers, (3,), ((), (), ()))
    assert Blocks.of(placement, 0) == Blocks(
        before=[0, 0, 6, 6], strides=[6, 6, 10, 10], places=[0, 4, 0, 8], columns=[0, 18, 4, 16], widths=[4, 2, 8, 2]
    )
    blocks = Blocks.of(placement, 2)
    assert blocks == Blocks(before=[0, 0, 10, 10], strides=[10, 10, 6, 6], places=[0, 8, 0, 4], columns=[4, 16, 0, 18], widths=[8, 2, 4, 2])
    vectors = drawn((samples, 20), dtype, 0)
    parts = tf.split(vectors, 2) if samples % 2 == 0 else [vectors]
    flat = native.samples_to_blocks(parts, blocks)
    first, last = tf.concat([vectors[:, 4:12], vectors[:, 16:18]], axis=1), tf.concat([vectors[:, :4], vectors[:, 18:]], axis=1)
    np.testing.assert_array_equal(exact(flat), exact(tf.concat([tf.reshape(block, [-1]) for block in (first, last)], axis=0)))
    for cut in ([flat], [flat[:0], flat[: 10 * samples], flat[10 * samples :]]):
        back = native.blocks_to_samples(cut, samples, 20, blocks, [vectors[:, 12:16]], [12])
        np.testing.assert_array_equal(exact(back), exact(vectors))


def test_invalid_blocks_are_an_error(native):
    blocks = Blocks([0], [4], [0], [0], [4])
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected 8 elements, received 9"):
        native.blocks_to_samples([tf.zeros([9])], 2, 4, blocks, [], [])
    with pytest.raises(tf.errors.InvalidArgumentError, match="no tensor of blocks holds its whole block"):
        native.blocks_to_samples([tf.zeros([5]), tf.zeros([3])], 2, 4, blocks, [], [])
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment 0 does not fit"):
        native.blocks_to_samples([tf.zeros([8])], 2, 3, blocks, [], [])
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not fit at column 2"):
        native.blocks_to_samples([tf.zeros([8])], 2, 4, blocks, [tf.zeros([2, 3])], [2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment 0 does not fit"):
        native.samples_to_blocks([tf.zeros([2, 3])], blocks)
