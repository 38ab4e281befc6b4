"""Tests of lookups in mapped tables, which are not in memory, against a loop."""

import numpy as np
import pytest

from model.embedding.placement import single
from model.embedding.table import Feature, Table
from training.mapped import MappedTables

HOTNESS = 3


class Array:
    """A stub of a mapped table: the rows of an array."""

    def __init__(self, values):
        self.shape, self._values = values.shape, values

    def rows(self, numbers):
        return self._values[numbers]


@pytest.mark.parametrize("widths", [(4, 4, 4), (4, 8, 4), (4, 8, 2)], ids=str)
def test_vectors_lie_side_by_side(widths):
    draw = np.random.default_rng(0)
    tables = [Table(name, rows, dim) for name, rows, dim in zip("abc", (5, 7, 9), widths, strict=True)]
    features = [Feature("a", "a", "a"), Feature("b", "b", "b", HOTNESS, "mean"), Feature("c", "c", "c", HOTNESS)]
    values = [draw.standard_normal((table.rows, table.dim)).astype(np.float32) for table in tables]
    hotness = [feature.hotness for feature in features]
    ids = np.concatenate([draw.integers(0 if one == 1 else -1, table.rows, (one, 6)) for one, table in zip(hotness, tables, strict=True)])
    found = MappedTables(single(tables, features), list(map(Array, values))).look_up(ids)
    expected = []
    for sample in ids.T:
        vectors, first = [], 0
        for feature, array in zip(features, values, strict=True):
            some = [one for one in sample[first : first + feature.hotness] if one >= 0]
            first += feature.hotness
            total = sum((array[one] for one in some), np.zeros(array.shape[1], np.float32))
            vectors.append(total / np.float32(max(len(some), 1)) if feature.pooling == "mean" else total)
        expected.append(np.stack(vectors) if len(set(widths)) == 1 else np.concatenate(vectors))
    np.testing.assert_array_equal(found, np.stack(expected))


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("hotness", [1, 3])
def test_weights_of_ids_follow_them_as_bits(hotness, mean):
    draw = np.random.default_rng(1)
    values = draw.standard_normal((9, 4)).astype(np.float32)
    before = Feature("a", "a", "a")
    weighted = Feature("b", "b", "b", hotness, "mean" if mean else "sum", weights=True)
    ids = draw.integers(-1, 9, (hotness, 50)).astype(np.int32)
    weights = np.where(ids < 0, 0, draw.lognormal(size=ids.shape)).astype(np.float32)
    weights[:, :3] = 0
    ids[:, :2] = -1
    tables = MappedTables(single([Table("a", 5, 4), Table("b", 9, 4)], [before, weighted]), [Array(values), Array(values)])
    found = tables.look_up(np.concatenate([np.zeros((1, 50), np.int32), ids, weights.view(np.int32)]))
    for sample in range(50):
        total, count = np.zeros(4, np.float32), np.float32(0)
        for one, weight in zip(ids[:, sample], weights[:, sample], strict=True):
            total += weight * values[one] if one >= 0 else 0
            count += weight
        np.testing.assert_array_equal(found[sample], [values[0], total / (count or np.float32(1)) if mean else total])
