"""`write_dataset`: a dataset with the same parameters is kept, another one is an error that names the difference."""

import pytest

from dataloading.feature_spec import generator_spec
from dataloading.synthetic.dataset import SyntheticDataset, difference, write_dataset
from tests.dataloading.make_data import small_spec
from tests.helpers.folders import tree
from utils.errors import UserError


def dataset(rows=90, seed=3, spec=None):
    return SyntheticDataset(small_spec() if spec is None else spec, {"train": rows, "test": 40}, seed)


def test_dataset_with_the_same_parameters_is_kept(tmp_path):
    assert write_dataset(tmp_path / "d", dataset(), keep=True)
    before = tree(tmp_path / "d")
    assert not write_dataset(tmp_path / "d", dataset(), keep=True) and not difference(tmp_path / "d", dataset())
    assert tree(tmp_path / "d") == before


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (dataset(seed=4), "seed 3, expected 4"),
        (dataset(rows=91), "rows train 90, test 40, expected train 91, test 40"),
        (dataset(spec=generator_spec((7, 8), 3, 1.2)), r"table sizes \[.*\], expected \[7, 8\]"),
        (dataset(spec=generator_spec(small_spec().cardinalities, 1, 1.2)), "numerical features 3, expected 1"),
        (dataset(spec=generator_spec(small_spec().cardinalities, 3, 0.5)), "alpha 1.2, expected 0.5"),
    ],
    ids=["seed", "rows", "tables", "numericals", "alpha"],
)
def test_dataset_with_other_parameters_is_an_error_that_names_the_difference(tmp_path, other, message):
    write_dataset(tmp_path / "d", dataset(spec=generator_spec(small_spec().cardinalities, 3, 1.2)))
    before = tree(tmp_path / "d")
    with pytest.raises(UserError, match=f"holds another dataset: {message}; choose another folder") as caught:
        write_dataset(tmp_path / "d", other, keep=True)
    assert "\n" not in str(caught.value) and tree(tmp_path / "d") == before


def test_dataset_of_another_origin_or_damaged_is_an_error(tmp_path):
    write_dataset(tmp_path / "d", dataset())
    labels = tmp_path / "d/train/label.bin"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"train/label\.bin: 89 samples, the other files of train hold 90"):
        write_dataset(tmp_path / "d", dataset(), keep=True)
    spec = tmp_path / "d/feature_spec.yaml"
    labels.write_bytes(bytes(90))
    spec.write_text(spec.read_text().partition("metadata:")[0])
    with pytest.raises(UserError, match="does not name a generator, so its rows were not drawn by this program"):
        write_dataset(tmp_path / "d", dataset(), keep=True)


def test_folder_of_other_files_is_not_written_to(tmp_path):
    (tmp_path / "d/train").mkdir(parents=True)
    (tmp_path / "d/train/mine.txt").touch()
    with pytest.raises(UserError, match=r"d/train: exists, and .*/d holds no dataset; choose another folder \(--synthetic_dataset_dir\)"):
        write_dataset(tmp_path / "d", dataset(), keep=True)
    with pytest.raises(UserError, match=r"d/train exists and would be replaced; choose another folder or pass --overwrite"):
        write_dataset(tmp_path / "d", dataset())
    assert [path.name for path in (tmp_path / "d").rglob("*")] == ["train", "mine.txt"]
