"""Bad datasets: each fault is found, is named by file, feature and row, and ends in exit code 1."""

import shutil

import numpy as np
import pytest
import yaml

from dataloading import scan, validate
from dataloading.contract import check_quick
from dataloading.feature_spec import FeatureSpecError
from dataloading.features import DatasetError
from tests.dataloading.make_data import CARDINALITIES, small_spec, write_dataset
from tests.helpers.commands import do, run_here
from tests.helpers.datasets import read_yaml, spec_in
from utils.errors import UserError


@pytest.fixture
def dataset(tmp_path):
    write_dataset(tmp_path / "d", small_spec(), train=50, test=20)
    return tmp_path / "d"


def run(folder, *flags):
    return do(validate, "--dataset_path", folder, *flags)


def put(path, dtype, row, *values):
    column = np.fromfile(path, dtype)
    column[row : row + len(values)] = values
    column.tofile(path)


def edit_spec(folder, change):
    path = folder / "feature_spec.yaml"
    content = read_yaml(path)
    change(content)
    path.write_text(yaml.safe_dump(content))


def test_valid_dataset_passes(dataset, capsys):
    assert run(dataset) == 0
    out, err = capsys.readouterr()
    assert "sound" in out and "train 50 samples, test 20 samples" in out and err == ""
    lines = out.splitlines()
    assert len(lines) == 1 + 2 * (len(CARDINALITIES) + 3 + 1) + 1
    column = np.fromfile(dataset / "train" / "cat_0.bin", np.int8)
    row = next(line.split() for line in lines if line.startswith("train  cat_0"))
    assert row[2:5] == [str(column.min()), str(column.max()), str(len(np.unique(column)))]
    assert float(row[6]) == pytest.approx(100 * (column == 0).mean(), abs=0.01)


def test_quick_reads_no_rows(dataset, capsys):
    put(dataset / "train" / "label.bin", np.uint8, 3, 9)
    assert run(dataset, "--quick") == 0
    assert "specification and files;" in capsys.readouterr().out
    assert run(dataset) == 1


def add_damaged_valid(folder):
    shutil.copytree(folder / "test", folder / "valid")
    put(folder / "valid" / "label.bin", np.uint8, 3, 7)
    edit_spec(folder, lambda c: c["source_spec"].update(valid=yaml.safe_load(yaml.safe_dump(c["source_spec"]["test"]).replace("test/", "valid/"))))


@pytest.mark.parametrize(
    ("harm", "messages"),
    [
        (lambda d: put(d / "train/cat_0.bin", np.int8, 7, 5, 5), ["cat_0.bin: feature cat_0, row 7: id 5 is not in [0, 5); 2 bad rows"]),
        (lambda d: put(d / "test/cat_4.bin", np.int32, 19, -1), ["test/cat_4.bin: feature cat_4, row 19: id -1 is not in [0, 40000); 1 bad row"]),
        (lambda d: put(d / "train/label.bin", np.uint8, 4, 2), ["label.bin: feature label, row 4: label 2 is not 0 or 1; 1 bad row"]),
        (lambda d: put(d / "train/numerical.bin", np.float16, 3 * 5 + 1, np.nan), ["feature num_1, row 5: value nan is not finite; 1 bad row"]),
        (lambda d: put(d / "test/numerical.bin", np.float16, 0, -np.inf), ["feature num_0, row 0: value -inf is not finite"]),
        (lambda d: (d / "train/cat_4.bin").write_bytes(b"\0" * 199), ["cat_4.bin: 199 bytes, not a whole number of samples of 4 bytes"]),
        (lambda d: (d / "train/cat_3.bin").write_bytes(b"\0" * 80), ["cat_3.bin: 40 samples, the other files of train hold 50"]),
        (lambda d: (d / "train/cat_3.bin").unlink(), ["cat_3.bin: No such file or directory"]),
        (lambda d: [path.write_bytes(b"") for path in (d / "test").iterdir()], ["split test is empty"]),
        (lambda d: edit_spec(d, lambda c: c["feature_spec"]["cat_3"].update(dtype="int8")), ["cardinality 300 does not fit dtype int8"]),
        (lambda d: edit_spec(d, lambda c: c["feature_spec"]["cat_3"].update(dtype="int64")), ["cat_3: dtype is int64, expected one of int8"]),
        (lambda d: edit_spec(d, lambda c: c["feature_spec"]["num_1"].update(dtype="float32")), ["num_1: dtype is float32"]),
        (lambda d: edit_spec(d, lambda c: c["feature_spec"]["label"].update(dtype="float32")), ["the label must be bool"]),
        (lambda d: edit_spec(d, lambda c: c["source_spec"]["train"].pop(1)), ["feature cat_0 is in 0 chunks"]),
        (lambda d: edit_spec(d, lambda c: c["source_spec"]["train"].append(c["source_spec"]["train"][1])), ["feature cat_0 is in 2 chunks"]),
        (lambda d: edit_spec(d, lambda c: c["source_spec"]["test"][0]["features"].reverse()), ["in the order of channel_spec.numerical"]),
        (
            lambda d: edit_spec(d, lambda c: c["source_spec"]["test"][0].update(type="csv")),
            ["test: type is csv, expected split_binary; transcribe the CSV files"],
        ),
        (lambda d: edit_spec(d, lambda c: c["source_spec"]["test"][1].update(files=[])), ["0 files, expected exactly one"]),
        (lambda d: edit_spec(d, lambda c: c["source_spec"].clear()), ["split train is missing"]),
        (lambda d: edit_spec(d, lambda c: c.update(source_spec=None)), ["source_spec is empty"]),
        (lambda d: edit_spec(d, lambda c: c["source_spec"].update(valid=c["source_spec"]["test"][1:])), ["valid: feature num_0 is in 0 chunks"]),
        (add_damaged_valid, ["valid/label.bin: feature label, row 3: label 7"]),
    ],
)
def test_each_fault_is_named(dataset, capsys, harm, messages):
    harm(dataset)
    assert run(dataset) == 1
    err = capsys.readouterr().err
    for message in messages:
        assert message in err
    assert "fault" in err.splitlines()[-1]


def test_all_faults_are_listed_together(dataset, capsys):
    put(dataset / "train" / "cat_0.bin", np.int8, 7, -3)
    put(dataset / "train" / "label.bin", np.uint8, 1, 255)
    (dataset / "test" / "cat_2.bin").write_bytes(b"\0")
    assert run(dataset) == 1
    err = capsys.readouterr().err
    assert "id -3" in err and "label 255" in err and "1 bytes" in err and "3 faults" in err


def test_check_quick_reports_the_first_fault_and_the_command_for_all(dataset):
    (dataset / "train" / "cat_3.bin").unlink()
    (dataset / "test" / "cat_3.bin").unlink()
    with pytest.raises(DatasetError, match=r"cat_3\.bin: No such file.*and 1 more fault.*dataloading\.validate"):
        check_quick(spec_in(dataset), ("train", "test"))


def test_missing_dataset_and_missing_folder_are_errors(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        run(tmp_path / "none")
    with pytest.raises(FeatureSpecError, match="no such file"):
        run(tmp_path)


def test_notes_are_not_faults(dataset, capsys):
    edit_spec(dataset, lambda c: c["source_spec"].pop("test"))
    edit_spec(dataset, lambda c: c["feature_spec"]["cat_1"].update(cardinality=120))
    edit_spec(dataset, lambda c: c["feature_spec"]["cat_2"].update(cardinality=126))
    run(dataset)
    out = capsys.readouterr().out
    assert "note: there is no test split" in out and "note: feature cat_2 is int16, int8 would hold its ids" in out


def test_block_size_does_not_change_the_statistics(dataset, monkeypatch, capsys):
    put(dataset / "train" / "cat_4.bin", np.int32, 33, 40_000, 50_000)
    put(dataset / "train" / "numerical.bin", np.float16, 3 * 40, np.inf)
    put(dataset / "train" / "label.bin", np.uint8, 41, 2)
    run(dataset)
    whole = capsys.readouterr()
    monkeypatch.setattr(scan, "BLOCK_BYTES", 24)
    run(dataset)
    assert capsys.readouterr() == whole


def test_exit_codes_of_the_command(dataset):
    words = ("-m", "dataloading.validate", "--dataset_path")
    assert run_here(*words, dataset).returncode == 0
    put(dataset / "train" / "label.bin", np.uint8, 4, 2)
    bad = run_here(*words, dataset)
    assert bad.returncode == 1 and "row 4: label 2" in bad.stderr
    missing = run_here(*words, dataset / "train")
    assert missing.returncode == 1 and len(missing.stderr.splitlines()) == 1 and "Traceback" not in missing.stderr
