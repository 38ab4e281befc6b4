"""A feature specification is not trusted: it may name files of its own dataset only. Links in the dataset are the user's own, and are followed."""

import os
import shutil

import pytest

from dataloading import transcribe, validate
from dataloading.contract import check_quick
from dataloading.feature_spec import FeatureSpec, FeatureSpecError
from tests.dataloading.make_data import small_spec, write_dataset
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in


@pytest.fixture
def dataset(tmp_path):
    write_dataset(tmp_path / "d", small_spec())
    shutil.copy(tmp_path / "d/train/cat_0.bin", tmp_path / "secret.bin")
    return tmp_path / "d"


def renamed(dataset, file):
    path = dataset / "feature_spec.yaml"
    text = path.read_text()
    assert "train/cat_0.bin" in text
    path.write_text(text.replace("train/cat_0.bin", file, 1))


@pytest.mark.parametrize("file", ["../secret.bin", "train/../../secret.bin", "{}/secret.bin"], ids=["beside", "through a folder", "absolute"])
def test_file_outside_the_dataset_is_rejected_by_every_command(dataset, file):
    renamed(dataset, file.format(dataset.parent))
    with pytest.raises(FeatureSpecError, match="is outside the dataset, expected a path below the specification's folder"):
        spec_in(dataset)
    with pytest.raises(FeatureSpecError, match="is outside the dataset"):
        do(validate, "--dataset_path", dataset)
    words = ["--src_dataset_path", dataset, "--dst_dataset_path", dataset.parent / "copy"]
    with pytest.raises(FeatureSpecError, match="is outside the dataset"):
        do(transcribe, *words)
    assert not (dataset.parent / "copy").exists()


@pytest.mark.parametrize("name", ["../../secret", "/secret"])
def test_feature_name_leading_outside_is_rejected(dataset, name):
    path = dataset / "feature_spec.yaml"
    path.write_text(path.read_text().replace("cat_0:", f"{name}:").replace("- cat_0\n", f"- {name}\n"))
    with pytest.raises(FeatureSpecError, match="leads outside the dataset"):
        FeatureSpec.from_yaml(path)


def test_symbolic_link_to_outside_is_followed(dataset):
    """A user may link a large file from another disk."""
    file = dataset / "train/cat_0.bin"
    file.unlink()
    os.symlink(dataset.parent / "secret.bin", file)
    assert check_quick(spec_in(dataset), ("train",))["train"] > 0


def test_dots_within_a_file_name_are_accepted(dataset):
    file = dataset / "train/cat_0.bin"
    file.rename(file.with_name("..cat..0.bin"))
    renamed(dataset, "train/..cat..0.bin")
    assert check_quick(spec_in(dataset), ("train",))["train"] > 0
