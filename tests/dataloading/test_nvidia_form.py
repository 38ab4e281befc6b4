"""A dataset in the form of NVIDIA's preprocessing: written here with NumPy alone, read by this project."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dataloading import transcribe, validate
from dataloading.contract import check_quick
from dataloading.tf_raw import TfRawSplit
from tests.dataloading.make_data import rich_spec, small_spec, weighted, write_dataset
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml, spec_in
from tests.helpers.folders import tree

ROWS = {"train": 101, "test": 23}


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "nvidia"
    draw = np.random.default_rng(0)
    columns = {}
    for split, rows in ROWS.items():
        (folder / split).mkdir(parents=True)
        columns[split] = {
            "label": draw.integers(0, 2, rows).astype(bool),
            "numerical": draw.standard_normal((rows, 2)).astype(np.float16),
            "cat_0": draw.integers(0, 100, rows).astype(np.int8),
            "cat_1": draw.integers(0, 3000, rows).astype(np.int16),
            "cat_2": draw.integers(0, 500_000, rows).astype(np.int32),
        }
        for name, column in columns[split].items():
            column.tofile(folder / split / f"{name}.bin")
    shutil.copy(Path(__file__).with_name("nvidia_feature_spec.yaml"), folder / "feature_spec.yaml")
    return folder, columns


def test_dataset_loads(dataset):
    folder, columns = dataset
    spec = spec_in(folder)
    assert check_quick(spec, ("train", "test")) == ROWS
    assert [feature.name for feature in spec.categorical] == ["cat_0.bin", "cat_1.bin", "cat_2.bin"]
    for name, rows in ROWS.items():
        split = TfRawSplit(spec, name)
        assert_array_equal(split.read_labels(0, rows), columns[name]["label"])
        assert_array_equal(split.read_numerical(5, rows), columns[name]["numerical"][5:])
        for i in range(3):
            assert_array_equal(split.read_ids(i, 0, rows), columns[name][f"cat_{i}"])
        split.close()


def test_dataset_validates(dataset, capsys):
    assert do(validate, "--dataset_path", dataset[0]) == 0
    assert "sound" in capsys.readouterr().out


def test_dataset_transcribes_to_the_same_files_and_names(dataset, tmp_path):
    folder, _ = dataset
    assert do(transcribe, "--src_dataset_path", folder, "--dst_dataset_path", tmp_path / "copy", "--src_batch_size", "10") == 0
    old, new = tree(folder), tree(tmp_path / "copy")
    assert old.keys() == new.keys()
    assert all(old[name] == new[name] for name in old if name.endswith(".bin"))
    old_spec, new_spec = (spec_in(path) for path in (folder, tmp_path / "copy"))
    assert new_spec.categorical == old_spec.categorical and new_spec.numerical == old_spec.numerical


def refused_by_nvidias_reader(folder):
    """Return whether NVIDIA's reader stops at a specification: at its start it asserts that there are exactly these channels and no other feature."""
    content = read_yaml(folder / "feature_spec.yaml")
    channels, known = content["channel_spec"], ("categorical", "numerical", "label")
    return sorted(channels) != sorted(known) or {*content["feature_spec"]} != {name for channel in known for name in channels[channel]}


def test_nvidias_reader_refuses_what_it_would_not_read(tmp_path):
    """A dataset with a weight or a group of each row is an error there; without the weights every row would count once."""
    for name, spec in {"plain": small_spec(), "weight": weighted(small_spec()), "group": rich_spec((1, 1, 1, 1))}.items():
        write_dataset(tmp_path / name, spec, 5, 5)
        assert refused_by_nvidias_reader(tmp_path / name) == (name != "plain")
