"""Weights of ids in CSV cells: reading, refusals, drawn files, and what transcode and transcribe make of them."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from dataloading import gen_csv, transcode, transcribe, validate
from dataloading.csv_files.columns import WeightedListColumn, list_cells
from dataloading.csv_files.source import read_csv_split
from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.features import DatasetError
from dataloading.id_weights import ids_and_weights, joined
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawSplit
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in

TAGS = Categorical("tags", 90, "int32", hotness=3, weights=True)
TOPICS = Categorical("topics", 9, "int32", hotness=2, pooling="mean", weights=True)
ONE = Categorical("one", 40_000, "int32", weights=True)
FEATURES = (Categorical("user", 50, "int32"), TAGS, TOPICS, ONE)
HEADER = "user,tags,n,topics,one,label"
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


def spec_of(features=FEATURES, **others):
    dtypes = {one.name: one.dtype for one in features} | {"n": "float16", "label": "bool", "session": "int32", "importance": "float32"}
    beside = [name for name in (others.get("group"), others.get("weight")) if name]
    return FeatureSpec(features, ("n",), "label", {name: dtypes[name] for name in (*(one.name for one in features), "n", "label", *beside)}, **others)


def written(folder, *lines, header=HEADER, spec=None, name="train.csv", end="\n"):
    """Write CSV files with these lines and their specification; return the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "feature_spec.yaml").write_text((spec or spec_of()).to_yaml())
    (folder / name).write_bytes(end.join([*([header] if header else []), *lines, ""]).encode())
    return folder


def transcribed(folder, destination, *flags):
    words = ["--src_dataset_type", "csv", "--src_dataset_path", folder, "--dst_dataset_path", destination, "--train_only", *flags]
    assert do(transcribe, *words) == 0
    return TfRawSplit(spec_in(destination), "train")


def pairs(values):
    """Return lists of (id, weight), as people write them."""
    ids, weights = ids_and_weights(values)
    return [[(int(one), float(weight)) for one, weight in zip(*row, strict=True) if one >= 0] for row in zip(ids, weights, strict=True)]


# Cells --------------------------------------------------------------------------------------------------------------------


def test_cells_become_the_two_files_of_a_feature(tmp_path):
    rows = ("7,12:0.5|7:2,0.5,8:1|0:0,39999:-1.5,1", '9,,1.5,"8:0.25",,0', "0,5:-2.5,0.25,,3:1e-3,1")
    split = transcribed(written(tmp_path / "csv", *rows), tmp_path / "d")
    assert pairs(split.read_ids(1, 0, 3)) == [[(12, 0.5), (7, 2.0)], [], [(5, -2.5)]]
    assert pairs(split.read_ids(2, 0, 3)) == [[(8, 1.0), (0, 0.0)], [(8, 0.25)], []]
    assert pairs(split.read_ids(3, 0, 3)) == [[(39_999, -1.5)], [], [(3, float(np.float32(1e-3)))]]
    assert np.fromfile(tmp_path / "d/train/tags.bin", np.int8).tolist() == [12, 7, -1, -1, -1, -1, 5, -1, -1]
    assert np.fromfile(tmp_path / "d/train/one.weights.bin", np.float32).tolist() == [-1.5, 0, np.float32(1e-3)]
    assert split.read_ids(0, 0, 3).tolist() == [7, 9, 0] and split.read_labels(0, 3).tolist() == [1, 0, 1]
    assert do(validate, "--dataset_path", tmp_path / "d") == 0


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (" 12:0.5 | 7:2 ", [(12, 0.5), (7, 2.0)]),
        ("12 : 0.5|7:\t2", [(12, 0.5), (7, 2.0)]),
        ('"12:0.5|7:2"', [(12, 0.5), (7, 2.0)]),
        ("12:+0.5|7:-2|3:.5", [(12, 0.5), (7, -2.0), (3, 0.5)]),
        ("12:5E-1|7:2e0|3:3.", [(12, 0.5), (7, 2.0), (3, 3.0)]),
        ("12:1e-60", [(12, 0.0)]),
        ("4:1|4:2|4:3", [(4, 1.0), (4, 2.0), (4, 3.0)]),
        ("0:3.4028234e38", [(0, float(np.finfo(np.float32).max))]),
        ("0:16777217", [(0, 16_777_216.0)]),
        ('""', []),
        ("  ", []),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_forms_of_a_cell(tmp_path, cell, expected, end):
    for number, (header, start) in enumerate(((HEADER, ""), ("\ufeff" + HEADER, ""), (HEADER, "1,,0.5,,,0" + end))):
        folder = written(tmp_path / f"csv{number}", f"{start}7,{cell},0.5,,,1", header=header, end=end)
        (_, ids, *_), *_ = read_csv_split(spec_in(folder), "train", 10)
        assert pairs(ids[1])[-1] == expected and ids[1].dtype == np.int32 and ids[1].shape[1] == 6


ANY, AT_LEAST_0 = "a finite number", "a finite number of at least 0, as a weighted mean needs"


@pytest.mark.parametrize(
    ("feature", "cell"),
    [
        *(("tags", cell) for cell in ("12", "12:", ":0.5", ":", "12:0.5:3", "12:nan", "12:inf", "12:-infinity", "12:1e999", "12:3.5e38", "12:0x1p3")),
        *(("tags", cell) for cell in ("12:0.5||7:2", "|", "12:0.5|", "|12:0.5", "12:0.5 7:2", "12:0.5;7:2", "12:1_0", "12:0,5", "12:0.5|a:1")),
        *(("tags", cell) for cell in ("90:1", "-1:0.5", "1.0:1", "99999999999999999999:1", "4294967295:1", "1:1|2:1|3:1|4:1", "12\uff1a0.5")),
        *(("topics", cell) for cell in ("3:-0.5", "3:-1e-60", "9:1", "1:1|2:1|3:1", "3")),
        *(("one", cell) for cell in ("3:1|4:1", "40000:1", "3", "3:", "|")),
    ],
)
def test_bad_cells_are_named_by_line_feature_and_value(tmp_path, feature, cell):
    cells = dict(zip(HEADER.split(","), ("7", "12:0.5", "0.5", "8:1", "5:1", "1"), strict=True))
    bad = f'"{cell}"' if "," in cell else cell
    folder = written(tmp_path / "csv", ",".join(cells.values()), ",".join((cells | {feature: bad}).values()), ",".join(cells.values()))
    about = {"tags": ("at most 3 of ", 90, ANY), "topics": ("at most 2 of ", 9, AT_LEAST_0), "one": ("nothing or ", 40_000, ANY)}
    begin, rows, weight = about[feature]
    expected = f"{begin}id:weight, the id a whole number in [0, {rows}), the weight {weight}{'' if feature == 'one' else ', separated by |'}"
    with pytest.raises(DatasetError) as caught:
        transcribed(folder, tmp_path / "d")
    assert str(caught.value) == f"{folder / 'train.csv'}, line 3, feature {feature}: expected {expected}, found {cell!r}"
    assert not (tmp_path / "d").exists()


def test_the_bad_pair_of_a_long_cell_is_named(tmp_path):
    spec = spec_of((Categorical("tags", 10_000, "int32", hotness=500, weights=True),))
    good = [f"{i}:0.5" for i in range(500)]
    for cell, fault in (("|".join([*good[:400], "7:x", "8"]), "'7:x' in place 400 of its list"), ("|".join([*good, "1:1"]), "501 of them")):
        folder = written(tmp_path / "csv", f"0.5,1,{cell}", header="n,label,tags", spec=spec)
        with pytest.raises(DatasetError, match=rf"line 2, feature tags: expected .*, found '{'.*'} …: {fault}$"):
            list(read_csv_split(spec_of_folder(folder), "train", 10))
    folder = written(tmp_path / "csv", f"0.5,1,{'|'.join(good)}", header="n,label,tags", spec=spec)
    ((_, (ids,), *_),) = read_csv_split(spec_of_folder(folder), "train", 10)
    assert pairs(ids) == [[(i, 0.5) for i in range(500)]]


def test_weights_that_the_specification_does_not_state_are_refused(tmp_path):
    features = tuple(replace(one, weights=False) if one.name == "tags" else one for one in FEATURES)
    folder = written(tmp_path / "csv", "7,12:0.5|7:2,0.5,8:1,,1", spec=spec_of(features))
    message = (
        r"at most 3 whole numbers in \[0, 90\), separated by \|, found '12:0\.5\|7:2'; ids have weights, .*, where feature_spec says `weights: true`"
    )
    with pytest.raises(DatasetError, match=message):
        transcribed(folder, tmp_path / "d")


def spec_of_folder(folder):
    return spec_in(folder)


def test_a_file_without_a_header_may_begin_with_a_weighted_list(tmp_path, capsys):
    content = yaml.safe_load(spec_of((TAGS,)).to_yaml())
    content["source_spec"] = {"train": [{"type": "csv", "features": ["tags", "n", "label"], "files": ["a.csv", "b.csv"]}]}
    for first in ("12:0.5|7:2", '"12:0.5| 7:2"', ""):
        for name, line in (("a.csv", f"{first},0.5,1"), ("b.csv", "3:-1,0.25,0")):
            folder = written(tmp_path / "csv", line, header="", name=name)
        (folder / "feature_spec.yaml").write_text(yaml.safe_dump(content))
        ((_, (ids,), labels, *_),) = read_csv_split(spec_of_folder(folder), "train", 10)
        assert pairs(ids) == [[(12, 0.5), (7, 2.0)] if first else [], [(3, -1.0)]] and labels.tolist() == [1, 0]
        assert "a.csv: has no header" in capsys.readouterr().err


def test_group_and_weight_of_rows_stand_beside(tmp_path):
    folder = written(
        tmp_path / "csv", "7,3:2,0.5,,,1,4,0.75", header=f"{HEADER},session,importance", spec=spec_of(group="session", weight="importance")
    )
    ((_, ids, labels, groups, weights),) = read_csv_split(spec_of_folder(folder), "train", 10)
    assert pairs(ids[1]) == [[(3, 2.0)]] and (labels.tolist(), groups.tolist(), weights.tolist()) == ([1], [4], [0.75])


@given(arrays(np.int8, (4, 3), elements=st.integers(-1, 5)), arrays(np.float32, (4, 3), elements=FINITE), st.sampled_from(["sum", "mean"]))
def test_written_cells_are_read_back_to_the_bit(ids, weights, pooling):
    weights = np.abs(weights) if pooling == "mean" else weights
    ids = np.take_along_axis(ids, np.argsort(ids < 0, axis=1, kind="stable"), axis=1)  # the ids first
    found, bad = WeightedListColumn("a", "int32", 6, 3, pooling).convert(list_cells(ids, weights))
    assert bad is None
    assert_array_equal(found, joined(ids, weights))


# Many rows ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(tmp_path):
    """Draw CSV files of two chunks and two files; return their folder, the specification as it was drawn, and the number of rows."""
    spec = spec_of((replace(TAGS, alpha=1.2), replace(TOPICS, cardinality=300), ONE, Categorical("user", 50, "int32")))
    content = yaml.safe_load(spec.to_yaml())
    content["source_spec"] = {
        split: [
            {"type": "csv", "features": ["one", "label", "tags"], "files": [f"{split}/a0.csv", f"{split}/a1.csv"]},
            {"type": "csv", "features": ["topics"], "files": [f"{split}/b.csv"]},
            {"type": "csv", "features": ["n", "user"], "files": [f"{split}/c.csv"]},
        ]
        for split in ("train", "test")
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(content))
    assert do(gen_csv, "--feature_spec_in", tmp_path / "spec.yaml", "--output", tmp_path / "csv", "--size", "6007") == 0
    content["feature_spec"]["tags"]["cardinality"] = content["feature_spec"]["one"]["cardinality"] = "auto"
    (tmp_path / "csv/feature_spec.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "csv", spec, 6007


def test_transcoded_rows_equal_the_drawn_ones(drawn, tmp_path):
    folder, spec, rows = drawn
    cells, *_ = pl.read_csv(folder / "train/a1.csv", has_header=False)
    assert len(cells) == rows - rows // 2 and cells.str.contains(r"^\d+:\d+\.\d+$").all()
    assert do(transcode, "--input", folder, "--output", tmp_path / "raw", "--chunk_size", "1000") == 0
    found = spec_of_folder(tmp_path / "raw")
    for name in ("train", "test"):
        expected, split = SyntheticSplit(spec, name, rows, 0), TfRawSplit(found, name)
        for i in range(4):
            assert_array_equal(split.read_ids(i, 0, rows), expected.read_ids(i, 0, rows))
        assert_array_equal(split.read_labels(0, rows), expected.read_labels(0, rows))
    greatest = max(int(ids_and_weights(SyntheticSplit(spec, name, rows, 0).read_ids(2, 0, rows))[0].max()) for name in ("train", "test"))
    assert found.cardinalities == (90, 300, greatest + 1, 50) and [one.weights for one in found.categorical] == [True, True, True, False]
    assert do(validate, "--dataset_path", tmp_path / "raw") == 0


def test_transcribed_in_other_batches_is_the_same(drawn, tmp_path):
    folder, _, rows = drawn
    one, other = (transcribed(folder, tmp_path / f"d{size}", "--src_batch_size", size) for size in (rows, 777))
    for i in range(4):
        assert_array_equal(one.read_ids(i, 0, rows), other.read_ids(i, 0, rows))


def test_a_column_of_empty_lists_only(tmp_path):
    split = transcribed(written(tmp_path / "csv", *["7,,0.5,,,1"] * 5), tmp_path / "d")
    for i in (1, 2, 3):
        assert pairs(split.read_ids(i, 0, 5)) == [[]] * 5
    content = yaml.safe_load(spec_of().to_yaml())
    content["feature_spec"]["tags"]["cardinality"] = "auto"
    (tmp_path / "csv/feature_spec.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "csv/test.csv").write_text(f"{HEADER}\n7,,0.5,,,1\n")
    with pytest.raises(DatasetError, match="feature tags: cardinality is auto, but no csv file holds an id"):
        transcribed(tmp_path / "csv", tmp_path / "d2")
