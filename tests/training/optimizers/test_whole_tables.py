"""Tests of tables that are updated whole: 100 steps equal Keras's dense optimizers and PyTorch's formulas, decay included."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding, GroupUpdate
from model.embedding.placement import single
from model.embedding.table import Feature, Table
from training.optimizers.adagrad import Adagrad, RowwiseAdagrad
from training.optimizers.adam import Adam
from training.optimizers.ftrl import Ftrl
from training.optimizers.rmsprop import Rmsprop
from training.optimizers.sgd import Momentum, Sgd
from utils.distributed import World

ROWS, DIM, BATCH, STEPS, RATE = 9, 4, 6, 100, 0.01
RULES = {
    "sgd": Sgd(),
    "momentum": Momentum(0.9),
    "adagrad": Adagrad(),
    "rowwise_adagrad": RowwiseAdagrad(DIM),
    "adam": Adam(0.9, 0.999),
    "rmsprop": Rmsprop(0.9),
    "ftrl": Ftrl(0.01, 0.02, -0.5),
}


def draws(hotness=1):
    """Draw the ids `[h, B]` and the gradients `[B, D]` of each step; the rows from 6 on are never in a batch, −1 stands for no id."""
    draw = np.random.default_rng(1)
    for _ in range(STEPS):
        yield draw.integers(0 if hotness == 1 else -1, 6, (hotness, BATCH)).astype(np.int32), draw.normal(size=(BATCH, DIM)).astype(np.float32) / 3


@functools.cache
def trained(name, l2, hotness=1):
    """Train a whole table by one of `RULES`; return its rows before and after."""
    rule = RULES[name]
    table, feature = Table("t", ROWS, DIM, whole=True, l2=l2), Feature("t", "t", "t", hotness)
    embedding = DistributedEmbedding(single([table], [feature]), World(), seed=3)
    embedding.build()
    embedding.add_slots(rule)
    before = embedding.shards[0].weights.numpy().copy()
    for step, (ids, gradients) in enumerate(draws(hotness)):
        update = [GroupUpdate(rule, tf.constant(RATE, tf.float32))]
        embedding.update(update, tf.constant(ids), tf.constant(gradients[:, np.newaxis]), tf.constant(step, tf.int64))
    return before, embedding.shards[0].weights.numpy()


def dense_gradient(ids, gradients):
    total = np.zeros((ROWS, DIM), np.float32)
    for row in ids:
        there = row >= 0
        np.add.at(total, row[there], gradients[there])
    return total


@pytest.mark.parametrize(("l2", "hotness"), [(0.05, 1), (0.0, 3)])
@pytest.mark.parametrize("name", [name for name in RULES if name != "rowwise_adagrad"])
def test_whole_tables_equal_keras_dense_optimizers(name, l2, hotness):
    import keras

    rule = RULES[name]
    before, after = trained(name, l2, hotness)
    reference, dense = keras.Variable(before), rule.dense()
    dense.build([reference])
    dense.learning_rate.assign(RATE)
    for ids, gradients in draws(hotness):
        dense.apply([tf.constant(dense_gradient(ids, gradients)) + l2 * reference.value], [reference])
    np.testing.assert_allclose(after, reference.numpy(), rtol=1e-5, atol=1e-6)
    moves = l2 or name == "ftrl"
    assert (after[6:] != before[6:]).all() if moves else np.array_equal(after[6:], before[6:])  # rows that no batch has
    assert (after[:6] != before[:6]).all()


def torch_sgd(row, gradient, state, step):
    state[0] = 0.9 * state[0] + gradient
    return row - RATE * state[0]


def torch_adam(row, gradient, state, step):
    state[0], state[1] = 0.9 * state[0] + 0.1 * gradient, 0.999 * state[1] + 0.001 * gradient**2
    corrected = np.sqrt(1 - 0.999**step)
    # PyTorch adds its epsilon (1e-8) to the corrected root, Keras 1e-7 to the root itself: the same at this epsilon.
    return row - RATE * (state[0] / (1 - 0.9**step)) / (np.sqrt(state[1]) / corrected + 1e-7 / corrected)


def torch_adagrad(row, gradient, state, step):
    state[0] = state[0] + gradient**2
    return row - RATE * gradient / (np.sqrt(0.1 + state[0]) + 1e-10)  # initial_accumulator_value=0.1


@pytest.mark.parametrize(("name", "formula"), [("momentum", torch_sgd), ("adam", torch_adam), ("adagrad", torch_adagrad)])
def test_whole_tables_equal_pytorchs_formulas(name, formula):
    """PyTorch's documentation has the formulas of SGD, Adam and Adagrad; its weight_decay is `l2`."""
    l2 = 0.05
    before, after = trained(name, l2)
    row, state = before.astype(np.float64), [np.zeros((ROWS, DIM)), np.zeros((ROWS, DIM))]
    for step, (ids, gradients) in enumerate(draws(), 1):
        row = formula(row, dense_gradient(ids, gradients) + l2 * row, state, step)
    # Adam's correction 1 - 0.999^step has few bits in float32, as in Keras; the first steps differ by a part in 10^4.
    np.testing.assert_allclose(after, row, rtol=1e-5, atol=1e-5 if name == "adam" else 1e-6)


def test_rowwise_adagrad_takes_the_mean_square_of_every_row():
    before, after = trained("rowwise_adagrad", 0.05)
    row, total = before.astype(np.float64), np.full((ROWS, 1), 0.1)
    for ids, gradients in draws():
        gradient = dense_gradient(ids, gradients) + 0.05 * row
        total += np.mean(gradient**2, axis=1, keepdims=True)
        row -= RATE * gradient / np.sqrt(total + 1e-7)
    np.testing.assert_allclose(after, row, rtol=1e-5, atol=1e-6)


def test_rows_of_adam_that_a_batch_lacks_move_by_their_moments():
    rule = Adam(0.9, 0.999)
    moved = {}
    for whole in (True, False):
        embedding = DistributedEmbedding(single([Table("t", 3, 2, whole=whole)], [Feature("t", "t", "t")]), World())
        embedding.build()
        embedding.add_slots(rule)
        rows = []
        for step, row in enumerate((0, 1)):
            update = [GroupUpdate(rule, tf.constant(0.1, tf.float32))]
            embedding.update(update, tf.constant([[row]], tf.int32), tf.ones([1, 1, 2]), tf.constant(step, tf.int64))
            rows.append(embedding.shards[0].weights.numpy().copy())
        moved[whole] = (rows[1] != rows[0]).any(axis=1).tolist()
    assert moved == {True: [True, True, False], False: [False, True, False]}
