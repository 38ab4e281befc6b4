"""Memory checks: data that cannot fit is refused before it is tried, and data that needs little memory takes little."""

import itertools
import tracemalloc
from dataclasses import replace

import pytest

from dataloading.feature_spec import generator_spec
from dataloading.needed_memory import check_batch, check_scores, check_shuffle
from dataloading.synthetic.split import SyntheticSplit
from tests.dataloading.readers import batch_reader
from utils.config.data import DataConfig
from utils.errors import UserError

SPEC = generator_spec((50, 300, 70_000), 2, 1.2)  # 1, 2 and 4 bytes per id
MANY = 2**31 - 1


def options(**values):
    return DataConfig(dataset_type="synthetic", batch_size=10, **values)


def split(batches):
    return SyntheticSplit(SPEC, "train", 10 * batches, seed=0)


def peak_bytes(action):
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("window", [None, 4, MANY])
def test_two_thousand_million_batches_in_file_order_take_no_memory(window):
    reader = batch_reader(split(MANY), 10, window=window)
    found = []
    assert peak_bytes(lambda: found.extend(itertools.islice(reader.order(0, MANY - 3), 3))) < 1 << 20
    assert found == [MANY - 3, MANY - 2, MANY - 1]


def test_a_window_beyond_the_data_takes_no_more_than_the_data():
    reader = batch_reader(split(20), 10, shuffle_seed=1, window=MANY)
    assert peak_bytes(lambda: list(reader.order(0))) < 1 << 20
    assert list(reader.order(0)) == list(range(20))
    assert len(list(reader.epoch())) == 20


def test_order_from_a_later_position_is_the_rest_of_the_whole_order():
    reader = batch_reader(split(23), 10, shuffle_seed=3, window=4)
    whole = list(reader.order(2))
    assert sorted(whole) == list(range(23)) and whole != sorted(whole)
    for first in range(24):
        assert list(reader.order(2, first)) == whole[first:]


@pytest.mark.parametrize(
    ("values", "batches", "workers", "needed"),
    [
        ({}, MANY, 1, 0),
        ({"shuffle_window": 4}, 20, 1, 40 * (7 + 13)),
        ({"shuffle_window": 4}, 20, 2, 40 * (7 + 2 * 13)),
        ({"shuffle_window": MANY}, 20, 1, 200 * (7 + 13)),
        ({"shuffle_batch_order": True}, MANY, 1, 8 * MANY),
        ({"shuffle_batch_order": True, "shuffle_window": 10}, 1000, 1, 100 * (7 + 13)),
    ],
)
def test_shuffle_that_does_not_fit_in_memory_is_rejected(values, batches, workers, needed):
    check_shuffle(options(**values), split(batches), workers, needed)
    if needed:
        with pytest.raises(UserError, match=r"--shuffle_(window|batch_order).* need .* short"):
            check_shuffle(options(**values), split(batches), workers, needed - 1)


def test_batch_and_scores_that_do_not_fit_in_memory_are_rejected():
    check_batch("batch_size", 1000, SPEC, 21_000)
    with pytest.raises(UserError, match="--batch_size 1000: the rows of a batch need"):
        check_batch("batch_size", 1000, SPEC, 20_999)
    check_scores(split(10), 1300)
    with pytest.raises(UserError, match="the scores of the 100 rows of the train split need"):
        check_scores(split(10), 1299)
    for dtype, needed in (("int32", 2200), ("int64", 3400)):
        ranked = SyntheticSplit(replace(SPEC, group="user", dtypes={**SPEC.dtypes, "user": dtype}), "test", 100, seed=0)
        check_scores(ranked, needed, grouped=True)
        with pytest.raises(UserError, match="the scores and groups of the 100 rows of the test split need"):
            check_scores(ranked, needed - 1, grouped=True)
