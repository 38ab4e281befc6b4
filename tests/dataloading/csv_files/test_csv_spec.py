"""NVIDIA's generic CSV form: files without a header, no dtypes, `cardinality: auto`, in the layout of its tests/transcoding."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.testing import assert_array_equal

from dataloading import transcribe, validate
from dataloading.feature_spec import FeatureSpecError
from dataloading.features import DatasetError
from dataloading.tf_raw import TfRawSplit
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml, spec_in

ROWS = {"train": 200, "test": 30}
CARDINALITIES = (10, 500, 127)


@pytest.fixture
def source(tmp_path):
    """Write the files as NVIDIA's gen_csv.py does; return the folder and the columns of each split."""
    folder, draw, columns = tmp_path / "csv", np.random.default_rng(0), {}
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("nvidia_small_csv.yaml"), folder / "feature_spec.yaml")
    content = read_yaml(folder / "feature_spec.yaml")
    for split, rows in ROWS.items():
        found = {f"cat_{i}.bin": draw.integers(0, rows_of, rows) for i, rows_of in enumerate(CARDINALITIES)}
        found |= {"num_0": draw.random(rows), "num_1": draw.random(rows), "label": draw.integers(0, 2, rows)}
        columns[split] = found
        for chunk in content["source_spec"][split]:
            path = folder / chunk["files"][0]
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(",".join(map(str, row)) + "\n" for row in zip(*(found[name] for name in chunk["features"]), strict=True)))
    return folder, columns


def run(folder, *flags):
    words = ["--src_dataset_type", "csv", "--src_dataset_path", folder, "--dst_dataset_path", folder.parent / "d", *flags]
    return do(transcribe, *words)


def edit(folder, change):
    content = read_yaml(folder / "feature_spec.yaml")
    change(content)
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(content))


def test_nvidias_generic_csv_is_read_unchanged(source, capsys):
    folder, columns = source
    assert run(folder) == 0
    note = f"{folder / 'train' / 'catpart0.bin'}: has no header; its columns are read as cat_0.bin, cat_1.bin, cat_2.bin\n"
    assert capsys.readouterr().err.count(note) == 1
    spec = spec_in(folder.parent / "d")
    greatest = max(int(found["cat_1.bin"].max()) for found in columns.values())
    assert [(one.name, one.cardinality, one.dtype) for one in spec.categorical] == [
        ("cat_0.bin", 10, "int8"),
        ("cat_1.bin", greatest + 1, "int16"),
        ("cat_2.bin", 127, "int16"),
    ]
    assert do(validate, "--dataset_path", folder.parent / "d") == 0
    for name, found in columns.items():
        split = TfRawSplit(spec, name)
        for i, feature in enumerate(spec.categorical):
            assert_array_equal(split.read_ids(i, 0, ROWS[name]), found[feature.name])
        assert_array_equal(split.read_numerical(0, ROWS[name]), np.stack([found["num_0"], found["num_1"]], 1).astype(np.float16))
        assert_array_equal(split.read_labels(0, ROWS[name]), found["label"])
        split.close()


def test_some_files_may_have_headers(source):
    folder, columns = source
    path = folder / "test" / "catpart2.bin"
    path.write_text("cat_1.bin,cat_2.bin\n" + "".join(f"{b},{a}\n" for a, b in (line.split(",") for line in path.read_text().split())))
    assert run(folder) == 0
    split = TfRawSplit(spec_in(folder.parent / "d"), "test")
    assert_array_equal(split.read_ids(1, 0, 30), columns["test"]["cat_1.bin"])
    split.close()


def test_ids_beyond_a_stated_cardinality_are_named(source):
    folder, columns = source
    edit(folder, lambda content: content["feature_spec"]["cat_0.bin"].update(cardinality=9))
    line = int(np.argmax(columns["train"]["cat_0.bin"] == 9)) + 1
    with pytest.raises(DatasetError, match=rf"catpart0\.bin, line {line}, feature cat_0\.bin: expected a whole number in \[0, 9\), found '9'"):
        run(folder)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda d: (d / "train/catpart0.bin").write_text("1,2\n"), r"catpart0\.bin, line 1: 2 values, expected 3 columns"),
        (
            lambda d: (d / "train/catpart0.bin").write_text("1,-2,3\n"),
            r"line 1, feature cat_1\.bin: expected a whole number in \[0, 2147483647\), found '-2'",
        ),
        (lambda d: (d / "train/catpart0.bin").write_text("a,b,c\n1,2,3\n"), r"the header names feature cat_0\.bin 0 times, expected once"),
        (lambda d: (d / "train/catpart0.bin").unlink(), r"catpart0\.bin: No such file or directory; expected a CSV file"),
        (lambda d: edit(d, lambda c: c["feature_spec"]["cat_1.bin"].update(cardinality="Auto")), r"cardinality: expected a number"),
        (lambda d: edit(d, lambda c: c["feature_spec"]["num_0"].update(dtype="text")), r"num_0: dtype: expected the name of a NumPy type"),
        (lambda d: edit(d, lambda c: c["feature_spec"].pop("num_0")), r"feature num_0 is in channel_spec but not in feature_spec"),
        (lambda d: edit(d, lambda c: c.update(source_spec=None)), r"train\.csv: No such file or directory"),
        (
            lambda d: (d / "feature_spec.yaml").unlink(),
            r"feature_spec\.yaml: no such file; expected a feature specification \(path from --src_dataset_path",
        ),
    ],
)
def test_invalid_source_is_one_line_error(source, harm, message):
    harm(source[0])
    with pytest.raises((DatasetError, FeatureSpecError), match=message):
        run(source[0])
    assert not (source[0].parent / "d").exists()


def test_features_of_one_table_have_one_cardinality(source):
    folder, columns = source

    def share(content):
        for name in ("cat_0.bin", "cat_1.bin"):
            content["feature_spec"][name] = {"cardinality": "auto", "table": "both"}

    edit(folder, share)
    assert run(folder) == 0
    spec = spec_in(folder.parent / "d")
    assert spec.categorical[0].cardinality == spec.categorical[1].cardinality == max(int(f["cat_1.bin"].max()) for f in columns.values()) + 1
