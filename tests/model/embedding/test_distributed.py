"""Tests of lookups: they return rows in feature order and in the compute dtype; and of the tables' initial rows."""

import numpy as np
import pytest

from model.embedding import table as embedding_table
from model.embedding.distributed import DistributedEmbedding
from model.embedding.placement import single
from tests.model.tiny_model import TABLES, Table, batch, model_and_trainer, no_ids, weights
from utils.distributed import World
from utils.initial_rows import UniformRows


def built(tables=TABLES, dim=4, initializer="uniform", **options):
    placement = single([embedding_table.Table(name, rows, dim, initializer=initializer) for name, rows in tables])
    embedding = DistributedEmbedding(placement, World(), **options)
    embedding.build()
    return lambda ids: embedding(ids, no_ids(len(ids[0])))


def initial(table, dim, seed=0):
    rows = np.empty((table.num_rows, dim), np.float32)
    UniformRows(seed, table.name, table.num_rows, dim)(rows, 0)
    return rows


def test_a_lookup_gives_each_features_row_in_feature_order():
    ids = np.array([[6, 0, 6, 1], [4, 4, 0, 2], [0, 1, 2, 2]], np.int32)
    expected = np.stack([initial(table, 4)[column] for table, column in zip(TABLES, ids, strict=True)], axis=1)
    np.testing.assert_array_equal(built()(ids), expected)


def test_rows_depend_on_seed_and_feature_and_not_on_the_other_features():
    ids = np.array([[0, 1, 2]], np.int32)
    alone = built((TABLES[1],), seed=5)(ids).numpy()[:, 0]
    among = built((Table("new", 2), *TABLES), seed=5)(np.array([[0, 1, 0], [3, 3, 3], [0, 1, 2], [0, 0, 0]], np.int32)).numpy()[:, 2]
    np.testing.assert_array_equal(alone, among)
    assert not np.isclose(alone, built((TABLES[1],), seed=6)(ids).numpy()[:, 0]).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_vectors_are_in_the_compute_dtype_and_tables_in_float32(dtype):
    ids = np.array([[1], [2], [0]], np.int32)
    vectors = built(compute_dtype=dtype)(ids)
    assert vectors.dtype == dtype
    np.testing.assert_array_equal(vectors, built()(ids).numpy().astype(vectors.numpy().dtype))
    model, _ = model_and_trainer(dtype=dtype)
    assert {value.dtype for value in weights(model).values()} == {np.dtype("float32")}


def test_zeros_initializer_gives_zeros():
    assert not built(initializer="zeros")(np.zeros((3, 5), np.int32)).numpy().any()


def test_table_names_may_have_slashes_and_spaces():
    tables = (Table("user/id", 3), Table("user_id", 3), Table("ad.click rate", 2))
    vectors = built(tables)(np.array([[0, 2], [0, 2], [1, 0]], np.int32)).numpy()
    for i, table in enumerate(tables):
        np.testing.assert_array_equal(vectors[:, i], initial(table, 4)[[0, 2] if i < 2 else [1, 0]])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_frozen_tables_stay_and_the_dense_layers_learn(optimizer):
    model, trainer = model_and_trainer("--embedding_trainable", "false", "--optimizer", optimizer)
    before = weights(model)
    trainer.step(batch(16), 0, 0.1)
    after = weights(model)
    for name in before:
        assert (before[name] == after[name]).all() == name.startswith("tables/"), name
