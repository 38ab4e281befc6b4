"""Tests that the program's branches for a GPU, run on a CPU (`compilation.pretends_gpu`), train the same model."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from model.embedding.table_memory import CHUNK_ROWS, new_table, read_rows
from tests.model.tiny_model import assert_close, batch, model_and_trainer, weights
from training.evaluator import Evaluator
from utils.initial_rows import ConstantRows, UniformRows

STEPS = 20


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that switches to the branches for a GPU."""

    def switch():
        monkeypatch.setenv("DLRM_BUILD_FOR", "GPU")

    return switch


def trained(*flags, hosted=0):
    model, trainer = model_and_trainer(*flags, hosted=hosted)
    for step in range(STEPS):
        trainer.step(batch(16, 13, seed=step), step, 0.02)
    return model, Evaluator(model).logits(batch(32, seed=99))


@functools.cache
def on_cpu(optimizer):
    """Return the weights and scores of a model trained on a CPU."""
    model, scores = trained("--optimizer", optimizer, "--gradient_slices", "1")
    return weights(model), scores


@pytest.mark.parametrize(("optimizer", "xla"), [("sgd", "true"), ("adagrad", "true"), ("adam", "true"), ("adam", "false")])
def test_gpu_branches_train_the_same_model(gpu, optimizer, xla):
    equal(gpu, optimizer, "--xla", xla)


# With one of three tables in host memory, the step updates tables of both places.
@pytest.mark.parametrize(
    ("optimizer", "hosted"), [("sgd", 1), ("adam", 1), ("rowwise_adagrad", 1), ("ftrl", 1), ("rmsprop", 1), ("adam", 3), ("rowwise_adagrad", 3)]
)
def test_tables_in_host_memory_are_trained_as_well(gpu, optimizer, hosted):
    equal(gpu, optimizer, hosted=hosted)


def test_tables_of_a_width_lie_in_one_variable(gpu):
    gpu()
    model, _ = model_and_trainer("--optimizer", "adam", hosted=1)
    assert [[local.name for local in group.shards] for group in model.embedding.groups] == [["user"], ["item", "page"]]
    user, item, page = model.embedding.sharded
    assert item.weights is page.weights and item.slots["momentum"] is page.slots["momentum"] and user.weights is not page.weights
    assert (item.first, page.first, page.weights.shape[0]) == (0, 5, 8)


def equal(gpu, optimizer, *gpu_flags, hosted=0):
    """Train as on a CPU and as on a GPU with `hosted` tables in host memory, and compare weights and scores."""
    expected, scores = on_cpu(optimizer)
    gpu()
    assert (
        batch(4).inputs.ids.dtype == tf.float32 and batch(4).inputs.unpacked().ids.dtype == tf.int64 and batch(4).inputs.numerical.dtype == tf.float16
    )
    found, found_scores = trained("--optimizer", optimizer, "--gradient_slices", "1", *gpu_flags, hosted=hosted)
    assert_close(weights(found), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found_scores, scores, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [1, CHUNK_ROWS - 1, CHUNK_ROWS, 3 * CHUNK_ROWS + 5])
def test_tables_are_filled_by_threads_and_copied(gpu, rows):
    expected = read_rows(new_table(rows, 4, UniformRows(3, "a", rows, 4), tf.Variable), 0, rows)
    gpu()
    np.testing.assert_array_equal(read_rows(new_table(rows, 4, UniformRows(3, "a", rows, 4), tf.Variable), 0, rows), expected)
    np.testing.assert_array_equal(new_table(rows, 4, ConstantRows(0.5), tf.Variable).numpy(), np.full((rows, 4), 0.5))


def test_rows_that_differ_when_read_back_are_an_error(gpu, monkeypatch):
    gpu()
    monkeypatch.setattr("model.embedding.table_memory.write_rows", lambda variable, start, values: None)
    with pytest.raises(RuntimeError, match=r"table of \[10, 4\]: the last rows read back differ from the rows written"):
        new_table(10, 4, UniformRows(3, "a", 10, 4), lambda tensor: tf.Variable(tf.zeros(tensor.shape)))
