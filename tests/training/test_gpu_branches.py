"""What the program does otherwise for a GPU, done on a CPU (`compilation.pretends_gpu`): it trains the same model."""

import numpy as np
import pytest
import tensorflow as tf

from model.embedding.initializers import ConstantRows, UniformRows
from model.embedding.table_memory import CHUNK_ROWS, new_table, read_rows
from tests.model.tiny_model import batch, model_and_trainer, weights
from training.evaluator import Evaluator

STEPS = 50


@pytest.fixture
def gpu(monkeypatch):
    """Switches to the branches of a GPU."""

    def switch():
        monkeypatch.setenv("DLRM_BUILD_FOR", "GPU")
        for name in ("model.build.native_operations", "training.build.native_operations"):
            monkeypatch.setattr(name, lambda: None)

    return switch


def trained(*flags):
    model, trainer = model_and_trainer(*flags)
    for step in range(STEPS):
        trainer.step(batch(16, 13, seed=step), step, 0.02)
    return model, Evaluator(model).logits(batch(32, seed=99))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("xla", ["false", "true"])
def test_it_trains_the_same_model(gpu, optimizer, xla):
    flags = ("--optimizer", optimizer, "--gradient_slices", "1")
    expected, scores = trained(*flags)
    gpu()
    assert batch(4).inputs.ids.dtype == tf.int64 and batch(4).inputs.numerical.dtype == tf.float16
    found, found_scores = trained(*flags, "--xla", xla)
    for name, values in weights(expected).items():
        np.testing.assert_allclose(weights(found)[name], values, rtol=0, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found_scores, scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, CHUNK_ROWS - 1, CHUNK_ROWS, 3 * CHUNK_ROWS + 5])
def test_tables_are_filled_by_threads_and_copied(gpu, rows):
    expected = read_rows(new_table(rows, 4, UniformRows(3, "a", rows, 4), tf.Variable), 0, rows)
    gpu()
    np.testing.assert_array_equal(read_rows(new_table(rows, 4, UniformRows(3, "a", rows, 4), tf.Variable), 0, rows), expected)
    np.testing.assert_array_equal(new_table(rows, 4, ConstantRows(0.5), tf.Variable).numpy(), np.full((rows, 4), 0.5))


def test_rows_that_come_back_otherwise_are_noticed(gpu, monkeypatch):
    gpu()
    monkeypatch.setattr("model.embedding.table_memory.write_rows", lambda variable, start, values: None)
    with pytest.raises(RuntimeError, match=r"table of \[10, 4\]: its last rows are not those that were written"):
        new_table(10, 4, UniformRows(3, "a", 10, 4), lambda tensor: tf.Variable(tf.zeros(tensor.shape)))
