"""`validate` on lists of ids, groups, float32 numericals and datasets without numericals."""

import numpy as np
import pytest

from dataloading import scan, validate
from tests.dataloading.make_data import random_groups, random_rows, rich_spec, write_dataset
from tests.helpers.commands import do


def run(folder, *flags):
    return do(validate, "--dataset_path", folder, *flags)


@pytest.fixture
def dataset(tmp_path):
    write_dataset(tmp_path / "d", rich_spec(numerical_dtype="float32"), train=50, test=20)
    return tmp_path / "d"


def put(path, dtype, place, value):
    column = np.fromfile(path, dtype)
    column[place] = value
    column.tofile(path)


def test_statistics_of_lists_ignore_padding(dataset, capsys):
    assert run(dataset) == 0
    out, err = capsys.readouterr()
    spec = rich_spec(numerical_dtype="float32")
    _, ids, _ = random_rows(spec, 50, 0)
    lines = out.splitlines()
    assert err == "" and lines[-1].startswith("sound: ") and len(lines) == 1 + 2 * (4 + 2 + 1 + 1) + 2 * 2 + 1
    for i, h in ((1, 3), (3, 12)):
        known = ids[i][ids[i] >= 0]
        row = next(line.split() for line in lines if line.startswith(f"train  cat_{i} "))
        assert row[2:5] == [str(known.min()), str(known.max()), str(len(np.unique(known)))]
        assert float(row[6]) == pytest.approx(100 * (known == 0).mean(), abs=0.01)
        empty = 100 * (ids[i] < 0).all(axis=1).mean()
        assert f"train  cat_{i}: lists of {len(known) / 50:.6g} of {h} ids on average, {empty:.2f} % of them empty" in lines
    groups = random_groups(spec, 50, 0)
    row = next(line.split() for line in lines if line.startswith("train  session"))
    assert row[2:4] == [str(groups.min()), str(groups.max())]


@pytest.mark.parametrize(
    ("file", "dtype", "place", "value", "message"),
    [
        ("train/cat_1.bin", np.int8, 3 * 31 + 2, 126, "cat_1.bin: feature cat_1, row 31, place 2 of its list: id 126 is not in [0, 126); 1 bad row"),
        ("train/cat_1.bin", np.int8, slice(3, 9), -2, "feature cat_1, row 1, place 0 of its list: id -2 is not in [0, 126); 2 bad rows"),
        ("test/cat_0.bin", np.int8, 7, -1, "test/cat_0.bin: feature cat_0, row 7: id -1 is not in [0, 5); 1 bad row"),
        ("train/numerical.bin", np.float32, 2 * 9 + 1, np.inf, "numerical.bin: feature num_1, row 9: value inf is not finite; 1 bad row"),
    ],
)
def test_faults_name_row_and_place(dataset, capsys, monkeypatch, file, dtype, place, value, message):
    put(dataset / file, dtype, place, value)
    assert run(dataset) == 1
    whole = capsys.readouterr()
    assert message in whole.err and "1 fault" in whole.err.splitlines()[-1]
    monkeypatch.setattr(scan, "BLOCK_BYTES", 60)
    run(dataset)
    assert capsys.readouterr() == whole


def test_tables_that_features_share_are_counted_once(tmp_path, capsys):
    write_dataset(tmp_path / "d", rich_spec(), train=5, test=5)
    assert run(tmp_path / "d") == 0
    assert ", 3 tables, " in capsys.readouterr().out.splitlines()[-1]


def test_large_float32_values_are_sound(dataset, capsys):
    put(dataset / "train/numerical.bin", np.float32, 3, 1e30)
    assert run(dataset) == 0
    assert "1e+30" in capsys.readouterr().out


def test_group_file_of_wrong_length_is_a_fault(dataset, capsys):
    (dataset / "train" / "group.bin").write_bytes(bytes(8 * 49))
    assert run(dataset) == 1
    assert "group.bin: 49 samples, the other files of train hold 50" in capsys.readouterr().err
    (dataset / "train" / "group.bin").unlink()
    assert run(dataset, "--quick") == 1
    assert "group.bin: No such file or directory" in capsys.readouterr().err


def test_dataset_of_empty_lists_only_is_valid(tmp_path, capsys):
    write_dataset(tmp_path, rich_spec(num_numerical=0), train=50, test=20)
    np.full((50, 12), -1, np.int32).tofile(tmp_path / "train" / "cat_3.bin")
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    assert "train  cat_3: lists of 0 of 12 ids on average, 100.00 % of them empty" in out and "num" not in out
