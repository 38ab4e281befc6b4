"""One table in every form gives the same dataset; an error in a line names file, line and value."""

import gzip
import json
from pathlib import Path

import polars as pl
import pytest
import zstandard

from dataloading.features import DatasetError
from preproc.reading.text_blocks import TextForm, text_blocks
from preproc.table import command as table
from tests.helpers.commands import do
from tests.helpers.folders import write
from tests.preproc.table.tables import Made, make

ROWS = [
    ("x", "1.5", "a|b", "1"),
    ("y", "", "", "0"),
    ('q"z', "-2", "c", "0"),
    ("", "7", "b", "1"),
    ("x", "0.25", "a", "1"),
    ("00ff", "1e3", "d", "0"),
]
NAMES = ("s", "n", "l", "y")
CONFIG = {"label": "y", "features": {"s": "categorical", "n": {"kind": "numerical", "transform": "none"}, "l": {"kind": "list"}}}
MADE = {
    "s": [1, 4, 3, 0, 1, 2],  # x is the most frequent; then 00ff, q"z, y by value
    "n": [1.5, 0, -2, 7, 0.25, 1000],
    "l": [[1, 2], [-1, -1], [3, -1], [2, -1], [1, -1], [4, -1]],
    "label": [1, 0, 0, 1, 1, 0],
}

KEYED = ("--label", "y", "--categorical", "k")


def text(separator: str, quoted: bool = True, header: bool = True, end: str = "\n") -> bytes:
    cell = lambda value: '"' + value.replace('"', '""') + '"' if quoted and ('"' in value or separator in value) else value  # noqa: E731
    rows = [NAMES, *ROWS] if header else ROWS
    return "".join(separator.join(map(cell, row)) + end for row in rows).encode()


def frame() -> pl.DataFrame:
    """Return the table with types: an Int8 label, lists, null for missing values."""
    s, n, lists, y = zip(*ROWS, strict=True)
    columns = {"s": [v or None for v in s], "n": [float(v) if v else None for v in n], "l": [v.split("|") if v else None for v in lists]}
    return pl.DataFrame(columns | {"y": pl.Series(list(map(int, y)), dtype=pl.Int8)})


def parquet(path: Path) -> Path:
    frame().write_parquet(path, row_group_size=2)
    return path


def arrow(path: Path) -> Path:
    frame().write_ipc(path)
    return path


def stream(path: Path) -> Path:
    frame().write_ipc_stream(path)
    return path


def json_lines() -> bytes:
    rows = frame().to_dicts()
    del rows[1]["n"]  # a missing key is a missing value
    return "".join(json.dumps(dict(reversed(row.items()))) + "\n" for row in rows).encode()


FORMS = {
    "comma": (text(","), []),
    "tab": (text("\t"), []),
    "semicolon": (text(";"), []),
    "bar, quoted lists": (text("|"), []),
    "two characters": (text("::", quoted=False), []),
    "another character": (text("^"), ["--separator", "^"]),
    "tab, no quoting": (text("\t", quoted=False), ["--quote", "none"]),
    "no header": (text(",", header=False), ["--columns", "s,n,l,y"]),
    "no header, two characters": (text("::", quoted=False, header=False), ["--columns", "s,n,l,y"]),
    "BOM": (b"\xef\xbb\xbf" + text(","), []),
    "CRLF": (text(",", end="\r\n"), []),
    "CRLF and blank lines at the end": (text(",", end="\r\n") + b"\r\n\r\n", []),
    "no newline at the end": (text(",").rstrip(b"\n"), []),
    "gzip": (gzip.compress(text(",")), []),
    "zstd": (zstandard.ZstdCompressor().compress(text("\t")), []),
    "JSON lines": (json_lines(), []),
    "JSON lines, gzip": (gzip.compress(json_lines()), []),
}


@pytest.mark.parametrize("block_bytes", [1, 30, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_all_text_formats_give_the_same_dataset(tmp_path, form, block_bytes):
    content, flags = FORMS[form]
    path = write(tmp_path / "train", content)
    made = make(tmp_path, path, write(tmp_path / "test", content), *flags, "--block_bytes", block_bytes, config=CONFIG)
    assert made["train"] == made["test"] == MADE
    assert made.values("s") == ["x", "00ff", 'q"z', "y"]


@pytest.mark.parametrize("form", [parquet, arrow, stream])
def test_typed_files_give_the_same_dataset(tmp_path, form):
    made = make(tmp_path, form(tmp_path / "train"), form(tmp_path / "test"), config=CONFIG)
    assert made["train"] == made["test"] == MADE


def test_value_has_one_text_in_every_type(tmp_path):
    kinds = [pl.Int8, pl.UInt64, pl.Float32, pl.Float64, pl.String]
    (tmp_path / "all").mkdir()
    for i, kind in enumerate(kinds):
        frame = pl.DataFrame({"y": [1, 0], "k": pl.Series([7, None], dtype=pl.Int64).cast(kind)})
        frame.write_parquet(tmp_path / "all" / f"{i}.parquet")
    frame.write_parquet(tmp_path / "test.parquet")
    do(table, "--train", tmp_path / "all", "--test", tmp_path / "test.parquet", "--dst", tmp_path / "out", *KEYED)
    made = Made(tmp_path / "out")
    assert made.vocabulary("k") == [("7", 1, len(kinds))]
    assert made["train"]["k"] == [1, 0] * len(kinds)


def test_files_folders_and_globs_in_the_given_order(tmp_path):
    for name in ("b/2.csv", "b/1.csv", "c_2.csv", "c_1.csv", "a.csv", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, f"s,y\n{name},1\n")
    (tmp_path / "b" / "_SUCCESS").touch()
    given = [tmp_path / "c_*.csv", tmp_path / "b", tmp_path / "a.csv"]
    do(table, "--train", *given, "--test", tmp_path / "a.csv", "--dst", tmp_path / "o", "--label", "y", "--keep", "s")
    assert pl.read_parquet(tmp_path / "o" / "train" / "keys.parquet")["s"].to_list() == ["c_1.csv", "c_2.csv", "b/1.csv", "b/2.csv", "a.csv"]


def test_column_order_may_differ_between_files(tmp_path):
    made = make(tmp_path, "s,n,y\na,1,1\nb,2,0\n", "y,extra,n,s\n1,?,2,b\n", "--label", "y", "--numerical_transform", "none")
    assert made["test"] == {"s": [2], "n": [2.0], "label": [1]}


def test_one_row_and_one_column(tmp_path):
    made = make(tmp_path, "s,y\na,1\n", "s,y\n,0\n", "--label", "y")
    assert (made["train"], made["test"]) == ({"s": [1], "label": [1]}, {"s": [0], "label": [0]})


def test_many_columns(tmp_path):
    names = [f"c{i}" for i in range(300)]
    rows = "".join(",".join(f"v{(i * j) % 7}" for i in range(300)) + f",{j % 2}\n" for j in range(8))
    made = make(tmp_path, ",".join(names) + ",y\n" + rows, ",".join(names) + ",y\n" + rows, "--label", "y")
    assert len(made.spec.categorical) == 300
    assert made.values("c3") == [f"v{i}" for i in sorted({3 * j % 7 for j in range(8)}, key=lambda i: (-sum(3 * j % 7 == i for j in range(8)), i))]


def test_whole_numbers_beyond_32_and_64_bits_are_texts(tmp_path):
    ids = ["2147483648", "9223372036854775808", "123456789012345678901234567890", "007", "7"]
    rows = "".join(f"{value},1\n" for value in ids)
    made = make(tmp_path, "k,y\n" + rows, "k,y\n" + rows, "--label", "y", "--categorical", "k")
    assert made.values("k") == sorted(ids) and sorted(made["test"]["k"]) == [1, 2, 3, 4, 5]


BAD = [
    (b"s,n,y\na,1,1\nb,2\n", "line 3: 2 values, expected 3 separated by ','"),
    (b"s,n,y\na,1,1\nb,2,0,\n", "line 3: 4 values, expected 3"),
    (b"s,n,y\na,1,1\n\nb,2,0\n", "line 3: 0 values, expected 3"),
    (b"s,n,y\na,1,1\n\xff,2,0\n", "line 3: byte 1, 0xff, is not UTF-8"),
    (b's,n,y\na,1,1\n"b,2,0\nc,3,1\n', "line 3: a quote is opened and not closed, or 1,000 lines do not complete its row"),
    (b's,n,y\na,1,1\n"b"c,2,0\n', "line 3: '\"b\"c,2,0': a quote inside a value"),
    (b"s,n,y\na,1,1\nb,two,0\n", "line 3, column n: 'two', expected a finite number, or nothing"),
    (b"s,n,y\na,1,1\nb,inf,0\n", "line 3, column n: 'inf', expected a finite number"),
    (b"s,n,y\na,1,1\nb,2,2\n", "line 3, label, column y: '2', expected 0 or 1, true or false, yes or no"),
    (b"s,n,y\na,1,1\nb,2,\n", "line 3, label, column y: nothing, expected 0 or 1"),
]


@pytest.mark.parametrize(("content", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_lines(tmp_path, content, message, capsys):
    path = write(tmp_path / "t.csv", content)
    config = {"label": "y", "features": {"s": "categorical", "n": {"kind": "numerical", "transform": "none"}}}
    with pytest.raises(DatasetError) as raised:
        make(tmp_path, path, "s,n,y\na,1,1\n", config=config)
    assert str(raised.value).startswith(f"{path}, {message}") and "--bad_lines skip" in str(raised.value)
    assert not (tmp_path / "out").exists()
    made = make(tmp_path, path, "s,n,y\na,1,1\n", "--bad_lines", "skip", config=config)
    sound = [line.decode().split(",") for line in content.split(b"\n")[1:-1] if line in (b"a,1,1", b"b,2,0", b"c,3,1")]
    assert made["train"]["n"] == [float(row[1]) for row in sound]
    bad = content.count(b"\n") - 1 - len(sound)
    assert made.metadata["train"]["bad_lines_skipped"] == bad
    assert f"{path}: bad lines skipped: {bad}, the first: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no lines"),
        (b"\n\n", "holds no lines"),
        (gzip.compress(b"", mtime=0), "holds no lines"),
        (b"\xef\xbb\xbf", "holds no lines"),
        (b"\xef\xbb\xbf \r\n\n", "holds no lines"),
        (b"s,y\n", "holds no rows"),
        (b"s,s,y\na,b,1\n", "line 1: column s is named twice"),
        (b"s,,y\na,b,1\n", "line 1: column 2 has no name"),
        (gzip.compress(b"s,y\n" + b"a,1\n" * 99, mtime=0)[:-20], "truncated gzip file"),
        (b"PAR1 and nothing else", "cannot be read as parquet"),
    ],
)
def test_invalid_files_are_rejected(tmp_path, content, message):
    with pytest.raises(DatasetError, match=message) as raised:
        make(tmp_path, write(tmp_path / "t", content), "s,y\na,1\n", "--label", "y")
    assert str(tmp_path / "t") in str(raised.value) or "files hold no rows" in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_lists_and_texts_in_json_lines(tmp_path):
    lines = '{"a": ["x", 7], "b": "x|y", "y": 1}\n{"b": "", "y": 0}\n{"a": ["7", null, ""], "b": "y", "y": 1}\n'
    made = make(tmp_path, lines, lines, "--label", "y", "--lists", "b")
    assert made.metadata["transforms"]["a"]["kind"] == "list"  # inferred from the values
    assert made.values("a") == ["7", "x"] and made["train"]["a"] == [[2, 1], [-1, -1], [1, -1]]
    assert made.values("b") == ["y", "x"] and made["train"]["b"] == [[2, 1], [-1, -1], [1, -1]]


def test_lists_that_begin_late_in_json_lines(tmp_path):
    """Column types are not inferred from the first thousand lines alone."""
    lines = [f'{{"a": null, "u": "[{i % 3}] x", "y": {i % 2}}}\n' for i in range(1200)]
    late = '{"a": ["x", "z"], "u": "v", "y": 1}\n' * 2
    made = make(tmp_path, "".join([*lines, late]), lines[0], "--label", "y", "--lists", "a", "--categorical", "u")
    assert made.values("a") == ["x", "z"] and made.values("u") == ["[0] x", "[1] x", "[2] x", "v"]
    for value, kind in (('["x"]', "a list"), ('{"x": 1}', "an object")):
        with pytest.raises(DatasetError, match=rf"line 1201: column u: value .* is {kind}; expected a text or a number"):
            late = f'{{"u": {value}, "y": 1}}\n'
            make(tmp_path, "".join([*lines, late]), lines[0], "--label", "y", "--categorical", "u", "--ignore", "a", "--overwrite")


def test_bad_json_lines(tmp_path):
    content = '{"s": "a", "y": 1}\n{"s": "b", "y": 0\n{"s": "c", "y": true}\n[1]\n'
    with pytest.raises(DatasetError, match="line 2: not JSON: "):
        make(tmp_path, content, '{"s": "a", "y": 1}\n', "--label", "y")
    with pytest.raises(DatasetError, match=r"line 2: '\[1\]' is no JSON object; expected one a line"):
        make(tmp_path, '{"s": "c", "y": true}\n[1]\n', '{"s": "a", "y": 1}\n', "--label", "y")
    with pytest.raises(DatasetError, match="line 1: column s: value '\"a\"' is one value; expected a list, as in other lines"):
        make(tmp_path, '{"s": "a", "y": 1}\n{"s": ["b"], "y": 0}\n', '{"s": ["a"], "y": 1}\n', "--label", "y")
    made = make(tmp_path, content, '{"s": "a", "y": 1}\n', "--label", "y", "--bad_lines", "skip")
    assert made["train"] == {"s": [1, 2], "label": [1, 1]} and made.metadata["train"]["bad_lines_skipped"] == 2


def test_error_names_the_bad_row_of_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame({"s": ["a"] * 5, "y": [1, 0, 1, 2, 0]}).write_parquet(path)
    with pytest.raises(DatasetError) as raised:
        make(tmp_path, path, "s,y\na,1\n", "--label", "y")
    assert str(raised.value).startswith(f"{path}, row 4, label, column y: 2, expected 0 or 1")


@pytest.mark.parametrize("block_bytes", [1, 2, 5, 100])
def test_blocks_are_whole_lines_in_order(tmp_path, block_bytes):
    path = write(tmp_path / "t", "\xef\xbb\xbf".encode("latin1") + b"ab\r\n\r\nc\nlonger than a block\n\n\n")
    blocks = list(text_blocks(path, TextForm("a table", 1 << 20), block_bytes))
    assert b"".join(block.text for block in blocks) == b"ab\n\nc\nlonger than a block\n"
    assert [line for block in blocks for line in block.lines] == [1, 2, 3, 4]
    assert all(block.text.count(b"\n") == len(block.lines) and block.text.endswith(b"\n") for block in blocks)


def test_columns_flag_applies_only_to_files_without_a_header(tmp_path, capsys):
    """A header may name the columns in another order, more of them, or lack the label, which rows of --data do not have."""
    headed = write(tmp_path / "a.csv", "n,s,y\n1,a,1\n2,b,0\n")
    bare = write(tmp_path / "b.csv", "b,3,1\na,4,0\n")
    config = {"label": "y", "features": {"s": {"kind": "categorical"}, "n": {"kind": "numerical", "transform": "none"}}}
    unlabelled = write(tmp_path / "new.csv", "n,s\n5,b\n")
    flags = ("--train", headed, bare, "--columns", "s,n,y", "--data", unlabelled)
    made = make(tmp_path, headed, headed, *flags, config=config)
    assert made["train"]["n"] == [1, 2, 3, 4] and made["test"]["n"] == [1, 2] and made["new"]["n"] == [5]
    assert [made.values("s")[id - 1] for id in made["test"]["s"] + made["new"]["s"]] == ["a", "b", "b"]
    assert "--columns has no effect" not in capsys.readouterr().err
    make(tmp_path, headed, headed, "--columns", "s,n,y", config=config, dst="other")
    assert "--columns has no effect: every file has a header with these names" in capsys.readouterr().err
