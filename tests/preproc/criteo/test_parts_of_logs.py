"""The parts agree with the whole: logs in ranges, ids by search in files, joined files, and vocabularies written as streams."""

import gzip
import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dataloading.features import DatasetError
from preproc.criteo import sorted_ids
from preproc.criteo.clicklog import LogForm, read_rows
from preproc.criteo.id_table import IdTable
from preproc.criteo.sorted_ids import SortedIds, value_ranges, write_sorted
from preproc.reading.log_ranges import moved, moved_error, ranges
from preproc.shared import joining
from preproc.shared.joining import join_files
from preproc.shared.vocabulary_file import write_vocabulary
from utils.encoding.vocabulary import build_vocabulary

FORM = LogForm(1, 1)
SOUND = "1\t{}\tab"


def whole_and_parts(path, size):
    """Read a file with --bad_lines skip, whole and in ranges put together; return rows and faults of each."""
    whole = list(read_rows(path, 1 << 20, True, form=FORM))
    frames, lines, faults = [], 0, []
    for part in ranges(path, size):
        before = lines
        for rows in read_rows(path, 50, True, form=FORM, byte_range=part):
            frames.append(rows.frame)
            faults += [moved(fault, before) for fault in rows.faults]
            lines += len(rows.lines) + len(rows.faults)
    expected = [fault for rows in whole for fault in rows.faults]
    return (pl.concat(rows.frame for rows in whole), expected), (pl.concat(frames), faults)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([SOUND, "", "\r", "bad", "\x1f\x8bxx", "(\xb5/\xfd", SOUND + "\t"]), min_size=1, max_size=60),
    st.integers(64, 300),
    st.booleans(),
    st.sampled_from(["", "\n", "\n\n\r\n"]),
)
@example([SOUND, "", "", SOUND] * 10, 64, False, "")
@example([SOUND, *[""] * 30, "bad"], 64, True, "\n\n")
def test_ranges_cover_the_whole_log(tmp_path_factory, lines, size, carriage, end):
    path = tmp_path_factory.mktemp("log") / "day"
    lines = [SOUND, *lines]  # the first line is valid, because a log of blank lines only is an error
    ends = "\r\n" if carriage else "\n"
    path.write_bytes((ends.join(line.format(row) for row, line in enumerate(lines)) + end).encode("latin-1"))
    whole, parts = whole_and_parts(path, size)
    assert parts[0].equals(whole[0]) and parts[1] == whole[1]


def test_ranges_have_about_the_requested_size(tmp_path):
    path = tmp_path / "day"
    path.write_text("".join(SOUND.format(row) + "\n" for row in range(1000)))
    found = ranges(path, 500)
    assert found[0][0] == 0 and found[-1][1] == path.stat().st_size and all(a[1] == b[0] for a, b in itertools.pairwise(found))
    assert len(found) > 10 and all(480 < stop - start < 520 for start, stop in found)
    (tmp_path / "day.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert ranges(tmp_path / "day.gz", 500) == ranges(path, 1 << 20) == [None]


def test_line_number_of_an_error_is_shifted_but_not_the_file_name(tmp_path):
    path = tmp_path / "line 3: x"
    error = moved_error(DatasetError(f"{path}: line 7: field 1 is 'line 9: x'"), path, 100)
    assert str(error) == f"{path}: line 107: field 1 is 'line 9: x'"
    elsewhere = moved_error(DatasetError(f"/somewhere/{path.name}: truncated gzip file"), path, 0, f"/somewhere/{path.name}")
    assert str(elsewhere) == f"{path}: truncated gzip file"
    other = DatasetError(f"{path}: damaged gzip file: line 7: x")
    assert str(moved_error(other, path, 100)) == str(other)


values = st.one_of(st.integers(0, 8), st.integers(2**32 - 3, 2**32 - 1), st.integers(0, 2**32 - 1))


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=60), st.lists(values, max_size=60), st.sampled_from([1, 7, 1000]))
def test_search_in_files_gives_the_ids_of_the_table(tmp_path_factory, seen, asked, most):
    folder = tmp_path_factory.mktemp("sorted")
    vocabulary = build_vocabulary(pl.LazyFrame({"c": pl.Series(seen, dtype=pl.UInt32)}), 0)
    parts = []
    for number, (low, high) in enumerate(value_ranges(vocabulary.height, most)):
        parts.append(folder / str(number))
        parts[-1].mkdir()
        write_sorted(vocabulary.lazy(), low, high, parts[-1])
    for name in (sorted_ids.VALUES, sorted_ids.IDS):
        join_files([part / name for part in parts], folder / name)
    asked = np.array([*asked, *seen], np.uint32)
    for dtype in ("int8", "int32"):
        table, found = IdTable(vocabulary, dtype), SortedIds(folder, dtype)
        assert found.knows_zero == table.knows_zero and found.ids(asked).dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found.ids(asked), table.ids(asked))


@pytest.mark.parametrize("kernel", [True, False])
def test_joined_files(tmp_path, monkeypatch, kernel):
    def unknown(*_):
        raise OSError(18, "Invalid cross-device link")

    if not kernel:
        monkeypatch.setattr(joining.os, "copy_file_range", unknown)
    contents = [b"first", b"", b"x" * 100_000, b"last"]
    paths = [tmp_path / str(place) for place in range(4)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    join_files(paths, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b"".join(contents) and list(tmp_path.iterdir()) == [tmp_path / "whole"]
    join_files([], tmp_path / "nothing")
    assert (tmp_path / "nothing").read_bytes() == b""


@pytest.mark.parametrize("rows", [0, 1, 61_440, 184_319, 184_320, 262_144, 262_145, 400_000, 1_111_111])
@pytest.mark.parametrize("cuts", [(), (0.1, 0.1, 0.8), tuple(np.linspace(0, 1, 40)[1:-1])])
def test_streamed_vocabulary_equals_the_file_of_the_frame(tmp_path, rows, cuts):
    """The frame's file is what preprocessing wrote when Polars was its only engine."""
    random = np.random.default_rng(0)
    count = np.sort(random.zipf(1.3, rows).clip(0, 2**31).astype(np.uint32))[::-1]
    ids = pl.Series(np.arange(1, rows + 1), dtype=pl.Int32)
    frame = pl.DataFrame({"value": random.permutation(rows).astype(np.uint32) * np.uint32(2654435761), "id": ids, "count": count})
    frame.write_parquet(tmp_path / "frame")
    places = [0, *(int(cut * rows) for cut in cuts), rows]
    pieces = (frame.slice(start, stop - start) for start, stop in itertools.pairwise(places))
    write_vocabulary(tmp_path / "stream", pieces, rows, frame.schema)
    assert (tmp_path / "stream").read_bytes() == (tmp_path / "frame").read_bytes()
