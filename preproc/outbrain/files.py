"""Reading of the raw files of Outbrain's click prediction as typed rows, block by block; errors name file, line, column and value."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import polars as pl
from tqdm import tqdm

from dataloading.features import DatasetError
from preproc.reading.files import CSV, Form
from preproc.reading.table_file import Block, TableFile
from preproc.shared.in_order import in_order
from utils.encoding import columns as encoding

WHOLE, NUMBER, TIME, TEXT, FLAG = "whole", "number", "time", "text", "flag"
CLICKS, EVENTS, PROMOTED, META = "clicks_train", "events", "promoted_content", "documents_meta"
FORM = Form(CSV, ",")  # format of every file
_NULLS = ("", "\\N")
_ENDINGS = ("", ".gz", ".zst")
_LINE = re.compile(r"line (\d+)[:,] ")
_MOST = 2**62  # the greatest id
_LAST_MS = 10**14  # the greatest timestamp: three thousand years


class Column(NamedTuple):
    """A column that is read: its kind, whether a value is required, and the least and greatest of its whole numbers."""

    name: str
    kind: str = WHOLE
    needed: bool = True
    least: int = 0
    most: int = _MOST


TABLES: Mapping[str, tuple[Column, ...]] = {
    PROMOTED: (Column("ad_id"), Column("document_id", needed=False), Column("campaign_id", needed=False), Column("advertiser_id", needed=False)),
    EVENTS: (
        Column("display_id"),
        Column("document_id", needed=False),
        Column("timestamp", most=_LAST_MS),
        Column("platform", needed=False, least=1, most=3),
        Column("geo_location", TEXT, needed=False),
    ),
    META: (
        Column("document_id"),
        Column("source_id", needed=False),
        Column("publisher_id", needed=False),
        Column("publish_time", TIME, needed=False),
    ),
    "documents_categories": (Column("document_id"), Column("category_id"), Column("confidence_level", NUMBER)),
    "documents_topics": (Column("document_id"), Column("topic_id"), Column("confidence_level", NUMBER)),
    "documents_entities": (Column("document_id"), Column("entity_id", TEXT), Column("confidence_level", NUMBER)),
    CLICKS: (Column("display_id"), Column("ad_id"), Column("clicked", FLAG)),
}
ASPECTS = {"categories": "documents_categories", "topics": "documents_topics", "entities": "documents_entities"}  # the table of each similarity
_OTHER_NAMES = {META: ("document_meta",)}


def find_files(folder: Path) -> dict[str, Path]:
    """Find the file of each table, plain, gzip or zstd. Raises DatasetError where one is missing."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}; expected the folder of the raw files (--src)")
    found = {}
    for table in TABLES:
        names = [f"{name}.csv{ending}" for name in (table, *_OTHER_NAMES.get(table, ())) for ending in _ENDINGS]
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise DatasetError(
                f"{folder}: has no {table}.csv (nor {table}.csv.gz); expected the unzipped files of Kaggle's Outbrain Click Prediction"
            )
        path.open("rb").close()  # fail now, not in the middle of the run, where the file cannot be read
        found[table] = path
    return found


@dataclass(frozen=True)
class Typed:
    """The valid rows of a block, and a description of the fault of each other row, with its line, from 1."""

    rows: pl.DataFrame
    faults: list[str]


class RawFiles:
    """The raw files, read one after another.

    Args:
        paths: the file of each table.
        skip_bad_lines: leave bad rows out, count them and print the first of each file.
        block_bytes: text parsed at once, in bytes.

    Attributes:
        rows: number of valid rows of each table that was read.
        bad_lines: number of rows left out, of all files.
    """

    def __init__(self, paths: Mapping[str, Path], skip_bad_lines: bool, block_bytes: int):
        self.paths = paths
        self.rows: dict[str, int] = {}
        self.bad_lines = 0
        self._skip, self._block_bytes = skip_bad_lines, block_bytes

    def blocks(self, table: str, work: Callable[[pl.DataFrame], object] = lambda rows: rows) -> Iterator:
        """Yield the result of `work` for each block of a table's rows, in order; the default gives the rows. `work` runs on two threads.

        Raises:
            DatasetError: a column is missing, the file holds no rows, or a row is bad and bad rows are not skipped.
        """
        path, rows, bad, first = self.paths[table], 0, 0, ""
        for height, faults, made in self._read(table, work):
            rows, bad, first = rows + height, bad + len(faults), first or next(iter(faults), "")
            yield made
        if bad:
            print(f"preproc.outbrain: {path}: bad lines skipped: {bad}, the first: {first}", file=sys.stderr)
        if not rows:
            raise DatasetError(f"{path}: holds no rows{f'; {bad:,} bad lines were skipped' if bad else ''}; expected {', '.join(names_of(table))}")
        self.rows[table], self.bad_lines = rows, self.bad_lines + bad

    def _read(self, table: str, work: Callable[[pl.DataFrame], object]) -> Iterator[tuple[int, Sequence[str], object]]:
        """Yield for each block the number of its valid rows, the faults of the others, and the result of `work`."""
        path = self.paths[table]

        def typed(parsed: Callable[[], Block]) -> tuple[int, list[str], object]:
            found = typed_rows(table, path, parsed(), self._skip)
            return found.rows.height, found.faults, work(found.rows)

        with tqdm(total=path.stat().st_size, desc=table, unit="B", unit_scale=True, unit_divisor=1024, disable=None, leave=False) as bar:
            tasks = open_table(path, self._skip).tasks(names_of(table), frozenset(), self._block_bytes, bar.update)
            yield from in_order(partial(typed, task) for task in tasks)

    def twice(self, table: str, column: str, value: int, count: int) -> None:
        """Report a duplicate key, of which the first row is kept. Raises DatasetError unless bad lines are skipped."""
        what = f"{self.paths[table]}: column {column}: {value} is in several rows"
        if not self._skip:
            raise DatasetError(f"{what}, expected one row for each value; --bad_lines skip keeps the first row")
        print(f"preproc.outbrain: {what}; the first is kept; rows left out: {count}", file=sys.stderr)
        self.bad_lines += count


def open_table(path: Path, skip: bool) -> TableFile:
    """Open a raw file for reading. Raises DatasetError.

    Malformed lines are returned as `Block.faults`, never raised, so that `typed_rows` can raise the first fault of either kind.
    """
    return TableFile(path, FORM, skip_bad_lines=True, until_bad=not skip)


def names_of(table: str) -> list[str]:
    """Return the names of a table's columns that are read."""
    return [column.name for column in TABLES[table]]


def typed_rows(table: str, path: Path, block: Block, skip: bool) -> Typed:
    """Convert a block of texts to values. Raises DatasetError for the first bad one, unless bad rows are skipped."""
    made = {column.name: _made(column) for column in TABLES[table]}
    bad = [each.bad.fill_null(False).alias(f"bad {name}") for name, each in made.items()]
    frame = block.frame.select(*(each.value.alias(name) for name, each in made.items()), *bad)
    faults = list(block.faults)
    wrong = frame.select(pl.any_horizontal(f"bad {name}" for name in made)).to_series()
    for row in wrong.arg_true():
        name = next(name for name in made if frame[f"bad {name}"][row])
        value = block.frame[name][row]
        shown = "nothing" if value in (None, *_NULLS) else repr(value)[:60]
        faults.append(f"{block.unit} {block.lines[row]}, column {name}: {shown}, expected {made[name].expected}")
    faults.sort(key=_line)  # merges the faults of malformed lines with those of values
    if faults and not skip:
        raise DatasetError(f"{path}, {faults[0]}; --bad_lines skip leaves such lines out")
    rows = frame.select(list(made))
    return Typed(rows.filter(~wrong) if faults else rows, faults)


def _line(fault: str) -> int:
    """Return the line number in a fault's text."""
    return int(_LINE.match(fault)[1])


def _made(column: Column) -> encoding.Made:
    """Return expressions for a column's values, null where missing, and for the bad ones, and a description of valid values."""
    text = pl.col(column.name)
    given = pl.when(~text.is_in(_NULLS)).then(text)
    lacks, nothing = (given.is_null(), "") if column.needed else (pl.lit(False), ", or nothing")
    if column.kind == TEXT:
        return encoding.Made(given, lacks, "a text")
    if column.kind == FLAG:
        return encoding.Made(given == "1", ~given.is_in(["0", "1"]).fill_null(False), "0 or 1")
    if column.kind == TIME:
        found, bad, expected = encoding.moment(column.name, pl.String(), None, None)
        return encoding.Made(found.dt.timestamp("us") // 1_000_000, bad, f"{expected}{nothing}")
    if column.kind == NUMBER:
        found, bad, _ = encoding.number(column.name, pl.String())
        return encoding.Made(found, bad | found.is_null(), "a finite number")
    value = given.cast(pl.Int64, strict=False)
    expected = "a whole number of 0 or more" if column.most == _MOST else f"a whole number from {column.least} to {column.most}"
    sound = value.is_between(column.least, column.most).fill_null(False)
    return encoding.Made(value, lacks | (given.is_not_null() & ~sound), f"{expected}{nothing}")
