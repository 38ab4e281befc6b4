"""Small batches, which are read together: an epoch's batches equal those that are read one by one, and errors come with their batch."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batches import SPEC, MemorySplit
from test_columns import FORMS, Rows, rich_spec
from test_id_weights import drawn, spec_of, split_of

from dataloading.features import DatasetError
from dataloading.row_range import hold_out
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from tests.dataloading.make_data import write_dataset
from tests.dataloading.readers import batch_reader
from tests.helpers.datasets import spec_in

SHARES = {"n": st.integers(1, 300), "local": st.integers(1, 12), "workers": st.sampled_from([1, 2, 4]), "first": st.integers(0, 3)}
ORDERS = {"window": st.none() | st.integers(1, 5), "seed": st.none() | st.integers(0, 2**32)}


def check_same(one, other):
    for name, got, expected in zip(one._fields, one, other, strict=True):
        assert getattr(got, "dtype", None) == getattr(expected, "dtype", None), name
        np.testing.assert_array_equal(got, expected, name)


@settings(max_examples=60, deadline=None)
@given(**SHARES, **ORDERS, held=st.booleans())
def test_an_epochs_batches_are_those_read_one_by_one(n, local, workers, first, window, seed, held):
    source = Rows(rich_spec(), n)
    split = hold_out(source, 0.3)[1] if held and 0 < round(0.3 * n) < n else source
    options = {"features": [3, 0, 1], "local_features": [1, 2], "num_workers": workers, "window": window, "window_seed": 3, "shuffle_seed": seed}
    for rank in range(workers):
        reader, other = (batch_reader(split, local * workers, rank=rank, **options) for _ in range(2))
        found = list(reader.epoch(2, first))
        assert len(found) == max(len(reader) - first, 0)
        for number, batch in zip(other.order(2, first), found, strict=True):
            check_same(batch, other.read(number, 2))


def check_epoch(split, rows):
    for workers in (1, 2):
        for rank in range(workers):
            share = {"features": [2, 0], "local_features": [1], "num_workers": workers, "rank": rank}
            reader, alone = batch_reader(split, 8, **share), batch_reader(split, 8, **share)
            batches = list(reader.epoch())
            assert len(batches) == -(-rows // 8)
            for number, batch in enumerate(batches):
                check_same(batch, alone.read(number))


@pytest.mark.parametrize("form", FORMS)
def test_stored_batches_of_every_form_are_those_read_one_by_one(form, tmp_path):
    write_dataset(tmp_path, rich_spec(**FORMS[form]), train=83)
    check_epoch(TfRawSplit(spec_in(tmp_path), "train"), 83)


def test_batches_with_weights_of_ids_are_those_read_one_by_one(tmp_path):
    with TfRawWriter(tmp_path, spec_of(), ("train",)) as writer:
        writer.append("train", np.ones((83, 1), np.float16), drawn(83), np.arange(83) % 2)
        writer.publish({})
    check_epoch(split_of(tmp_path), 83)


def test_small_batches_are_read_together_and_large_ones_alone():
    for size, reads in ((2, 1), (1024, 3), (2048, 5)):
        split, read = MemorySplit(5 * size), []
        split.read_labels, plain = lambda start, stop, read=read, split=split: read.append((start, stop)) or split.labels[start:stop], split.labels
        assert np.array_equal(np.concatenate([batch.labels for batch in batch_reader(split, size).epoch()]), plain)
        assert len(read) == reads and read[-1][1] == 5 * size


@pytest.mark.parametrize("window", [None, 4])
def test_an_error_comes_with_its_batch(window):
    split = MemorySplit(100)
    split.ids[1][57] = 300
    reader, seen = batch_reader(split, 10, window=window), 0
    with pytest.raises(DatasetError, match=r"row 57: id 300 is not in \[0, 300\)"):
        for _ in reader.epoch():
            seen += 1
    assert seen == 5 if window is None else seen in range(4, 8)


@pytest.mark.parametrize("column", ["label", "numerical"])
def test_other_values_are_checked_too(column):
    split = MemorySplit(100)
    if column == "label":
        split.labels[42] = 7
    else:
        split.numerical[42, 1] = np.nan
    seen = 0
    with pytest.raises(DatasetError, match="row 42"):
        for _ in batch_reader(split, 10).epoch():
            seen += 1
    assert seen == 4


def test_a_group_file_that_was_cut_is_an_error_of_its_batch(tmp_path):
    write_dataset(tmp_path, rich_spec(), train=83)
    split, seen = TfRawSplit(spec_in(tmp_path), "train"), 0
    os.truncate(tmp_path / "train" / "group.bin", 8 * 45)
    with pytest.raises(DatasetError, match=r"group\.bin: holds 45 samples, expected at least 48"):
        for _ in batch_reader(split, 8).epoch():
            seen += 1
    assert seen == 5


def test_kept_columns_of_a_worker_hold_its_own_rows_only():
    split = Rows(rich_spec(), 4096)
    for batch in batch_reader(split, 1024, num_workers=4, rank=1, features=[0], local_features=[1]).epoch():
        for kept in (batch.labels, batch.groups, batch.numerical, batch.local_ids):
            whole = kept if kept.base is None else kept.base  # of the two batches that were read together
            assert whole.nbytes <= 2 * kept.nbytes


@pytest.mark.parametrize("policy", ["clip", "hash"])
@pytest.mark.parametrize("workers", [1, 2])
def test_ids_out_of_range_are_counted_with_their_batch(policy, workers):
    split = MemorySplit(100)
    split.ids[1][[57, 58, 91]] = 1000
    counts = np.zeros(10, int)
    for rank in range(workers):
        features = {"features": [0, 2], "local_features": [1]} if workers > 1 else {}
        reader, alone = (batch_reader(split, 10, out_of_range=policy, rank=rank, num_workers=workers, **features) for _ in range(2))
        for number, batch in enumerate(reader.epoch()):
            check_same(batch, alone.read(number))
            counts[number] += batch.out_of_range
        assert reader.out_of_range == alone.out_of_range
    assert counts.tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 0, 1] and len(SPEC.categorical) == 3
