"""Blocks of whole rows, from byte ranges of a file and with rows that span lines, compared with Python's csv module and plain slicing."""

import csv
import gzip
import io
import itertools
import tempfile
import time
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dataloading.features import DatasetError
from preproc.criteo import clicklog
from preproc.reading.files import CSV, Form, FormFlags, form_of
from preproc.reading.table_file import TableFile
from preproc.reading.text_blocks import TextForm, text_blocks
from tests.helpers.folders import write
from tests.preproc.reading.drawn_csv import by_csv, drawn
from tests.preproc.table.tables import make
from utils.csv_rows import MOST_LINES

FORM = TextForm("a table", 1 << 20)
CONFIG = {"label": "y", "features": {"s": "categorical"}}


@given(st.text("ab\n", max_size=30).map(str.encode), st.lists(st.integers(0, 30), max_size=3), st.integers(1, 9))
@example(b"a\n\n\nb\n\n", [2, 3], 1)
@example(b"a\n\n", [1, 2], 4)
def test_ranges_that_cover_a_file_give_each_line_once(content, cuts, block_bytes):
    places = sorted({0, *(min(cut, len(content)) for cut in cuts), len(content)})
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "t", content)
        whole = b"".join(block.text for block in text_blocks(path, FORM, block_bytes))
        found = []
        for start, stop in itertools.pairwise(places):
            blocks = list(text_blocks(path, FORM, block_bytes, byte_range=(start, stop)))
            lines = [line for block in blocks for line in block.lines]
            assert lines == list(range(1, len(lines) + 1))
            begin = [i for i in range(start, stop) if i == 0 or content[i - 1 : i] == b"\n"]
            assert len(lines) == sum(i < len(content.rstrip(b"\n")) for i in begin)
            found += [block.text for block in blocks]
    assert b"".join(found) == whole == (content.rstrip(b"\n") + b"\n" if content.strip(b"\n") else b"")


def test_ranges_of_a_table_and_of_a_click_log(tmp_path):
    rows = [(f"value {i % 7}", f"{i}") for i in range(500)]
    path = write(tmp_path / "t.csv", "\ufeffs,n\r\n" + "".join(f"{s},{n}\r\n" for s, n in rows))
    file = TableFile(path, form_of(path, FormFlags()))
    size = path.stat().st_size
    cuts = [0, 3, 9, size // 3, size // 2, size]
    frames = [block.frame for cut in itertools.pairwise(cuts) for block in file.blocks(["n", "s"], frozenset(), 300, byte_range=cut)]
    assert pl.concat(frames).rows() == [(n, s) for s, n in rows]
    log = write(tmp_path / "log", "".join("0" + f"\t{i}" * 13 + f"\t{i:x}" * 26 + "\n" for i in range(200)))
    half = log.stat().st_size // 2
    found = [rows for cut in ((0, half), (half, 2 * half + 1)) for rows in clicklog.read_rows(log, 1000, byte_range=cut)]
    assert pl.concat(rows.frame for rows in found)["num_3"].to_list() == list(range(200))
    assert list(clicklog.read_rows(log, 1000, byte_range=(half, half + 1))) == []


def test_ranges_of_compressed_and_binary_files_are_rejected(tmp_path):
    packed = write(tmp_path / "t.csv.gz", gzip.compress(b"s,y\na,1\n"))
    with pytest.raises(DatasetError, match="is compressed; expected a plain file"):
        list(text_blocks(packed, FORM, 100, byte_range=(0, 5)))
    pl.DataFrame({"s": ["a"]}).write_parquet(tmp_path / "p")
    with pytest.raises(DatasetError, match="is parquet; expected a text file"):
        list(TableFile(tmp_path / "p", form_of(tmp_path / "p", FormFlags())).blocks(None, frozenset(), 100, byte_range=(0, 5)))


VALUES = st.text(st.sampled_from(['"', "\n", ",", "a", "é", "\ue000"]), max_size=6)


@settings(max_examples=80)
@given(st.lists(st.tuples(VALUES, st.sampled_from("01")), min_size=1, max_size=15), st.integers(1, 60), st.sampled_from(["\n", "\r\n"]))
def test_quoted_values_hold_line_ends(rows, block_bytes, end):
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end).writerows([("s", "y"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "t", out.getvalue())
        blocks = list(TableFile(path, form_of(path, FormFlags())).blocks(["s", "y"], frozenset(), block_bytes))
        lines = [line for block in blocks for line in block.lines]
        assert [row for block in blocks for row in block.frame.rows()] == rows
    starts = [2]
    for s, _ in rows:
        starts.append(starts[-1] + 1 + s.count("\n"))
    assert lines == starts[:-1]


@pytest.mark.parametrize("block_bytes", [1, 25, 1 << 20])
def test_drawn_tables_are_read_as_by_the_csv_module(tmp_path, block_bytes):
    good = 0
    for seed in range(200):
        text, separator, style = drawn(seed)
        rows, line = by_csv(text, separator, style)
        path, found = write(tmp_path / "t.csv", text.encode()), []
        blocks = TableFile(path, Form(CSV, separator, style)).blocks(None, frozenset(), block_bytes)
        if line is None:
            found = [row for block in blocks for row in block.frame.rows()]
            assert found == rows, f"seed {seed}: {text!r}"
            good += 1
        else:
            with pytest.raises(DatasetError, match=rf", line {line}: "):
                list(blocks)
    assert 50 < good < 150


@pytest.mark.parametrize("block_bytes", [1, 25, 1 << 20])
def test_a_dataset_of_values_with_line_ends(tmp_path, block_bytes):
    content = 's,y\n"a\nb",1\n"a\r\nb",0\n"a ""b""\n",1\nx,0\n"a\nb",1\n'
    made = make(tmp_path, content, content, "--block_bytes", block_bytes, config=CONFIG)
    assert made.values("s") == ["a\nb", 'a "b"', "x"] and made["train"] == {"s": [1, 1, 2, 3, 1], "label": [1, 0, 1, 0, 1]}


@pytest.mark.parametrize("block_bytes", [1, 40, 1 << 20])
def test_a_row_after_values_with_line_ends_is_named_by_its_line(tmp_path, block_bytes):
    with pytest.raises(DatasetError, match=r"t.csv, line 5, label, column y: '2', expected 0 or 1"):
        make(tmp_path, write(tmp_path / "t.csv", 's,y\n"a\n\nb",1\n"c\nd",2\n'), "s,y\na,1\n", "--block_bytes", block_bytes, config=CONFIG)


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_a_quote_that_is_never_closed_costs_its_line(tmp_path, block_bytes, capsys):
    """The file also has a second unclosed quote, a quote inside a value that does not begin with one, and values with line ends."""
    sound = "".join(f"v{i},{i % 2}\n" for i in range(50))
    content = f's,y\n{sound}"open,1\n{sound}5" disk,1\n"two\nlines",1\n"x,0\n{sound}'
    with pytest.raises(DatasetError, match=r"t.csv, line 52: a quote is opened and not closed, or 1,000 lines"):
        make(tmp_path, write(tmp_path / "t.csv", content), "s,y\na,1\n", "--block_bytes", block_bytes, config=CONFIG)
    flags = ("--block_bytes", block_bytes, "--bad_lines", "skip")
    made = make(tmp_path, tmp_path / "t.csv", "s,y\na,1\n", *flags, config=CONFIG)
    assert len(made["train"]["s"]) == 152 and made.metadata["train"]["bad_lines_skipped"] == 2 and {"two\nlines", '5" disk'} <= {*made.values("s")}
    assert "bad lines skipped: 2, the first: line 52: a quote" in capsys.readouterr().err


def test_number_of_lines_of_a_row_is_limited(tmp_path):
    for lines, bad in ((MOST_LINES, 0), (MOST_LINES + 1, MOST_LINES)):
        content = 's,y\n"' + "\n" * (lines - 1) + 'a",1\nb,1\n'
        made = make(tmp_path, content, "s,y\na,1\n", "--bad_lines", "skip", config=CONFIG, dst=f"out{lines}")
        assert made.metadata["train"]["bad_lines_skipped"] == bad and len(made["train"]["s"]) == 2
        assert ('a"' in made.values("s")) == bool(bad)  # the last line is a row by itself


def test_quotes_that_are_never_closed_take_bounded_time(tmp_path):
    path = write(tmp_path / "t.csv", "s,y\n" + '"a,1\n' * 200_000)
    begun = time.process_time()  # processor time, which other programs do not affect
    with pytest.raises(DatasetError, match="line 2: a quote"):
        list(TableFile(path, form_of(path, FormFlags())).blocks(None, frozenset(), 1 << 16))
    assert time.process_time() - begun < 20
