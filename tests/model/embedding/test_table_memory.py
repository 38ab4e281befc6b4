"""Tests that tables are filled and updated in place, without a second copy."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from model.embedding import table_memory
from model.embedding.table_memory import new_table, read_rows, write_rows
from utils.initial_rows import ConstantRows, UniformRows


def count_up(out, start):
    out[:] = np.arange(start, start + len(out))[:, None] + np.arange(out.shape[1]) / 10


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 3), (1000, 16), (65_536 + 5, 4)])
def test_a_new_table_holds_what_was_filled_in(rows, columns):
    variable = new_table(rows, columns, count_up, tf.Variable)
    expected = np.empty((rows, columns), np.float32)
    count_up(expected, 0)
    np.testing.assert_array_equal(variable.numpy(), expected)


def test_many_chunks_give_the_same_table(monkeypatch):
    whole = new_table(1000, 12, UniformRows(0, "a", 1000, 12), tf.Variable).numpy()
    monkeypatch.setattr(table_memory, "CHUNK_ROWS", 37)
    np.testing.assert_array_equal(new_table(1000, 12, UniformRows(0, "a", 1000, 12), tf.Variable).numpy(), whole)


@pytest.mark.parametrize("rows", [1, 37, 38, 1000, 37 * 100])
def test_chunks_that_are_copied_to_a_device_come_in_order(monkeypatch, rows):
    monkeypatch.setattr(table_memory, "CHUNK_ROWS", 37)  # far more chunks than are prepared ahead
    variable = table_memory.new_on_device(rows, 3, count_up, tf.Variable)
    expected = np.empty((rows, 3), np.float32)
    count_up(expected, 0)
    np.testing.assert_array_equal(variable.numpy(), expected)


def test_an_error_while_filling_is_raised():
    def fail(out, start):
        raise RuntimeError("no rows today")

    with pytest.raises(RuntimeError, match="no rows today"):
        new_table(10, 2, fail, tf.Variable)


def test_rows_are_written_and_read_back():
    variable = new_table(10, 3, ConstantRows(1.0), tf.Variable)
    values = np.random.default_rng(0).random((4, 3), np.float32)
    write_rows(variable, 5, values)
    np.testing.assert_array_equal(read_rows(variable, 5, 9), values)
    np.testing.assert_array_equal(variable.numpy(), np.concatenate([np.ones((5, 3)), values, np.ones((1, 3))]))
    assert read_rows(variable, 3, 3).shape == (0, 3)


IN_PLACE = """
import os, sys
from utils.runtime import prepare_tensorflow
prepare_tensorflow()
import numpy as np, tensorflow as tf
from utils.initial_rows import ConstantRows
from model.embedding.touched_rows import TouchedRows
from training.optimizers.sgd import Sgd
from model.embedding.table_memory import new_table, read_rows, write_rows

MIB, COLUMNS = 1 << 20, 128
ROWS = 256 * MIB // (4 * COLUMNS)

def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) / 1024

new_table(1000, COLUMNS, ConstantRows(0.0), tf.Variable)
start = peak()
table = new_table(ROWS, COLUMNS, ConstantRows(0.5), tf.Variable)
print("allocate", peak() - start)
ids = tf.constant(np.arange(0, ROWS, 997), tf.int32)
gradients = tf.ones((len(ids), COLUMNS))
step = tf.function(lambda: Sgd().apply(TouchedRows(table, [], ids), gradients, tf.constant([0.1])))
for _ in range(3):
    step()
write_rows(table, 5, np.ones((10, COLUMNS), np.float32))
read_rows(table, 0, 1000)
print("update", peak() - start)
"""


def test_neither_filling_nor_updating_a_table_copies_it():
    result = subprocess.run([sys.executable, "-c", IN_PLACE], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    grown = {line.split()[0]: float(line.split()[1]) for line in result.stdout.splitlines()}
    assert 200 < grown["allocate"] < 400  # the table takes 256 MiB; with a copy it would be 512
    assert grown["update"] < 450
