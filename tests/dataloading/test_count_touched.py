"""Tests of the count of a table's rows that stored samples name."""

import numpy as np
import pytest

from dataloading.batches import Ids
from dataloading.feature_spec import generator_spec
from dataloading.features import DatasetError
from dataloading.generate_feature_spec import variant_spec
from dataloading.id_weights import ids_and_weights
from dataloading.ranges import ERROR, HASH
from dataloading.synthetic.split import SyntheticSplit
from dataloading.touched_rows import count_touched
from utils.errors import UserError

SAMPLES = 400
IDS = Ids(None, ERROR)


@pytest.fixture(params=[1, 7], ids=["single ids", "lists"])
def split(request):
    return SyntheticSplit(generator_spec((300, 9, 300), 1, 1.2, hotness=(request.param,)), "train", SAMPLES, seed=3)


@pytest.mark.parametrize("block_ids", [1 << 20, 50])
def test_each_named_row_counts_once(split, monkeypatch, block_ids):
    monkeypatch.setattr("dataloading.touched_rows._BLOCK_IDS", block_ids)
    read = []
    assert count_touched(split, [0], 300, IDS, SAMPLES, read.append) == len(np.unique(split.read_ids(0, 0, SAMPLES)))
    assert sum(read) == SAMPLES and (block_ids > SAMPLES * 7 or len(read) > 1)
    assert count_touched(split, [0], 300, IDS, 10) == len(np.unique(split.read_ids(0, 0, 10)))
    both = np.concatenate([split.read_ids(feature, 0, SAMPLES).reshape(-1) for feature in (0, 2)])
    assert count_touched(split, [0, 2], 300, IDS, SAMPLES) == len(np.unique(both))


def test_ids_of_weight_0_count_not():
    split = SyntheticSplit(variant_spec("small_synthetic", (4,), ["cat_1"]), "train", SAMPLES, seed=3)
    ids, weights = ids_and_weights(split.read_ids(1, 0, SAMPLES))
    assert count_touched(split, [1], 10_000, IDS, SAMPLES) == len(np.unique(ids[weights != 0])) < len(np.unique(ids))


def test_ids_out_of_range(split):
    with pytest.raises(DatasetError, match=r"feature cat_0, row \d+.*: id \d+ is not in \[0, 100\)"):
        count_touched(split, [0], 100, IDS, SAMPLES)
    assert count_touched(split, [0], 100, Ids(None, HASH), SAMPLES) == len(np.unique(split.read_ids(0, 0, SAMPLES) % 100))


def test_more_rows_than_memory_has_bytes_are_an_error(split):
    with pytest.raises(UserError, match="--plan_touched: the marks of the 1,000,000,000,000,000 rows that cat_0, cat_2 may name need"):
        count_touched(split, [0, 2], 10**15, IDS, SAMPLES)
