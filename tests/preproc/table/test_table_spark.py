"""preproc.table on Spark, local and on a cluster of two workers, gives the same files and the same errors as Polars."""

import csv as csv_module
import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preproc.spark import dictionaries as spark_dictionaries
from preproc.table import command as table
from preproc.table import on_spark as table_spark
from preproc.table.moments import Moments
from tests.helpers.commands import do
from tests.helpers.folders import tree
from tests.preproc.reading.drawn_csv import drawn, every_row
from tests.preproc.spark.spark_cluster import LOCAL, needs_spark, on_both
from utils.csv_rows import BACKSLASH, DOUBLE
from utils.errors import UserError

pytestmark = [needs_spark, pytest.mark.usefixtures("one_spark")]
WORDS = ["a", "b", "é", "ü", "z", "Z", "Ω", "😀", "x y", "01", "1", "ﬀ", "NA"]
FEATURES = {
    "user": {"kind": "categorical", "frequency_threshold": 2, "max_ids": 40},
    "url": {"kind": "categorical", "hash_buckets": 50},
    "item": {"kind": "categorical", "table": "items", "embedding_dim": 8},
    "bought": {"kind": "list", "table": "items", "max_hotness": 2},
    "tags": {"kind": "list", "pooling": "mean"},
    "price": {"kind": "numerical", "transform": "log1p", "missing": 1, "clip": [0, 1000]},
    "age": {"kind": "numerical", "transform": "standardise"},
    "ages": {"kind": "numerical", "column": "age", "buckets": 5},
    "hour": {"kind": "time", "column": "at", "part": "hour"},
    "day": {"kind": "time", "column": "at", "part": "days_since"},
    "user_hour": {"kind": "cross", "columns": ["user", "hour"]},
}
CONFIG = {"label": "rating >= 3", "group": "session", "weight": "heft", "features": FEATURES}
COLUMNS = ["user", "url", "item", "bought", "tags", "price", "age", "at", "rating", "session", "part", "heft"]


def rows(count: int, seed: int) -> list[list[str]]:
    """Draw rows in which every kind of column has every kind of value."""
    random = np.random.default_rng(seed)
    word = lambda: WORDS[random.zipf(1.5) % len(WORDS)]  # noqa: E731
    found = []
    for _ in range(count):
        items = [f"i{random.zipf(1.4) % 60}" for _ in range(random.integers(5))]
        tags = [word() for _ in range(random.integers(4))]
        age = "" if random.random() < 0.1 else repr(round(float(random.normal(40, 15)), 3))
        at = f"2024-01-{1 + random.integers(28):02d} {random.integers(24):02d}:00:00"
        price = random.choice(["", "NA", "3.5", "1e4", "12"])
        values = [f"{word()}{random.integers(30)}", word(), f"i{random.integers(70)}", "|".join(items), "|".join(tags), price, age, at]
        part, heft = random.choice(["train", "train", "valid", "test"]), random.choice(["0", "0.1", "2.5", "3e38", "1e-60"])
        found.append([*values, str(random.integers(6)), f"s{random.integers(20)}", part, heft])
    return found


def csv(found: list[list[str]], header: list[str] | None = COLUMNS) -> str:
    return "".join(",".join(row) + "\n" for row in ([header] if header else []) + found)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Write the same columns as CSV (with bad lines, gzip, with values that span lines), JSON lines and Parquet; write a configuration."""
    folder = tmp_path_factory.mktemp("tables with a space")
    found = rows(900, 0)
    lines = csv(found).splitlines()
    lines[5], lines[400], lines[899] = "what", lines[400].replace("2024-01", "noon"), lines[899] + ",more"
    (folder / "a.csv").write_text("\n".join(lines) + "\n\n")
    (folder / "b.csv.gz").write_bytes(gzip.compress(csv(rows(200, 1)).encode(), mtime=0))
    spans = rows(300, 2)
    spans[100][1] = '"two\nlines, and ""quotes"""'
    (folder / "c.csv").write_text(csv(spans))
    (folder / "d.jsonl").write_text("".join(json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n" for row in rows(400, 3)))
    frame = pl.DataFrame(rows(300, 4), schema=COLUMNS, orient="row")
    lists = [pl.col(name).str.split("|") for name in ("bought", "tags")]
    frame.with_columns(*lists, pl.col("age", "rating", "heft").cast(pl.Float64, strict=False), pl.col("at").str.to_datetime()).write_parquet(
        folder / "e.parquet", row_group_size=60
    )
    (folder / "test.csv").write_text(csv(rows(250, 5)))
    (folder / "new.csv").write_text(csv([row[:8] + row[9:-1] for row in rows(150, 6)], [name for name in COLUMNS if name not in ("rating", "heft")]))
    (folder / "columns.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    return folder


def same(folder: Path, arguments: list, capsys) -> dict[str, bytes]:
    """Run both engines, check that their files and messages are the same; return the files."""
    found = on_both(table, folder, arguments, capsys)[1]
    assert found
    return found


def every(files: Path, *more: object) -> list:
    train = [files / name for name in ("a.csv", "b.csv.gz", "c.csv", "d.jsonl", "e.parquet")]
    return ["--train", *train, "--config", files / "columns.yaml", "--bad_lines", "skip", "--block_bytes", 12_000, *more]


@pytest.fixture
def by_sql(monkeypatch):
    """Build dictionaries by Spark SQL, as for very many values."""
    monkeypatch.setattr(spark_dictionaries, "TASK_COUNTS", 0)


def test_every_kind_of_column_and_file(files, tmp_path, capsys):
    keys = ("--data", files / "new.csv", "--keep", "user,item", "--valid", files / "test.csv")
    found = same(tmp_path, every(files, "--test", files / "test.csv", *keys), capsys)
    assert len(found["train/label.bin"]) == 900 - 3 + 200 + 300 + 400 + 300 and len(found["train/bought.bin"]) == 2 * len(found["train/item.bin"])
    assert {"new/keys.parquet", "train/keys.parquet", "vocabulary/bought.parquet"} <= {*found} and not {"new/label.bin", "new/weight.bin"} & {*found}
    weights = np.frombuffer(found["train/weight.bin"], np.float32)
    assert len(weights) == len(found["train/label.bin"]) and {*weights} == {*np.float32([0, 0.1, 2.5, 3e38])}


@pytest.mark.parametrize(
    "flags",
    [
        ("--test_fraction", 0.2, "--valid_fraction", 0.1, "--seed", 3),
        ("--split_by", "at", "--test_fraction", 0.2, "--valid_fraction", 0.1),
        ("--split_key", "user", "--test_fraction", 0.3),
        ("--split_column", "part", "--dictionary_days", "all"),
    ],
    ids=["rows", "time", "key", "column"],
)
def test_split_rules(files, tmp_path, capsys, flags, monkeypatch):
    monkeypatch.setattr(table_spark, "TASKS_A_CORE", 2)
    same(tmp_path, every(files, *flags, "--keep", "user"), capsys)


def test_dictionaries_by_sql_and_a_staging_folder(files, tmp_path, capsys, by_sql):
    same(tmp_path, every(files, "--test_fraction", 0.2, "--staging", tmp_path / "staging"), capsys)
    assert not (tmp_path / "staging").exists()


def test_the_ids_of_another_dataset(files, tmp_path, capsys, request):
    known = tmp_path / "known"
    assert do(table, "--train", files / "test.csv", "--test_fraction", 0.1, "--config", files / "columns.yaml", "--dst", known) == 0
    for name in ("frozen", "extended"):
        (tmp_path / name).mkdir()
    capsys.readouterr()
    same(tmp_path / "frozen", ["--mode", "encode", "--data", files / "new.csv", "--vocabulary", known, "--keep", "user,session"], capsys)
    more = ["--train", files / "d.jsonl", "--test", files / "e.parquet", "--vocabulary", known, "--extend_vocabulary", "--block_bytes", 5000]
    expected = same(tmp_path / "extended", more, capsys)
    request.getfixturevalue("by_sql")
    assert do(table, *more, "--dst", tmp_path / "sql", *LOCAL) == 0
    assert tree(tmp_path / "sql") == expected


def test_inferred_columns_and_files_without_a_header(tmp_path, capsys):
    (tmp_path / "train").write_text(csv(rows(300, 7), None))
    (tmp_path / "test").write_text(csv(rows(50, 8), None))
    flags = [
        "--columns",
        ",".join(COLUMNS),
        "--label",
        "rating >= 3",
        "--weight",
        "heft",
        "--lists",
        "tags,bought",
        "--block_bytes",
        3000,
        "--numerical_dtype",
        "float16",
    ]
    same(tmp_path, ["--train", tmp_path / "train", "--test", tmp_path / "test", *flags, "--numerical_transform", "log"], capsys)


def test_vocabularies_and_keys_of_several_row_groups_searched_in_files(tmp_path, capsys, by_sql, monkeypatch):
    monkeypatch.setattr(table_spark, "TABLE_TEXTS", 60_000)
    monkeypatch.setattr(table_spark, "PART_TEXTS", 50_000)
    monkeypatch.setattr(table_spark, "HASHED_TEXTS", 100_000)
    values = np.random.default_rng(0).permutation(170_000)
    frame = pl.DataFrame({"y": values % 2, "v": values}).with_columns(pl.format("value {}", "v").alias("v"))
    frame.write_csv(tmp_path / "train.csv")
    frame.head(1000).write_csv(tmp_path / "test.csv")
    flags = ["--train", tmp_path / "train.csv", "--test", tmp_path / "test.csv", "--label", "y", "--categorical", "v", "--keep", "v"]
    same(tmp_path, [*flags, "--block_bytes", 300_000], capsys)


CELLS = st.sampled_from(["", "a", "b", '"a,b"', '"c\nd"', '"""', "é", "1", "2.5", "NA", "-0.0", "1e300", "x|y|y", "|"])
LINES = st.lists(st.tuples(CELLS, CELLS, st.sampled_from(["", "1", "2.5", "-0.0", "NA", "7"]), st.sampled_from("01")), min_size=1, max_size=30)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.integers(1, 60), st.sampled_from([0.0, 0.4]), st.integers(0, 2))
def test_random_tables(tmp_path_factory, capsys, found, block_bytes, fraction, threshold):
    """Both engines write the same files, or give the same error."""
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "train.csv").write_text("s,l,n,y\n" + "".join(",".join(row) + "\n" for row in found))
    (folder / "test.csv").write_text("s,l,n,y\na,b|c,1,0\nb,,2,1\n")
    ids = {"frequency_threshold": threshold}
    features = {
        "s": {"kind": "categorical", **ids},
        "l": {"kind": "list", **ids},
        "n": "numerical",
        "b": {"kind": "numerical", "column": "n", "buckets": 3},
    }
    (folder / "columns.yaml").write_text(yaml.safe_dump({"label": "y", "features": features}, sort_keys=False))
    words = ["--train", folder / "train.csv", "--config", folder / "columns.yaml", "--bad_lines", "skip", "--block_bytes", block_bytes, "--keep", "s"]
    words += ["--test_fraction", fraction] if fraction else ["--test", folder / "test.csv"]
    on_both(table, folder, words, capsys)


@pytest.mark.parametrize("style", [DOUBLE, BACKSLASH])
def test_drawn_csv_files_and_a_side_table_are_read_as_by_the_csv_module(tmp_path, capsys, style):
    """Quotes of both styles, line ends, separators and blanks, in 50 files of rows, and in a side table with a row for each of their keys."""
    (tmp_path / "train").mkdir()
    expected, keys, seed = [], {}, 0
    blanks_off = lambda text: text.strip(" \t\r\n")  # noqa: E731
    while len(list((tmp_path / "train").iterdir())) < 50:
        text, _, _ = drawn(seed, ",", columns=2)
        found = every_row(text, ",", style)
        seed += 1
        if any(row[2] not in ("0", "1") for row in found):  # a bad label, since quotes and line ends have moved the values
            continue
        (tmp_path / "train" / f"{seed:03d}.csv").write_text(text, newline="")
        expected += found
        keys |= {key: row[1] for row in found if (key := blanks_off(row[0]))}
    with (tmp_path / "side.csv").open("w", newline="") as file:
        writer = csv_module.writer(file, quoting=csv_module.QUOTE_ALL, **({"escapechar": "\\", "doublequote": False} if style == BACKSLASH else {}))
        writer.writerows([("c0", "told"), *keys.items()])
    words = ["--train", tmp_path / "train", "--test_fraction", 0.2, "--split_key", "c1", "--label", "y", "--join", f"{tmp_path}/side.csv:c0"]
    words += ["--keep", "c0,c1,told", "--bad_lines", "skip", "--block_bytes", 90, "--quote", style, "--separator", ","]
    same(tmp_path, [*words, "--categorical", "c0,c1,told"], capsys)
    read = pl.concat(pl.read_parquet(tmp_path / "polars" / split / "keys.parquet") for split in ("train", "test"))
    assert sorted(read.select("c0", "c1").rows()) == sorted(row[:2] for row in expected) and len(expected) > 100
    assert all((told or None) == (keys.get(blanks_off(c0)) or None) for c0, told in read.select("c0", "told").rows())


def test_moments_of_parts_equal_those_of_all_rows():
    values = np.random.default_rng(0).normal(1e6, 2, 10_000)
    whole, parts = Moments(), Moments()
    whole.add(values)
    for part in np.array_split(values, [1, 10, 10, 5000]):
        found = Moments()
        found.add(part)
        parts.join(found)
    assert parts.mean_and_std("x") == whole.mean_and_std("x")


# Errors ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl", "values", "type", "no rows", "too large", "no such column"])
def test_first_error_is_the_same_as_with_polars(files, tmp_path, capsys, kind):
    lines = csv(rows(600, 9)).splitlines()
    path, config = tmp_path / "table", {"label": "rating >= 3", "features": FEATURES}
    message, more = "", ["--test", files / "test.csv"]
    if kind == "csv":
        lines[377] = "what,is"
        lines[490] = "later"
        message = f"{path}, line 378: 2 values, expected 12 separated by ','; --bad_lines skip"
    elif kind == "values":
        lines[377] = lines[377].replace("2024-01", "noon")
        message = f"{path}, line 378, column at: 'noon"
    elif kind == "jsonl":
        lines = [json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in rows(600, 9)]
        lines[400] = "[]"
        message = f"{path}, line 401: '[]' is no JSON object"
    elif kind == "type":
        more += ["--valid", files / "e.parquet", "--keep", "age"]
        message = f"{files / 'e.parquet'}: column age holds Float64, but String in the files before it; expected one type (--keep)"
    elif kind == "no rows":
        more, message = ["--split_by", "at", "--test_fraction", 0.0001], "the test split holds no rows: 600 were read"
    elif kind == "too large":
        config["features"] = {"user": "categorical", "price": {"kind": "numerical", "transform": "none", "clip": [0, 80000]}}
        lines[500] = ",".join(["u", "", "", "", "", "70000", *lines[500].split(",")[6:]])
        more += ["--numerical_dtype", "float16"]
        message = "train split, row 499, feature price: 70000.0 is out of range for float16"
    else:
        config["features"] = {"other": "categorical"}
        message = f"{path}: has no column other; it has user"
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "columns.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    said, found = on_both(table, tmp_path, ["--train", path, "--config", tmp_path / "columns.yaml", "--block_bytes", 4000, *more], capsys)
    assert message in said and not found


def test_resume_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\nx,1\nz,0\n")
    words = list(map(str, ["--train", tmp_path / "t.csv", "--test_fraction", 0.5, "--label", "y", "--dst", tmp_path / "out", "--resume"]))
    for flags, why in ((LOCAL, "--engine spark: Spark itself repeats lost"), (("--staging", str(tmp_path)), "--staging: a resumed run continues")):
        with pytest.raises(UserError, match=f"--resume and {why}"):
            do(table, *words, *flags)


def test_typed_and_text_values_have_one_text_and_unknown_ones_give_warnings(tmp_path, capsys):
    draw = np.random.default_rng(7)
    frame = pl.DataFrame(
        {
            "y": draw.integers(0, 2, 300),
            "shop": pl.Series(draw.integers(1, 20, 300)).cast(pl.Float64).set(pl.Series(draw.random(300) < 0.1), None),
            "member": draw.random(300) < 0.5,
            "at": pl.Series(draw.integers(0, 10**6, 300) * 10**9).cast(pl.Datetime("us")),
            "tags": [[int(value) for value in draw.integers(0, 9, draw.integers(4))] for _ in range(300)],
        }
    )
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=50)
    flat = frame.with_columns(pl.col("tags").cast(pl.List(pl.String)).list.join("|"), pl.col("member").cast(pl.String).str.to_titlecase())
    flat.write_csv(tmp_path / "b.csv")
    flat.with_columns(shop=pl.lit("none"), at=pl.lit("2024-03-10T02:30:00-08:00")).write_csv(tmp_path / "later.csv")
    features = {name: "categorical" for name in ("shop", "member", "at")} | {"tags": "list", "pair": {"kind": "cross", "columns": ["shop", "member"]}}
    (tmp_path / "columns.yaml").write_text(yaml.safe_dump({"label": "y", "features": features}))
    train = ("--train", tmp_path / "a.parquet", tmp_path / "b.csv", "--test", tmp_path / "later.csv", "--config", tmp_path / "columns.yaml")
    found = same(tmp_path, [*train, "--block_bytes", 2000], capsys)
    transforms = yaml.safe_load(found["feature_spec.yaml"])["metadata"]["transforms"]
    assert [transforms[name]["values"] for name in ("shop", "member", "at", "tags")] == ["float", "boolean", "datetime", "integer"]
    assert [part["values"] for part in transforms["pair"]["parts"]] == ["float", "boolean"]
    assert found["train/shop.bin"][:300] == found["train/shop.bin"][300:] and found["train/at.bin"][:600] == found["train/at.bin"][600:]
    do(table, *train, "--dst", tmp_path / "again", "--block_bytes", "2000")
    said = capsys.readouterr().err
    assert "test split, feature shop: 300 of 300 values are unknown (100.0%; in training: 0.0%), the most frequent: 'none' (300)" in said
    assert "feature at: 300 of 300 values are unknown" in said and "'2024-03-10 10:30:00' (300)" in said


def test_column_of_mixed_kinds_is_the_same_error(tmp_path, capsys):
    for name, values in (("a", [1, 2]), ("b", ["x", "y"])):
        pl.DataFrame({"k": values, "y": [0, 1]}).write_parquet(tmp_path / f"{name}.parquet")
    words = ["--train", *(tmp_path / f"{name}.parquet" for name in "ab"), "--test", tmp_path / "a.parquet", "--label", "y", "--categorical", "k"]
    said, found = on_both(table, tmp_path, words, capsys)
    assert "feature k: column k holds whole numbers and other texts" in said and not found
