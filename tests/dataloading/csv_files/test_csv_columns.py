"""CSV cells that hold lists of ids, groups and float32 numericals."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dataloading import transcribe
from dataloading.features import DatasetError
from dataloading.tf_raw import TfRawSplit
from tests.dataloading.make_data import random_groups, random_rows, rich_spec
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in

SPEC = rich_spec(numerical_dtype="float32", group="int64")
HEADER = "label,session,cat_3,num_0,cat_0,num_1,cat_2,cat_1"


def cell(ids):
    return "|".join(str(value) for value in ids if value >= 0) if np.ndim(ids) else str(ids)


def lines(count, seed):
    numerical, ids, labels = random_rows(SPEC, count, seed)
    groups = random_groups(SPEC, count, seed)
    columns = {"label": labels, "session": groups, "num_0": numerical[:, 0], "num_1": numerical[:, 1]}
    columns |= {f"cat_{i}": column for i, column in enumerate(ids)}
    return [",".join(cell(columns[name][row]) for name in HEADER.split(",")) for row in range(count)]


def run(source, destination, *flags):
    return do(transcribe, "--src_dataset_type", "csv", "--src_dataset_path", source, "--dst_dataset_path", destination, *flags)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "csv"
    folder.mkdir()
    (folder / "feature_spec.yaml").write_text(SPEC.to_yaml())
    for split, count, seed in (("train", 90, 0), ("test", 20, 1)):
        (folder / f"{split}.csv").write_text("\n".join([HEADER, *lines(count, seed)]) + "\n")
    return folder


def left(column):
    """Move each list's ids to the front and its holes to the end, as CSV cells do."""
    return np.stack([np.concatenate([row[row >= 0], row[row < 0]]) for row in column]) if column.ndim > 1 else column


def test_rows_are_those_of_the_file(source, tmp_path):
    assert run(source, tmp_path / "d", "--src_batch_size", "7") == 0
    spec = spec_in(tmp_path / "d")
    assert (spec.categorical[1].table, spec.categorical[3].pooling, spec.numerical_dtype, spec.group) == ("shared", "mean", "float32", "session")
    split, (numerical, ids, labels) = TfRawSplit(spec, "train"), random_rows(SPEC, 90, 0)
    assert_array_equal(split.read_numerical(0, 90), numerical)
    assert_array_equal(split.read_labels(0, 90), labels)
    assert_array_equal(split.read_group(0, 90), random_groups(SPEC, 90, 0))
    for i, column in enumerate(ids):
        assert_array_equal(split.read_ids(i, 0, 90), left(column))
    split.close()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,7,1,0.5,1,0.5,1,1|2|3|4", r"line 92, feature cat_1: expected at most 3 whole numbers in \[0, 126\), separated by \|, found '1\|2\|3\|4'"),
        ("1,7,1,0.5,1,0.5,1,1|126", r"feature cat_1: .* found '1\|126'"),
        ("1,7,1,0.5,1,0.5,1,1|-1", r"feature cat_1: .* found '1\|-1'"),
        ("1,7,1,0.5,1,0.5,1,1||2", r"feature cat_1: .* found '1\|\|2'"),
        ("1,7,1,0.5,1,0.5,1,|", r"feature cat_1: .* found '\|'"),
        ("1,7,1,0.5,1,0.5,1,1.0", r"feature cat_1: .* found '1\.0'"),
        ("1,7,1,0.5,1,0.5,1,1;2", "feature cat_1: .* found '1;2'"),
        ("1,7,1,0.5,1,0.5,1,99999999999999999999", "feature cat_1: .* found '9999"),
        ("1,,1,0.5,1,0.5,1,1", "feature session: expected a whole number that int64 holds, found nothing"),
        ("1,9223372036854775808,1,0.5,1,0.5,1,1", "feature session: .* found '9223372036854775808'"),
        ("1,7,1,1e39,1,0.5,1,1", r"feature num_0: expected a finite number that float32 holds \(up to 3\.40282e\+38\), found '1e39'"),
        ("1,7,1,0.5,1,0.5,1", "line 92: 7 values, expected 8 columns"),  # Polars would fill it with an empty list
        ("1,7,1,0.5,,0.5,1,1", "feature cat_0: expected a whole number in .* found nothing"),
    ],
)
def test_bad_cells_are_named_by_line_feature_and_value(source, tmp_path, row, message):
    path = source / "train.csv"
    path.write_text(path.read_text() + row + "\n")
    with pytest.raises(DatasetError, match=message):
        run(source, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_lists_may_be_quoted_spaced_or_empty(source, tmp_path):
    (source / "train.csv").write_text(f'{HEADER}\n1,-9223372036854775808,"1| 2 |3",1e30,1,0.5,1, 4|4 \n0,3,,0.1,0,1,0,""\n')
    run(source, tmp_path / "d", "--train_only")
    split = TfRawSplit(spec_in(tmp_path / "d"), "train")
    assert split.read_ids(1, 0, 2).tolist() == [[4, 4, -1], [-1, -1, -1]]
    assert split.read_ids(3, 0, 2).tolist() == [[1, 2, 3] + 9 * [-1], 12 * [-1]]
    assert split.read_group(0, 2).tolist() == [-(2**63), 3]
    assert split.read_numerical(0, 2).tolist() == [[np.float32(1e30), 0.5], [np.float32(0.1), 1.0]]
    split.close()


def test_no_numericals_and_empty_lists_are_read(tmp_path):
    spec = rich_spec(num_numerical=0, group=None)
    (tmp_path / "feature_spec.yaml").write_text(spec.to_yaml())
    (tmp_path / "train.csv").write_text("label,cat_0,cat_1,cat_2,cat_3\n1,4,,5,\n0,3,,6,\n")
    run(tmp_path, tmp_path / "d", "--train_only")
    split = TfRawSplit(spec_in(tmp_path / "d"), "train")
    assert split.read_numerical(0, 2).shape == (2, 0) and split.read_ids(0, 0, 2).tolist() == [4, 3]
    assert (split.read_ids(3, 0, 2) == -1).all()
    split.close()
