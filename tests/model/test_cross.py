"""Tests of cross layers against a definition in float64 and values computed by hand; models of every interaction train like a slow reference."""

import numpy as np
import pytest
import tensorflow as tf

from model.layers.cross import Concatenation, CrossNetwork
from model.native import native_operations
from model.shapes import InteractionShape, layer_shapes
from tests.model.tiny_model import assert_close, batch, model_and_trainer, sample, slow_gradients, weights
from utils.dialects.command_line import parse


def network(layers=2, projection=3, shapes=((None, 2), (None, 2, 2)), **options):
    made = CrossNetwork(layers, projection, seed=1, **options)
    made.build_weights(*shapes)
    return made


def definition(bottom, embeddings, weights):
    """Compute equation 2 of the paper sample by sample in float64."""
    found = []
    for x, vectors in zip(bottom, embeddings, strict=True):
        first = last = np.concatenate([x, *vectors]).astype(np.float64)
        for v, u, b in weights:
            last = first * (u.T @ (v.T @ last) + b) + last
        found.append(last)
    return np.array(found)


def values(made):
    weights = [weight.numpy().astype(np.float64) for weight in made.dense_weights().values()]
    return list(zip(weights[::3], weights[1::3], weights[2::3], strict=True))


def test_values_worked_out_by_hand():
    made = network(1, 1, ((None, 1), (None, 1, 1)))
    for weight, value in zip(made.dense_weights().values(), ([[2.0], [1.0]], [[1.0, -1.0]], [0.5, 0.0]), strict=True):
        weight.assign(value)
    # x0 = [3, 4]; V x0 = 2*3 + 1*4 = 10; U(Vx) + b = [10.5, -10]; x1 = [3*10.5 + 3, 4*-10 + 4]
    np.testing.assert_allclose(made(tf.constant([[3.0]]), tf.constant([[[4.0]]])), [[34.5, -36.0]])


@pytest.mark.parametrize("layers", [1, 3])
def test_cross_layers_of_full_rank_equal_the_definition(layers):
    made, draw = network(layers, 0, ((None, 4), (None, 3, 2))), np.random.default_rng(0)
    weights = list(made.dense_weights().values())
    for weight in weights:
        weight.assign(draw.normal(size=weight.shape))
    assert [weight.shape for weight in weights[:2]] == [(10, 10), (10,)] and len(weights) == 2 * layers
    bottom, embeddings = draw.normal(size=(6, 4)).astype(np.float32), draw.normal(size=(6, 3, 2)).astype(np.float32)
    pairs = [weight.numpy().astype(np.float64) for weight in weights]
    expected = definition(bottom, embeddings, [(np.eye(10), w, b) for w, b in zip(pairs[::2], pairs[1::2], strict=True)])
    np.testing.assert_allclose(made(bottom, embeddings), expected, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_cross_layers_equal_the_definition(layers):
    made, draw = network(layers, 5, ((None, 4), (None, 3, 2))), np.random.default_rng(0)
    for weight in made.dense_weights().values():
        weight.assign(draw.normal(size=weight.shape))
    bottom, embeddings = draw.normal(size=(6, 4)).astype(np.float32), draw.normal(size=(6, 3, 2)).astype(np.float32)
    np.testing.assert_allclose(made(bottom, embeddings), definition(bottom, embeddings, values(made)), rtol=1e-4)


def test_initial_weights_have_the_documented_distribution():
    made = network(3, 64, ((None, 128), (None, 8, 16)))
    for name, weight in made.dense_weights().items():
        if name.endswith("bias"):
            assert not weight.numpy().any()
        else:
            assert weight.numpy().std() == pytest.approx(0.044, rel=0.05) and abs(weight.numpy()).max() <= 0.1  # truncated at two standard deviations
    first, second, _ = (pair[0].kernel.numpy() for pair in made.stack)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("slices", [None, 4])
def test_gradients_equal_tensorflows(slices):
    made, draw = network(2, 3, ((None, 4), (None, 3, 2)), native=native_operations()), np.random.default_rng(2)
    bottom, embeddings = (tf.constant(draw.normal(size=shape), tf.float32) for shape in ((8, 4), (8, 3, 2)))
    weights = made.step_weights()
    by = [bottom, embeddings, *(value for layer in weights for value in layer.trained)]
    upstream = tf.constant(draw.normal(size=(8, 10)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(by)
        loss = tf.reduce_sum(made.forward(bottom, embeddings, weights, slices) * upstream)
    found = tape.gradient(loss, by)
    plain = [tf.identity(value) for value in by]
    with tf.GradientTape() as tape:
        tape.watch(plain)
        first = last = tf.concat([plain[0], tf.reshape(plain[1], [8, 6])], axis=1)
        for v, u, b in zip(plain[2::3], plain[3::3], plain[4::3], strict=True):
            last = first * (last @ v @ u + b) + last
        loss = tf.reduce_sum(last * upstream)
    for one, other in zip(found, tape.gradient(loss, plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


CROSS = ("--interaction", "cross", "--num_cross_layers", "2", "--cross_layer_projection_dim", "3")
FULL = ("--interaction", "cross", "--num_cross_layers", "2", "--cross_layer_projection_dim", "0")
STRUCTURES = [
    (*FULL, "--structure", "parallel"),
    (*CROSS, "--structure", "parallel", "--top_mlp_dims", "6,5,1"),
    FULL,
    (*FULL, "--structure", "crossnet", "--top_mlp_dims", "1"),
]


CAT, NARROW = ("--interaction", "cat"), (*CROSS, "--bottom_mlp_dims", "6,3")
INTERACTIONS = (CROSS, *STRUCTURES, CAT, NARROW)
SLICES, XLA = ("--gradient_slices", "4"), ("--xla", "all")
CASES = [
    *((interaction, ()) for interaction in INTERACTIONS),
    *((interaction, SLICES) for interaction in (CROSS, *STRUCTURES[:2], CAT)),
    *((interaction, XLA) for interaction in (CROSS, STRUCTURES[1])),
    *((interaction, (*SLICES, *XLA)) for interaction in (STRUCTURES[0], STRUCTURES[3], CAT)),
]


# Cross layers of low and of full rank, alone, beside and below an MLP: all of them as they are, and each kind of layer in slices and compiled.
@pytest.mark.parametrize(("interaction", "flags"), CASES, ids=" ".join)
def test_steps_of_a_model_equal_the_slow_reference(interaction, flags):
    model, trainer = model_and_trainer(*interaction, *flags)
    expected = weights(model)
    for step in range(3):
        tensors = batch(32, seed=step)
        loss, gradients = slow_gradients(expected, *sample(tensors))
        assert float(trainer.step(tensors, step, 0.03)) == pytest.approx(loss, rel=1e-5)
        expected = {name: value - 0.03 * gradients[name] for name, value in expected.items()}
    assert_close(weights(model), expected)


def test_concatenation_joins_columns():
    made = Concatenation()
    joined = made(tf.constant([[1.0, 2.0]]), tf.constant([[[3.0, 4.0], [5.0, 6.0]]]))
    np.testing.assert_array_equal(joined, [[1, 2, 3, 4, 5, 6]])
    assert made.compute_output_shape((None, 2), (None, 2, 2)) == (None, 6)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (InteractionShape(), [(13, 8), (8, 4), (4 + 3, 5), (5, 1)]),
        (InteractionShape("cat"), [(13, 8), (8, 4), (4 + 8, 5), (5, 1)]),
        (InteractionShape("cross", 2, 3), [(13, 8), (8, 4), (12, 3), (3, 12), (12, 3), (3, 12), (12, 5), (5, 1)]),
        (InteractionShape("cross", 2, 0), [(13, 8), (8, 4), (12, 12), (12, 12), (12, 5), (5, 1)]),
        (InteractionShape("cross", 1, 0, True), [(13, 8), (8, 4), (12, 12), (12, 5), (17, 1)]),
    ],
)
def test_layer_shapes_match_the_layers(kind, expected):
    assert layer_shapes(13, (8, 4), (5, 1), (4, 4), kind) == expected


def test_structure_is_of_cross_layers_only():
    whole = ["--dataset_path", "d", "--structure", "crossnet"]
    assert parse(whole, "").model.top_mlp_dims == (1024, 1024, 512, 256, 1)
    assert parse([*whole, "--interaction", "cross"], "").model.top_mlp_dims == (1,)
