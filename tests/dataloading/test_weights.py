"""A weight of each row: the same in every form of a dataset, and refused wherever a form cannot hold it or a value is no weight."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import yaml
from numpy.testing import assert_array_equal

from dataloading import gen_csv, transcribe, validate
from dataloading.contract import check_quick, spec_faults
from dataloading.feature_spec import FeatureSpec, FeatureSpecError
from dataloading.features import DatasetError
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from dataloading.tfrecord.spec import tfrecord_spec
from dataloading.tfrecord.split import TfRecordSplit
from tests.dataloading.make_data import random_groups, random_rows, random_weights, rich_spec, small_spec, weighted, write_dataset
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml, spec_in
from tests.helpers.folders import tree

SPEC = weighted(rich_spec((1, 1, 1, 1), numerical_dtype="float32"))
HEADER = "label,cat_0,cat_1,num_0,w"


def copied(source, destination, kind="tf_raw", to="tf_raw", *flags):
    paths = ("--src_dataset_path", str(source), "--dst_dataset_path", str(destination))
    return do(transcribe, *paths, "--src_dataset_type", kind, "--dst_dataset_type", to, *flags)


def weights_of(folder, split="train"):
    rows = TfRawSplit(spec_in(folder), split)
    found = rows.read_weights(0, rows.num_samples)
    rows.close()
    return found


def put(path, place, value, dtype=np.float32):
    column = np.fromfile(path, dtype)
    column[place] = value
    column.tofile(path)


@pytest.fixture
def dataset(tmp_path):
    write_dataset(tmp_path / "d", SPEC, 83, 20)
    return tmp_path / "d"


def test_the_file_holds_the_weights_in_the_order_of_the_rows(dataset):
    expected = random_weights(SPEC, 83, 0)
    assert (dataset / "train/weight.bin").read_bytes() == expected.tobytes() and 0 < (expected == 0).sum() < 83
    content = read_yaml(dataset / "feature_spec.yaml")
    assert content["channel_spec"]["weight"] == ["importance"] and content["feature_spec"]["importance"] == {"dtype": "float32"}
    assert content["source_spec"]["train"][-1] == {"type": "split_binary", "features": ["importance"], "files": ["train/weight.bin"]}
    rows = TfRawSplit(spec_in(dataset), "train")
    assert rows.read_weights(7, 19).dtype == np.float32 and rows.file("importance").endswith("d/train/weight.bin")
    assert_array_equal(rows.read_weights(7, 19), expected[7:19])
    rows.close()


def test_synthetic_rows_keep_their_weights_from_form_to_form(tmp_path):
    """Synthetic, tf_raw, TFRecords and tf_raw again: the same bytes; 5000 rows take two records."""
    (tmp_path / "feature_spec.yaml").write_text(weighted(small_spec()).to_yaml())
    size = ("--src_batch_size", "1000", "--max_batches_train", "5", "--max_batches_test", "1")
    copied(tmp_path, tmp_path / "raw", "synthetic", "tf_raw", *size)
    drawn = SyntheticSplit(spec_in(tmp_path), "train", 5000, 0)
    found = weights_of(tmp_path / "raw")
    assert_array_equal(found, drawn.read_weights(0, 5000))
    assert_array_equal(found[4096:4100], drawn.read_weights(4096, 4100))
    assert 0.08 < (found == 0).mean() < 0.12 and found.min() >= 0 and found.max() < 2
    copied(tmp_path / "raw", tmp_path / "records", "tf_raw", "tfrecord")
    records = TfRecordSplit(tfrecord_spec(tmp_path / "records", "feature_spec.yaml"), "train")
    assert_array_equal(records.read_weights(4000, 4200), found[4000:4200])
    assert 'name: "importance"\n  type: FLOAT' in (tmp_path / "records/transformed_metadata/schema.pbtxt").read_text()
    copied(tmp_path / "records", tmp_path / "back", "tfrecord")
    assert tree(tmp_path / "back") == tree(tmp_path / "raw")


def test_a_weight_beside_a_group_and_lists_is_copied(tmp_path):
    write_dataset(tmp_path / "a", weighted(rich_spec()), 50, 20, {"from": "here"})
    copied(tmp_path / "a", tmp_path / "b", "tf_raw", "tf_raw", "--src_batch_size", "12")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_records_of_another_kind_or_with_a_wrong_weight_are_refused(dataset, tmp_path):
    copied(dataset, tmp_path / "r", "tf_raw", "tfrecord")
    path = tmp_path / "r/feature_spec.yaml"
    content = read_yaml(path)
    other = copy.deepcopy(content)
    other["channel_spec"]["weight"], other["feature_spec"]["session"] = ["session"], {"dtype": "float32"}
    del other["channel_spec"]["group"], other["feature_spec"]["importance"]
    for chunks in other["source_spec"].values():
        chunks[0]["features"].remove("importance")
    path.write_text(yaml.safe_dump(other))
    with pytest.raises(DatasetError, match="feature session is a list of int64, expected float"):
        TfRecordSplit(tfrecord_spec(tmp_path / "r", "feature_spec.yaml"), "train").read_weights(0, 1)
    put(dataset / "train/weight.bin", 70, -1)
    with pytest.raises(DatasetError, match=r"feature importance, row 70: weight -1 is not a finite number of at least 0"):
        copied(dataset, tmp_path / "again", "tf_raw", "tfrecord")
    assert not (tmp_path / "again").exists()


def test_split_tfrecords_hold_no_weights(dataset, tmp_path):
    with pytest.raises(DatasetError, match=r"has the (group session|weight importance), which split_tfrecords cannot hold; write tf_raw or tfrecord"):
        copied(dataset, tmp_path / "r", "tf_raw", "split_tfrecords")
    spec = weighted(small_spec())
    write_dataset(tmp_path / "plain", spec)
    with pytest.raises(DatasetError, match=r"has the weight importance, which split_tfrecords cannot hold; write tf_raw or tfrecord") as error:
        copied(tmp_path / "plain", tmp_path / "r", "tf_raw", "split_tfrecords")
    assert "\n" not in str(error.value) and not (tmp_path / "r").exists()
    write_dataset(tmp_path / "without", small_spec())
    copied(tmp_path / "without", tmp_path / "r", "tf_raw", "split_tfrecords", "--dst_prebatch_size", "10")
    (tmp_path / "r/feature_spec.yaml").write_text(spec.to_yaml())
    with pytest.raises(DatasetError, match=r"has the weight importance, which split_tfrecords cannot hold; remove it from channel_spec"):
        copied(tmp_path / "r", tmp_path / "d2", "split_tfrecords")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-0.5, "row 31: weight -0.5 is below 0; 1 bad row"),
        (np.nan, "row 31: value nan is not finite; 1 bad row"),
        (np.inf, "row 31: value inf is not finite; 1 bad row"),
        (-np.inf, "row 31: value -inf is not finite; 1 bad row"),
    ],
)
def test_a_value_that_is_no_weight_is_found_by_validate_and_not_copied(dataset, tmp_path, capsys, value, message):
    put(dataset / "train/weight.bin", 31, value)
    assert do(validate, "--dataset_path", dataset) == 1
    said = capsys.readouterr().err
    assert f"train/weight.bin: feature importance, {message}" in said and "1 fault" in said.splitlines()[-1]
    with pytest.raises(DatasetError, match=rf"train/weight\.bin: feature importance, row 31: weight {value:g} is not a finite number of at least 0"):
        copied(dataset, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_validate_shows_the_weights(dataset, capsys):
    assert do(validate, "--dataset_path", dataset) == 0
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("train  importance"))
    expected = random_weights(SPEC, 83, 0)
    assert (float(row[2]), float(row[3])) == pytest.approx((0, expected.max())) and float(row[5]) == pytest.approx(expected.mean(), rel=1e-4)
    assert float(row[6]) == pytest.approx(100 * (expected == 0).mean(), abs=0.01)


def test_a_file_of_another_length_is_a_fault(dataset, capsys):
    (dataset / "train/weight.bin").write_bytes(bytes(4 * 82))
    for flags in ((), ("--quick",)):
        assert do(validate, "--dataset_path", dataset, *flags) == 1
        assert "weight.bin: 82 samples, the other files of train hold 83" in capsys.readouterr().err
    (dataset / "train/weight.bin").write_bytes(bytes(4 * 83 - 1))
    assert do(validate, "--dataset_path", dataset) == 1
    assert "weight.bin: 331 bytes, not a whole number of samples of 4 bytes" in capsys.readouterr().err
    (dataset / "train/weight.bin").unlink()
    assert do(validate, "--dataset_path", dataset, "--quick") == 1
    assert "weight.bin: No such file or directory" in capsys.readouterr().err


def test_two_weights_another_type_and_a_feature_as_weight_are_refused():
    content = SPEC.to_dict()
    content["channel_spec"]["weight"] = ["importance", "more"]
    content["feature_spec"]["more"] = {"dtype": "float32"}
    with pytest.raises(FeatureSpecError, match=r"channel_spec\.weight lists 2 features, expected at most one"):
        FeatureSpec.from_dict(content)
    content["channel_spec"]["weight"] = ["num_0"]
    with pytest.raises(FeatureSpecError, match="lists feature num_0 more than once"):
        FeatureSpec.from_dict(content)
    content = SPEC.to_dict()
    content["feature_spec"]["importance"]["dtype"], content["source_spec"] = "float16", {}
    half = FeatureSpec.from_dict(content)
    message = "feature importance: dtype is float16, the weight must be float32"
    assert any(message in fault for fault in spec_faults(half))
    with pytest.raises(FeatureSpecError, match=message):
        half.as_tf_raw(("train",))
    with pytest.raises(FeatureSpecError, match=message):
        SyntheticSplit(replace(half, sources=None), "train", 10, 0)
    content["feature_spec"]["importance"] = {"dtype": "float32", "hotness": 2}
    with pytest.raises(FeatureSpecError, match=r"feature_spec\.importance: key 'hotness' is not known"):
        FeatureSpec.from_dict(content)


def test_a_feature_of_the_file_name_is_refused():
    taken = replace(SPEC, categorical=(*SPEC.categorical, replace(SPEC.categorical[0], name="weight")))
    with pytest.raises(FeatureSpecError, match=r"feature weight would be written to weight\.bin, which another feature needs"):
        taken.as_tf_raw(("train",))
    assert replace(taken, weight=None).as_tf_raw(("train",))


@pytest.mark.parametrize("to", ["tf_raw", "tfrecord"])
def test_rows_without_labels_have_no_weights(tmp_path, capsys, to):
    with TfRawWriter(tmp_path / "d", SPEC, ("train", "today"), unlabelled=("today",)) as writer:
        for split, count in (("train", 50), ("today", 30)):
            numerical, ids, labels = random_rows(SPEC, count)
            known = (labels, random_weights(SPEC, count)) if split == "train" else (None, None)
            writer.append(split, numerical, ids, known[0], random_groups(SPEC, count), known[1])
        writer.publish({})
    assert not (tmp_path / "d/today/weight.bin").exists()
    stored = spec_in(tmp_path / "d")
    assert check_quick(stored, ("train", "today")) == {"train": 50, "today": 30}
    copied(tmp_path / "d", tmp_path / "copy", "tf_raw", to)
    if to == "tfrecord":
        copied(tmp_path / "copy", tmp_path / "back", to)
    assert tree(tmp_path / ("back" if to == "tfrecord" else "copy")) == tree(tmp_path / "d")
    content = read_yaml(tmp_path / "d/feature_spec.yaml")
    content["source_spec"]["today"].append({"type": "split_binary", "features": ["importance"], "files": ["today/weight.bin"]})
    (tmp_path / "d/feature_spec.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "d/today/weight.bin").write_bytes(bytes(120))
    assert do(validate, "--dataset_path", tmp_path / "d") == 1
    assert "source_spec.today: feature importance weighs rows without labels, which nothing reads; remove its chunk" in capsys.readouterr().err


def test_labelled_rows_need_weights(dataset, capsys):
    content = read_yaml(dataset / "feature_spec.yaml")
    content["source_spec"]["test"].pop()
    (dataset / "feature_spec.yaml").write_text(yaml.safe_dump(content))
    assert do(validate, "--dataset_path", dataset) == 1
    assert "source_spec.test: feature importance is in 0 chunks, expected exactly one" in capsys.readouterr().err


def csv(folder, rows, source=None):
    """Write a CSV dataset with a column of weights, and convert it; return the destination."""
    content = weighted(small_spec((5, 9), 1), "w").to_dict()
    content["source_spec"] = source
    folder.mkdir(exist_ok=True)
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(content))
    (folder / "train.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    copied(folder, folder / "d", "csv", "tf_raw", "--train_only")
    return folder / "d"


def test_csv_weights_are_read(tmp_path):
    made = csv(tmp_path, ["1,4,8,0.5,0", "0,1,2,1.5,2", "0,1,2,1.5,0.1", '1,0,0,0,"1e-3"', "1,0,0,0,3e38", "0,0,0,0,1e-60"])
    assert_array_equal(weights_of(made), np.array([0, 2, 0.1, 1e-3, 3e38, 0], np.float32))


@pytest.mark.parametrize("value", ["-0.5", "nan", "", "1e39", "inf", "x", "-1e-50"])
def test_csv_weights_that_are_none_are_named_by_line_feature_and_value(tmp_path, value):
    found = f"'{value}'" if value else "nothing"
    with pytest.raises(DatasetError) as error:
        csv(tmp_path, ["1,4,8,0.5,0.25", f"0,1,2,1.5,{value}"])
    expected = f"train.csv, line 3, feature w: expected a finite number that float32 holds (up to 3.40282e+38) of at least 0, found {found}"
    assert expected in str(error.value) and not (tmp_path / "d").exists()


def test_csv_rows_without_labels_need_no_weights(tmp_path):
    features = ["cat_0", "cat_1", "num_0"]
    source = {
        "train": [{"type": "csv", "features": [*features, "label", "w"], "files": ["train.csv"]}],
        "test": [{"type": "csv", "features": features, "files": ["test.csv"]}],
    }
    csv(tmp_path, ["1,4,8,0.5,3"], source)
    (tmp_path / "test.csv").write_text("cat_0,cat_1,num_0\n3,7,2.5\n")
    copied(tmp_path, tmp_path / "both", "csv")
    assert weights_of(tmp_path / "both").tolist() == [3] and not (tmp_path / "both/test/weight.bin").exists()


def test_gen_csv_draws_weights(tmp_path):
    content = weighted(small_spec((5, 9), 1), "w").to_dict()
    chunks = lambda split: [{"type": "csv", "features": ["cat_0", "w", "num_0", "label", "cat_1"], "files": [f"{split}/all.csv"]}]  # noqa: E731
    content["source_spec"] = {split: chunks(split) for split in ("train", "test")}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(content))
    do(gen_csv, "--feature_spec_in", tmp_path / "spec.yaml", "--output", tmp_path / "csv", "--size", "300")
    (tmp_path / "csv/feature_spec.yaml").write_text((tmp_path / "spec.yaml").read_text())
    copied(tmp_path / "csv", tmp_path / "d", "csv")
    source, _ = gen_csv.unwritten_csv_spec(tmp_path / "spec.yaml", "", gen_csv.AUTO_ROWS)
    assert_array_equal(weights_of(tmp_path / "d"), SyntheticSplit(source, "train", 300, 0).read_weights(0, 300))


def test_the_fingerprint_covers_the_weights(dataset):
    def found():
        split = TfRawSplit(spec_in(dataset), "train")
        split.close()
        return split.fingerprint()

    before = found()
    put(dataset / "train/weight.bin", 3, 7.5)
    assert found() != before
