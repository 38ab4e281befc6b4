"""Reading of a table's files as blocks of rows, in bounded memory: CSV with any separator, JSON lines, Parquet and Arrow."""

import bisect
import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from dataloading.features import DatasetError
from preproc.reading.arrow_stream import MARK, stream_batches, stream_schema
from preproc.reading.csv_text import parsed_rows
from preproc.reading.files import ARROW, CSV, JSON_LINES, PARQUET, Form, fields_of, header_of
from preproc.reading.stores import Source, local_path
from preproc.reading.text_blocks import TextBlock, TextForm, text_blocks
from utils.csv_rows import BACKSLASH, MOST_LINES, OPEN, CsvRows

_TEXT = TextForm("a table in text form", 64 << 20)
_NOTHING = TextBlock(b"", ())
_BLOCK_ROWS = 1 << 17
_CHECKED_BYTES = 4 << 20  # quotes are counted in blocks of this size
_STRING_OR_NAN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|NaN')
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPES = re.compile(rb"%b%b|(%b|%b)|\\." % (_HIGH, _LOW, _HIGH, _LOW))  # the group: half of a pair
_SAMPLE_LINES = 1000  # JSON lines from which columns are inferred
_SAMPLE_BYTES = 4 << 20


@dataclass(frozen=True)
class Block:
    """Valid rows of a file: strings for CSV and JSON lines, otherwise the types of the file.

    `lines` are the rows' positions, from 1, counted in `unit`. `faults` describes each line that was skipped. `coded` are columns of categories,
    which are local to this block; empty texts are null in them.
    """

    frame: pl.DataFrame
    lines: Sequence[int]
    unit: str = "line"
    faults: tuple[str, ...] = ()
    coded: frozenset[str] = frozenset()


class TableFile:
    """One file of a table.

    Args:
        path: the file.
        form: its format.
        skip_bad_lines: leave out lines that cannot be parsed, and report them in `Block.faults`.
        until_bad: with `skip_bad_lines`, end a block at its first bad line.

    Raises:
        DatasetError: the file is empty or damaged.
    """

    def __init__(self, path: Source, form: Form, skip_bad_lines: bool = False, until_bad: bool = False):
        self.path, self.form, self._skip, self._until_bad = path, form, skip_bad_lines, until_bad
        self.num_lines = 0  # lines of text that `tasks` has read so far
        self._lists, self._chosen = frozenset(), False  # JSON lines: columns of lists; whether only some columns are read
        self.names = header_of(path, form) if form.kind == CSV else [] if form.kind == JSON_LINES else _names_of(path, form)

    def blocks(
        self,
        wanted: Sequence[str] | None,
        lists: frozenset[str],
        block_bytes: int,
        on_read: Callable[[int], object] = lambda count: None,
        byte_range: tuple[int, int] | None = None,
    ) -> Iterator[Block]:
        """Return the rows, block by block; see `tasks`."""
        return (task() for task in self.tasks(wanted, lists, block_bytes, on_read, byte_range))

    def tasks(
        self,
        wanted: Sequence[str] | None,
        lists: frozenset[str],
        block_bytes: int,
        on_read: Callable[[int], object] = lambda count: None,
        byte_range: tuple[int, int] | None = None,
        coded: frozenset[str] = frozenset(),
        row_range: tuple[int, int] | None = None,
    ) -> Iterator[Callable[[], Block]]:
        """Yield a function for each block that parses it, in file order; they can run on several threads.

        Args:
            wanted: the columns; None for all (for JSON lines: those of the first block).
            lists: columns that may hold lists, for JSON lines.
            block_bytes: size of the text that is parsed at once, in bytes.
            on_read: called with the number of bytes read from the disk.
            byte_range: (start, stop) of a plain text file: the lines that begin there, numbered from 1; there may be none. Each line is a row:
                rows that span lines are bad. The header is read, and it is skipped where the range begins at 0.
            coded: columns that may be returned as `Block.coded`.
            row_range: (start, stop) of the rows of a Parquet or Arrow file; None for all.

        Raises:
            DatasetError: a column is missing. From a task: a line is bad and `skip_bad_lines` is not set.
        """
        if self.form.kind in (PARQUET, ARROW):
            if byte_range is not None:
                raise DatasetError(f"{self.path}: is {self.form.kind}; expected a text file, which can be read in byte ranges")
            _check_names(self.path, self.names, wanted)
            blocks = _binary_blocks(self.path, self.form, wanted, on_read, row_range)
            yield from (functools.partial(lambda block: block, block) for block in blocks)
            return
        if self.form.kind == JSON_LINES:
            self.names, held, texts = _keys(next(text_blocks(self.path, _TEXT, _SAMPLE_BYTES), _NOTHING).text)
            self._lists, self._chosen = (held, False) if wanted is None else (lists - texts, True)
        _check_names(self.path, self.names, wanted)
        names, empty, headed = list(wanted or self.names), byte_range is None, self.form.kind == CSV and self.form.names is None
        for block in text_blocks(self.path, self._text_form(byte_range), block_bytes, on_read, byte_range):
            self.num_lines = block.lines[-1]
            if headed and block.lines[0] == 1 and not (byte_range and byte_range[0]):
                block = _without_first(block)
            empty = False
            if block.text:
                yield functools.partial(self._block, block, names, coded)
        if empty:
            raise DatasetError(f"{self.path}: holds no lines; expected a table")

    def _text_form(self, byte_range: tuple[int, int] | None) -> TextForm:
        """Return the text form. Rows may span lines only in CSV files with quotes that are read whole."""
        rows = _csv_rows(self.form, len(self.names))
        return _TEXT if rows is None else replace(_TEXT, rows=replace(rows, spans=byte_range is None))

    def _block(self, block: TextBlock, names: list[str], coded: frozenset[str]) -> Block:
        frame = None if block.bad else self._parsed(block.text, len(block.lines), names, coded)
        if frame is None:
            return self._repaired(block, names)
        held = frozenset(name for name in coded if isinstance(frame.schema[name], pl.Categorical))
        return Block(_with_line_ends(frame, block.stand_in), block.lines, coded=held)

    def _parsed(self, text: bytes, num_rows: int, names: list[str], coded: frozenset[str] = frozenset()) -> pl.DataFrame | None:
        """Return the columns of rows of one line each, or None where any row is bad."""
        if self.form.kind == CSV:
            return parsed_rows(text, num_rows, self.form.separator, self.form.quote is not None, self.names, names, coded)
        if _half_pair(text):
            return None
        schema = {name: pl.List(pl.String) if name in self._lists else pl.String for name in names}
        try:
            frame = pl.read_ndjson(_without_nan(text), schema=schema)
        except pl.exceptions.PolarsError:
            return None
        return frame if frame.height == num_rows and not (self._chosen and _holds_nested(text, frame)) else None

    def _repaired(self, block: TextBlock, names: list[str]) -> Block:
        """Return the valid lines of a block that has bad ones. Those that are not known are found by bisection with `_parsed`."""
        frames: list[pl.DataFrame] = []
        numbers: list[int] = []
        faults: list[str] = []
        waiting = [(0, block.text.split(b"\n")[:-1])]
        while waiting and not (faults and self._until_bad):
            first, lines = waiting.pop()
            known = bisect.bisect_left(block.bad, first + len(lines)) > bisect.bisect_left(block.bad, first)
            frame = None if known else self._parsed(b"\n".join([*lines, b""]), len(lines), names)
            if frame is not None:
                frames.append(_with_line_ends(frame, block.stand_in))
                numbers += block.lines[first : first + len(lines)]
            elif len(lines) > 1:
                half = len(lines) // 2
                waiting += [(first + half, lines[half:]), (first, lines[:half])]
            else:
                line = lines[0].replace(block.stand_in, b"\n") if block.stand_in else lines[0]
                faults.append(f"line {block.lines[first]}: {_fault(line, self.form, self.names, self._lists)}")
                if not self._skip:
                    raise DatasetError(f"{self.path}, {faults[-1]}; --bad_lines skip leaves such lines out")
        schema = {name: pl.List(pl.String) if name in self._lists else pl.String for name in names}
        return Block(pl.concat(frames) if frames else pl.DataFrame(schema=schema), numbers, faults=tuple(faults))


def may_span_lines(path: Source, form: Form, byte_range: tuple[int, int]) -> bool:
    """Return True if a row that begins in a byte range of a plain CSV file may span lines, judging by its quotes."""
    rows = _csv_rows(form, 1)
    return rows is not None and any(rows.may_span(block.text) for block in text_blocks(path, _TEXT, _CHECKED_BYTES, byte_range=byte_range))


def _csv_rows(form: Form, num_values: int) -> CsvRows | None:
    """Return the division of a form's text into rows; None where each line is one."""
    return CsvRows(form.separator, num_values, form.quote) if form.kind == CSV and form.quote is not None else None


def _without_first(block: TextBlock) -> TextBlock:
    """Return a block without its first row, the header."""
    bad = tuple(row - 1 for row in block.bad if row)
    return block._replace(text=block.text[block.text.index(b"\n") + 1 :], lines=block.lines[1:], bad=bad)


def _check_names(path: Source, names: Sequence[str], wanted: Sequence[str] | None) -> None:
    for name in wanted or ():
        if name not in names:
            raise DatasetError(f"{path}: has no column {name}; it has {', '.join(names[:8]) + (', …' if len(names) > 8 else '')}")


def _with_line_ends(frame: pl.DataFrame, stand_in: bytes) -> pl.DataFrame:
    """Put line ends back into texts in place of the stand-in character."""
    return frame.with_columns(pl.col(pl.String).str.replace_all(stand_in.decode(), "\n", literal=True)) if stand_in else frame


def _binary_blocks(
    path: Source, form: Form, wanted: Sequence[str] | None, on_read: Callable[[int], object], row_range: tuple[int, int] | None
) -> Iterator[Block]:
    first = 1 + (row_range[0] if row_range else 0)
    try:
        for batch in _stream(path, wanted, on_read) if _is_stream(path) else _batches(path, form, wanted, on_read, row_range):
            if batch.height:
                yield Block(batch, range(first, first + batch.height), "row")
                first += batch.height
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _damaged(path, form, error) from None


def _is_stream(path: Source) -> bool:
    with local_path(path).open("rb") as file:
        return file.read(len(MARK)) == MARK


def _stream(path: Source, wanted: Sequence[str] | None, on_read: Callable[[int], object]) -> Iterator[pl.DataFrame]:
    return (batch if wanted is None else batch.select(wanted) for batch in stream_batches(local_path(path), on_read))


def _batches(
    path: Source, form: Form, wanted: Sequence[str] | None, on_read: Callable[[int], object], row_range: tuple[int, int] | None
) -> Iterator[pl.DataFrame]:
    """Yield the batches of a Parquet or Arrow file."""
    frame = _binary(path, form)
    frame = frame if wanted is None else frame.select(wanted)
    total, size = frame.select(pl.len()).collect().item(), path.stat().st_size
    rows = done = 0
    frame = frame if row_range is None else frame.slice(row_range[0], row_range[1] - row_range[0])
    for batch in frame.collect_batches(chunk_size=_BLOCK_ROWS, maintain_order=True, engine="streaming"):
        yield batch
        rows += batch.height
        on_read(size * rows // max(total, 1) - done)
        done = size * rows // max(total, 1)


def _binary(path: Source, form: Form) -> pl.LazyFrame:
    """Return a lazy frame of a Parquet or Arrow file."""
    local = local_path(path)
    try:
        return pl.scan_parquet(local, glob=False) if form.kind == PARQUET else pl.scan_ipc(local, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(path, form, error) from None


def _json_fault(name: str, value: Any, listed: bool) -> str | None:
    """Describe the error in a value of a JSON object, given whether its column holds lists; None where there is none."""
    kind = _JSON_KINDS.get(type(value), "one value")
    if value is None or kind == ("a list" if listed else "one value"):
        return None
    shown = json.dumps(value, ensure_ascii=False)
    return f"column {name}: value {shown[:60]!r} is {kind}; expected {'a list, as in other lines' if listed else 'a text or a number'}"


_JSON_KINDS = {dict: "an object", list: "a list"}


def _names_of(path: Source, form: Form) -> list[str]:
    local = local_path(path)  # outside the try: fetching raises its own errors
    try:
        return (stream_schema(local) if _is_stream(path) else _binary(path, form).collect_schema()).names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(path, form, error) from None


def _damaged(path: Source, form: Form, error: BaseException) -> DatasetError:
    return DatasetError(f"{path}: cannot be read as {form.kind}: {_brief(error)}")


def _fault(line: bytes, form: Form, names: Sequence[str], lists: frozenset[str]) -> str:
    """Describe the error in a line that cannot be parsed; `lists` are columns of lists."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1}, {line[error.start]:#04x}, is not UTF-8; expected text in UTF-8"
    if form.kind == JSON_LINES:
        try:
            found = json.loads(text)
        except ValueError as error:
            return f"not JSON: {_brief(error)}"
        if half := _half_pair(line):
            return f"{half} is half of a pair of surrogates, which is no character; expected both halves"
        if not isinstance(found, dict):
            return f"{str(found)[:60]!r} is no JSON object; expected one a line"
        return next((fault for name, value in found.items() if (fault := _json_fault(name, value, name in lists))), f"{text[:60]!r} cannot be read")
    rows = _csv_rows(form, len(names))
    if rows is not None and (fault := rows.fault(text)):
        other = '; --quote backslash reads \\" as a quote' if form.quote != BACKSLASH and '\\"' in text else ""
        if fault == OPEN:
            fault = f"{fault}, or {MOST_LINES:,} lines do not complete its row of {len(names)} values; expected quotes in pairs"
        else:
            fault = f"{text[:60]!r}: {fault}"
        return f"{fault} (--quote none reads quotes as ordinary text{other})"
    values = len(fields_of(text, form)) if text else 0
    if values != len(names):
        shown = {"\t": "tabs", " ": "spaces"}.get(form.separator, repr(form.separator))
        return f"{values} values, expected {len(names)} separated by {shown}"
    return f"{text[:60]!r} cannot be read as {len(names)} values"


def _without_nan(text: bytes) -> bytes:
    """Replace NaN, which Python and pandas write for a missing number, by null. JSON has no NaN, so Polars would find the line bad."""
    if b"NaN" not in text:
        return text
    return _STRING_OR_NAN.sub(lambda found: b"null" if found[0] == b"NaN" else found[0], text)


def _half_pair(text: bytes) -> str | None:
    """Return the first escape of a lone surrogate in JSON, which Polars reads as NUL; None without one."""
    if b"\\ud" not in text and b"\\uD" not in text:
        return None
    return next((found[1].decode() for found in _ESCAPES.finditer(text) if found[1]), None)


def _holds_nested(text: bytes, frame: pl.DataFrame) -> bool:
    """Return True if a text column of JSON lines has a list or an object as a value, which Polars converts to text silently."""
    names = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    nested = [pl.col(name).str.contains(r"^[\[{]").fill_null(False) for name in names]
    rows = frame.select(pl.any_horizontal(pl.lit(False), *nested)).to_series().arg_true()
    if rows.is_empty():
        return False
    lines = text.split(b"\n")
    return any(isinstance(json.loads(lines[row]).get(name), list | dict) for row in rows for name in names)


def _keys(text: bytes) -> tuple[list[str], frozenset[str], frozenset[str]]:
    """Return the keys of the first objects of a block, in order of first appearance; the keys with a list value; and those with a text value."""
    found: dict[str, bool] = {}
    texts: set[str] = set()
    for line in text.split(b"\n", _SAMPLE_LINES + 1)[:_SAMPLE_LINES]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        for key, item in value.items() if isinstance(value, dict) else ():
            found[key] = found.get(key, False) or isinstance(item, list)
            texts |= {key} if isinstance(item, str) else set()
    held = frozenset(key for key, is_list in found.items() if is_list)
    return list(found), held, frozenset(texts) - held


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
