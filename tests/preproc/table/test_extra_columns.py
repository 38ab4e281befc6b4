"""Side tables (--join) and lists of one-hot columns (--list): the same dataset as from rows that were joined before, on both engines."""

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preproc.table import command as table
from tests.helpers.commands import do
from tests.helpers.folders import tree, write
from tests.preproc.spark.spark_cluster import LOCAL, needs_spark
from tests.preproc.table.tables import make

USERS = "user,age,city\nu1,20,Rome\nu2,,Oslo\nu3,40,\n"
ITEMS = "1::The first::1::0::1\n2::The second::0::0::0\n3::Third::0::1::0\n"
NAMES = "id,title,g_action,g_war,g_drama"
TRAIN = "user,item,y\nu1,1,1\nu2,3,0\nu9,2,1\nu3,1,0\n"
TEST = "user,item,y\nu3,3,1\nu1,7,0\n"
BY_HAND = {
    "user": {"kind": "categorical"},
    "city": {"kind": "categorical"},
    "genres": {"kind": "list", "max_hotness": 2},
    "age": {"kind": "numerical"},
}


def flags(folder: Path) -> list:
    write(folder / "users.csv", USERS)
    write(folder / "items.dat", ITEMS)
    joins = ["--join", f"{folder}/users.csv:user", f"{folder}/items.dat:item=id", "--join_columns", f"{folder}/items.dat:{NAMES}"]
    return [*joins, "--list", "genres=g_*"]


def test_columns_of_side_tables_and_lists_of_one_hot_columns(tmp_path, capsys):
    features = BY_HAND | {"age": {"kind": "numerical", "transform": "none", "missing": -1}}
    made = make(tmp_path, TRAIN, TEST, *flags(tmp_path), config={"label": "y", "features": features})
    said = capsys.readouterr().err
    assert made.values("city") == ["Oslo", "Rome"] and made.values("genres") == ["action", "drama", "war"]
    assert made["train"]["city"] == [2, 1, 0, 0] and made["train"]["age"] == [20, -1, -1, 40]
    assert made["train"]["genres"] == [[1, 2], [3, -1], [-1, -1], [1, 2]]
    assert made["test"]["city"] == [0, 2] and made["test"]["genres"] == [[3, -1], [-1, -1]] and made["test"]["age"] == [40, 20]
    assert "users.csv:user: 1 of 6 rows have a value of user that the side table lacks; its columns are missing there" in said
    assert "items.dat:item=id: 1 of 6 rows have a value of item that the side table lacks" in said
    added = {flag.split("/")[-1]: columns for flag, columns in made.metadata["added_columns"].items()}
    assert added == {"users.csv:user": ["age", "city"], "items.dat:item=id": NAMES.split(",")[1:], "--list genres=g_*": ["genres"]}


def test_columns_are_inferred_and_one_hot_columns_are_no_features(tmp_path):
    rows = "user,item,y\n" + "".join(f"u{i % 4},{i % 5},{i % 2}\n" for i in range(40))
    made = make(tmp_path, rows, rows, *flags(tmp_path), "--label", "y", "--categorical", "user,item,title")
    assert list(made.metadata["transforms"]) == ["user", "item", "age", "city", "title", "genres"]


def test_whole_numbers_that_are_keys_of_side_tables_are_ids(tmp_path, capsys):
    rows = "user,item,y\n" + "".join(f"u{i % 4},{i % 5},{i % 2}\n" for i in range(40))
    kind = lambda made: made.metadata["transforms"]["item"]["kind"]  # noqa: E731
    assert kind(make(tmp_path, rows, rows, "--label", "y")) == "numerical" and "whole numbers" in capsys.readouterr().err
    assert kind(make(tmp_path, rows, rows, *flags(tmp_path), "--label", "y", dst="joined")) == "categorical"
    assert "whole numbers" not in capsys.readouterr().err
    assert kind(make(tmp_path, rows, rows, *flags(tmp_path), "--label", "y", "--numerical", "item", dst="named")) == "numerical"


def test_a_side_table_may_have_the_key_of_a_later_one(tmp_path):
    write(tmp_path / "cities.jsonl", '{"name": "Rome", "country": "Italy"}\n{"name": "Oslo", "country": "Norway"}\n')
    config = {"label": "y", "features": {"country": {"kind": "categorical"}}}
    made = make(tmp_path, TRAIN, TEST, *flags(tmp_path)[:2], "--join", f"{tmp_path}/cities.jsonl:city=name", config=config)
    assert made.values("country") == ["Italy", "Norway"] and made["train"]["country"] == [1, 2, 0, 0]


def test_keys_are_compared_as_texts_whatever_their_types(tmp_path):
    pl.DataFrame({"item": [1, 2, 3], "price": [0.5, 2.5, None]}).write_parquet(tmp_path / "prices.parquet")
    pl.DataFrame({"item": [3.0, 1.0, None, 8.0], "user": ["a", "b", "a", "b"], "y": [True, False, True, False]}).write_parquet(tmp_path / "t.parquet")
    config = {"label": "y", "features": {"user": {"kind": "categorical"}, "price": {"kind": "numerical", "transform": "none", "missing": 9}}}
    made = make(tmp_path, tmp_path / "t.parquet", tmp_path / "t.parquet", "--join", f"{tmp_path}/prices.parquet:item", config=config)
    assert made["train"]["price"] == [9, 0.5, 9, 9]


def test_new_rows_need_the_flags_of_the_dataset(tmp_path, call):
    made = make(tmp_path, TRAIN, TEST, *flags(tmp_path), config={"label": "y", "features": BY_HAND})
    new = ["--mode", "encode", "--data", write(tmp_path / "new.csv", "user,item\nu2,1\n"), "--vocabulary", made.folder, "--dst", tmp_path / "rows"]
    code, _, said = call(table.main, *new)
    assert code == 1 and "was made with --join" in said and "users.csv:user, which added column age; give the same flag here" in said
    assert call(table.main, *new, *flags(tmp_path))[0] == 0
    columns = ["--data", write(tmp_path / "whole.csv", "user,city,age,genres\nu2,Oslo,,action|drama\n")]
    assert call(table.main, *new[:2], *columns, *new[4:6], "--dst", tmp_path / "same")[0] == 0
    without = lambda folder: {name: content for name, content in tree(folder).items() if name.startswith("new/")}  # noqa: E731
    assert without(tmp_path / "rows") == without(tmp_path / "same") != {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--join", "users.csv:who"], "--join users.csv:who: {train} has no column who; it has user, item, y"),
        (["--join", "users.csv:item"], "users.csv: has no column item; it has user, age, city (--join users.csv:item); --join users.csv:item=COLUMN"),
        (["--join", "users.csv"], "--join: expected PATH:KEY, such as users.csv:user_id, or PATH:KEY=COLUMN, found 'users.csv'"),
        (["--join", "none.csv:user"], "none.csv: no such file"),
        (["--join", "twice.csv:user"], "twice.csv, line 4: column user: 'u1' is also in twice.csv, line 2; expected each key once"),
        (["--join", "empty.csv:user"], "empty.csv, line 3: column user: nothing, expected a key (--join empty.csv:user)"),
        (["--join", "bad.csv:user"], "bad.csv, line 3: 1 values, expected 2 separated by ','"),
        (["--join", "users.csv:user", "users.csv:user"], "--join: users.csv:user is given twice"),
        (["--join", "users.csv:user", "more.csv:user"], "--join more.csv:user: adds a column age, which {train} or an earlier flag has already"),
        (["--join_columns", "users.csv:a,b"], "--join_columns users.csv: no --join has this path"),
        (["--join", "users.csv:user", "--join_columns", "users.csv:a,b,c"], "--join users.csv:user: --join_columns has no user; it has a, b, c"),
        (["--list", "g=h_*"], "--list g=h_*: h_* matches no column of {train}; it has user, item, y"),
        (["--list", "g=*_*"], "--list: expected NAME=PATTERN, such as genres=genre_*, with at most one * in a pattern, found 'g=*_*'"),
        (["--list", "user=i*"], "--list user=i*: adds a column user, which {train} or an earlier flag has already"),
        (["--list", "g=*", "--categorical", "user"], "--list g=*: matches y, the label's column, so the list would reveal the label"),
        (["--list", "g=it*", "--categorical", "user"], "{train}, line 3, column item: '3', expected 0 or 1, true or false, yes or no, or nothing"),
    ],
)
def test_errors_name_the_flag_the_file_and_the_value(tmp_path, call, monkeypatch, given, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "users.csv", USERS)
    write(tmp_path / "twice.csv", "user,c\nu1,1\nu2,2\nu1,3\n")
    write(tmp_path / "empty.csv", "user,c\nu1,1\n ,2\n")
    write(tmp_path / "bad.csv", "user,c\nu1,1\nu2\n")
    write(tmp_path / "more.csv", "user,age\nu1,1\n")
    train = write(tmp_path / "t.csv", TRAIN)
    code, out, said = call(table.main, "--train", "t.csv", "--test", "t.csv", "--label", "y", "--dst", "out", *given)
    assert code == 1 and out == "" and expected.format(train=train.name) in said and said.count("\n") <= 3, said
    assert not (tmp_path / "out").exists()


def test_join_that_matches_no_row_gives_a_warning_at_the_start(tmp_path, capsys):
    write(tmp_path / "users.csv", "user,age\n1,20\n2,30\n")
    make(tmp_path, TRAIN, TEST, "--join", f"{tmp_path}/users.csv:user", "--label", "y", "--categorical", "user")
    message = "users.csv:user: the side table has none of the keys of the first 4 rows: the rows have 'u1', 'u2', 'u9', the side table '1', '2'"
    assert message in capsys.readouterr().err


def test_a_bad_one_hot_value_can_be_skipped(tmp_path, capsys):
    train = "user,a_x,a_y,y\nu,1,0,1\nv,2,0,1\nw,,true,0\n"
    made = make(tmp_path, train, train, "--list", "a=a_*", "--label", "y", "--categorical", "user", "--bad_lines", "skip")
    assert made.values("user") == ["u", "w"] and made["train"]["a"] == [1, 2] and made.values("a") == ["x", "y"]


def test_side_tables_of_a_resumed_run(tmp_path, call, capfd, monkeypatch):
    """A run resumed after reading counts the rows without a match as an uninterrupted run does."""
    config = {"label": "y", "features": BY_HAND}
    whole = tree(make(tmp_path, TRAIN, TEST, *flags(tmp_path), config=config).folder)
    expected = capfd.readouterr().err
    monkeypatch.setattr("preproc.table.command.check_tables", lambda tables: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(tmp_path, TRAIN, TEST, *flags(tmp_path), "--resume", config=config, dst="again")
    monkeypatch.undo()
    words = ["--train", tmp_path / "again-train.csv", "--test", tmp_path / "again-test.csv", "--config", tmp_path / "columns.yaml"]
    capfd.readouterr()
    code, _, said = call(table.main, *words, *flags(tmp_path)[:5], "--list", "genres=g_*", "--resume", "--dst", tmp_path / "again")
    assert code == 0 and all(line in said for line in expected.splitlines() if "the side table lacks" in line)
    found = tree(tmp_path / "again")
    assert {name: found[name] for name in found if "spec" not in name} == {name: whole[name] for name in whole if "spec" not in name}


keys = st.sampled_from(["a", "b", "c", "d", "é", "1", "01", " a"])
cells = st.sampled_from(["", "x", "y", "7", "z z"])
bits = st.sampled_from(["", "0", "1", "true", "False"])


joined = given(
    events=st.lists(st.tuples(keys, st.sampled_from("01"), bits, bits), min_size=4, max_size=30),
    side=st.dictionaries(keys.map(str.strip), st.tuples(cells, bits), min_size=1),
    as_json=st.booleans(),
    block=st.sampled_from([40, 100_000]),
)


@joined
@settings(max_examples=20)
def test_join_by_the_command_equals_a_join_before_it(tmp_path_factory, events, side, as_json, block):
    """The dataset of --join and --list is that of rows to which Python added the columns, to the byte."""
    found = datasets(tmp_path_factory.mktemp("joined"), ("before", "polars"), events, side, as_json, block)
    assert found["polars"] == found["before"]


@needs_spark
@pytest.mark.usefixtures("one_spark")
@joined
@settings(max_examples=5)
def test_join_on_spark_equals_that_of_one_machine(tmp_path_factory, events, side, as_json, block):
    found = datasets(tmp_path_factory.mktemp("joined"), ("polars", "spark"), events, side, as_json, block)
    assert found["spark"] == found["polars"]


def datasets(folder: Path, ways: tuple[str, ...], events: list, side: dict, as_json: bool, block: int) -> dict[str, dict[str, bytes]]:
    """Return the files of the datasets that are made of joined rows ("before"), or by the flags on an engine; none where a split has no row."""
    if as_json:
        write(folder / "side.jsonl", "".join(json.dumps({"id": key, "c": cell, "h_side": bit}) + "\n" for key, (cell, bit) in side.items()))
    else:
        write(folder / "side.csv", "id,c,h_side\n" + "".join(f"{key},{cell},{bit}\n" for key, (cell, bit) in side.items()))
    write(folder / "t.csv", "k,y,h_b,h_a\n" + "".join(",".join(row) + "\n" for row in events))
    lines = []
    side = side | ({"01": side["1"]} if {*side} == {"1"} else {})  # among whole numbers 01 is 1
    for key, label, b, a in events:
        cell, bit = side.get(key.strip(), ("", ""))
        lists = "|".join(name for name, value in (("b", b), ("a", a), ("side", bit)) if value in ("1", "true"))
        lines.append(f"{key},{label},{cell},{lists}\n")
    write(folder / "joined.csv", "k,y,c,h\n" + "".join(lines))
    features = {"k": {"kind": "categorical"}, "c": {"kind": "categorical"}, "h": {"kind": "list"}}
    (folder / "columns.yaml").write_text(json.dumps({"label": "y", "features": features}))
    common = ["--config", str(folder / "columns.yaml"), "--test_fraction", "0.3", "--block_bytes", str(block), "--keep", "k"]
    side_table = next(folder.glob("side.*"))
    added = ["--train", str(folder / "t.csv"), "--join", f"{side_table}:k=id", "--list", "h=h_*"]
    runs = {"before": ["--train", str(folder / "joined.csv")], "polars": added, "spark": [*added, *LOCAL]}
    found = {}
    for name in ways:
        try:
            do(table, *runs[name], *common, "--dst", folder / name)
        except table.DatasetError as error:  # no row for a split
            assert "split holds no rows" in str(error)
            found[name] = {}
        else:
            found[name] = {path: content for path, content in tree(folder / name).items() if "feature_spec" not in path}
    return found
