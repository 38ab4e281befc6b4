"""Mistakes of a new user: files that are no tables, flags without effect, doubtful columns. One line each, no traceback, no files left."""

import bz2
import lzma
import os
import re
from pathlib import Path

import polars as pl
import pytest

from preproc.table import command as table
from tests.helpers.folders import write
from tests.preproc.table.tables import Made

ROWS = "s,n,y\n" + "".join(f"v{i % 7},{i}.5,{i % 2}\n" for i in range(60))


def run(call, folder: Path, monkeypatch, *flags: str) -> tuple[int, str]:
    """Run the command; return the exit code and its standard error, followed by standard output where it succeeds."""
    monkeypatch.chdir(folder)
    if "--test_fraction" not in flags:
        flags = (*flags, "--test_fraction", "0.3")
    code, out, said = call(table.main, *flags, *(() if "--dst" in flags else ("--dst", "out")), *(() if "--config" in flags else ("--label", "y")))
    assert "Traceback" not in said and not [path for path in folder.rglob(".*")], said
    if code:
        assert out == "" and not (folder / "out").exists()
    return code, said if code else said + out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"PK\x03\x04" + bytes(50), "t.csv: is a zip archive; expected text in UTF-8, Parquet or Arrow, plain or compressed by gzip or zstd"),
        (bz2.compress(ROWS.encode()), "t.csv: is compressed by bzip2;"),
        (lzma.compress(ROWS.encode()), "t.csv: is compressed by xz;"),
        (ROWS.encode("utf-16"), "t.csv: is text in UTF-16;"),
        (b"Obj\x01" + bytes(50), "t.csv: is an Avro file;"),
        (b'[{"s": "a", "y": 1},\n {"s": "b", "y": 0}]\n', "t.csv: is one JSON array; expected JSON lines, one object a line"),
        ("sé,y\na,1\n".encode("latin-1"), "t.csv, line 1: byte 2, 0xe9, is not UTF-8; expected text in UTF-8"),
        (b"\x81\x82\n" * 9, "t.csv, line 1: byte 1, 0x81, is not UTF-8; expected text in UTF-8"),
        (ROWS.replace("\n", "\r").encode(), r"t.csv: its lines end in CR alone; expected LF or CRLF (tr '\r' '\n' converts them)"),
        (b"s,y\na\na\n", "t.csv, line 2: 1 values, expected 2 separated by ','; none of the first lines is valid"),
        (
            ROWS.replace(",", ";").replace("s;n;y", "s;n;z").encode(),
            "--label y: no column y; expected a column, or a comparison such as 'rating >= 4'",
        ),
    ],
)
def test_files_of_other_formats_are_rejected(tmp_path, call, monkeypatch, content, expected):
    write(tmp_path / "t.csv", content)
    code, said = run(call, tmp_path, monkeypatch, "--train", "t.csv")
    assert code == 1 and said.startswith(f"command: error: {expected}")


def test_tables_that_begin_like_other_formats_are_read(tmp_path, call, monkeypatch):
    for header in ("PKs", "BZh9", "Obj", "ORC", "[s]"):
        write(tmp_path / "t.csv", ROWS.replace("s,n", f"{header},n"))
        assert run(call, tmp_path, monkeypatch, "--train", "t.csv", "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--separator ;", "--label y: no column y; .*the columns are s,n,y; is --separator right[?]"),
        ("--format jsonl", "t.csv: no line is a JSON object; expected one a line"),
        ("--columns a,b,c,d", "t.csv, line 1: 3 values, expected 4 separated by ','; none of the first lines is valid"),
        ("--keep q", "--keep q: no such column; the columns are s, n, y"),
        ("--split_by q", "--split_by q: no such column; the columns are s, n, y"),
        ("--split_key q", "--split_key q: no such column; the columns are s, n, y"),
        ("--config no_label.yaml", "no_label.yaml: label: missing; expected a column, or a comparison"),
        ("--categorical label,s", "feature label would be written to label.bin.* give the feature another name in --config"),
        ("--split_name a/b", "--split_name needs --data"),
        ("--data=t.csv --split_name=a/b", "--split_name a/b: expected letters, digits, _ and -, and not vocabulary"),
        ("--data=t.csv --split_name=vocabulary", "--split_name vocabulary: expected letters, digits, _ and -, and not vocabulary"),
        ("--dst link", "link is a link to nowhere, which does not exist; create that folder, or remove the link"),
        ("--dst ''", "argument --dst: expected a folder, or the URL of a folder in an object store, found ''"),
    ],
)
def test_invalid_flags_are_rejected(tmp_path, call, monkeypatch, flags, expected):
    write(tmp_path / "t.csv", ROWS.replace("n,y", "label,y") if flags.endswith("label,s") else ROWS)
    write(tmp_path / "no_label.yaml", "features: {s: categorical}\n")
    (tmp_path / "link").symlink_to("nowhere")
    flag, value = flags.split(" ", 1)
    code, said = run(call, tmp_path, monkeypatch, "--train", "t.csv", flag, value.strip("'"))
    assert code == 1
    assert re.search(expected, said.splitlines()[-1])


def test_glob_error_names_the_match_that_is_no_file(tmp_path, call, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    assert "pipe: is matched by p* and is not a file" in run(call, tmp_path, monkeypatch, "--train", "p*")[1]
    (tmp_path / "days" / "sub").mkdir(parents=True)
    write(tmp_path / "days" / "1.csv", ROWS)
    code, said = run(call, tmp_path, monkeypatch, "--train", "days/*")
    assert code == 1 and "days/sub: is matched by days/* and is a folder; name it, or match its files: days/*/*" in said
    write(tmp_path / "days" / "sub" / "2.csv", ROWS)
    assert run(call, tmp_path, monkeypatch, "--train", "days/**")[0] == 0
    assert Made(tmp_path / "out").metadata["train"]["files"] == ["1.csv", "2.csv"]


def test_unreadable_folder_is_an_error(tmp_path, call, monkeypatch):
    (tmp_path / "days" / "sub").mkdir(parents=True)
    write(tmp_path / "days" / "1.csv", ROWS)
    scandir = os.scandir

    def refuse(path):  # patched, because tests may run as root, whom permissions do not stop
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    code, said = run(call, tmp_path, monkeypatch, "--train", "days")
    assert (code, said) == (1, "command: error: days/sub: Permission denied\n")


@pytest.mark.parametrize(
    ("content", "flags", "expected"),
    [
        (
            ROWS + "a,inf,1\na,nan,0\n",
            "",
            "warning: column n: most values are numbers, but some are not, so used as ids; if they are numbers: --numerical n",
        ),
        (ROWS.replace(",1\n", ",0\n"), "", "warning: the train split: every label is 0; is --label right?"),
        (ROWS.replace(",0\n", ",1\n"), "", "warning: the test split: every label is 1; is --label right?"),
        (ROWS, "--frequency_threshold 99", "warning: features s: no value is kept, so every row has id 0; is --frequency_threshold too high?"),
        (ROWS, "--data t.csv", "warning: t.csv is given for train and for new: the same rows are in both"),
        (ROWS + "a,b\n1,2,3,4\n", "--bad_lines skip", "; 2 bad lines skipped; "),
        (ROWS, "--seed 3 --time_unit s", "warning: --time_unit has no effect: no column is a time (--times)"),
        (ROWS, "--pooling mean --max_hotness 2", "warning: --max_hotness, --pooling have no effect: no column is a list (--lists)"),
        (ROWS, "--ignore n --numerical_transform log1p", "warning: --numerical_transform has no effect: no column is numerical (--numerical)"),
        (ROWS, "--config ignores.yaml", "warning: ignores.yaml: ignore: no column zz in t.csv"),
    ],
)
def test_doubtful_input_gives_a_warning(tmp_path, call, monkeypatch, content, flags, expected):
    write(tmp_path / "t.csv", content)
    write(tmp_path / "ignores.yaml", "label: y\nfeatures: {s: categorical}\nignore: [zz]\n")
    code, said = run(call, tmp_path, monkeypatch, "--train", "t.csv", *flags.split())
    assert code == 0 and expected in said


def test_types_are_inferred_from_the_first_file_with_rows(tmp_path, call, monkeypatch):
    write(tmp_path / "a.csv", "s,n,y\n")
    write(tmp_path / "b.csv", ROWS)
    assert run(call, tmp_path, monkeypatch, "--train", "a.csv", "b.csv")[0] == 0
    write(tmp_path / "t.csv", ROWS)
    assert run(call, tmp_path, monkeypatch, "--train", "t.csv", "--dst", "other")[0] == 0
    for name in ("train/s.bin", "test/numerical.bin", "columns.yaml"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_csv_flags_without_a_csv_file_give_warnings(tmp_path, call, monkeypatch):
    pl.DataFrame({"s": ["a", "b"], "y": [0, 1]}).write_parquet(tmp_path / "t.parquet")
    code, said = run(call, tmp_path, monkeypatch, *"--train t.parquet --seed 3 --separator | --quote none --split_by y".split())
    assert code == 0
    assert "warning: --seed has no effect: no rows are drawn" in said
    assert "warning: --separator, --quote have no effect: no file is CSV" in said


def test_spaces_around_names_in_flags_are_ignored(tmp_path, call, monkeypatch):
    write(tmp_path / "t.csv", ROWS)
    assert run(call, tmp_path, monkeypatch, "--train", "t.csv", "--categorical", "s, n")[0] == 0
    assert len(Made(tmp_path / "out").spec.categorical) == 2
