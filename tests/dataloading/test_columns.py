"""Lists of ids, groups, float32 numericals and no numericals: the data read equals the data written, batch by batch and worker by worker."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dataloading import transcribe
from dataloading.contract import check_quick
from dataloading.feature_spec import Categorical
from dataloading.features import DatasetError
from dataloading.memory_split import MemorySplit
from dataloading.needed_memory import check_batch, check_shuffle
from dataloading.row_range import hold_out
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from tests.dataloading.make_data import random_groups, random_rows, rich_spec, write_dataset
from tests.dataloading.readers import batch_reader
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.folders import tree
from utils.config.data import DataConfig
from utils.errors import UserError

FORMS = {
    "lists": {},
    "no numericals": {"num_numerical": 0},
    "float32": {"numerical_dtype": "float32", "group": "int32"},
    "one numerical": {"num_numerical": 1, "group": None},
}


@pytest.fixture(params=FORMS)
def form(request):
    return rich_spec(**FORMS[request.param])


@pytest.fixture
def stored(form, tmp_path):
    write_dataset(tmp_path / "d", form, train=83, test=20)
    split = TfRawSplit(spec_in(tmp_path / "d"), "train")
    yield split
    split.close()


def test_rows_read_equal_rows_written(form, stored):
    numerical, ids, labels = random_rows(form, 83, 0)
    spec = stored.spec
    assert check_quick(spec, ("train", "test")) == {"train": 83, "test": 20}
    for start, stop in ((0, 83), (7, 8), (40, 71), (5, 5)):
        assert stored.read_numerical(start, stop).dtype == form.numerical_dtype
        assert_array_equal(stored.read_numerical(start, stop), numerical[start:stop])
        assert_array_equal(stored.read_labels(start, stop), labels[start:stop])
        for i, column in enumerate(ids):
            found = stored.read_ids(i, start, stop)
            assert (found.dtype.name, found.shape) == (spec.categorical[i].dtype, column[start:stop].shape)
            assert_array_equal(found, column[start:stop])
        if form.group is not None:
            found = stored.read_group(start, stop)
            assert found.dtype == form.group_dtype
            assert_array_equal(found, random_groups(form, 83, 0)[start:stop])


def test_files_are_plain_rows(form, tmp_path):
    write_dataset(tmp_path, form, train=5, test=2)
    numerical, ids, _ = random_rows(form, 5, 0)
    files = tree(tmp_path)
    assert files["train/cat_3.bin"] == ids[3].astype(np.int32).tobytes() and files["train/cat_1.bin"] == ids[1].astype(np.int8).tobytes()
    assert ("train/numerical.bin" in files) == bool(form.numerical) and files.get("train/numerical.bin", b"") == numerical.tobytes()
    assert ("train/group.bin" in files) == (form.group is not None)


def expected_ids(ids, features, start, stop, size):
    """Compute the ids row by row, as the contract defines them: h rows for a feature of hotness h, and the last sample repeated as padding."""
    rows = []
    for feature in features:
        column = ids[feature] if ids[feature].ndim > 1 else ids[feature][:, np.newaxis]
        for j in range(column.shape[1]):
            rows.append([int(column[min(sample, stop - 1), j]) for sample in range(start, start + size)])
    return np.array(rows, np.int32).reshape(len(rows), size)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("short_last", [False, True])
def test_batch_has_h_rows_per_feature_for_any_number_of_workers(form, stored, workers, short_last):
    numerical, ids, labels = random_rows(form, 83, 0)
    groups, batch_size = random_groups(form, 83, 0), 24
    options = {"features": [3, 0, 1], "local_features": [1, 2], "num_workers": workers, "short_last": short_last}
    readers = [batch_reader(stored, batch_size, rank=rank, **options) for rank in range(workers)]
    for number in range(4):
        parts = [reader.read(number) for reader in readers]
        start, stop = number * batch_size, min((number + 1) * batch_size, 83)
        size = len(parts[0].labels) * workers
        padded = np.minimum(np.arange(start, start + size), stop - 1)
        for part in parts:
            assert part.ids.dtype == np.int32
            assert_array_equal(part.ids, expected_ids(ids, (3, 0, 1), start, stop, size))
        assert_array_equal(np.concatenate([part.local_ids for part in parts], axis=1), expected_ids(ids, (1, 2), start, stop, size))
        assert_array_equal(np.concatenate([part.numerical for part in parts]), numerical[padded])
        assert_array_equal(np.concatenate([part.labels for part in parts]), labels[padded])
        assert parts[0].numerical.dtype == form.numerical_dtype and parts[0].numerical.shape[1] == len(form.numerical)
        if form.group is None:
            assert all(part.groups is None for part in parts)
        else:
            assert_array_equal(np.concatenate([part.groups for part in parts]), groups[padded])


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 70), local=st.integers(1, 9), workers=st.sampled_from([1, 2, 4]), window=st.integers(1, 4), held=st.booleans())
def test_shuffled_and_held_out_rows_keep_all_their_columns(n, local, workers, window, held):
    spec = rich_spec()
    source = Rows(spec, n)
    split = hold_out(source, 0.3)[0] if held and 0 < round(0.3 * n) < n else source
    readers = [batch_reader(split, local * workers, rank=rank, num_workers=workers, window=window, window_seed=3) for rank in range(workers)]
    seen = []
    for parts in zip(*(reader.epoch(1) for reader in readers), strict=True):
        rows = np.concatenate([part.groups for part in parts])
        seen += rows[np.concatenate([part.weights for part in parts]) == 1].tolist()
        assert_array_equal(parts[0].ids, np.concatenate([c[rows].reshape(len(rows), -1).T for c in source.columns]))
        assert_array_equal(np.concatenate([part.numerical for part in parts])[:, 0], rows.astype(np.float16))
    assert sorted(seen) == list(range(split.num_samples))


class Rows(MemorySplit):
    """Distinguishable rows: numerical feature 0 and the group are the row's number."""

    def __init__(self, spec, n):
        numerical, self.columns, _ = random_rows(spec, n)
        numerical[:, 0] = np.arange(n)
        super().__init__(spec.categorical, spec.numerical, numerical, self.columns)
        self.spec = spec

    def read_group(self, start, stop):
        return np.arange(start, stop)


def test_samples_in_memory_give_the_batches_of_stored_ones():
    spec = rich_spec(numerical_dtype="float32", group=None)
    numerical, ids, _ = random_rows(spec, 10)
    split = MemorySplit(spec.categorical, spec.numerical, numerical, ids, "float32")
    batch = batch_reader(split, 4).read(2)
    assert_array_equal(batch.ids, expected_ids(ids, range(4), 8, 10, 4))
    assert batch.numerical.dtype == np.float32 and batch.groups is None
    other = MemorySplit(spec.categorical, spec.numerical, numerical, [*ids[:3], ids[3][:, ::-1].copy()], "float32")
    assert other.fingerprint() != split.fingerprint()
    plain = MemorySplit({"a": 5}, (), np.empty((3, 0), np.float16), np.array([[1, 2, 3]], np.int32))
    assert plain.spec.categorical == (Categorical("a", 5, "int32"),)
    assert batch_reader(plain, 3).read(0).ids.tolist() == [[1, 2, 3]]


def lists(values, dtype=np.int8):
    """Make a split of one feature with the given lists."""
    column = np.array(values, dtype)
    return MemorySplit([Categorical("user", 10, "int8", hotness=column.shape[1])], (), np.empty((len(column), 0), np.float16), [column])


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
@pytest.mark.parametrize("bad", [10, 127, -2, -128])
def test_an_id_out_of_range_is_named_by_row_and_place(bad, dtype):
    split = lists([[0, -1], [-1, -1], [9, 0], [3, bad]], dtype)
    batch_reader(split, 3).read(0)
    with pytest.raises(DatasetError, match=rf"feature user, row 3, place 1 of its list: id {bad} is not in \[0, 10\); .*--out_of_range clip or hash"):
        batch_reader(split, 4).read(0)


@pytest.mark.parametrize(("how", "expected"), [("clip", [0, -1, 9, 9, 0, -1, 9]), ("hash", [0, -1, 0, 9, 8, -1, 7])])
def test_ids_out_of_range_are_mapped_and_padding_stays(how, expected):
    split = lists([[0, -1], [10, 9], [-2, -1], [127, 3]])
    reader = batch_reader(split, 5, out_of_range=how)
    batch = reader.read(0)
    assert batch.ids.T.reshape(-1).tolist() == [*expected, 3, expected[-1], 3]
    assert batch.out_of_range == reader.out_of_range == 3  # 10, -2 and 127; padding repeats the last row


def test_hashing_keeps_padding():
    batch = batch_reader(lists([[5, -1, 9], [-1, -1, -1]]), 2, num_rows=(4,), out_of_range="hash").read(0)
    assert batch.ids.T.tolist() == [[1, -1, 1], [-1, -1, -1]] and batch.out_of_range == 2


def test_missing_id_of_a_feature_without_lists_is_an_error():
    split = MemorySplit({"user": 10}, (), np.empty((2, 0), np.float16), np.array([[3, -1]], np.int32))
    with pytest.raises(DatasetError, match=r"feature user, row 1: id -1 is not in \[0, 10\)"):
        batch_reader(split, 2).read(0)


def test_copy_has_the_same_files(form, tmp_path):
    write_dataset(tmp_path / "a", form, train=50, test=20, metadata={"from": "here"})
    assert do(transcribe, "--src_dataset_path", tmp_path / "a", "--dst_dataset_path", tmp_path / "b", "--src_batch_size", "12") == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_bad_list_is_not_copied(tmp_path):
    write_dataset(tmp_path / "a", rich_spec(), train=50, test=20)
    column = np.fromfile(tmp_path / "a" / "train" / "cat_3.bin", np.int32)
    column[12 * 30 + 7] = 40_000
    column.tofile(tmp_path / "a" / "train" / "cat_3.bin")
    with pytest.raises(DatasetError, match=r"train/cat_3\.bin: feature cat_3, row 30, place 7 of its list: id 40000 is not in \[0, 40000\)"):
        do(transcribe, "--src_dataset_path", tmp_path / "a", "--dst_dataset_path", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_uneven_columns_are_not_published(tmp_path):
    spec = rich_spec()
    numerical, ids, labels = random_rows(spec, 6)
    with pytest.raises(DatasetError, match=r"group\.bin: 5 samples, the other files of train hold 6"), TfRawWriter(tmp_path / "d", spec) as writer:
        writer.append("train", numerical, ids, labels, np.arange(5))
        writer.publish({})
    with (
        pytest.raises(DatasetError, match=r"cat_3\.bin: .* bytes, not a whole number of samples of 48 bytes"),
        TfRawWriter(tmp_path / "d", spec) as writer,
    ):
        writer.append("train", numerical, [*ids[:3], ids[3][:, :5]], labels, np.arange(6))
        writer.publish({})


def test_lists_count_towards_the_needed_memory():
    spec = rich_spec()  # 17 ids, 2 numericals of 2 bytes, a label, a group of 8 bytes, a weight of 4
    row = 4 * 17 + 2 * 2 + 1 + 8 + 4
    check_batch("batch_size", 100, spec, 100 * row)
    with pytest.raises(UserError, match="--batch_size 100"):
        check_batch("batch_size", 100, spec, 100 * row - 1)
    split, config = Rows(spec, 1000), DataConfig(dataset_type="synthetic", batch_size=10, shuffle_window=4)
    needed = 40 * (1 + 3 + 1 + 4 * 12 + 2 * (8 + 4 + 1 + 8))  # bytes of ids once, everything else on both workers
    check_shuffle(config, split, 2, needed)
    with pytest.raises(UserError, match="--shuffle_window 4"):
        check_shuffle(config, split, 2, needed - 1)
