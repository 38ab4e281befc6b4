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
