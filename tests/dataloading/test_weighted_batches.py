"""Batches of rows with weights: any number of workers makes the same batch, and for training a row of weight 0 has the ids of another one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dataloading.features import DatasetError
from dataloading.memory_split import MemorySplit
from dataloading.row_range import hold_out
from tests.dataloading.make_data import random_rows, rich_spec, weighted
from tests.dataloading.readers import batch_reader

SPEC = weighted(rich_spec())
SIZES = {"n": st.integers(1, 70), "local": st.integers(1, 9), "seed": st.integers(0, 50)}


class Rows(MemorySplit):
    """Rows of which the group is the row's number; two in five have weight 0, the others 1 to 5, unless `weights` are given."""

    def __init__(self, n, seed=0, weights=None, spread=0):
        numerical, ids, self._labels = random_rows(SPEC, n, seed)
        draw = np.random.default_rng([seed, 3])
        for column in ids if spread else ():
            there = column >= 0
            column[there] += draw.integers(0, spread, there.sum()).astype(np.int32)
        super().__init__(SPEC.categorical, SPEC.numerical, numerical, ids)
        self.spec, self.columns, self.labelled = SPEC, ids, True
        drawn = np.where(draw.random(n) < 0.4, 0, 1 + 4 * draw.random(n))
        self.weights = np.asarray(drawn if weights is None else weights, np.float32)

    def read_labels(self, start, stop):
        return self._labels[start:stop]

    def read_group(self, start, stop):
        return np.arange(start, stop)

    def read_weights(self, start, stop):
        return self.weights[start:stop]

    def file(self, feature, row=0):
        return f"{feature}.bin"


def others(weights, start, stop):
    """Return, for each row of a batch, the row whose ids it has in training, by the rule: itself, else the nearest before, else the first of all."""
    with_weight = [row for row in range(start, stop) if weights[row] > 0]
    if not with_weight:
        return list(range(start, stop))
    return [max((other for other in with_weight if other <= row), default=with_weight[0]) for row in range(start, stop)]


def ids_of(split, features, rows):
    return np.concatenate([split.columns[feature][rows].reshape(len(rows), -1).T for feature in features])


def readers(split, batch_size, workers, **options):
    return [batch_reader(split, batch_size, rank=rank, num_workers=workers, **options) for rank in range(workers)]


def joined(parts, name):
    return np.concatenate([getattr(part, name) for part in parts], axis=1 if name == "local_ids" else 0)


@settings(max_examples=40, deadline=None)
@given(**SIZES, workers=st.sampled_from([1, 2, 4]), training=st.booleans(), short_last=st.booleans())
def test_batches_follow_the_rule_row_by_row(n, local, seed, workers, training, short_last):
    split, batch_size = Rows(n, seed), local * workers
    options = {"features": [3, 1], "local_features": [0, 2], "for_training": training, "short_last": short_last}
    for number, parts in enumerate(zip(*(reader.epoch() for reader in readers(split, batch_size, workers, **options)), strict=True)):
        start, stop = number * batch_size, min((number + 1) * batch_size, n)
        size = len(parts[0].labels) * workers
        rows = others(split.weights, start, stop) if training else list(range(start, stop))
        rows += [rows[-1]] * (size - len(rows))
        for part in parts:
            assert_array_equal(part.ids, ids_of(split, (3, 1), rows))
            assert (part.num_samples, part.total_weight) == (stop - start, math.fsum(split.weights[start:stop]))
        assert_array_equal(joined(parts, "local_ids"), ids_of(split, (0, 2), rows))
        assert_array_equal(joined(parts, "weights"), [*split.weights[start:stop], *[0] * (size - stop + start)])
        assert_array_equal(joined(parts, "groups")[: stop - start], range(start, stop))
        assert_array_equal(joined(parts, "labels")[: stop - start], split.read_labels(start, stop))


@settings(max_examples=30, deadline=None)
@given(**SIZES, window=st.integers(1, 4), training=st.booleans(), held=st.booleans())
def test_any_number_of_workers_makes_the_same_shuffled_batches_of_whole_rows(n, local, seed, window, training, held):
    whole = Rows(n, seed)
    split = hold_out(whole, 0.3)[0] if held and 0 < round(0.3 * n) < n else whole
    options = {"window": window, "window_seed": 3, "shuffle_seed": seed, "for_training": training, "local_features": [0, 1, 2, 3]}
    seen, epochs = [], [zip(*(one.epoch(1) for one in readers(split, 4 * local, workers, **options)), strict=True) for workers in (1, 2, 4)]
    for (one,), two, four in zip(*epochs, strict=True):
        real = one.num_samples
        rows = one.groups[:real]
        seen += rows.tolist()
        assert_array_equal(one.weights[:real], whole.weights[rows])
        assert not one.weights[real:].any() and one.total_weight == math.fsum(whole.weights[rows])
        places = np.array(others(one.weights, 0, real) if training else range(real))
        assert_array_equal(one.ids[:, :real], ids_of(whole, range(4), rows[places]))
        for parts in (two, four):
            for name in ("weights", "labels", "groups", "numerical", "local_ids"):
                assert_array_equal(joined(parts, name), getattr(one, name))
            for part in parts:
                assert_array_equal(part.ids, one.ids)
                assert (part.num_samples, part.total_weight) == (real, one.total_weight)
    assert sorted(seen) == list(range(split.num_samples))


@settings(max_examples=20, deadline=None)
@given(**SIZES, how=st.sampled_from(["clip", "hash"]), training=st.booleans(), window=st.sampled_from([None, 2]))
def test_ids_out_of_range_count_once_for_any_number_of_workers(n, local, seed, how, training, window):
    """Rows of weight 0 and their ids count, too; padding and the ids of other rows do not. Features 0 and 2 are read by each worker for its rows."""
    split = Rows(n, seed, spread=60)
    expected = sum(int((split.columns[i] >= feature.cardinality).sum()) for i, feature in enumerate(SPEC.categorical))
    for workers in (1, 2, 4):
        options = {"local_features": [0, 2], "out_of_range": how, "for_training": training, "window": window}
        found = [
            batch_reader(split, 4 * local, features=[1, 3] if rank == 0 else [], rank=rank, num_workers=workers, **options) for rank in range(workers)
        ]
        counts = [sum(batch.out_of_range for batch in reader.epoch()) for reader in found]
        assert sum(counts) == sum(reader.out_of_range for reader in found) == expected


def test_a_batch_without_any_weight_keeps_its_ids():
    split = Rows(6, weights=[0, 0, 0, 2, 0, 3])
    reader = batch_reader(split, 3, for_training=True)
    first, second = reader.read(0), reader.read(1)
    assert_array_equal(first.ids, ids_of(split, range(4), [0, 1, 2]))
    assert_array_equal(second.ids, ids_of(split, range(4), [3, 3, 5]))
    assert (first.total_weight, second.total_weight) == (0, 5) and first.weights.tolist() == [0, 0, 0]


def test_rows_before_the_first_weight_have_its_ids_and_padding_has_no_weight():
    split = Rows(5, weights=[0, 0, 2, 0, 4])
    (batch,) = batch_reader(split, 8, for_training=True).epoch()
    assert_array_equal(batch.ids, ids_of(split, range(4), [2, 2, 2, 2, 4, 4, 4, 4]))
    assert batch.weights.tolist() == [0, 0, 2, 0, 4, 0, 0, 0] and (batch.num_samples, batch.total_weight) == (5, 6)


def test_an_id_out_of_range_in_a_row_of_weight_0_is_still_an_error():
    split = Rows(4, weights=[1, 1, 0, 1])
    split.columns[0][2] = 5
    with pytest.raises(DatasetError, match=r"cat_0\.bin: feature cat_0, row 2: id 5 is not in \[0, 5\)"):
        batch_reader(split, 4, for_training=True).read(0)


@pytest.mark.parametrize("value", [-1, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"for_training": True}, {"num_workers": 2, "rank": 0}])
def test_a_value_that_is_no_weight_is_named_by_its_row_in_the_file(value, options):
    split = Rows(20, weights=np.ones(20))
    split.weights[17] = value
    reader = batch_reader(split, 10, **options)
    message = rf"importance\.bin: feature importance, row 17: weight {value:g} is not a finite number of at least 0"
    with pytest.raises(DatasetError, match=message):
        list(reader.epoch())


@pytest.mark.parametrize("labelled", [True, False])
def test_without_weights_or_labels_every_row_counts_once(labelled):
    split = Rows(5)
    split.labelled = labelled
    split.spec = rich_spec() if labelled else SPEC
    for training in (False, True):
        last = list(batch_reader(split, 4, for_training=training).epoch())[1]
        assert last.weights.tolist() == [1, 0, 0, 0] and last.total_weight is None
        assert_array_equal(last.ids, ids_of(split, range(4), [4] * 4))
