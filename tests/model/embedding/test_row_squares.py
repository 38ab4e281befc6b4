"""Tests that sums of squares over whole rows have the same bits however the columns are sliced."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from model.embedding.row_squares import node_sum, root
from model.embedding.subtrees import subtrees


@given(st.integers(1, 200), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_cuts_change_no_bit(dim, cuts):
    draw = np.random.default_rng(dim)
    gradients = tf.constant(draw.standard_normal((5, dim)), tf.float32)
    places = sorted({0, dim, *draw.integers(0, dim, cuts).tolist()})
    nodes = {}
    for first, last in itertools.pairwise(places):
        for start, width in subtrees(first, last, dim):
            columns = gradients[:, start : min(start + width, dim)]
            nodes[start, width] = node_sum(tf.pad(columns, [[0, 0], [0, width - columns.shape[1]]]))
    np.testing.assert_array_equal(root(nodes, dim), node_sum(gradients))
    np.testing.assert_allclose(node_sum(gradients), np.square(gradients.numpy().astype(np.float64)).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("first", "last", "dim", "expected"),
    [(0, 8, 8, [(0, 8)]), (4, 8, 8, [(4, 4)]), (0, 3, 12, [(0, 2), (2, 1)]), (3, 12, 12, [(3, 1), (4, 4), (8, 8)]), (0, 1, 1, [(0, 1)])],
)
def test_halves_of_a_power_of_two_are_one_number_a_row(first, last, dim, expected):
    assert subtrees(first, last, dim) == expected
