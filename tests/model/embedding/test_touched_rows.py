"""Tests of the gradients of rows that occur repeatedly in a batch, or in lists, against sums in a loop."""

import numpy as np
import pytest
import tensorflow as tf

from model.embedding.touched_rows import sum_repeated, sum_repeated_lists


def test_repeated_ids_are_summed_in_the_order_of_their_first_occurrence():
    ids, gradients = tf.constant([7, 2, 7, 0, 2, 7]), np.arange(12, dtype=np.float32).reshape(6, 2)
    distinct, sums = sum_repeated(ids, tf.constant(gradients))
    assert distinct.numpy().tolist() == [7, 2, 0]
    np.testing.assert_array_equal(sums, [gradients[[0, 2, 5]].sum(0), gradients[[1, 4]].sum(0), gradients[3]])


@pytest.mark.parametrize("none", [0.0, 0.4, 1.0])
def test_every_id_of_a_list_has_the_sample_s_gradient(none):
    draw = np.random.default_rng(3)
    lists, expected = [], np.zeros((11, 3), np.float32)
    for hotness in 1, 4:
        gradients = draw.integers(-9, 9, (20, 3)).astype(np.float32)
        numbers = [np.where(draw.random(20) < none, -1, draw.integers(0, 11, 20)).astype(np.int32) for _ in range(hotness)]
        for ids in numbers:
            np.add.at(expected, ids[ids >= 0], gradients[ids >= 0])
            lists.append((tf.constant(ids), tf.constant(gradients)))
    distinct, sums = sum_repeated_lists(lists)
    named = {int(i) for ids, _ in lists for i in ids.numpy()} - {-1}
    assert sorted(distinct.numpy()) == sorted(named) and sums.shape == (len(named), 3)
    np.testing.assert_array_equal(sums.numpy(), expected[distinct.numpy()])
