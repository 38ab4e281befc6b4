"""Tests of tables in one variable of more than 2^31 elements, as built for a GPU. They take 9 GiB and run only with DLRM_TEST_LARGE=1."""

import os

import numpy as np
import pytest
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding, GroupUpdate
from model.embedding.placement import single
from model.embedding.table import Table
from training.optimizers.sgd import Sgd
from utils.distributed import World
from utils.initial_rows import UniformRows

ROWS, DIM = 8_500_000, 128

pytestmark = pytest.mark.skipif(os.environ.get("DLRM_TEST_LARGE") != "1", reason="takes 9 GiB: DLRM_TEST_LARGE=1")


@pytest.mark.timeout(600)
def test_its_first_and_last_rows_are_filled_looked_up_and_trained(monkeypatch):
    monkeypatch.setenv("DLRM_BUILD_FOR", "GPU")
    tables = [Table(name, ROWS, DIM) for name in ("first", "second")]
    embedding = DistributedEmbedding(single(tables), World(), seed=5)
    embedding.build()
    embedding.add_slots(Sgd())
    (group,) = embedding.groups
    assert 2 * ROWS * DIM > 2**31 and group.num_rows == 2 * ROWS
    numbers = np.array([0, 1, ROWS - 1, 16_777_216 - ROWS, ROWS // 2, ROWS - 1])  # some lie beyond the 2^31st element of the variable
    expected = np.empty((len(numbers), 2, DIM), np.float32)
    for column, table in enumerate(tables):
        for place, number in enumerate(numbers):
            UniformRows(5, table.name, ROWS, DIM)(expected[place : place + 1, column], int(number))
    ids, none = tf.constant(np.stack([numbers, numbers])), tf.zeros([0, len(numbers)], tf.int64)
    np.testing.assert_array_equal(embedding(ids, none).numpy(), expected)
    gradients = np.random.default_rng(0).normal(size=expected.shape).astype(np.float32)
    embedding.update([GroupUpdate(Sgd(), tf.constant(0.5))], ids, tf.constant(gradients), tf.constant(0, tf.int64))
    gradients[2] = gradients[5] = gradients[2] + gradients[5]  # both samples have the same row
    np.testing.assert_allclose(embedding(ids, none).numpy(), expected - 0.5 * gradients, rtol=0, atol=1e-6)
    for local in embedding.sharded:
        rows = local.kinds()["weights"]
        np.testing.assert_array_equal(rows.read(ROWS - 1, ROWS), embedding(ids, none).numpy()[2:3, embedding.sharded.index(local)])
