"""Tests of samples of rows."""

import numpy as np
import pytest

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.features import DatasetError
from dataloading.memory_split import MemorySplit
from dataloading.row_range import RowRange
from run.explain_sample import chosen, draw
from run.explain_units import joined
from utils.errors import UserError

ROWS = 300_000


class Labelled(MemorySplit):
    """A split whose label of a row is the parity of its number, and that counts its reads."""

    reads = 0

    def read_labels(self, start, stop):
        self.reads += 1
        return (np.arange(start, stop) % 2).astype(np.uint8)


@pytest.fixture(scope="module")
def split():
    rows = np.arange(ROWS)
    features = (Categorical("row", ROWS, "int32"), Categorical("pair", 2 * ROWS, "int32", 2))
    ids = [rows.astype(np.int32), np.stack([rows, rows + ROWS], axis=1).astype(np.int32)]
    return Labelled(features, ("thousand",), (rows // 1000)[:, np.newaxis].astype(np.float32), ids, "float32")


@pytest.mark.parametrize("count", [1, 7, 5000, 200_000, ROWS, 10 * ROWS])
def test_all_columns_are_of_the_same_rows_and_no_row_is_taken_twice(split, count):
    sample = draw(split, count, 3, [ROWS, 2 * ROWS], "error")
    rows = sample.inputs.ids[:, 0]
    assert len(rows) == min(count, ROWS) and (np.diff(rows) > 0).all() and sample.out_of_range == 0
    np.testing.assert_array_equal(sample.inputs.ids, np.stack([rows, rows, rows + ROWS], axis=1))
    np.testing.assert_array_equal(sample.inputs.numerical[:, 0], rows // 1000)
    np.testing.assert_array_equal(sample.labels, rows % 2)


def test_the_sample_is_uniform_and_follows_the_seed(split):
    first, again, other = (draw(split, 30_000, seed, [ROWS, 2 * ROWS], "error").inputs.ids[:, 0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    counts = np.histogram(first, 10, (0, ROWS))[0]
    assert abs(counts - 3000).max() < 250  # five deviations of a binomial count


def test_rows_close_to_each_other_are_read_together(split):
    split.reads = 0
    draw(split, ROWS, 0, [ROWS, 2 * ROWS], "error")
    assert split.reads == -(-ROWS // 65_536)


def test_ids_beyond_their_table(split):
    part = RowRange(split, "part", 1000, 1100)
    with pytest.raises(DatasetError, match=r"feature row, row 1000: id 1000 is not in \[0, 500\)"):
        draw(part, 50_000, 0, [500, 2 * ROWS], "error")
    sample = draw(part, 10, 0, [500, 2 * ROWS], "clip")
    assert sample.out_of_range == 10 and (sample.inputs.ids[:, 0] == 499).all()


def test_background_rows_are_chosen_by_the_seed():
    rows = joined(np.arange(500.0)[:, np.newaxis], [np.arange(500)])
    first, again, other = (chosen(rows, seed).ids[:, 0] for seed in (1, 1, 2))
    assert len(set(first)) == 64 and (first == again).all() and (first != other).any()
    few = rows.taken(slice(0, 5))
    np.testing.assert_array_equal(chosen(few, 0).ids, few.ids)
    with pytest.raises(ValueError, match="background: holds no row; expected at least 1"):
        chosen(rows.taken(slice(0, 0)), 0)


def test_memory_is_checked_before_the_rows_are_read():
    spec = FeatureSpec((Categorical("row", 9, "int32"),), (), "label", {"row": "int32", "label": "bool"})
    huge = type("Huge", (), {"spec": spec, "num_samples": 10**15})()
    with pytest.raises(UserError, match=r"1,000,000,000,000 rows to explain need .* GiB, .* are free"):
        draw(huge, 10**12, 0, [9], "error")
