"""gen_csv and transcode: drawn CSV files, the dataset made of them, and the refused inputs."""

import shutil
import signal
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml
from numpy.testing import assert_array_equal

from dataloading import gen_csv, transcode, validate
from dataloading.feature_spec import FeatureSpec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawSplit
from tests.children import child, found, wait_for
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml, spec_in
from tests.helpers.folders import tree
from utils.errors import UserError

ROOT = Path(__file__).parents[2]
NVIDIA = ROOT / "tests/dataloading/csv_files/nvidia_small_csv.yaml"


def drawn(folder, *flags, spec=NVIDIA):
    return do(gen_csv, "--feature_spec_in", spec, "--output", folder, *flags)


def with_entries(folder, change):
    """Write NVIDIA's specification with a change to its content; return the file."""
    content = read_yaml(NVIDIA)
    change(content)
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def csv(tmp_path):
    assert drawn(tmp_path / "csv", "--size", "500") == 0
    shutil.copy(NVIDIA, tmp_path / "csv/feature_spec.yaml")
    return tmp_path / "csv"


def test_files_have_the_columns_of_their_chunks_without_a_header(csv):
    for name, columns in {"train/catpart0.bin": 3, "train/numerical.bin": 2, "train/label.bin": 1, "test/catpart2.bin": 2}.items():
        lines = (csv / name).read_text().splitlines()
        assert len(lines) == 500 and {len(line.split(",")) for line in lines} == {columns}
    cat_2, cat_1 = pl.read_csv(csv / "test/catpart2.bin", has_header=False)
    assert cat_2.max() > cat_1.max() and 100 <= cat_2.max() < 127 and cat_1.max() < gen_csv.AUTO_ROWS


def test_labels_are_zeros_and_ones(csv):
    for split in ("train", "test"):
        labels = (csv / split / "label.bin").read_text().split()
        assert set(labels) == {"0", "1"} and 50 < labels.count("1") < 450


def test_transcoded_rows_equal_the_drawn_rows(csv, tmp_path, capsys):
    assert do(transcode, "--input", csv, "--output", tmp_path / "raw", "--feature_spec_out", "other.yaml", "--chunk_size", "130") == 0
    assert "train 500 rows, test 500 rows" in capsys.readouterr().out
    spec = FeatureSpec.from_yaml(tmp_path / "raw/other.yaml")
    assert spec.cardinalities[::2] == (10, 127)
    source, _ = gen_csv.unwritten_csv_spec(NVIDIA, "", gen_csv.AUTO_ROWS)
    for name in ("train", "test"):
        expected, split = SyntheticSplit(source, name, 500, 0), TfRawSplit(spec, name)
        assert_array_equal(split.read_numerical(0, 500), expected.read_numerical(0, 500))
        assert_array_equal(split.read_labels(0, 500), expected.read_labels(0, 500))
        for i in range(3):
            assert_array_equal(split.read_ids(i, 0, 500), expected.read_ids(i, 0, 500))
        split.close()
    assert do(validate, "--dataset_path", tmp_path / "raw", "--feature_spec", "other.yaml") == 0


def test_auto_cardinality_is_one_more_than_the_greatest_id(csv, tmp_path):
    (csv / "test/catpart2.bin").write_text("5,333\n" * 500)
    do(transcode, "--input", csv, "--output", tmp_path / "raw")
    assert spec_in(tmp_path / "raw").cardinalities == (10, 334, 127)


def test_files_of_a_chunk_share_its_rows_and_lists_are_written(tmp_path):
    def change(content):
        content["feature_spec"]["cat_0.bin"] |= {"hotness": 3}
        content["source_spec"]["train"][1]["files"] = ["train/l0.csv", "train/l1.csv", "train/l2.csv"]

    spec = with_entries(tmp_path, change)
    drawn(tmp_path / "csv", "--size", "100", spec=spec)
    assert [len((tmp_path / f"csv/train/l{i}.csv").read_text().splitlines()) for i in range(3)] == [33, 33, 34]
    assert all(cell.count("|") == 2 for cell in (tmp_path / "csv/test/catpart1.bin").read_text().split())
    shutil.copy(spec, tmp_path / "csv/feature_spec.yaml")
    do(transcode, "--input", tmp_path / "csv", "--output", tmp_path / "raw")
    source, _ = gen_csv.unwritten_csv_spec(spec, "", gen_csv.AUTO_ROWS)
    split = TfRawSplit(spec_in(tmp_path / "raw"), "train")
    assert_array_equal(split.read_labels(0, 100), SyntheticSplit(source, "train", 100, 0).read_labels(0, 100))
    split.close()


def test_same_seed_same_bytes(tmp_path):
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        drawn(tmp_path / folder, "--seed", seed)
    assert tree(tmp_path / "a") == tree(tmp_path / "b") != tree(tmp_path / "c")


def test_existing_file_is_refused_unless_overwrite(csv):
    before = tree(csv)
    with pytest.raises(UserError, match=r"csv/test/numerical\.bin exists already; choose another --output, or pass --overwrite"):
        drawn(csv, "--seed", "1")
    assert tree(csv) == before
    drawn(csv, "--seed", "1", "--size", "500", "--overwrite")
    assert tree(csv) != before and not list(csv.glob(".writing-*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["source_spec"]["train"][0].update(type="split_binary"), r"source_spec\.train\[0\]: type is split_binary, expected csv"),
        (lambda c: c.update(source_spec=None), "source_spec is empty; expected chunks of type csv"),
        (lambda c: c["source_spec"]["test"][1].update(files=["train/label.bin"]), "names the file train/label.bin twice"),
        (lambda c: c["source_spec"]["train"][2].update(features=["cat_0.bin"]), "feature cat_1.bin is in 0 chunks, expected exactly one"),
        (lambda c: c["source_spec"]["train"][2].update(files=["../x"]), "is outside the dataset"),
        (lambda c: c["source_spec"]["train"][1].update(files=[f"train/{i}" for i in range(2000)]), "--size 1000 rows are fewer than the 2000 files"),
        (lambda c: c["feature_spec"]["cat_2.bin"].update(hotness=200), "hotness 200 is above its cardinality 127"),
    ],
    ids=["binary", "no sources", "a file twice", "feature missing", "outside", "more files than rows", "hotness"],
)
def test_invalid_specification_is_one_line_and_nothing_is_written(tmp_path, change, message):
    with pytest.raises(UserError, match=message) as caught:
        drawn(tmp_path / "csv", spec=with_entries(tmp_path, change))
    assert "\n" not in str(caught.value) and not (tmp_path / "csv").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--size", "0"), "--size 0: expected 1 to"),
        (("--seed", "-1"), "--seed -1: expected 0 or more"),
        (("--feature_spec_in", "no.yaml"), r"no\.yaml: no such file; expected a feature specification \(path from --feature_spec_in\)"),
        (("--rows", "3"), "unknown flag --rows"),
    ],
)
def test_invalid_flags_are_one_line(tmp_path, flags, message):
    with pytest.raises(UserError, match=message):
        drawn(tmp_path / "csv", *flags)
    assert not (tmp_path / "csv").exists()


def test_killed_half_way_leaves_no_file_and_the_next_run_succeeds(tmp_path):
    words = [sys.executable, "-m", "dataloading.gen_csv", "--feature_spec_in", NVIDIA, "--output", tmp_path / "csv", "--size", "20000000"]
    with child(words, cwd=ROOT) as process:
        wait_for(lambda: any(path.stat().st_size for path in found(tmp_path, "csv/.writing-*/*/*.bin")), process)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert not [path for path in (tmp_path / "csv").iterdir() if not path.name.startswith(".writing-")]
    drawn(tmp_path / "csv")
    assert sorted(path.name for path in (tmp_path / "csv").iterdir()) == ["test", "train"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), r"/data_here holds a dataset already \(feature_spec\.yaml\); choose another folder or pass --overwrite"),
        (("--input", "nothing"), r"nothing/feature_spec\.yaml: no such file; .*\(path from --input and --feature_spec_in\)"),
        (("--feature_spec_in", "x.yaml"), r"x\.yaml: no such file; .*\(path from --input and --feature_spec_in\)"),
        (("--feature_spec_out", "a/b"), "--feature_spec_out is 'a/b', expected a file name; it is written into --output"),
        (("--chunk_size", "0"), "--chunk_size is 0, expected at least 1 row"),
        (("--chunk_size", "x"), "argument --chunk_size: invalid int value: 'x'"),
        (("--output", "IN"), r"numerical\.bin is a source file and would be replaced; choose another --output"),
    ],
    ids=["second run", "no input", "no specification", "path", "no rows", "no number", "into its input"],
)
def test_transcode_errors_name_its_own_flags(csv, tmp_path, flags, message):
    words = ["--input", str(csv), "--output", str(tmp_path / "data_here")]
    do(transcode, *words)
    before = tree(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        do(transcode, *words, *(str(csv) if flag == "IN" else flag for flag in flags))
    assert "src_" not in str(caught.value) and "dst_" not in str(caught.value) and tree(tmp_path) == before


def test_transcode_refuses_ids_beyond_the_declared_cardinality_and_other_chunks(csv, tmp_path):
    words = ["--input", str(csv), "--output", str(tmp_path / "raw")]
    (csv / "train/catpart0.bin").write_text("10,1,1\n" * 500)
    with pytest.raises(UserError, match=r"catpart0\.bin, line 1, feature cat_0\.bin: expected a whole number in \[0, 10\), found '10'"):
        do(transcode, *words)
    spec = with_entries(csv, lambda c: c["source_spec"]["train"][0].update(type="split_binary"))
    with pytest.raises(UserError, match=r"source_spec\.train\[0\]: type is split_binary, expected csv$"):
        do(transcode, *words, "--feature_spec_in", spec.name)
    assert not (tmp_path / "raw").exists()


def test_transcode_overwrites_on_request(csv, tmp_path):
    words = ["--input", str(csv), "--output", str(tmp_path / "raw")]
    do(transcode, *words)
    before = tree(tmp_path / "raw")
    do(transcode, *words, "--overwrite")
    assert tree(tmp_path / "raw") == before  # not doubled
