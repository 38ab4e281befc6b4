"""preproc.table --weight: a column of the table becomes the weight of each row, and no feature."""

import gzip
import json

import numpy as np
import polars as pl
import pytest

from dataloading import validate
from dataloading.features import DatasetError
from preproc.table import command as table
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml
from tests.helpers.folders import tree, write
from tests.preproc.spark.spark_cluster import needs_spark, on_both
from tests.preproc.table.tables import Made, make
from utils.errors import UserError

TRAIN = "s,n,w,y\na,1,0,1\nb,2,2.5,0\na,3,0.1,1\n"
TEST = "w,y,s,n\n1e-3,0,a,7\n3e38,1,z,\n"
FLAGS = ("--label", "y", "--weight", "w")


def test_the_column_becomes_the_weights_and_no_feature(tmp_path, capsys):
    made = make(tmp_path, TRAIN, TEST, *FLAGS, "--numerical", "n")
    said = capsys.readouterr()
    assert said.err == "" and "train 3 rows (click rate 0.6667, 1 of weight 0), test 2 rows (click rate 0.5000, 0 of weight 0); 1 num" in said.out
    assert made["train"]["weight"] == [0, 2.5, np.float32(0.1)] and made["test"]["weight"] == [np.float32(1e-3), np.float32(3e38)]
    assert (made.spec.weight, made.spec.dtypes["w"], list(made.metadata["transforms"])) == ("w", "float32", ["s", "n"])
    assert made.metadata["weight"] == "w" and made.metadata["train"]["rows_of_weight_0"] == 1
    assert read_yaml(made.folder / "columns.yaml")["weight"] == "w"
    assert do(validate, "--dataset_path", made.folder) == 0


def test_without_the_flag_nothing_is_written_about_weights(tmp_path):
    made = make(tmp_path, TRAIN, TEST, "--label", "y")
    assert made.spec.weight is None and "weight" not in made.metadata and "rows_of_weight_0" not in made.metadata["train"]
    assert list(made.metadata["transforms"]) == ["s", "n", "w"] and not (made.folder / "train/weight.bin").exists()


def test_features_are_the_same_as_without_the_column(tmp_path):
    """Vocabularies, thresholds, means and boundaries come from all rows, whatever they weigh."""
    flags = ("--frequency_threshold", "2", "--numerical", "n")
    with_weights = tree(make(tmp_path, TRAIN, TEST, *FLAGS, *flags, dst="a").folder)
    without = tree(make(tmp_path, TRAIN, TEST, "--label", "y", "--ignore", "w", *flags, dst="b").folder)
    assert {*with_weights} - {*without} == {"train/weight.bin", "test/weight.bin"}
    others = {*without} - {"feature_spec.yaml", "columns.yaml"}
    assert {name: with_weights[name] for name in others} == {name: without[name] for name in others}


def test_config_and_columns_yaml_hold_the_weight(tmp_path):
    features = {"s": "categorical", "n": "numerical"}
    made = make(tmp_path, TRAIN, TEST, config={"label": "y", "weight": "w", "features": features})
    again = make(tmp_path, TRAIN, TEST, "--config", made.folder / "columns.yaml", dst="again")
    assert again["train"] == made["train"] and again.spec.weight == "w" and made["train"]["weight"][1] == 2.5
    with pytest.raises(UserError, match="--weight and --config: --config already sets the use of each column; remove --weight"):
        make(tmp_path, TRAIN, TEST, "--weight", "w", config={"label": "y", "features": features}, dst="both")
    with pytest.raises(DatasetError, match=r"weight: expected a text, found '3'"):
        make(tmp_path, TRAIN, TEST, config={"label": "y", "weight": 3, "features": features}, dst="both")


def test_rows_without_a_label_need_no_weight(tmp_path):
    today = write(tmp_path / "today.csv", "s,n\nb,3\nnew,5\n")
    made = make(tmp_path, TRAIN, TEST, *FLAGS, "--data", today)
    assert "weight" not in made["new"] and not (made.folder / "new/weight.bin").exists() and made["train"]["weight"][1] == 2.5
    assert "rows_of_weight_0" not in made.metadata["new"]
    assert do(table, "--mode", "encode", "--data", today, "--vocabulary", made.folder, "--dst", tmp_path / "rows") == 0
    assert Made(tmp_path / "rows")["new"] == made["new"]
    assert do(validate, "--dataset_path", tmp_path / "rows") == 0


def test_a_dataset_made_with_weights_takes_them_from_later_rows(tmp_path):
    old = make(tmp_path, TRAIN, TEST, *FLAGS, dst="old")
    later = make(tmp_path, TRAIN.replace("2.5", "7"), TEST, "--vocabulary", old.folder, "--extend_vocabulary", dst="later")
    assert later["train"]["weight"] == [0, 7, np.float32(0.1)]
    with pytest.raises(DatasetError, match=r"late-train\.csv: has no column w"):
        make(tmp_path, "s,n,y\na,1,1\n", TEST, "--vocabulary", old.folder, dst="late")
    with pytest.raises(UserError, match="--weight and --vocabulary: --vocabulary already sets the use of each column"):
        make(tmp_path, TRAIN, TEST, "--vocabulary", old.folder, "--weight", "w", dst="late")


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl", "csv.gz"])
def test_every_format_gives_the_same_weights(tmp_path, form):
    frame = pl.DataFrame({"s": ["a", "b", "c"], "w": [0.1, 0.0, 2.0], "y": [1, 0, 1]})
    path = tmp_path / f"rows.{form}"
    if form == "parquet":
        frame.with_columns(pl.col("w").cast(pl.Float32)).write_parquet(path)
    elif form == "arrow":
        frame.write_ipc(path)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dicts()))
    else:
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    assert make(tmp_path, path, path, *FLAGS)["train"]["weight"] == [np.float32(0.1), 0, 2]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.UInt8, pl.Boolean, pl.Decimal(10, 2), pl.String])
def test_other_types_of_numbers_are_weights(tmp_path, dtype):
    path = tmp_path / "rows.parquet"
    pl.DataFrame({"s": ["a", "b"], "w": pl.Series([1, 0]).cast(dtype), "y": [1, 0]}).write_parquet(path)
    assert make(tmp_path, path, path, *FLAGS)["train"]["weight"] == [1, 0]


def test_a_column_of_another_type_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    pl.DataFrame({"s": ["a"], "w": pl.Series([1]).cast(pl.Date), "y": [1]}).write_parquet(path)
    with pytest.raises(DatasetError, match=r"rows\.parquet: column w holds Date, expected numbers"):
        make(tmp_path, path, path, *FLAGS)


BAD = {"-1": "'-1'", "": "nothing", "nan": "'nan'", "inf": "'inf'", "-inf": "'-inf'", "1e39": "'1e39'", "3.5e38": "'3.5e38'", "x": "'x'"}


@pytest.mark.parametrize("value", [*BAD, "NA", "-1e-60"])
def test_a_value_that_is_no_weight_is_named_by_file_line_and_column(tmp_path, value):
    shown = BAD.get(value, repr(value))
    with pytest.raises(DatasetError) as error:
        make(tmp_path, f"{TRAIN}b,3,{value},1\na,1,-7,1\n", TEST, *FLAGS)
    assert str(error.value) == (
        f"{tmp_path}/out-train.csv, line 5, weight, column w: {shown}, expected a number of at least 0 that float32 holds; "
        "--bad_lines skip leaves such rows out"
    )
    assert not (tmp_path / "out").exists()


def test_bad_weights_in_parquet_and_json_lines(tmp_path):
    frame = pl.DataFrame({"s": ["a", "b", "c"], "w": [0.5, float("nan"), None], "y": [1, 0, 1]})
    frame.write_parquet(tmp_path / "rows.parquet")
    for rows, shown in ((frame, "row 2, weight, column w: nan"), (frame[[0, 2]], "row 2, weight, column w: nothing")):
        rows.write_parquet(tmp_path / "rows.parquet")
        with pytest.raises(DatasetError, match=shown):
            make(tmp_path, tmp_path / "rows.parquet", tmp_path / "rows.parquet", *FLAGS)
    lines = write(tmp_path / "rows.jsonl", '{"s": "a", "w": 1, "y": 1}\n{"s": "b", "y": 0}\n')
    with pytest.raises(DatasetError, match=r"rows\.jsonl, line 2, weight, column w: nothing, expected a number"):
        make(tmp_path, lines, lines, *FLAGS)


def test_bad_weights_are_left_out_on_request(tmp_path, capsys):
    made = make(tmp_path, f"{TRAIN}b,3,-1,1\n", TEST, *FLAGS, "--bad_lines", "skip")
    assert len(made["train"]["weight"]) == 3 and made.metadata["train"]["bad_lines_skipped"] == 1
    assert "bad lines skipped: 1, the first: line 5, weight, column w: '-1'" in capsys.readouterr().err


def test_weights_that_float32_rounds_to_0_are_counted(tmp_path, capsys):
    made = make(tmp_path, f"{TRAIN}b,3,1e-60,1\na,3,1e-46,0\na,3,1e-44,0\n", TEST, *FLAGS, "--numerical", "n")
    assert made["train"]["weight"][3:] == [0, 0, np.float32(1e-44)] and made.metadata["train"]["rows_of_weight_0"] == 3
    assert capsys.readouterr().err.splitlines() == [
        "preproc.table: warning: the train split: column w: 2 weights are too small for float32 and became 0"
    ]


def test_a_split_whose_weights_are_all_0_gives_a_warning(tmp_path, capsys):
    make(tmp_path, "s,w,y\na,0,1\nb,0,0\n", "s,w,y\na,1,1\nb,0,0\n", *FLAGS)
    assert capsys.readouterr().err == "preproc.table: warning: the train split: every weight is 0; is --weight right?\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--weight", "v"), "--weight v: no such column; the columns are s, n, w, y"),
        (("--weight", "w", "--numerical", "w"), "feature w: reads w, the weight's column, which rows to predict lack; remove one of them"),
        (("--weight", "w", "--categorical", "w"), "feature w: reads w, the weight's column, which rows to predict lack; remove one of them"),
        (("--weight", "y"), "weight y: is the label, so every row with label 0 would have weight 0; expected another column"),
        (("--weight", "w", "--list", "l=w,n"), "--list l=w,n: matches w, the weight's column, which is no feature; change the pattern"),
    ],
)
def test_contradicting_flags_are_one_line(tmp_path, flags, message):
    with pytest.raises(UserError) as error:
        make(tmp_path, TRAIN, TEST, "--label", "y", *flags)
    assert str(error.value) == message and not (tmp_path / "out").exists()


def test_config_of_a_feature_that_reads_the_weight_is_refused(tmp_path):
    features = {"s": "categorical", "both": {"kind": "cross", "columns": ["s", "w"]}}
    with pytest.raises(DatasetError, match=r"columns\.yaml: feature both: reads w, the weight's column"):
        make(tmp_path, TRAIN, TEST, config={"label": "y", "weight": "w", "features": features})


def test_the_weight_may_be_the_number_that_the_label_compares_the_group_or_the_splitting_column(tmp_path):
    """Watch time is the usual case: clicked means watched, and a longer view counts more."""
    made = make(tmp_path, TRAIN, TEST, "--label", "w > 0", "--weight", "w", "--ignore", "y")
    assert made["train"]["label"] == [0, 1, 1] and made["train"]["weight"][1] == 2.5
    made = make(tmp_path, TRAIN, TEST, *FLAGS, "--group", "w", "--ignore", "w", dst="group")
    assert made["train"]["weight"][1] == 2.5 and len(made["train"]["group"]) == 3 and made.spec.weight == "w_"
    made = make(tmp_path, TRAIN + "a,4,9,0\n", None, *FLAGS, "--split_by", "w", "--test_fraction", "0.25", dst="split")
    assert made["test"]["weight"] == [9]


def test_side_tables_may_hold_the_weight(tmp_path):
    users = write(tmp_path / "users.csv", "u,w\n1,0.5\n2,4\n")
    rows = "u,y\n2,1\n1,0\n"
    made = make(tmp_path, rows, rows, *FLAGS, "--join", f"{users}:u")
    assert made["train"]["weight"] == [4, 0.5] and list(made.metadata["transforms"]) == ["u"]
    with pytest.raises(DatasetError, match=r"line 2, weight, column w: nothing"):
        make(tmp_path, "u,y\n3,1\n", rows, *FLAGS, "--join", f"{users}:u", dst="lacking")


def test_columns_with_the_names_of_channels(tmp_path):
    rows = "s,weight,group,y\na,0.5,1,1\nb,2,2,0\n"
    made = make(tmp_path, rows, rows, "--label", "y", "--weight", "weight", "--group", "group")
    assert (made.spec.label, made.spec.weight, made.spec.group) == ("label", "weight", "group") and made["train"]["weight"] == [0.5, 2]
    with pytest.raises(DatasetError, match=r"feature weight would be written to weight\.bin, which another feature needs; .* in --config"):
        make(tmp_path, TRAIN.replace("s,", "weight,"), TEST.replace(",s,", ",weight,"), *FLAGS, dst="taken")


def test_an_interrupted_run_continues_with_the_weights(tmp_path, monkeypatch):
    flags = [*FLAGS, "--test_fraction", "0.3", "--block_bytes", "300", "--resume"]
    rows = "s,w,y\n" + "".join(f"{'abc'[i % 3]},{i / 7},{i % 2}\n" for i in range(200))
    whole = tree(make(tmp_path, rows, None, *flags, dst="out").folder)
    (tmp_path / "again").mkdir()
    (tmp_path / "again-train.csv").write_text(rows)
    words = ["--train", str(tmp_path / "out-train.csv"), "--dst", str(tmp_path / "again"), *flags]
    monkeypatch.setattr(table, "statistics_of", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        do(table, *words)
    monkeypatch.undo()
    assert do(table, *words) == 0 and tree(tmp_path / "again") == whole


@pytest.mark.parametrize(("value", "fault"), [("-1", "'-1'"), ("", "nothing"), ("1e39", "'1e39'")])
@pytest.mark.usefixtures("one_spark")
@needs_spark
def test_a_wrong_weight_is_the_same_line_on_spark(tmp_path, capsys, value, fault):
    lines = ["s,w,y", *(f"{'abc'[i % 3]},{i / 7},{i % 2}" for i in range(500))]
    lines[377] = f"a,{value},1"
    lines[450] = "a,-3,1"
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    words = ["--train", tmp_path / "t.csv", "--test_fraction", 0.2, *FLAGS, "--block_bytes", 700]
    said, found = on_both(table, tmp_path, words, capsys)
    assert f"t.csv, line 378, weight, column w: {fault}, expected a number" in said and not found


@pytest.mark.usefixtures("one_spark")
@needs_spark
def test_both_engines_write_the_same_weights_and_say_the_same(tmp_path, capsys):
    lines = ["s,w,y", *(f"{'abc'[i % 3]},{['0', '1e-60', str(i / 7)][i % 3]},{i % 2}" for i in range(500))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    words = ["--train", tmp_path / "t.csv", "--test_fraction", 0.2, *FLAGS, "--block_bytes", 700]
    said, found = on_both(table, tmp_path, words, capsys)
    assert "weights are too small for float32 and became 0" in said
    assert sum(len(found[f"{split}/weight.bin"]) for split in ("train", "test")) == 4 * 500
