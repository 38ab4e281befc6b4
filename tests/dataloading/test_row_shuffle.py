"""The shuffle of rows within windows: the same rows, each exactly once, for any number of workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from test_batches import SPEC, MemorySplit

from dataloading.features import DatasetError
from dataloading.row_shuffle import ShuffledRows
from tests.dataloading.readers import batch_reader

SIZES = {"n": st.integers(1, 90), "local": st.integers(1, 12), "workers": st.sampled_from([1, 2, 4]), "window": st.integers(1, 5)}


def rows(batches):
    return [batch.numerical[batch.weights == 1, 0].astype(int).tolist() for batch in batches]


@given(**SIZES, seed=st.none() | st.integers(0, 2**32))
@settings(max_examples=60)
def test_every_row_counts_once_and_keeps_all_its_features(n, local, workers, window, seed):
    split, options = MemorySplit(n), {"shuffle_seed": seed, "window": window, "window_seed": 5}
    whole = batch_reader(split, local * workers, **options)
    readers = [
        batch_reader(split, local * workers, features=[2, 0], local_features=[1], rank=rank, num_workers=workers, **options)
        for rank in range(workers)
    ]
    batches = list(whole.epoch(3))
    assert sorted(row for batch in rows(batches) for row in batch) == list(range(n))
    for one, *parts in zip(batches, *(reader.epoch(3) for reader in readers), strict=True):
        first = one.numerical[:, 0].astype(int)
        assert_array_equal(one.labels, first % 3 == 0)
        for feature, factor in enumerate((1, 7, 3)):
            assert_array_equal(one.ids[feature], first * factor % SPEC.categorical[feature].cardinality)
        for name, axis in (("numerical", 0), ("labels", 0), ("weights", 0)):
            assert_array_equal(np.concatenate([getattr(part, name) for part in parts], axis), getattr(one, name))
        assert_array_equal(np.concatenate([part.local_ids for part in parts], axis=1), one.ids[[1]])
        for part in parts:
            assert_array_equal(part.ids, one.ids[[2, 0]])


def test_rows_are_mixed_within_their_window_only():
    batches = rows(batch_reader(MemorySplit(400), 20, window=5).epoch())
    for start in range(0, 20, 5):
        window = [row for batch in batches[start : start + 5] for row in batch]
        assert sorted(window) == list(range(20 * start, 20 * start + 100))
        assert all(len({row // 20 for row in batch}) > 2 for batch in batches[start : start + 5])


def test_batch_order_shuffles_windows_and_reads_each_once():
    split, read = MemorySplit(400), []
    plain = split.read_ids
    split.read_ids = lambda feature, start, stop: read.append((feature, start, stop)) or plain(feature, start, stop)
    reader = batch_reader(split, 20, shuffle_seed=1, window=5)
    assert any(list(reader.order(epoch)) != list(range(20)) for epoch in range(5))
    order = [batch[0] // 100 for batch in rows(reader.epoch())]
    assert order == [number // 5 for number in reader.order(0)]
    assert sorted(read) == [(feature, start, start + 100) for feature in range(3) for start in range(0, 400, 100)]


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        return tuple(map(tuple, rows(batch_reader(MemorySplit(80), 8, window=3, window_seed=seed).epoch(epoch))))

    assert len({order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert order(1, 1) == order(1, 1)


def test_an_epoch_can_start_in_the_middle_of_a_window():
    reader = batch_reader(MemorySplit(83), 4, shuffle_seed=1, window=5)
    assert rows(reader.epoch(2, first=7)) == rows(reader.epoch(2))[7:]


@pytest.mark.parametrize("rank", [0, 1])
def test_error_names_the_row_of_the_file(rank):
    split = MemorySplit(64)
    split.ids[1] = split.ids[1].copy()
    split.ids[1][37] = 300
    reader = batch_reader(split, 8, features=[1], rank=rank, num_workers=2, window=4)
    with pytest.raises(DatasetError, match=r"row 37: id 300 is not in \[0, 300\)"):
        list(reader.epoch())


def test_error_in_one_workers_row_names_the_row_of_the_file():
    split = MemorySplit(64)
    split.labels[41] = 2
    found = []
    for rank in (0, 1):
        try:
            list(batch_reader(split, 8, rank=rank, num_workers=2, window=4).epoch())
        except DatasetError as error:
            found.append(str(error))
    assert len(found) == 1 and "row 41: label 2" in found[0]


def test_rows_of_two_windows_are_refused():
    with pytest.raises(ValueError, match="rows 8 to 12 are not in one window of 10"):
        ShuffledRows(MemorySplit(40), 5, 2, 0).read_labels(8, 12)
