"""Inference of column types, and the messages about columns that are doubtful or left out."""

import polars as pl
import pytest

from dataloading.features import DatasetError
from tests.preproc.table.tables import make

COLUMNS = {
    "text": ["a", "b", "a", None],
    "hexadecimal": ["00ff", "12ab", "ffff", "0011"],
    "leading": ["007", "008", "001", "002"],
    "flag": ["true", "False", "true", ""],
    "decimal": ["1.5", "-2", "NA", "1e3"],
    "whole": ["1", "2", "", "1"],
    "date": ["2024-01-01", "2024-02-01 10:00:00", "2024-03-01T10:00", ""],
    "nothing": ["", "", "", ""],
}
KINDS = {
    "text": "categorical",
    "hexadecimal": "categorical",
    "leading": "categorical",
    "flag": "categorical",
    "decimal": "numerical",
    "whole": "numerical",
    "date_hour": "time",
    "date_weekday": "time",
}


def test_texts(tmp_path, capsys):
    text = pl.DataFrame(COLUMNS | {"y": [1, 0, 1, 0]}).write_csv()
    made = make(tmp_path, text, text, "--label", "y")
    found = {name: entry["kind"] for name, entry in made.metadata["transforms"].items()}
    assert found == KINDS
    assert "column nothing: no values in the first rows, so left out" in capsys.readouterr().err


def test_types(tmp_path, capsys):
    frame = pl.DataFrame(
        {
            "text": ["a", "b"],
            "flag": [True, False],
            "real": [1.5, None],
            "whole": [1, 2],
            "list": [["a"], []],
            "numbers": [[1, 2], None],
            "time": pl.Series(["2024-01-01 10:00", None]).str.to_datetime(),
            "category": pl.Series(["a", "b"], dtype=pl.Categorical),
            "record": [{"a": 1}, {"a": 2}],
            "y": [True, False],
        }
    )
    frame.write_parquet(tmp_path / "t.parquet")
    made = make(tmp_path, tmp_path / "t.parquet", tmp_path / "t.parquet", "--label", "y")
    found = {name: entry["kind"] for name, entry in made.metadata["transforms"].items()}
    assert found == {
        "text": "categorical",
        "flag": "categorical",
        "real": "numerical",
        "whole": "numerical",
        "list": "list",
        "numbers": "list",
        "time_hour": "time",
        "time_weekday": "time",
        "category": "categorical",
    }
    assert made["train"]["numbers"] == [[1, 2], [-1, -1]] and made["train"]["flag"] == [2, 1]
    assert "column record: the type is not supported, so left out" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [(), ("--categorical", "few,many,some"), ("--numerical", "few,many,some"), ("--ignore", "few,many,some")])
def test_one_warning_for_columns_that_may_be_ids(tmp_path, capsys, flags):
    text = "s,few,many,some,genre,y\n" + "".join(f"{'ab'[i % 2]},{i % 12},{1000 + i},{i // 5},{i % 2},{i % 2}\n" for i in range(300))
    made = make(tmp_path, text, text, "--label", "y", *flags)
    said = capsys.readouterr().err
    if flags:
        assert said == ""
    else:
        assert "warning: column few: whole numbers with few distinct values are used as numbers; if they are ids: --categorical few" in said
        assert "warning: column many: over half of the values are distinct; if they name rows: --ignore many" in said
        assert "warning: column some: whole numbers are used as numbers; if they are ids: --categorical some; if not: --numerical some" in said
        assert said.count("\n") == 3
    kind = {"--categorical": "categorical", "--ignore": None}.get(flags[0] if flags else "", "numerical")
    found = {name: entry["kind"] for name, entry in made.metadata["transforms"].items()}
    assert (found.get("few"), found.get("many"), found.get("some"), found["genre"]) == (kind, kind, kind, "numerical")


def test_the_column_that_splits_is_a_feature_only_if_named(tmp_path):
    text = "s,t,y\n" + "".join(f"a,{i},{i % 2}\n" for i in range(10))
    flags = ("--label", "y", "--split_by", "t", "--test_fraction", "0.5")
    assert list(make(tmp_path, text, None, *flags).metadata["transforms"]) == ["s"]
    assert list(make(tmp_path, text, None, *flags, "--numerical", "t", dst="named").metadata["transforms"]) == ["s", "t"]


def test_dates_that_look_like_seconds_are_bad_until_their_format_or_unit_is_given(tmp_path, capsys):
    text = "s,d,y\na,20240101,1\nb,20240203,0\n"
    flags = ("--label", "y", "--times", "d")
    with pytest.raises(DatasetError, match=r"line 2, column d: '20240101', expected a time, .* 8 like a date: --time_format %Y%m%d"):
        make(tmp_path, text, text, *flags)
    assert make(tmp_path, text, text, *flags, "--time_unit", "s", dst="unit").values("d_hour") == ["6"]
    capsys.readouterr()
    made = make(tmp_path, text, text, *flags, "--time_format", "%Y%m%d", dst="form")
    assert capsys.readouterr().err == "" and made.values("d_weekday") == ["1", "6"]


def test_unsupported_types_are_errors(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame({"s": ["a", "b"], "d": pl.Series([1, 2]).cast(pl.Duration), "r": [{"a": 1}, {"a": 2}], "y": [1, 0]}).write_parquet(path)
    for column in "dr":
        with pytest.raises(DatasetError, match=str(path)):
            make(tmp_path, path, path, "--label", "y", "--numerical", column)
    for flags in (
        ("--categorical", "r"),
        ("--lists", "r"),
        ("--times", "r"),
        ("--group", "r"),
        ("--keep", "r"),
        ("--split_by", "r", "--test_fraction", "0.5"),
    ):
        with pytest.raises(DatasetError, match=f"{path}: column r holds Struct"):
            make(tmp_path, path, None if "--split_by" in flags else path, "--label", "y", *flags)


def test_invalid_time_format_is_an_error(tmp_path):
    text = "s,d,y\na,20240101,1\nb,20240203,0\n"
    with pytest.raises(DatasetError, match=r"line 2, column d|set the use of each column with --config"):
        make(tmp_path, text, text, "--label", "y", "--times", "d", "--time_format", "%Q")
