"""A table's files as blocks of rows, in bounded memory: CSV with any separator, JSON lines, Parquet and Arrow."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from dataloading.contract import DatasetError
from preproc.compressed import read_chunks
from preproc.stores import Source, local_path
from preproc.table_files import ARROW, CSV, JSON_LINES, PARQUET, Form, fields_of, header_of

_ONE, _END = "\x1f", "."  # stand for a separator of several characters, and behind the end of a line, while a block is parsed
_NOT_COMPRESSED = b".\n"  # before a block that begins with "x^", which Polars would take for a compressed file
_LONGEST_LINE_BYTES = 64 << 20
_BLOCK_ROWS = 1 << 17
_SAMPLE_LINES = 1000  # of JSON, by which its columns are known
_COUNTED = 1 << 18  # bytes at once
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """Sound rows of a file: texts of CSV and JSON lines, else of the types in the file.

    `lines` are their places, from 1, counted in `unit`; `faults` says what was wrong with each line that was skipped.
    """

    frame: pl.DataFrame
    lines: Sequence[int]
    unit: str = "line"
    faults: tuple[str, ...] = ()


class TableFile:
    """One file of a table.

    Args:
        path: the file.
        form: how it is written.
        skip_bad_lines: leave out lines that cannot be parsed, and report them in `Block.faults`.

    Raises:
        DatasetError: it is empty or damaged.
    """

    def __init__(self, path: Source, form: Form, skip_bad_lines: bool = False):
        self.path, self.form, self._skip = path, form, skip_bad_lines
        self._lists: frozenset[str] = frozenset()
        if form.kind == CSV:
            self.names = header_of(path, form)
        elif form.kind == JSON_LINES:
            self.names = []
        else:
            self.names = _names_of(path, form)

    def blocks(
        self, wanted: Sequence[str] | None, lists: frozenset[str], block_bytes: int, on_read: Callable[[int], object] = lambda count: None
    ) -> Iterator[Block]:
        """The rows, block by block.

        Args:
            wanted: the columns; None for all (of JSON lines: those of the first block).
            lists: columns that may hold lists, of JSON lines.
            block_bytes: text parsed at once, in bytes.
            on_read: called with the number of bytes read from the disk.

        Raises:
            DatasetError: a column is missing, or a line is bad and `skip_bad_lines` is not set.
        """
        if self.form.kind != JSON_LINES:
            self._check_names(wanted)
        if self.form.kind in (PARQUET, ARROW):
            yield from self._binary_blocks(wanted, on_read)
            return
        for first, text in text_blocks(self.path, block_bytes, on_read):
            if first == 1 and self.form.kind == CSV and self.form.names is None:
                text = text[text.index(b"\n") + 1 :]
                first = 2
                if not text:
                    continue
            if first == 1 and self.form.kind == JSON_LINES:
                self.names, held = _keys(text)
                self._lists = held if wanted is None else held & lists
                self._check_names(wanted)
            names = list(wanted or self.names)
            count = _count(text, b"\n")
            frame = self._parsed(text, names)
            if frame is not None:
                yield Block(frame, range(first, first + count))
            else:
                yield self._repaired(text, first, names)

    def _check_names(self, wanted: Sequence[str] | None) -> None:
        for name in wanted or ():
            if name not in self.names:
                shown = ", ".join(self.names[:8]) + (", …" if len(self.names) > 8 else "")
                raise DatasetError(f"{self.path}: has no column {name}; it has {shown}")

    def _binary_blocks(self, wanted: Sequence[str] | None, on_read: Callable[[int], object]) -> Iterator[Block]:
        done, first = 0, 1
        try:
            frame = _binary(self.path, self.form)
            frame = frame if wanted is None else frame.select(wanted)
            total = frame.select(pl.len()).collect().item()
            size = self.path.stat().st_size
            for batch in frame.collect_batches(chunk_size=_BLOCK_ROWS, maintain_order=True, engine="streaming"):
                if batch.height:
                    yield Block(batch, range(first, first + batch.height), "row")
                    first += batch.height
                    on_read(size * (first - 1) // total - done)
                    done = size * (first - 1) // total
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise _damaged(self.path, self.form, error) from None

    def _parsed(self, text: bytes, names: list[str]) -> pl.DataFrame | None:
        """A block's columns, or None where any of its lines is bad."""
        try:
            if self.form.kind == JSON_LINES:
                schema = {name: pl.List(pl.String) if name in self._lists else pl.String for name in names}
                frame = pl.read_ndjson(text, schema=schema)
                return frame if frame.height == _count(text, b"\n") else None
            separator = self.form.separator
            if len(separator) > 1 or not separator.isascii():
                if _ONE.encode() in text:
                    return None
                text, separator = text.replace(separator.encode(), _ONE.encode()), _ONE
            # Polars fills a line of too few values without a word, hence the count of separators or, where they may be quoted, a mark at each end.
            marked = self.form.quote is not None and self.form.quote.encode() in text
            if marked:
                text = text.replace(b"\n", f"{separator}{_END}\n".encode())
            elif _count(text, separator.encode()) != _count(text, b"\n") * (len(self.names) - 1):
                return None
            frame = pl.read_csv(
                io.BytesIO(_NOT_COMPRESSED + text),
                skip_lines=1,
                has_header=False,
                separator=separator,
                quote_char=self.form.quote if marked else None,
                schema={f"{i}": pl.String for i in range(len(self.names) + marked)},
                empty_string_is_null=False,
            )
        except pl.exceptions.PolarsError:
            return None
        if frame.height != _count(text, b"\n") or (marked and not (frame[frame.columns[-1]] == _END).all()):
            return None
        return frame.select(pl.col(str(self.names.index(name))).alias(name) for name in names)

    def _repaired(self, text: bytes, first: int, names: list[str]) -> Block:
        """The sound lines of a block that has bad ones, which halving finds: what is sound is what `_parsed` takes."""
        frames: list[pl.DataFrame] = []
        numbers: list[int] = []
        faults: list[str] = []
        waiting = [(first, text.split(b"\n")[:-1])]
        while waiting:
            start, lines = waiting.pop()
            frame = self._parsed(b"\n".join([*lines, b""]), names)
            if frame is not None:
                frames.append(frame)
                numbers += range(start, start + len(lines))
            elif len(lines) > 1:
                half = len(lines) // 2
                waiting += [(start + half, lines[half:]), (start, lines[:half])]
            else:
                faults.append(f"line {start}: {_fault(lines[0], self.form, self.names, bool(self._lists))}")
                if not self._skip:
                    raise DatasetError(f"{self.path}, {faults[-1]}; --bad_lines skip leaves such lines out")
        schema = {name: pl.List(pl.String) if name in self._lists else pl.String for name in names}
        return Block(pl.concat(frames) if frames else pl.DataFrame(schema=schema), numbers, faults=tuple(faults))


def _binary(path: Source, form: Form) -> pl.LazyFrame:
    """A Parquet or Arrow file; Arrow's streams have no end to begin at and are read whole."""
    local = local_path(path)
    try:
        if form.kind == PARQUET:
            return pl.scan_parquet(local, glob=False)
        with local.open("rb") as file:
            stream = file.read(4) == b"\xff\xff\xff\xff"
        return pl.read_ipc_stream(local).lazy() if stream else pl.scan_ipc(local)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(path, form, error) from None


def _names_of(path: Source, form: Form) -> list[str]:
    try:
        return _binary(path, form).collect_schema().names()
    except pl.exceptions.PolarsError as error:
        raise _damaged(path, form, error) from None


def _damaged(path: Source, form: Form, error: BaseException) -> DatasetError:
    return DatasetError(f"{path}: cannot be read as {form.kind}: {_brief(error)}")


def text_blocks(path: Source, block_bytes: int, on_read: Callable[[int], object] = lambda count: None) -> Iterator[tuple[int, bytes]]:
    """Whole lines near `block_bytes`, each ended by one newline, and the number of the first, from 1; blank lines at the file's end are dropped.

    Raises:
        DatasetError: the file holds no lines, or one that is too long for a table.
    """
    pending, size, line = [], 0, 1
    for chunk in read_chunks(path, block_bytes, on_read):
        pending.append(chunk)
        size += len(chunk)
        if size < block_bytes:
            continue
        text = b"".join(pending)
        cut = text.rfind(b"\n", 0, len(text.rstrip(b"\r\n"))) + 1  # the last line stays, with the blank lines behind it
        if not cut and size > max(_LONGEST_LINE_BYTES, block_bytes):
            raise DatasetError(f"{path}, line {line}: longer than {_LONGEST_LINE_BYTES >> 20} MiB; expected a table in text form")
        pending, size = [text[cut:]], len(text) - cut
        if cut:
            block = _plain(text[:cut], line)
            yield line, block
            line += _count(block, b"\n")
    block = _plain(b"".join(pending).rstrip(b"\r\n"), line)
    if block:
        yield line, block + b"\n"
    elif line == 1:
        raise DatasetError(f"{path}: holds no lines; expected a table")


def _count(text: bytes, what: bytes) -> int:
    """How often a byte (or a few) stands in a text."""
    if len(what) > 1:
        return text.count(what)
    # In parts that fit a cache this takes an eighth of the time of `bytes.count`, which looks for the next one again and again.
    values = np.frombuffer(text, np.uint8)
    return sum(int(np.count_nonzero(values[i : i + _COUNTED] == what[0])) for i in range(0, len(values), _COUNTED))


def _plain(text: bytes, line: int) -> bytes:
    text = text.removeprefix(_BOM) if line == 1 else text
    return text.replace(b"\r\n", b"\n") if b"\r" in text else text


def _fault(line: bytes, form: Form, names: Sequence[str], lists: bool) -> str:
    """What is wrong with a line that cannot be parsed."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1}, {line[error.start]:#04x}, is not UTF-8; expected text in UTF-8"
    if form.kind == JSON_LINES:
        try:
            found = json.loads(text)
        except ValueError as error:
            return f"not JSON: {_brief(error)}"
        return f"{str(found)[:60]!r} is no object of texts, numbers{' and lists' if lists else ''}; expected one a line"
    if form.quote and text.count(form.quote) % 2:
        return "a quote is opened and not closed on its line; expected one row a line (--quote none takes quotes as they are)"
    count = len(fields_of(text, form)) if text else 0
    if count != len(names):
        shown = {"\t": "tabs", " ": "spaces"}.get(form.separator, repr(form.separator))
        return f"{count} values, expected {len(names)} separated by {shown}"
    return f"{text[:60]!r}: a quote stands inside a value; expected it doubled in a quoted value (--quote none takes quotes as they are)"


def _keys(text: bytes) -> tuple[list[str], frozenset[str]]:
    """The keys of the first objects in a block of JSON lines, in the order of their first appearance, and those whose values are lists."""
    found: dict[str, bool] = {}
    for line in text.split(b"\n", _SAMPLE_LINES + 1)[:_SAMPLE_LINES]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        for key, item in value.items() if isinstance(value, dict) else ():
            found[key] = found.get(key, False) or isinstance(item, list)
    return list(found), frozenset(key for key, is_list in found.items() if is_list)


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
