"""Reading of raw Criteo click logs in blocks of whole lines; every field is checked, and an error names the malformed line.

A line holds 40 fields separated by tabs: the label (0 or 1), 13 integers (may be empty or negative) and 26 hashed
categorical values (up to 8 hexadecimal digits, may be empty). There is no header, no quoting and no escaping. Logs with other numbers of integers
and categorical values, or without the label, have the same format otherwise (`LogForm`).
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from dataloading.features import DatasetError
from preproc.criteo.log_lines import CHARACTERS, Columns, parse_block
from preproc.reading.stores import Source
from preproc.reading.text_blocks import TextBlock, TextForm, text_blocks
from preproc.shared.in_order import in_order
from utils.encoding import numerical

LABEL = "label"


@dataclass(frozen=True)
class LogForm:
    """The fields of a line: the numbers of integers and of categorical values, and whether a label precedes them."""

    num_numerical: int = 13
    num_categorical: int = 26
    labelled: bool = True

    @functools.cached_property
    def numerical(self) -> tuple[str, ...]:
        """Names of the integers."""
        return tuple(f"num_{i}" for i in range(self.num_numerical))

    @functools.cached_property
    def categorical(self) -> tuple[str, ...]:
        """Names of the categorical values."""
        return tuple(f"cat_{i}" for i in range(self.num_categorical))

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of all fields, in the order of a line."""
        return (*((LABEL,) if self.labelled else ()), *self.numerical, *self.categorical)

    @functools.cached_property
    def text(self) -> dict[str, type[pl.DataType]]:
        """Types as which Polars parses a block of text."""
        return dict.fromkeys(self.fields, pl.String) | dict.fromkeys(self.numerical, pl.Int64)

    @functools.cached_property
    def typed(self) -> dict[str, type[pl.DataType]]:
        """Types of `LogBlock.frame`."""
        return dict.fromkeys(self.fields, pl.Boolean) | dict.fromkeys(self.numerical, pl.Int64) | dict.fromkeys(self.categorical, pl.UInt32)

    @functools.cached_property
    def good_line(self) -> Callable[[bytes], re.Match | None]:
        """A quick check of a line: a line that matches is well-formed, one that does not may still be."""
        label, integer, value = rb"[01]", rb"(?:-?[0-9]{1,18})?", rb"[0-9a-fA-F]{0,8}"
        fields = [label] * self.labelled + [integer] * self.num_numerical + [value] * self.num_categorical
        return re.compile(rb"\t".join(fields)).fullmatch


CRITEO = LogForm()
NUMERICAL, CATEGORICAL, FIELDS = CRITEO.numerical, CRITEO.categorical, CRITEO.fields

_TEXT = TextForm("a click log in text form", 1 << 20)  # the longest line allowed; real ones have some 250 bytes
_INTEGER = re.compile(rb"-?[0-9]+").fullmatch
_HEX = re.compile(rb"[0-9a-fA-F]{1,8}").fullmatch


@dataclass(frozen=True)
class LogBlock:
    """The well-formed rows of one block.

    `frame` has n rows: `label` Boolean (where there are labels), `num_*` Int64 with null for missing, `cat_*` UInt32 with null for missing.
    `lines` are their line numbers in the file, from 1. `faults` describes the error of each line that was skipped.
    """

    frame: pl.DataFrame
    lines: Sequence[int]
    faults: tuple[str, ...] = ()


def read_rows(path: Source, block_bytes: int, skip_bad_lines: bool = False, form: LogForm = CRITEO, **options: Any) -> Iterator[LogBlock]:
    """Yield the rows of one log file, block by block, parsed ahead by two threads; `row_tasks` describes the arguments."""
    return in_order(row_tasks(path, block_bytes, skip_bad_lines, form, **options))


def row_tasks(
    path: Source,
    block_bytes: int,
    skip_bad_lines: bool = False,
    form: LogForm = CRITEO,
    on_read: Callable[[int], object] = lambda count: None,
    byte_range: tuple[int, int] | None = None,
) -> Iterator[Callable[[], LogBlock]]:
    """Yield for each block of one log file, in order, a task that parses it; memory depends on `block_bytes` and not on the file's size.

    Args:
        path: the log, plain, gzip or zstd.
        block_bytes: size of a block of text, in bytes; a block is cut after its last whole line.
        skip_bad_lines: leave malformed lines out and report them in `LogBlock.faults`.
        form: fields of a line.
        on_read: called with the number of bytes read from the disk.
        byte_range: (start, stop) of a plain file: the lines that begin in [start, stop), numbered from 1; there may be none.

    Raises:
        DatasetError: the file is empty, damaged or truncated, or, from a task, a line is malformed and `skip_bad_lines` is not set.
    """
    empty = byte_range is None
    for block in text_blocks(path, _TEXT, block_bytes, on_read, byte_range):
        empty = False
        yield functools.partial(_rows, path, block, skip_bad_lines, form)
    if empty:
        raise DatasetError(f"{path}: holds no lines; expected a click log of {len(form.fields)} tab-separated fields a line")


def _rows(path: Source, block: TextBlock, skip_bad_lines: bool, form: LogForm) -> LogBlock:
    frame = parsed(block.text, len(block.lines), form)
    return LogBlock(frame, block.lines) if frame is not None else _rows_one_by_one(path, block, skip_bad_lines, form)


def line_fault(line: bytes, form: LogForm = CRITEO) -> str | None:
    """Describe the error of a line (without its line end): position and name of the field, its value and the expected one; None if it is valid."""
    fields = line.split(b"\t")
    if len(fields) != len(form.fields):
        return f"{len(fields)} fields, expected {len(form.fields)} separated by tabs"
    for position, (name, value) in enumerate(zip(form.fields, fields, strict=True), 1):
        if name == LABEL:
            good, expected = value in (b"0", b"1"), "0 or 1"
        elif position <= form.labelled + form.num_numerical:
            good, expected = not value or _is_int64(value), "an integer of 64 bits, or nothing"
        else:
            good, expected = not value or _HEX(value), "up to 8 hexadecimal digits, or nothing"
        if not good:
            shown = value.decode("ascii", "backslashreplace")
            shown = shown if len(shown) <= 40 else shown[:40] + "…"
            return f"field {position} ({name}) is {shown!r}, expected {expected}"
    return None


def _is_int64(value: bytes) -> bool:
    if not _INTEGER(value):
        return False
    digits = value.lstrip(b"-").lstrip(b"0")  # int() refuses texts of several thousand digits, so count them first
    return len(digits) <= 19 and -(2**63) <= (-1 if value.startswith(b"-") else 1) * int(digits or b"0") < 2**63


def parsed(text: bytes, num_lines: int, form: LogForm = CRITEO) -> pl.DataFrame | None:
    """Return the block's columns, or None if any line is malformed. `line_fault` does the same checks in a slow, obvious way."""
    columns = parse_block(text, num_lines, form.num_numerical, form.num_categorical, form.labelled)
    return parsed_by_polars(text, num_lines, form) if columns is None else frame_of(columns, form)


def frame_of(columns: Columns, form: LogForm) -> pl.DataFrame:
    """Return columns as a frame, with null for missing values."""
    labels = (columns.labels,) if form.labelled else ()
    values = dict(zip(form.fields, (*labels, *columns.integers, *columns.values), strict=True))
    empty = {f"no {name}": column for name, column in zip(form.fields, columns.empty, strict=True) if column.any()}
    shown = [pl.when(~pl.col(f"no {name}")).then(pl.col(name)).alias(name) if f"no {name}" in empty else pl.col(name) for name in values]
    return pl.DataFrame(values | empty).select(shown)


def parsed_by_polars(text: bytes, num_lines: int, form: LogForm) -> pl.DataFrame | None:
    """Parse, as `parsed` does, a block that `parse_block` refused: it has an error, or many integers of more than eight digits."""
    # Refuse all other characters first: the parsers of Polars would accept "+1" and " 1", which `line_fault` rejects.
    if text.translate(None, CHARACTERS) or text.count(b"\t") != num_lines * (len(form.fields) - 1):
        return None
    try:
        frame = pl.read_csv(text, has_header=False, separator="\t", quote_char=None, schema=form.text)
    except pl.exceptions.PolarsError:
        return None
    if frame.height != num_lines or (form.labelled and not frame[LABEL].is_in(["0", "1"]).fill_null(False).all()):
        return None
    hashes = frame.select(form.categorical)
    if max(hashes.select(pl.all().str.len_bytes().max().fill_null(0)).row(0)) > 8:
        return None
    values = hashes.select(numerical.hexadecimal_values(pl.all()))
    if values.null_count().row(0) != hashes.null_count().row(0):
        return None
    labels = [pl.col(LABEL) == "1"] if form.labelled else []
    return frame.select(*labels, *form.numerical).hstack(values)


def _rows_one_by_one(path: Source, block: TextBlock, skip_bad_lines: bool, form: LogForm) -> LogBlock:
    good, lines, faults = [], [], []
    for number, line in zip(block.lines, block.text[:-1].split(b"\n"), strict=True):
        fault = None if form.good_line(line) else line_fault(line, form)
        if fault is None:
            good.append(line)
            lines.append(number)
            continue
        faults.append(f"line {number}: {fault}")
        if not skip_bad_lines:
            raise DatasetError(f"{path}: {faults[0]}; --bad_lines skip leaves such lines out")
    frame = parsed(b"\n".join([*good, b""]), len(good), form) if good else pl.DataFrame(schema=form.typed)
    if frame is None:
        raise RuntimeError(f"{path}: lines {block.lines[0]} to {block.lines[-1]} pass the check of each line but not the check of the block")
    return LogBlock(frame, lines, tuple(faults))
