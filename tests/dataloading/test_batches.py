"""Batches: every row exactly once, the last batch padded, and the workers' parts together the whole."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dataloading.batches import prefetched
from dataloading.feature_spec import generator_spec
from dataloading.features import DatasetError
from dataloading.row_range import hold_out
from tests.dataloading.readers import batch_reader
from tests.helpers.commands import run

SPEC = generator_spec((1000, 300, 7), 2, 1.2)


class MemorySplit:
    """Distinguishable rows: numerical feature 0 is the row's number."""

    labelled = True

    def __init__(self, num_samples, ids=None):
        self.spec, self.name, self.num_samples, self.first_row = SPEC, "train", num_samples, 0
        rows = np.arange(num_samples)
        self.numerical = np.stack([rows, -rows], axis=1).astype(np.float16)
        self.ids = ids or [
            (rows * factor % feature.cardinality).astype(np.int16) for factor, feature in zip((1, 7, 3), SPEC.categorical, strict=True)
        ]
        self.labels = (rows % 3 == 0).astype(np.uint8)

    def _cut(self, values, start, stop):
        assert 0 <= start < stop <= self.num_samples
        return values[start:stop]

    def read_ids(self, feature, start, stop):
        return self._cut(self.ids[feature], start, stop)

    def read_numerical(self, start, stop):
        return self._cut(self.numerical, start, stop)

    def read_labels(self, start, stop):
        return self._cut(self.labels, start, stop)

    def file(self, feature, row=0):
        return f"{feature}.bin"

    def fingerprint(self):
        return "memory"

    def close(self):
        pass


SIZES = {"n": st.integers(1, 90), "local": st.integers(1, 12), "workers": st.sampled_from([1, 2, 3, 4, 8])}


@given(**SIZES, seed=st.none() | st.integers(0, 2**32), short_last=st.booleans())
@settings(max_examples=60)
def test_every_row_counts_once_per_epoch_for_any_number_of_workers(n, local, workers, seed, short_last):
    options = {"num_workers": workers, "shuffle_seed": seed, "short_last": short_last}
    readers = [batch_reader(MemorySplit(n), local * workers, rank=rank, **options) for rank in range(workers)]
    seen = []
    for parts in zip(*(reader.epoch(3) for reader in readers), strict=True):
        for batch in parts:
            seen += batch.numerical[batch.weights == 1, 0].astype(int).tolist()
            assert batch.num_samples == parts[0].num_samples
        assert sum(batch.weights.sum() for batch in parts) == parts[0].num_samples
        sizes = {len(batch.labels) for batch in parts}
        assert (
            sizes <= {local} if parts[0].num_samples == local * workers or not short_last else sizes == {padded(parts[0].num_samples, local, workers)}
        )
    assert sorted(seen) == list(range(n))
    assert len(readers[0]) == -(-n // (local * workers))


def padded(count, local, workers):
    """Return the rows of each worker in a short last batch: the smallest power of two that is enough, at most its part of a full batch."""
    return min(next(1 << k for k in range(20) if (1 << k) * workers >= count), local)


@given(**SIZES)
@settings(max_examples=60)
def test_parts_of_all_workers_form_one_workers_batch(n, local, workers):
    split = MemorySplit(n)
    whole = batch_reader(split, local * workers)
    readers = [batch_reader(split, local * workers, features=[2, 0], local_features=[1], rank=rank, num_workers=workers) for rank in range(workers)]
    for number in range(len(whole)):
        one, parts = whole.read(number), [reader.read(number) for reader in readers]
        for name, axis in (("numerical", 0), ("labels", 0), ("weights", 0)):
            assert_array_equal(np.concatenate([getattr(part, name) for part in parts], axis), getattr(one, name))
        assert_array_equal(np.concatenate([part.local_ids for part in parts], axis=1), one.ids[[1]])
        for part in parts:
            assert_array_equal(part.ids, one.ids[[2, 0]])


@given(n=st.integers(1, 60), size=st.integers(1, 25))
@settings(max_examples=60)
def test_padding_repeats_the_last_real_row_with_weight_zero(n, size):
    for batch in batch_reader(MemorySplit(n), size).epoch():
        real = batch.num_samples
        assert batch.weights.tolist() == [1] * real + [0] * (size - real)
        for values in (batch.numerical, batch.labels, batch.ids.T):
            assert len(values) == size
            assert (values[real:] == values[real - 1]).all()


def test_batch_holds_the_rows_of_the_split():
    batch = batch_reader(MemorySplit(10), 4).read(1)
    assert batch.numerical.tolist() == [[4, -4], [5, -5], [6, -6], [7, -7]]
    assert batch.ids.tolist() == [[4, 5, 6, 7], [28, 35, 42, 49], [5, 1, 4, 0]]
    assert batch.local_ids.shape == (0, 4)
    assert batch.labels.tolist() == [0, 0, 1, 0]
    assert [batch.numerical.dtype, batch.ids.dtype, batch.labels.dtype, batch.weights.dtype] == ["float16", "int32", "uint8", "float32"]


def test_without_a_seed_batches_come_in_file_order():
    assert list(batch_reader(MemorySplit(50), 8).order(5)) == list(range(7))


def test_a_shuffled_order_is_a_permutation_differs_by_epoch_and_repeats_by_seed():
    def order(seed, epoch):
        return list(batch_reader(MemorySplit(80), 2, shuffle_seed=seed).order(epoch))

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(numbers) == list(range(40)) for numbers in orders)
    assert len({tuple(numbers) for numbers in orders}) == 4
    assert order(1, 1) == orders[3]


def test_an_epoch_can_start_in_the_middle():
    reader = batch_reader(MemorySplit(40), 4, shuffle_seed=1)
    whole, rest = list(reader.epoch(2)), list(reader.epoch(2, first=7))
    assert [batch.numerical[0, 0] for batch in rest] == [batch.numerical[0, 0] for batch in whole[7:]]


@pytest.mark.parametrize(("batch_size", "workers"), [(10, 4), (0, 1), (3, 8)])
def test_a_batch_that_workers_cannot_share_evenly_is_refused(batch_size, workers):
    with pytest.raises(ValueError, match=f"batch_size {batch_size}"):
        batch_reader(MemorySplit(10), batch_size, num_workers=workers)


@pytest.mark.parametrize("bad", [300, -1, 32767])
@pytest.mark.parametrize("place", ["features", "local_features"])
def test_an_id_out_of_range_is_an_error_that_names_feature_row_id_and_cardinality(bad, place):
    ids = [np.zeros(20, np.int16) for _ in SPEC.categorical]
    ids[1][13] = bad
    reader = batch_reader(MemorySplit(20, ids), 4, **({"features": []} | {place: [1]}))
    for number in (0, 1, 2, 4):
        reader.read(number)
    with pytest.raises(DatasetError, match=rf"feature cat_1, row 13: id {bad} is not in \[0, 300\)"):
        reader.read(3)


def test_ids_of_other_workers_features_are_not_read():
    ids = [np.full(8, 9999, np.int16), np.zeros(8, np.int16), np.zeros(8, np.int16)]
    assert batch_reader(MemorySplit(8, ids), 4, features=[1]).read(0).ids.tolist() == [[0, 0, 0, 0]]


def test_a_label_that_is_neither_0_nor_1_is_an_error():
    split = MemorySplit(20)
    split.labels[9] = 2
    with pytest.raises(DatasetError, match="feature label, row 9: label 2 is not 0 or 1"):
        list(batch_reader(split, 4).epoch())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_numerical_value_that_is_not_finite_is_an_error(value):
    split = MemorySplit(20)
    split.numerical[9, 1] = value
    with pytest.raises(DatasetError, match=f"feature num_1, row 9: value {value} is not finite"):
        list(batch_reader(split, 4).epoch())


def test_hashed_ids_are_taken_modulo_the_tables_rows():
    ids = [np.array([0, 9, 10, 999], np.int16), np.array([-1, 400, 5, 0], np.int16), np.array([7, 8, 100, 6], np.int16)]
    batch = batch_reader(MemorySplit(4, ids), 4, num_rows=(10, 300, 7), out_of_range="hash").read(0)
    assert batch.ids.tolist() == [[0, 9, 0, 9], [299, 100, 5, 0], [0, 1, 2, 6]]


def test_ids_are_hashed_to_more_rows_than_their_dtype_holds():
    ids = [np.array([-1, 127], np.int8)] * 3
    assert batch_reader(MemorySplit(2, ids), 2, num_rows=(1000, 1000, 1000), out_of_range="hash").read(0).ids[0].tolist() == [999, 127]


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_prefetched_items_come_transformed_and_in_order():
    assert list(prefetched(range(50), lambda item: item * 2)) == list(range(0, 100, 2))
    assert list(prefetched([])) == []
    assert not threads()


def test_prefetching_runs_ahead_by_no_more_than_its_depth():
    made = []
    items = prefetched(iter(range(100)), made.append, depth=2)
    next(items)
    deadline = time.monotonic() + 60
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) == 4  # one taken, two waiting in the queue, one made and not yet accepted
    items.close()


@pytest.mark.parametrize("rows", [None, (1000, 250, 7)])
def test_error_in_a_window_names_the_bad_row_only(rows):
    split = MemorySplit(60)
    split.ids[1] = np.where(np.arange(60) == 3, 320, split.ids[1])  # out of range, and clipped: no error
    split.ids[1][5] = 260
    split.numerical[17, 1] = np.nan
    reader = batch_reader(split, 10, window=3, out_of_range="clip", num_rows=rows)
    with pytest.raises(DatasetError, match="row 17"):
        list(reader.epoch())
    split.numerical[17, 1] = 0
    assert sum(batch.num_samples for batch in reader.epoch()) == 60


def test_slow_consumer_gets_every_item():
    items = prefetched(range(6), depth=1)
    found = [next(items)]
    time.sleep(0.5)  # longer than one wait of the thread for a free place
    assert found + list(items) == list(range(6))


@pytest.mark.parametrize("where", ["source", "transform"])
def test_an_error_in_the_thread_is_raised_at_its_place(where):
    def source():
        yield from range(3)
        if where == "source":
            raise DatasetError("cut short")
        yield 3

    def transform(item):
        if item == 3:
            raise DatasetError("cut short")
        return item

    items = prefetched(source(), transform)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DatasetError, match="cut short"):
        next(items)
    assert not threads()


def test_a_consumer_that_stops_early_ends_the_thread():
    items = prefetched(iter(int, 1))  # endless
    next(items)
    assert threads()
    items.close()
    assert not threads()


def test_process_ends_with_an_unfinished_consumer():
    program = "from dataloading.batches import prefetched; items = prefetched(iter(int, 1)); next(items); print('ends')"
    result = run("-c", program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ends\n", "")


def test_a_consumer_that_fails_ends_the_thread():
    with pytest.raises(RuntimeError, match="enough"):
        for _ in prefetched(iter(int, 1)):
            raise RuntimeError("enough")
    deadline = time.monotonic() + 60
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()


@pytest.mark.parametrize(("how", "expected"), [("clip", [0, 0, 9, 9, 9, 3]), ("hash", [0, 9, 9, 0, 7, 3])])
def test_ids_out_of_range_are_mapped_and_counted_once(how, expected):
    ids = [np.array([0, -1, 9, 10, 127, 3], np.int8), np.zeros(6, np.int16), np.zeros(6, np.int8)]
    reader = batch_reader(MemorySplit(6, ids), 8, num_rows=(10, 300, 7), out_of_range=how)
    batch = reader.read(0)
    assert batch.ids[0].tolist() == [*expected, 3, 3]
    assert batch.out_of_range == reader.out_of_range == 3  # -1, 10 and 127; padding repeats 3


def test_several_workers_count_every_id_once():
    ids = [np.array([0, 20, 9, 10, 127, 3, 30], np.int8), np.full(7, 300, np.int16), np.zeros(7, np.int8)]
    workers = [
        {"features": (0,), "local_features": (1,)},
        {"features": (0, 2), "local_features": (1,), "uncounted": (0,)},  # the tables of feature 0 are cut by columns
    ]
    options = {"num_workers": 2, "out_of_range": "clip", "num_rows": (10, 300, 7)}
    readers = [batch_reader(MemorySplit(7, ids), 4, rank=rank, **options, **features) for rank, features in enumerate(workers)]
    for reader in readers:
        for _ in reader.epoch():
            pass
    assert sum(reader.out_of_range for reader in readers) == 4 + 7


def test_an_error_names_the_file_and_the_row_of_the_whole_file():
    ids = [np.zeros(9, np.int16), np.array([0, 0, 0, 0, 0, 0, 300, 0, 0], np.int16), np.zeros(9, np.int8)]
    train, valid = hold_out(MemorySplit(9, ids), 0.4)
    assert (train.num_samples, valid.num_samples, valid.name) == (5, 4, "valid")
    with pytest.raises(DatasetError, match=r"^cat_1.bin: feature cat_1, row 6: id 300 is not in \[0, 300\); .*--out_of_range clip or hash"):
        batch_reader(valid, 4).read(0)
    assert batch_reader(train, 5).read(0).numerical[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_nothing_held_out_or_nothing_left_is_an_error(fraction):
    with pytest.raises(DatasetError, match=f"--valid_fraction {fraction}: "):
        hold_out(MemorySplit(10), fraction)
