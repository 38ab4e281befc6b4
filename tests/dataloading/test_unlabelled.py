"""Splits without labels, which are for prediction only, and keys: columns that predictions carry."""

import os

import numpy as np
import polars as pl
import pytest
import yaml
from numpy.testing import assert_array_equal

from dataloading import transcribe, validate
from dataloading.contract import check_quick
from dataloading.feature_spec import FeatureSpec, FeatureSpecError
from dataloading.features import DatasetError
from dataloading.keys import KEYS, check_keys, read_keys
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from tests.dataloading.make_data import random_groups, random_rows, rich_spec, small_spec, write_dataset
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml, spec_in
from tests.helpers.folders import tree
from utils.errors import UserError

ROWS = {"train": 50, "test": 20, "today": 30}


def write(folder, spec, unlabelled=("today",)):
    """Write a dataset whose split `today` has no labels; return its specification as read from the file."""
    with TfRawWriter(folder, spec, tuple(ROWS), unlabelled=unlabelled) as writer:
        for seed, (split, count) in enumerate(ROWS.items()):
            numerical, ids, labels = random_rows(spec, count, seed)
            writer.append(split, numerical, ids, None if split in unlabelled else labels, random_groups(spec, count, seed))
        writer.publish({})
    return spec_in(folder)


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path / "d", small_spec())
    return tmp_path / "d"


def put_keys(folder, split, rows, **columns):
    columns = columns or {"user": [f"u{row}" for row in range(rows)], "item": list(range(rows))}
    pl.DataFrame(columns).write_parquet(folder / split / KEYS)


@pytest.mark.parametrize("spec", [small_spec(), rich_spec()], ids=["one id", "lists and a group"])
def test_a_split_without_labels_is_written_and_read(tmp_path, spec):
    stored = write(tmp_path / "d", spec)
    assert not (tmp_path / "d" / "today" / "label.bin").exists()
    assert check_quick(stored, tuple(ROWS)) == ROWS
    split = TfRawSplit(stored, "today")
    numerical, ids, _ = random_rows(spec, 30, seed=2)
    assert not split.labelled and TfRawSplit(stored, "train").labelled and split.file("label") == ""
    assert_array_equal(split.read_numerical(3, 30), numerical[3:])
    assert_array_equal(split.read_ids(1, 0, 30), ids[1])
    labels = split.read_labels(5, 9)
    assert labels.dtype == np.uint8 and labels.tolist() == [0] * 4
    assert len({split.fingerprint(), TfRawSplit(stored, "train").fingerprint(), TfRawSplit(stored, "test").fingerprint()}) == 3
    split.close()


def test_labels_must_match_the_split(tmp_path):
    spec = small_spec()
    numerical, ids, labels = random_rows(spec, 5)
    with TfRawWriter(tmp_path / "d", spec, ("train", "today"), unlabelled=("today",)) as writer:
        with pytest.raises(ValueError, match="today: labels were given, but the split has no labels"):
            writer.append("today", numerical, ids, labels)
        with pytest.raises(ValueError, match="train: labels were not given, but the split has labels"):
            writer.append("train", numerical, ids, None)


def test_split_with_another_name_must_have_no_labels(dataset):
    def edited(change):
        content = read_yaml(dataset / "feature_spec.yaml")
        change(content["source_spec"])
        return FeatureSpec.from_dict(content)

    label = {"type": "split_binary", "features": ["label"], "files": ["today/label.bin"]}
    with pytest.raises(FeatureSpecError, match="split 'today' is not known, expected one of train, valid, test"):
        edited(lambda sources: sources["today"].append(label))
    with pytest.raises(FeatureSpecError, match=r"split '\.\./today' is not known"):
        edited(lambda sources: sources.update({"../today": sources.pop("today")}))
    assert not edited(lambda sources: sources.update(valid=sources.pop("today"))).labelled("valid")


def test_validate_scans_an_unlabelled_split_and_notes_it(dataset, capsys):
    assert do(validate, "--dataset_path", dataset) == 0
    out = capsys.readouterr().out
    assert "note: split today has no labels: it is for prediction only" in out and "today 30 samples" in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("today ")] == ["num_0", "num_1", "num_2", *(f"cat_{i}" for i in range(5))]
    (dataset / "today" / "cat_0.bin").write_bytes(bytes([5]) * 30)
    assert do(validate, "--dataset_path", dataset) == 1
    assert "today/cat_0.bin: feature cat_0, row 0: id 5 is not in [0, 5); 30 bad rows" in capsys.readouterr().err


def test_dataset_of_one_unlabelled_split_is_valid(tmp_path, capsys):
    spec = small_spec()
    with TfRawWriter(tmp_path / "d", spec, ("today",), unlabelled=("today",)) as writer:
        writer.append("today", *random_rows(spec, 4)[:2], None)
        writer.publish({})
    assert do(validate, "--dataset_path", tmp_path / "d") == 0
    assert "today 4 samples" in capsys.readouterr().out


def test_transcribe_keeps_unlabelled_splits_and_keys(tmp_path, capsys):
    source = tmp_path / "d"
    write(source, small_spec(), unlabelled=("test", "today"))
    put_keys(source, "test", 20)
    copy = ["--src_dataset_path", str(source), "--src_batch_size", "6"]
    assert do(transcribe, *copy, "--dst_dataset_path", tmp_path / "all") == 0
    old, new = tree(source), tree(tmp_path / "all")
    assert "test/keys.parquet" in old and "test/label.bin" not in old
    assert new == old
    assert do(validate, "--dataset_path", tmp_path / "all") == 0
    assert "today 30 samples" in capsys.readouterr().out
    assert do(transcribe, *copy, "--dst_dataset_path", tmp_path / "few", "--splits", "today,train") == 0
    few = tree(tmp_path / "few")
    assert set(few) == {name for name in old if not name.startswith("test")}
    assert list(spec_in(tmp_path / "few").sources) == ["train", "today"]
    assert do(transcribe, *copy, "--dst_dataset_path", tmp_path / "some", "--max_batches_test", "2") == 0
    some = spec_in(tmp_path / "some")
    assert check_quick(some, ("train", "test", "today")) == {"train": 50, "test": 12, "today": 12}
    assert read_keys(some, "test").equals(pl.read_parquet(source / "test" / KEYS).head(12))


def test_a_dataset_of_unlabelled_rows_alone_is_copied(tmp_path):
    with TfRawWriter(tmp_path / "d", small_spec(), ("today",), unlabelled=("today",)) as writer:
        writer.append("today", *random_rows(small_spec(), 9)[:2], None)
        writer.publish({})
    put_keys(tmp_path / "d", "today", 9)
    assert do(transcribe, "--src_dataset_path", tmp_path / "d", "--dst_dataset_path", tmp_path / "copy") == 0
    assert tree(tmp_path / "copy") == tree(tmp_path / "d")


@pytest.mark.parametrize("flags", [("--splits", "nope"), ("--splits", "train,train"), ("--splits", ""), ("--splits", "train", "--train_only")])
def test_invalid_splits_are_rejected(dataset, tmp_path, flags):
    with pytest.raises(UserError, match=r"--splits.*: expected (names of train, test, today, each once|one of them)"):
        do(transcribe, "--src_dataset_path", dataset, "--dst_dataset_path", tmp_path / "copy", *flags)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: put_keys(d, "test", 19), r"test/keys\.parquet: 19 rows, the split test has 20; expected a row of keys for each"),
        (lambda d: put_keys(d, "test", 20, score=range(20)), r"column score has the name of a column of the predictions; rename it"),
        (lambda d: (d / "test" / KEYS).write_bytes(b"PAR1 and no more"), r"keys\.parquet: cannot be read as Parquet"),
        (lambda d: os.mkfifo(d / "test" / KEYS), r"keys\.parquet: not a regular file"),
    ],
)
def test_invalid_keys_are_rejected(tmp_path, capsys, damage, message):
    spec = write_dataset(tmp_path / "d", small_spec())
    damage(tmp_path / "d")
    with pytest.raises(DatasetError, match=message):
        check_keys(spec, "test", 20)
    assert do(validate, "--dataset_path", tmp_path / "d") == 1
    assert "keys.parquet" in capsys.readouterr().err
    with pytest.raises(DatasetError, match=message):
        do(transcribe, "--src_dataset_path", tmp_path / "d", "--dst_dataset_path", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_csv_files_without_labels(tmp_path):
    spec = small_spec((5, 9), 1)
    content = spec.to_dict()
    features = ["cat_0", "cat_1", "num_0"]
    content["source_spec"] = {
        "train": [{"type": "csv", "features": [*features, "label"], "files": ["train.csv"]}],
        "test": [{"type": "csv", "features": features, "files": ["test.csv"]}],
    }
    (tmp_path / "feature_spec.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "train.csv").write_text("label,cat_0,cat_1,num_0\n1,4,8,0.5\n0,1,2,1.5\n")
    (tmp_path / "test.csv").write_text("cat_0,cat_1,num_0\n3,7,2.5\n")
    assert do(transcribe, "--src_dataset_type", "csv", "--src_dataset_path", tmp_path, "--dst_dataset_path", tmp_path / "d") == 0
    split = TfRawSplit(spec_in(tmp_path / "d"), "test")
    assert not split.labelled and split.read_ids(1, 0, 1).tolist() == [7] and split.read_numerical(0, 1).tolist() == [[2.5]]
    split.close()
