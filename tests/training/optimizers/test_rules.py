"""Tests of the optimizers' rules on touched rows against definitions in float64 and Keras's dense optimizers."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from model.embedding.row_squares import node_sum
from model.embedding.touched_rows import TouchedRows, sum_repeated
from tests.training.optimizers.definitions import Definition
from training.optimizers.adagrad import Adagrad, RowwiseAdagrad
from training.optimizers.adam import Adam
from training.optimizers.ftrl import Ftrl
from training.optimizers.rmsprop import Rmsprop
from training.optimizers.sgd import Momentum, Sgd
from training.optimizers.table import RULES
from utils.config.learning import OPTIMIZERS

ROWS, DIM, RATE = 6, 3, 0.3
CASES = {
    "sgd": (Sgd(), Definition, {}),
    "momentum": (Momentum(0.7), Definition, {"momentum": 0.7}),
    "adagrad": (Adagrad(), Definition, {}),
    "rowwise_adagrad": (RowwiseAdagrad(DIM), Definition, {}),
    "adam": (Adam(0.8, 0.95), Definition, {"beta1": 0.8, "beta2": 0.95}),
    "ftrl": (Ftrl(0.2, 0.1, -0.5), Definition, {"l1": 0.2, "l2": 0.1, "power": -0.5}),
    "ftrl of another power": (Ftrl(0.0, 0.0, -0.4), Definition, {"l1": 0.0, "l2": 0.0, "power": -0.4}),
    "rmsprop": (Rmsprop(0.8), Definition, {"rho": 0.8}),
    "rmsprop legacy": (Rmsprop(0.8, outside_root=True), Definition, {"rho": 0.8, "outside_root": True}),
    "adagrad epsilon": (Adagrad(0.3), Definition, {"epsilon": 0.3}),
    "rowwise_adagrad epsilon": (RowwiseAdagrad(DIM, 0.3), Definition, {"epsilon": 0.3}),
    "adam epsilon": (Adam(0.8, 0.95, 0.3), Definition, {"beta1": 0.8, "beta2": 0.95, "epsilon": 0.3}),
    "rmsprop epsilon": (Rmsprop(0.8, epsilon=0.3), Definition, {"rho": 0.8, "epsilon": 0.3}),
    "rmsprop legacy epsilon": (Rmsprop(0.8, True, 0.3), Definition, {"rho": 0.8, "outside_root": True, "epsilon": 0.3}),
}


class Run:
    """A table and its slots, updated by a rule."""

    def __init__(self, rule, start):
        self.rule, self.table = rule, tf.Variable(start)
        self.slots = [tf.Variable(tf.fill([len(start), 1 if slot.per_row else start.shape[1]], slot.start)) for slot in rule.slots]

    def apply(self, ids, gradients, step, rate=RATE):
        ids, gradients = sum_repeated(tf.constant(ids, tf.int32), tf.constant(gradients, tf.float32))
        scalars = self.rule.scalars(tf.constant(rate, tf.float32), tf.constant(step, tf.int64))
        self.rule.apply(TouchedRows(self.table, self.slots, ids), gradients, scalars, node_sum(gradients) if self.rule.needs_squares else None)

    def values(self):
        return [variable.numpy() for variable in (self.table, *self.slots)]


def start_table():
    return np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)


def random_gradients(count, seed):
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def dense_gradient(ids, gradients):
    total = np.zeros((ROWS, DIM), np.float32)
    np.add.at(total, ids, gradients)
    return total


def test_every_flag_value_has_a_rule():
    assert set(RULES) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", CASES)
@given(batches=st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=12), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_rule_equals_its_definition(name, batches):
    rule, definition, options = CASES[name]
    run, expected = Run(rule, start_table()), definition(name.split()[0], start_table(), **options)
    for step, ids in enumerate(batches):
        rate = (RATE, 0.0, 0.05)[step % 3]
        gradients = random_gradients(len(ids), step)
        run.apply(ids, gradients, step, rate)
        expected.step(ids, gradients, rate)
    np.testing.assert_allclose(run.table.numpy(), expected.weights, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["rmsprop", "rmsprop legacy"])
def test_small_gradients_distinguish_the_forms_of_rmsprop(name):
    """With gradients of 1e-5, a step is about the learning rate if epsilon is outside the root, and a thirtieth of it if epsilon is inside."""
    rule, definition, options = CASES[name]
    run, expected = Run(rule, start_table()), definition("rmsprop", start_table(), **options)
    for step in range(4):
        gradients = np.full((ROWS, DIM), 1e-5, np.float32)
        run.apply(np.arange(ROWS), gradients, step)
        expected.step(np.arange(ROWS), gradients, RATE)
    moved = start_table() - run.table.numpy()
    np.testing.assert_allclose(moved, start_table() - expected.weights, rtol=1e-4)
    assert (moved > 4 * RATE).all() if rule.constants[-1] else (moved < 0.2 * RATE).all()


KERAS = {name: case for name, case in CASES.items() if not name.startswith("rowwise_adagrad")}


@pytest.mark.parametrize("name", KERAS)
def test_rule_equals_keras_if_every_row_is_touched(name):
    import keras

    rule = KERAS[name][0]
    run, reference, dense = Run(rule, start_table()), keras.Variable(start_table()), rule.dense()
    dense.build([reference])
    dense.learning_rate.assign(RATE)
    for step in range(5):
        ids = np.random.default_rng(step).permutation([*range(ROWS), 0, 0, 3, 5])
        gradients = random_gradients(len(ids), 100 + step)
        run.apply(ids, gradients, step)
        dense.apply([tf.constant(dense_gradient(ids, gradients))], [reference])
        np.testing.assert_allclose(run.table.numpy(), reference.numpy(), rtol=5e-5, atol=5e-6)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rmsprop", "rmsprop legacy"])
def test_rules_without_moments_equal_the_dense_rule(name):
    """Rules without moments equal the dense rule: an untouched row does not move, and RMSprop makes up for missed decays at the next touch."""
    import keras

    rule = CASES[name][0]
    run, reference, dense = Run(rule, start_table()), keras.Variable(start_table()), rule.dense()
    dense.build([reference])
    dense.learning_rate.assign(RATE)
    for step, ids in enumerate(([1, 1, 4], [0], [4, 2, 4, 4], [0], [5], [1])):
        gradients = random_gradients(len(ids), step)
        run.apply(ids, gradients, step)
        dense.apply([tf.constant(dense_gradient(ids, gradients))], [reference])
    np.testing.assert_allclose(run.table.numpy(), reference.numpy(), rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(run.table.numpy()[3], start_table()[3])


def test_rmsprop_counts_steps_beyond_float32_precision():
    near, far = Run(Rmsprop(0.8), start_table()), Run(Rmsprop(0.8), start_table())
    for steps, run in (((3, 8), near), ((2**24 - 3, 2**24 + 2), far)):
        for step in steps:
            run.apply([1, 2], random_gradients(2, 0), step)
    np.testing.assert_allclose(far.values()[1][1:3], near.values()[1][1:3], rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_untouched_rows_keep_weights_and_slots(name):
    run = Run(CASES[name][0], start_table())
    run.apply([0, 2, 4], random_gradients(3, 0), 0)
    before = run.values()
    run.apply([1, 1, 3], random_gradients(3, 1), 1)
    for old, new in zip(before, run.values(), strict=True):
        np.testing.assert_array_equal(old[[0, 2, 4, 5]], new[[0, 2, 4, 5]])
        assert (old[[1, 3]] != new[[1, 3]]).any()


def test_gradients_of_a_repeated_id_are_summed():
    ids, sums = sum_repeated(tf.constant([3, 1, 3, 3]), tf.constant([[1.0], [10.0], [2.0], [4.0]]))
    assert dict(zip(ids.numpy().tolist(), sums.numpy().ravel().tolist(), strict=True)) == {3: 7.0, 1: 10.0}


def test_adams_first_step_moves_by_the_learning_rate():
    # The corrected moments are g and g², so a step is the learning rate against the gradient's sign.
    run = Run(Adam(0.9, 0.999), np.zeros((ROWS, DIM), np.float32))
    run.apply([2], [[5.0, -0.01, 100.0]], 0)
    np.testing.assert_allclose(run.table.numpy()[2], [-RATE, RATE, -RATE], rtol=1e-3)


def test_l1_makes_ftrls_weights_zero():
    run = Run(Ftrl(1e3, 0.0, -0.5), start_table())
    run.apply([0, 1], random_gradients(2, 0), 0)
    np.testing.assert_array_equal(run.table.numpy()[:2], 0)


@pytest.mark.parametrize("name", CASES)
def test_many_repeated_ids_give_the_same_bits_every_time(name):
    """An update has the same bits every time, although TensorFlow's threaded scatter of many ids would add repeated rows in any order."""
    draw = np.random.default_rng(0)
    ids, gradients = draw.integers(0, 2000, 16384), draw.standard_normal((16384, 32)).astype(np.float32)
    results = []
    for _ in range(3):
        run = Run(CASES[name][0], np.zeros((2000, 32), np.float32))
        run.apply(ids, gradients, 0)
        results.append(run.table.numpy())
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])
