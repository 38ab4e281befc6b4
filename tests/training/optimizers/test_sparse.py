"""Sparse optimizers: against Keras's dense ones, and against a slow NumPy loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from training.optimizers.sparse import SparseAdagrad, SparseAdam, SparseSgd, sum_repeated

ROWS, DIM, RATE = 6, 3, 0.3


class Run:
    """A table and its slots under a sparse optimizer."""

    def __init__(self, optimizer, start):
        self.optimizer, self.table = optimizer, tf.Variable(start)
        self.slots = [tf.Variable(tf.fill(start.shape, value)) for value in optimizer.slots.values()]

    def apply(self, ids, gradients, step):
        self.optimizer.apply(
            self.table,
            self.slots,
            tf.constant(ids, tf.int32),
            tf.constant(gradients, tf.float32),
            tf.constant(RATE, tf.float32),
            tf.constant(step, tf.int64),
        )

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


def pairs():
    return [
        (SparseSgd(), keras.optimizers.SGD(RATE)),
        (SparseAdagrad(), keras.optimizers.Adagrad(RATE)),
        (SparseAdam(0.8, 0.95), keras.optimizers.Adam(RATE, beta_1=0.8, beta_2=0.95)),
    ]


@pytest.mark.parametrize("which", [0, 1, 2], ids=["sgd", "adagrad", "adam"])
def test_where_every_row_is_touched_it_is_the_dense_optimizer(which):
    sparse, dense = pairs()[which]
    run, reference = Run(sparse, start_table()), keras.Variable(start_table())
    for step in range(5):
        ids = np.random.default_rng(step).permutation([*range(ROWS), 0, 0, 3, 5])
        gradients = random_gradients(len(ids), 100 + step)
        run.apply(ids, gradients, step)
        dense.apply([tf.constant(dense_gradient(ids, gradients))], [reference])
        np.testing.assert_allclose(run.table.numpy(), reference.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("which", [0, 1], ids=["sgd", "adagrad"])
def test_without_moments_untouched_rows_do_not_matter_to_the_dense_optimizer_either(which):
    sparse, dense = pairs()[which]
    run, reference = Run(sparse, start_table()), keras.Variable(start_table())
    for step, ids in enumerate(([1, 1, 4], [0], [4, 2, 4, 4], [1])):
        gradients = random_gradients(len(ids), step)
        run.apply(ids, gradients, step)
        dense.apply([tf.constant(dense_gradient(ids, gradients))], [reference])
    np.testing.assert_allclose(run.table.numpy(), reference.numpy(), rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(run.table.numpy()[[3, 5]], start_table()[[3, 5]])


@pytest.mark.parametrize("optimizer", [SparseSgd(), SparseAdagrad(), SparseAdam()], ids=["sgd", "adagrad", "adam"])
def test_untouched_rows_keep_weights_and_slots(optimizer):
    run = Run(optimizer, start_table())
    run.apply([0, 2, 4], random_gradients(3, 0), 0)
    before = run.values()
    run.apply([1, 1, 3], random_gradients(3, 1), 1)
    for old, new in zip(before, run.values(), strict=True):
        np.testing.assert_array_equal(old[[0, 2, 4, 5]], new[[0, 2, 4, 5]])
        assert (old[[1, 3]] != new[[1, 3]]).all()


def slow_sgd(table, slots, row, gradient, step):
    table[row] -= RATE * gradient


def slow_adagrad(table, slots, row, gradient, step):
    slots[0][row] += gradient**2
    table[row] -= RATE * gradient / np.sqrt(slots[0][row] + 1e-7)


def slow_adam(table, slots, row, gradient, step):
    slots[0][row] = 0.9 * slots[0][row] + 0.1 * gradient
    slots[1][row] = 0.999 * slots[1][row] + 0.001 * gradient**2
    first, second = slots[0][row] / (1 - 0.9 ** (step + 1)), slots[1][row] / (1 - 0.999 ** (step + 1))
    # Keras adds epsilon before the bias correction of the second moment
    table[row] -= RATE * first / (np.sqrt(second) + 1e-7 / np.sqrt(1 - 0.999 ** (step + 1)))


@pytest.mark.parametrize(
    ("optimizer", "slow"), [(SparseSgd(), slow_sgd), (SparseAdagrad(), slow_adagrad), (SparseAdam(), slow_adam)], ids=["sgd", "adagrad", "adam"]
)
@given(batches=st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=12), min_size=1, max_size=4))
@settings(max_examples=25)
def test_it_equals_a_slow_loop_over_the_distinct_ids(optimizer, slow, batches):
    run = Run(optimizer, start_table())
    table, slots = start_table().astype(np.float64), [np.full((ROWS, DIM), value) for value in optimizer.slots.values()]
    for step, ids in enumerate(batches):
        gradients = random_gradients(len(ids), step)
        run.apply(ids, gradients, step)
        for row in set(ids):
            slow(table, slots, row, gradients[np.array(ids) == row].sum(axis=0, dtype=np.float64), step)
    for found, expected in zip(run.values(), (table, *slots), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


def test_gradients_of_a_repeated_id_are_summed():
    ids, sums = sum_repeated(tf.constant([3, 1, 3, 3]), tf.constant([[1.0], [10.0], [2.0], [4.0]]))
    assert dict(zip(ids.numpy().tolist(), sums.numpy().ravel().tolist(), strict=True)) == {3: 7.0, 1: 10.0}


def test_adams_first_step_moves_by_the_learning_rate():
    # On the first step Adam moves every touched weight by the learning rate against the gradient's sign.
    run = Run(SparseAdam(), np.zeros((ROWS, DIM), np.float32))
    run.apply([2], [[5.0, -0.01, 100.0]], 0)
    np.testing.assert_allclose(run.table.numpy()[2], [-RATE, RATE, -RATE], rtol=1e-3)


@pytest.mark.parametrize("optimizer", [SparseSgd(), SparseAdagrad(), SparseAdam()], ids=lambda optimizer: type(optimizer).__name__)
def test_many_repeated_ids_give_the_same_bits_every_time(optimizer):
    """TensorFlow's scatter of tens of thousands of ids runs in threads that add repeated rows in an order of their own."""
    draw = np.random.default_rng(0)
    ids = tf.constant(draw.integers(0, 2000, 65536), tf.int32)
    gradients = tf.constant(draw.standard_normal((65536, 128)), tf.float32)
    results = []
    for _ in range(3):
        table, *slots = (tf.Variable(tf.fill([2000, 128], start)) for start in (0.0, *optimizer.slots.values()))
        optimizer.apply(table, slots, ids, gradients, tf.constant(0.1), tf.constant(0, tf.int64))
        results.append(table.numpy())
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])
