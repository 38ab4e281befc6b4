"""tf_raw: the data read equals the data written; a dataset is either complete or absent."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dataloading.contract import bytes_per_sample, check_quick, split_files
from dataloading.features import DatasetError
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from tests.dataloading.make_data import random_rows, small_spec, write_dataset
from tests.helpers.datasets import spec_in
from tests.helpers.folders import tree


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([1, 126, 127, 32766, 32767, 10**6]), min_size=1, max_size=4),
    st.integers(1, 3),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.data(),
)
def test_round_trip(tmp_path_factory, cardinalities, num_numerical, pieces, seed, data):
    folder, spec = tmp_path_factory.mktemp("data"), small_spec(cardinalities, num_numerical)
    count = sum(pieces)
    numerical, ids, labels = random_rows(spec, count, seed)
    with TfRawWriter(folder, spec) as writer:
        for split in ("train", "test"):
            start = 0
            for piece in pieces:
                rows = slice(start, start + piece)
                writer.append(split, numerical[rows], [column[rows] for column in ids], labels[rows])
                start += piece
        published = writer.publish({"seed": seed})

    spec = spec_in(folder)
    assert spec == published and spec.metadata == {"seed": seed}
    assert check_quick(spec, ("train", "test")) == {"train": count, "test": count}
    split = TfRawSplit(spec, "test")
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    assert_array_equal(split.read_numerical(start, stop), numerical[start:stop])
    assert_array_equal(split.read_labels(start, stop), labels[start:stop])
    for i, column in enumerate(ids):
        read = split.read_ids(i, start, stop)
        assert read.dtype.name == spec.categorical[i].dtype
        assert_array_equal(read, column[start:stop])
    split.close()


def test_bytes_per_sample():
    spec = small_spec().as_tf_raw(("train",))
    assert bytes_per_sample(spec) == {"cat_0": 1, "cat_1": 1, "cat_2": 2, "cat_3": 2, "cat_4": 4, "num_0": 6, "label": 1}


def test_file_truncated_after_the_start_is_an_error(tmp_path):
    spec = write_dataset(tmp_path / "d", small_spec())
    split = TfRawSplit(spec, "train")
    split.read_ids(4, 0, 10)
    os.truncate(split_files(spec, "train").categorical[4], 4 * 20)
    with pytest.raises(DatasetError, match=r"cat_4\.bin: holds 20 samples, expected at least 50"):
        split.read_ids(4, 0, 50)
    split.close()


def test_exception_leaves_no_files(tmp_path):
    spec = small_spec()
    with pytest.raises(KeyboardInterrupt), TfRawWriter(tmp_path / "new", spec) as writer:
        writer.append("train", *random_rows(spec, 5))
        raise KeyboardInterrupt
    assert not (tmp_path / "new").exists()

    (tmp_path / "old").mkdir()
    with pytest.raises(KeyboardInterrupt), TfRawWriter(tmp_path / "old", spec) as writer:
        raise KeyboardInterrupt
    assert list((tmp_path / "old").iterdir()) == []


def test_exception_keeps_the_old_dataset(tmp_path):
    spec = small_spec()
    write_dataset(tmp_path / "d", spec)
    before = tree(tmp_path / "d")
    with pytest.raises(KeyboardInterrupt), TfRawWriter(tmp_path / "d", spec, overwrite=True) as writer:
        writer.append("train", *random_rows(spec, 5))
        raise KeyboardInterrupt
    assert tree(tmp_path / "d") == before


def test_publish_refuses_empty_and_uneven_splits(tmp_path):
    spec = small_spec()
    with pytest.raises(DatasetError, match="split test is empty"), TfRawWriter(tmp_path / "d", spec) as writer:
        writer.append("train", *random_rows(spec, 5))
        writer.publish({})
    numerical, ids, labels = random_rows(spec, 5)
    with pytest.raises(DatasetError, match="4 samples, the other files of train hold 5"), TfRawWriter(tmp_path / "d", spec) as writer:
        writer.append("train", numerical, ids, labels[:4])
        writer.publish({})
    assert not (tmp_path / "d").exists()


def test_second_of_two_concurrent_runs_replaces_nothing(tmp_path):
    spec, first = small_spec(), TfRawWriter(tmp_path / "d", small_spec())
    with pytest.raises(DatasetError, match="holds a dataset already"), TfRawWriter(tmp_path / "d", spec) as second:
        for writer, seed in ((first, 0), (second, 1)):
            for split in ("train", "test"):
                writer.append(split, *random_rows(spec, 5, seed))
        with first:
            first.publish({})
        before = tree(tmp_path / "d")
        second.publish({})
    assert tree(tmp_path / "d") == {name: content for name, content in before.items() if not name.startswith(".")}


def test_overwrite_rules(tmp_path):
    spec = small_spec()
    write_dataset(tmp_path / "d", spec)
    with pytest.raises(DatasetError, match="holds a dataset already"):
        TfRawWriter(tmp_path / "d", spec)
    (tmp_path / "mine" / "train").mkdir(parents=True)
    (tmp_path / "mine" / "train" / "notes.txt").write_text("keep me")
    with pytest.raises(DatasetError, match="exists and would be replaced"):
        TfRawWriter(tmp_path / "mine", spec)
    assert (tmp_path / "mine" / "train" / "notes.txt").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="is a file"):
        TfRawWriter(tmp_path / "file", spec)
    with TfRawWriter(tmp_path / "d", spec, overwrite=True) as writer:
        for split in ("train", "test"):
            writer.append(split, *random_rows(spec, 3))
        writer.publish({})
    assert check_quick(spec_in(tmp_path / "d"), ("train", "test")) == {"train": 3, "test": 3}
