"""preproc.table --id_weights: a column of weights beside a column of lists; the ids are those of the dataset without it."""

import json
import struct
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading import validate
from dataloading.features import DatasetError
from dataloading.id_weights import ids_and_weights
from preproc.table import command as table
from run.raw_inputs import TableInputs
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml
from tests.helpers.errors import refused
from tests.helpers.folders import tree, write
from tests.preproc.table.tables import Made, make
from training.features import ModelFeatures
from utils.errors import UserError

TRAIN = "y,tags,w,s\n1,a|b|c,0.5|2|1,x\n0,,,y\n1,b,3,x\n0,a||c,1||-4,z\n"
TEST = "s,w,y,tags\nx,7|0.1,1,b|new\nz,,0,\n"
FLAGS = ("--label", "y", "--id_weights", "tags=w")


def pairs(made: Made, split: str, feature: str = "tags") -> list[list[tuple[int, float]]]:
    """Return the ids and weights of each row, without padding."""
    ids, weights = ids_and_weights(np.array(made[split][feature], np.int32))
    assert not weights[ids < 0].any()
    return [[(int(i), float(w)) for i, w in zip(*row, strict=True) if i >= 0] for row in zip(ids, weights, strict=True)]


def inputs_of(made: Made) -> TableInputs:
    """Return the encoder of raw values by the dataset's vocabularies, as a checkpoint keeps them."""
    features = made.spec.categorical
    particulars = {one.name: {"hotness": one.hotness, "pooling": one.pooling, "weights": one.weights} for one in features}
    checkpoint = SimpleNamespace(folder=made.folder, manifest={name: made.metadata[name] for name in ("transforms", "vocabularies")})
    return TableInputs(checkpoint, ModelFeatures({one.name: one.cardinality for one in features}, (), particulars, "float32"))


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def test_each_id_has_its_weight(tmp_path, capsys):
    made = make(tmp_path, TRAIN, TEST, *FLAGS)
    assert capsys.readouterr().err == ""
    assert made.values("tags") == ["a", "b", "c"]
    assert pairs(made, "train") == [[(1, 0.5), (2, 2), (3, 1)], [], [(2, 3)], [(1, 1), (3, -4)]]
    assert pairs(made, "test") == [[(2, 7), (0, float32(0.1))], []]  # an unknown value keeps its weight
    (tags, s) = made.spec.categorical
    assert (tags.weights, tags.hotness, tags.pooling) == (True, 3, "sum") and (s.name, s.weights) == ("s", False)
    fitted = {"max_hotness": 3, "values": "text", "stripped": True}
    assert made.metadata["transforms"]["tags"] == {"kind": "list", "column": "tags", "weights": "w", **fitted}
    assert (made.folder / "train/tags.weights.bin").stat().st_size == 4 * 3 * 4
    assert read_yaml(made.folder / "columns.yaml")["features"]["tags"] == {"kind": "list", "weights": "w"}
    assert do(validate, "--dataset_path", made.folder) == 0


def test_ids_and_vocabularies_are_those_without_weights(tmp_path):
    flags = ("--frequency_threshold", "2", "--max_hotness", "2", "--negative_rate", "0.5", "--seed", "3")
    rows = TRAIN + "".join(f"{i % 2},{'|'.join('abcde'[: i % 5])},{'|'.join('12345'[: i % 5])},x\n" for i in range(200))
    weighted = tree(make(tmp_path, rows, TEST, *FLAGS, *flags, dst="a").folder)
    plain = tree(make(tmp_path, rows, TEST, "--label", "y", "--lists", "tags", "--ignore", "w", *flags, dst="b").folder)
    assert {*weighted} - {*plain} == {"train/tags.weights.bin", "test/tags.weights.bin"}
    others = {*plain} - {"feature_spec.yaml", "columns.yaml"}
    assert {name: weighted[name] for name in others} == {name: plain[name] for name in others}
    assert len(weighted["train/tags.weights.bin"]) == 4 * 2 * len(weighted["train/label.bin"]) < 4 * 2 * 204


def test_values_beyond_max_hotness_are_cut_with_their_weights(tmp_path, capsys):
    made = make(tmp_path, TRAIN, TEST, *FLAGS, "--max_hotness", "1")
    assert pairs(made, "train") == [[(1, 0.5)], [], [(2, 3)], [(1, 1)]] and made.spec.categorical[0].is_list
    assert "train: feature tags: lists cut to their first 1 values: 2" in capsys.readouterr().err
    assert np.fromfile(made.folder / "train/tags.bin", np.int8).tolist() == [1, -1, 2, 1]


# Against a plain definition ---------------------------------------------------------------------------------------------

VALUES = st.sampled_from(["a", "b", "c", "dd", "é", None])
ODD = (0.1, 1e-60, 1e-40, 16777217.0, 3.4028235e38)
WEIGHTS = st.one_of(st.integers(0, 9), st.floats(0, 1e30), st.floats(0, 9, width=32), st.sampled_from(ODD))
LISTS = st.lists(st.tuples(VALUES, WEIGHTS), max_size=4).filter(lambda row: len(row) != 1 or row[0][0])  # as a text, one empty value is no list
ROWS = st.lists(st.tuples(LISTS, st.sampled_from("01")), min_size=1, max_size=12)
SMALLEST = np.finfo(np.float32).smallest_normal


def texts(rows) -> dict[str, list[str]]:
    lists = [("|".join(value or "" for value, _ in row), "|".join(str(weight) for _, weight in row)) for row, _ in rows]
    return {"l": [values for values, _ in lists], "w": [weights for _, weights in lists]}


def frame(rows) -> pl.DataFrame:
    values, weights = [[value for value, _ in row] for row, _ in rows], [[weight for _, weight in row] for row, _ in rows]
    columns = pl.Series("l", values, pl.List(pl.String)), pl.Series("w", weights, pl.List(pl.Float64))
    return pl.DataFrame([pl.Series("y", [int(y) for _, y in rows]), *columns])


FORMS = {
    "csv": lambda rows, path: pl.DataFrame({"y": [y for _, y in rows]} | texts(rows)).write_csv(path),
    "parquet": lambda rows, path: frame(rows).write_parquet(path, row_group_size=3),
    "arrow": lambda rows, path: frame(rows).write_ipc(path),
    "json": lambda rows, path: path.write_text("".join(json.dumps(row) + "\n" for row in frame(rows).to_dicts())),
}


@settings(max_examples=60, deadline=None)
@given(ROWS, ROWS, st.sampled_from(list(FORMS)), st.integers(0, 2), st.one_of(st.none(), st.integers(1, 3)), st.sampled_from(["sum", "mean"]))
def test_random_lists(train, test, form, threshold, most, pooling):
    """The dataset, and rows encoded in memory, have what a plain definition in Python has."""
    most = 2 if pooling == "mean" and most in (None, 1) else most  # a mean of one is refused
    option = {"kind": "list", "weights": "w", "frequency_threshold": threshold, "pooling": pooling} | ({} if most is None else {"max_hotness": most})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split, rows in (("train", train), ("test", test)):
            FORMS[form](rows, folder / split)
        made = make(folder, folder / "train", folder / "test", "--block_bytes", 40, config={"label": "y", "features": {"l": option}})
        found = {split: pairs(made, split, "l") for split in ("train", "test")}
        hotness, inputs = made.spec.categorical[0].hotness, inputs_of(made)
        samples = frame(test).drop("y")
        raw = [inputs.encoded(columns)[1][0] for columns in (samples.to_dict(), samples.to_dict(as_series=False), texts(test))]
    kept = {split: [[pair for pair in row if pair[0]] for row, _ in rows] for split, rows in (("train", train), ("test", test))}
    longest = most or max(1, *(len(row) for row in kept["train"]), 1)
    counts = Counter(value for row in kept["train"] for value, _ in row[:longest])
    known = sorted((value for value in counts if counts[value] >= threshold), key=lambda value: (-counts[value], value.encode()))
    ids = {value: place for place, value in enumerate(known, 1)}
    expected = {split: [[(ids.get(value, 0), float32(weight)) for value, weight in row[:longest]] for row in rows] for split, rows in kept.items()}
    assert found == expected and hotness == longest
    for array in raw:  # an id whose weight counts as 0 is no id
        of_ids, of_weights = ids_and_weights(array)
        rows = [[(int(i), float(w)) for i, w in zip(*row, strict=True) if i >= 0] for row in zip(of_ids, of_weights, strict=True)]
        assert rows == [[pair for pair in row if pair[1] >= SMALLEST] for row in expected["test"]]


# Types and forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [pl.Float32, pl.Float64, pl.Int8, pl.UInt64, pl.Decimal(10, 2), pl.Boolean, pl.String])
@pytest.mark.parametrize("kind", ["list", "array"])
def test_lists_of_every_type_of_numbers_are_weights(tmp_path, inner, kind):
    weights = pl.Series([[1, 0], [0, 1]]).cast(pl.List(inner)) if inner != pl.String else pl.Series([["1", " 0"], ["0", "1 "]])
    weights = weights.list.to_array(2) if kind == "array" else weights
    pl.DataFrame({"y": [0, 1], "tags": [[7, 8], [8, None]], "w": weights}).write_parquet(tmp_path / "rows.parquet")
    made = make(tmp_path, tmp_path / "rows.parquet", tmp_path / "rows.parquet", *FLAGS)
    assert made.values("tags") == ["8", "7"] and pairs(made, "train") == [[(2, 1), (1, 0)], [(1, 0)]]


@pytest.mark.parametrize("values", [pl.List(pl.String), pl.String])
def test_lists_and_texts_may_be_mixed(tmp_path, values):
    """A list of values may have its weights as a text with the separator, and the other way round."""
    lists, texts = pl.Series([["a", "b"], [], None]), pl.Series(["1;0.5", "", None])
    columns = {"tags": lists, "w": texts} if values == pl.List(pl.String) else {"tags": pl.Series(["a;b", "", None]), "w": [[1.0, 0.5], None, []]}
    pl.DataFrame({"y": [0, 1, 0], **columns}).write_parquet(tmp_path / "rows.parquet")
    made = make(tmp_path, tmp_path / "rows.parquet", tmp_path / "rows.parquet", *FLAGS, "--list_separator", ";")
    assert pairs(made, "train") == [[(1, 1), (2, 0.5)], [], []]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_column_of_single_values_is_a_list_of_one(tmp_path, form):
    frame = pl.DataFrame({"y": [0, 1, 0], "tags": [5, 6, None], "w": [0.25, 2.0, None]})
    frame.write_csv(tmp_path / "rows") if form == "csv" else frame.write_parquet(tmp_path / "rows")
    made = make(tmp_path, tmp_path / "rows", tmp_path / "rows", *FLAGS)
    assert made.spec.categorical[0].hotness == 1 and pairs(made, "train") == [[(1, 0.25)], [(2, 2)], []]


def test_a_list_without_any_value_has_no_ids(tmp_path):
    rows = pl.DataFrame({"y": [0, 1], "tags": [None, None], "w": [None, None], "s": ["a", "b"]})
    for name, dtype in (("null", pl.Null), ("lists", pl.List(pl.Null)), ("empty", pl.List(pl.Int64))):
        rows.with_columns(pl.col("tags", "w").cast(dtype)).write_parquet(tmp_path / name)
        made = make(tmp_path, tmp_path / name, tmp_path / name, *FLAGS, dst=f"of {name}")
        assert pairs(made, "train") == [[], []]


def test_lists_of_one_hot_columns_and_of_side_tables_have_weights(tmp_path):
    users = write(tmp_path / "users.csv", "u,tags,w\n1,a|b,0.5|4\n2,b,3\n")
    made = make(tmp_path, "y,u\n0,2\n1,1\n0,9\n", "y,u\n1,1\n", *FLAGS, "--join", f"{users}:u", dst="joined")
    assert pairs(made, "train") == [[(1, 3)], [(2, 0.5), (1, 4)], []]
    rows = "y,g_a,g_b,w\n1,1,0,7\n0,1,1,2|3\n1,0,0,\n"
    made = make(tmp_path, rows, rows, "--label", "y", "--id_weights", "tags=w", "--list", "tags=g_*", dst="one-hot")
    assert pairs(made, "train") == [[(1, 7)], [(1, 2), (2, 3)], []]


def test_weights_of_two_lists_and_of_rows_are_different_things(tmp_path):
    rows = "y,a,b,w,v,heft\n1,x|y,z,1|2,5,0.5\n0,x,z|z,3,4|6,2\n"
    made = make(tmp_path, rows, rows, "--label", "y", "--lists", "a", "--id_weights", "a=w,b=v", "--weight", "heft", "--pooling", "mean")
    assert pairs(made, "train", "a") == [[(1, 1), (2, 2)], [(1, 3)]] and pairs(made, "test", "b") == [[(1, 5)], [(1, 4), (1, 6)]]
    assert made["train"]["weight"] == [0.5, 2] and made.spec.weight == "heft" and list(made.metadata["transforms"]) == ["a", "b"]
    shared = make(tmp_path, "y,a,b,w\n1,p|q,r|s,1|2\n", "y,a,b,w\n0,p,r,3\n", "--label", "y", "--id_weights", "a=w,b=w", dst="shared")
    assert pairs(shared, "test", "a") == pairs(shared, "test", "b") == [[(1, 3)]]


# Later rows -------------------------------------------------------------------------------------------------------------


def test_later_rows_and_rows_without_a_label_have_weights_too(tmp_path):
    today = write(tmp_path / "today.csv", "tags,w,s\nc|a,2|9,x\n,,y\n")
    old = make(tmp_path, TRAIN, TEST, *FLAGS, "--data", today, dst="old")
    assert pairs(old, "new") == [[(3, 2), (1, 9)], []]
    assert do(table, "--mode", "encode", "--data", today, "--vocabulary", old.folder, "--dst", tmp_path / "rows") == 0
    assert Made(tmp_path / "rows")["new"] == old["new"]
    later = make(tmp_path, "y,tags,w,s\n1,d|a,5|6,x\n", TEST, "--vocabulary", old.folder, "--extend_vocabulary", dst="later")
    assert later.values("tags") == ["a", "b", "c", "d"] and pairs(later, "train") == [[(4, 5), (1, 6)]]
    with pytest.raises(DatasetError, match=r"late-train\.csv: has no column w"):
        make(tmp_path, "y,tags,s\n1,a,x\n", TEST, "--vocabulary", old.folder, dst="late")
    with pytest.raises(UserError, match="--id_weights and --vocabulary: --vocabulary already sets the use of each column; remove --id_weights"):
        make(tmp_path, TRAIN, TEST, "--vocabulary", old.folder, "--id_weights", "tags=w", dst="late")


def test_columns_yaml_and_an_interrupted_run_give_the_same_dataset(tmp_path, monkeypatch):
    flags = [*FLAGS, "--test_fraction", "0.3", "--block_bytes", "300"]
    rows = "y,tags,w\n" + "".join(f"{i % 2},{'|'.join('abcde'[: i % 5])},{'|'.join(f'{k}.{i}' for k in range(i % 5))}\n" for i in range(200))
    whole = tree(make(tmp_path, rows, None, *flags, dst="out").folder)
    again = make(tmp_path, tmp_path / "out-train.csv", None, *flags[4:], "--config", tmp_path / "out/columns.yaml", dst="again")
    assert tree(again.folder) == whole
    words = ["--train", str(tmp_path / "out-train.csv"), "--dst", str(tmp_path / "ended"), *flags, "--resume"]
    monkeypatch.setattr(table, "unknown_lines", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        do(table, *words)
    monkeypatch.undo()
    assert do(table, *words) == 0 and tree(tmp_path / "ended") == whole


# Faults -----------------------------------------------------------------------------------------------------------------

NUMBER = "a finite number that float32 holds"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("a|b|c,1|2", "3 values in column tags, but 2 weights in column w; expected a weight for each value, empty ones included"),
        ("a,", "1 value in column tags, but 0 weights in column w; expected a weight for each value, empty ones included"),
        (",1", "0 values in column tags, but 1 weight in column w; expected a weight for each value, empty ones included"),
        ("a||b,1|2", "3 values in column tags, but 2 weights in column w; expected a weight for each value, empty ones included"),
        ("a|b,1|x", f"the weight of value 2 in column w is 'x', expected {NUMBER}"),
        ("a|b,|1", f"the weight of value 1 in column w is missing, expected {NUMBER}"),
        ("a|b,1|nan", f"the weight of value 2 in column w is 'nan', expected {NUMBER}"),
        ("a|b,-inf|2", f"the weight of value 1 in column w is '-inf', expected {NUMBER}"),
        ("a|b,0|1e39", f"the weight of value 2 in column w is '1e39', expected {NUMBER}"),
        ('a|b,"1|2,5"', f"the weight of value 2 in column w is '2,5', expected {NUMBER}"),
    ],
)
def test_a_wrong_row_is_named_by_file_line_and_feature(tmp_path, capsys, row, fault):
    rows = f"{TRAIN}1,{row},x\n0,a,,x\n"
    with pytest.raises(DatasetError) as error:
        make(tmp_path, rows, TEST, *FLAGS)
    assert str(error.value) == f"{tmp_path}/out-train.csv, line 6, feature tags: {fault}; --bad_lines skip leaves such rows out"
    assert not (tmp_path / "out").exists()
    made = make(tmp_path, rows, TEST, *FLAGS, "--bad_lines", "skip")
    assert pairs(made, "train") == [[(1, 0.5), (2, 2), (3, 1)], [], [(2, 3)], [(1, 1), (3, -4)]]
    assert f"bad lines skipped: 2, the first: line 6, feature tags: {fault}" in capsys.readouterr().err


def test_wrong_weights_in_typed_columns_and_json_lines(tmp_path):
    path = tmp_path / "rows"
    for weights, fault in (
        ([[1.0], [1.0, float("nan")]], "the weight of value 2 in column w is nan"),
        ([[1.0], [None, 1.0]], "the weight of value 1 in column w is missing"),
        ([[1.0], [1.0]], "2 values in column tags, but 1 weight"),
        ([[1.0], None], "2 values in column tags, but 0 weights"),
    ):
        pl.DataFrame({"y": [1, 0], "tags": [["a"], ["a", "b"]], "w": weights}).write_parquet(path)
        with pytest.raises(DatasetError, match=f"rows, row 2, feature tags: {fault}"):
            make(tmp_path, path, path, *FLAGS)
    write(path, '{"y": 1, "tags": ["a"], "w": [0.1]}\n{"y": 0, "tags": ["a"]}\n')
    with pytest.raises(DatasetError, match="rows, line 2, feature tags: 1 value in column tags, but 0 weights"):
        make(tmp_path, path, path, *FLAGS)
    pl.DataFrame({"y": [1], "tags": [["a"]], "w": pl.Series([[0]]).cast(pl.List(pl.Date))}).write_parquet(path)
    with pytest.raises(DatasetError, match=r"rows: column w holds List\(Date\), expected the weights of tags: lists of numbers, or texts of them"):
        make(tmp_path, path, path, *FLAGS)


def test_a_mean_needs_weights_of_at_least_0(tmp_path):
    with pytest.raises(DatasetError, match="line 5, feature tags: the weight of value 3 in column w is '-4', expected a finite number of at least 0"):
        make(tmp_path, TRAIN, TEST, *FLAGS, "--pooling", "mean")
    made = make(tmp_path, TRAIN.replace("-4", "4"), TEST, *FLAGS, "--pooling", "mean")
    assert made.spec.categorical[0].pooling == "mean" and pairs(made, "train")[3] == [(1, 1), (3, 4)]


@pytest.mark.parametrize(("train", "flags"), [(TRAIN.replace("-4", "4"), ("--max_hotness", "1")), ("y,tags,w\n1,a,2\n0,b,3\n", ())])
def test_weights_without_an_effect_on_a_mean_are_refused(tmp_path, train, flags):
    with pytest.raises(DatasetError, match=r"feature tags: with pooling mean and lists of one value .* have no effect; expected pooling sum, or"):
        make(tmp_path, train, TEST, *FLAGS, "--pooling", "mean", *flags)
    assert not (tmp_path / "out").exists()


def test_weights_that_become_0_are_counted(tmp_path, capsys):
    make(tmp_path, "y,tags,w\n1,a|b,1e-60|0\n0,a,-1e-50\n", "y,tags,w\n1,a,2\n0,,\n", *FLAGS)
    assert capsys.readouterr().err.splitlines() == [
        "preproc.table: train: feature tags: weights in column w too small for float32, which became 0: 2",
        "preproc.table: train: feature tags: every weight in column w is 0, so no id has an effect; is --id_weights right?",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--id_weights", "tags=v"), "--id_weights tags=v: column v: no such column; the columns are y, tags, w, s"),
        (("--id_weights", "nobody=w"), "--id_weights nobody=w: column nobody: no such column; the columns are y, tags, w, s"),
        (
            ("--id_weights", "tags=w", "--categorical", "tags"),
            "--id_weights tags=w: another flag says that tags is no list, and only values of lists",
        ),
        (("--id_weights", "tags=w", "--ignore", "tags"), "--id_weights tags=w: another flag says that tags is no list"),
        (("--id_weights", "tags=y"), "feature tags: reads y, the label's column, and so reveals the label; remove one of them"),
        (("--id_weights", "tags=w", "--weight", "w"), "feature tags: reads w, the weight's column, which rows to predict lack; remove one of them"),
    ],
)
def test_contradicting_flags_are_one_line(tmp_path, flags, message):
    with pytest.raises(UserError) as error:
        make(tmp_path, TRAIN, TEST, "--label", "y", *flags)
    assert str(error.value).startswith(message) and "\n" not in str(error.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["tags", "tags=", "=w", "tags=w=v", "tags=w,tags=v", "tags=tags"])
def test_a_malformed_flag_is_refused(tmp_path, text):
    with pytest.raises(UserError, match=r"--id_weights: expected LIST=COLUMN|--id_weights: tags=tags: expected another column"):
        make(tmp_path, TRAIN, TEST, "--label", "y", "--id_weights", text)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"tags": {"kind": "list", "weights": "tags"}}, "feature tags: weights is 'tags', the column of the values; expected another column"),
        ({"tags": {"kind": "list", "weights": 3}}, "feature tags: weights is 3, expected the name of the column that holds the weights"),
        ({"s": {"kind": "categorical", "weights": "w"}}, "feature s: option 'weights' is unknown for kind categorical"),
        ({"tags": {"kind": "list", "weights": "nobody"}}, "has no column nobody; it has y, tags, w, s"),
    ],
)
def test_an_invalid_configuration_is_refused(tmp_path, features, message):
    with refused(message, DatasetError):
        make(tmp_path, TRAIN, TEST, config={"label": "y", "features": features})
