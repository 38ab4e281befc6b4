"""A table's initializer and scale choose the generator of its rows."""

import numpy as np
import pytest

from model.embedding.initializers import origin_of, rows_of
from model.embedding.table import INITIALIZERS, Table
from utils.initial_rows import Origin, Untouched


def test_a_tables_initializer_takes_its_scale():
    out = np.empty((500, 8), np.float32)
    rows_of(Table("t", 500, 8, initializer="uniform", scale=0.25), 0, (0, 8))(out, 0)
    assert 0.24 < np.abs(out).max() <= 0.25
    rows_of(Table("t", 500, 8, initializer="normal", scale=0.01), 0, (0, 8))(out, 0)
    assert out.std() == pytest.approx(0.01, rel=0.05)
    with pytest.raises(ValueError, match="needs a scale"):
        Table("t", 5, 8, initializer="normal")


@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_the_origin_of_a_table_gives_its_initial_rows(initializer):
    table = Table("t", 30, 12, initializer=initializer, scale=0.5)
    expected, found = np.empty((2, 30, 12), np.float32)
    rows_of(table, 9, (0, 12))(expected, 0)
    origin = origin_of(table, 9)
    assert origin == Origin(0, 30, "t", 30, 12, 9, initializer, 0.5)
    Untouched([origin])(found, 0)
    np.testing.assert_array_equal(found, expected)
