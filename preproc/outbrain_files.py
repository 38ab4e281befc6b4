"""The raw files of Outbrain's click prediction as typed rows, block by block; a bad value is said with file, line, column and value."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import polars as pl
from tqdm import tqdm

from dataloading.contract import DatasetError
from preproc.in_order import in_order
from preproc.table_files import CSV, QUOTE, Form
from preproc.table_reading import Block, TableFile
from utils.encoding import columns as encoding

WHOLE, NUMBER, TIME, TEXT, FLAG = "whole", "number", "time", "text", "flag"
CLICKS, EVENTS, PROMOTED, META = "clicks_train", "events", "promoted_content", "documents_meta"
_NULLS = ("", "\\N")
_ENDINGS = ("", ".gz", ".zst")
_MOST = 2**62  # of a number that is an id
_PLATFORMS = 3


class Column(NamedTuple):
    """A column that is read: its kind, whether each row must have it, and its greatest value where there is one."""

    name: str
    kind: str = WHOLE
    needed: bool = True
    most: int = _MOST


TABLES: Mapping[str, tuple[Column, ...]] = {
    PROMOTED: (Column("ad_id"), Column("document_id", needed=False), Column("campaign_id", needed=False), Column("advertiser_id", needed=False)),
    EVENTS: (
        Column("display_id"),
        Column("document_id", needed=False),
        Column("timestamp"),
        Column("platform", needed=False, most=_PLATFORMS),
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
ASPECTS = {"categories": "documents_categories", "topics": "documents_topics", "entities": "documents_entities"}  # tables of each similarity
_OTHER_NAMES = {META: ("document_meta",)}


def find_files(folder: Path) -> dict[str, Path]:
    """The file of each table, plain, gzip or zstd. Raises DatasetError where one is not there."""
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
        path.open("rb").close()
        found[table] = path
    return found


@dataclass(frozen=True)
class Typed:
    """Sound rows of a block, their places in the file (lines, from 1), and what is wrong with each other row."""

    rows: pl.DataFrame
    faults: list[str]


class RawFiles:
    """The raw files, read one after another.

    Args:
        folder: that has them.
        skip_bad_lines: leave out rows that are bad, count them and show the first of each file.
        block_bytes: text parsed at once, in bytes.

    Attributes:
        rows: sound rows of each table that was read.
        bad_lines: of all files.

    Raises:
        DatasetError: a file is missing.
    """

    def __init__(self, folder: Path, skip_bad_lines: bool, block_bytes: int):
        self.paths = find_files(folder)
        self.rows: dict[str, int] = {}
        self.bad_lines = 0
        self._skip, self._block_bytes = skip_bad_lines, block_bytes

    def blocks(self, table: str, work: Callable[[pl.DataFrame], object] = lambda rows: rows) -> Iterator:
        """The rows of a table, block by block in their order, or what `work` makes of each block on one of two threads.

        Raises:
            DatasetError: a column is missing, the file holds no rows, or a row is bad and such are not skipped.
        """
        path, rows, bad, first = self.paths[table], 0, 0, ""
        file = TableFile(path, Form(CSV, ",", QUOTE), self._skip)
        names = [column.name for column in TABLES[table]]
        with tqdm(total=path.stat().st_size, desc=table, unit="B", unit_scale=True, unit_divisor=1024, disable=None, leave=False) as bar:
            tasks = file.tasks(names, frozenset(), self._block_bytes, bar.update)
            for typed, made in in_order(partial(self._typed, table, task, work) for task in tasks):
                rows, bad, first = rows + typed.rows.height, bad + len(typed.faults), first or next(iter(typed.faults), "")
                yield made
        if bad:
            print(f"preproc.outbrain: {path}: bad lines skipped: {bad}, the first: {first}", file=sys.stderr)
        if not rows:
            raise DatasetError(f"{path}: holds no rows{f'; {bad:,} bad lines were skipped' if bad else ''}; expected {', '.join(names)}")
        self.rows[table], self.bad_lines = rows, self.bad_lines + bad

    def twice(self, table: str, column: str, value: int, count: int) -> None:
        """Report rows of one key of which the first is kept. Raises DatasetError unless bad lines are skipped."""
        what = f"{self.paths[table]}: column {column}: {value} stands in several rows"
        if not self._skip:
            raise DatasetError(f"{what}, expected one row of each; --bad_lines skip keeps the first of them")
        print(f"preproc.outbrain: {what}; rows beyond the first of a value, left out: {count}", file=sys.stderr)
        self.bad_lines += count

    def _typed(self, table: str, parsed: Callable[[], Block], work: Callable[[pl.DataFrame], object]) -> tuple[Typed, object]:
        typed = _typed(table, self.paths[table], parsed(), self._skip)
        return typed, work(typed.rows)


def _typed(table: str, path: Path, block: Block, skip: bool) -> Typed:
    made = {column.name: _made(column) for column in TABLES[table]}
    bad = [each.bad.fill_null(False).alias(f"bad {name}") for name, each in made.items()]
    frame = block.frame.select(*(each.value.alias(name) for name, each in made.items()), *bad)
    rows, faults = frame.select(list(made)), list(block.faults)
    wrong = frame.select(pl.any_horizontal(f"bad {name}" for name in made)).to_series()
    if not wrong.any():
        return Typed(rows, faults)
    for row in wrong.arg_true():
        name = next(name for name in made if frame[f"bad {name}"][row])
        value = block.frame[name][row]
        shown = "nothing" if value in (None, *_NULLS) else repr(value)[:60]
        faults.append(f"{block.unit} {block.lines[row]}, column {name}: {shown}, expected {made[name].expected}")
        if not skip:
            raise DatasetError(f"{path}, {faults[-1]}; --bad_lines skip leaves such lines out")
    return Typed(rows.filter(~wrong), faults)


def _made(column: Column) -> encoding.Made:
    """The value of a text, null where it is missing; where it is bad; and what was expected."""
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
    expected = f"1 to {column.most}" if column.most < _MOST else "a whole number of 0 or more"
    sound = value.is_between(int(column.most < _MOST), column.most).fill_null(False)
    return encoding.Made(value, lacks | (given.is_not_null() & ~sound), f"{expected}{nothing}")
