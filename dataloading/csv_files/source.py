"""Rows from CSV files with a header whose names are the feature names, read in bounded memory.

The files are listed in the chunks of type csv of the specification's source_spec. A chunk lists features and, in order, the files that hold them.
Several chunks hold different columns of the same rows. Without a source_spec, `train.csv` and `test.csv` hold all features.
A file without a header, as in NVIDIA's generic form, holds the features of its chunk in the order of the chunk.
"""

import codecs
import csv
import io
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from dataloading.contract import CSV
from dataloading.csv_files.columns import Column, ListColumn, columns_of
from dataloading.feature_spec import Chunk, FeatureSpec
from dataloading.features import DatasetError
from utils import csv_rows
from utils.csv_rows import OPEN, CsvRows

BLOCK_BYTES = 16 << 20
_NUMBERS = re.compile(r'\s*"?\s*(?:[-+]?[0-9.][-+0-9.eE|: ]*)?\s*"?\s*').fullmatch  # a value, a list of values, or nothing
_HEADER_BYTES = 1 << 20  # a longer first line is not read as a header


def csv_chunks(spec: FeatureSpec, split: str) -> tuple[Chunk, ...]:
    """Return the CSV chunks of a split.

    Raises:
        DatasetError: the split is missing, a chunk has another type, or a feature is in no chunk or in several.
    """
    where = f"{spec.path}: " if spec.path else ""
    labelled = spec.labelled(split)
    label = (spec.label,) if labelled else ()
    names = (*(feature.name for feature in spec.categorical), *spec.numerical, *label, *spec.beside(labelled))
    if spec.sources is None:
        return (Chunk(CSV, names, (f"{split}.csv",)),)
    if split not in spec.sources:
        raise DatasetError(f"{where}source_spec: split {split} is missing")
    listed: list[str] = []
    for i, chunk in enumerate(spec.sources[split]):
        if chunk.type != CSV:
            raise DatasetError(f"{where}source_spec.{split}[{i}]: type is {chunk.type}, expected {CSV} with --src_dataset_type csv")
        if not chunk.files or not chunk.features:
            raise DatasetError(f"{where}source_spec.{split}[{i}]: a chunk needs at least one feature and one file")
        listed += chunk.features
    for name in names:
        if listed.count(name) != 1:
            raise DatasetError(f"{where}source_spec.{split}: feature {name} is in {listed.count(name)} chunks, expected exactly one")
    for name in listed:
        if name not in names:
            raise DatasetError(f"{where}source_spec.{split}: feature {name} is in no channel")
    return spec.sources[split]


def csv_paths(spec: FeatureSpec, split: str) -> list[Path]:
    """Return every file of a split."""
    return [spec.base_directory / file for chunk in csv_chunks(spec, split) for file in chunk.files]


def check_csv_files(spec: FeatureSpec, split: str) -> None:
    """Check that every file of a split can be read, before hours of work depend on it. Raises DatasetError."""
    for path in csv_paths(spec, split):
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a named pipe would wait for ever
                raise DatasetError(f"{path}: not a regular file; expected a CSV file")
            path.open("rb").close()
        except OSError as error:
            raise DatasetError(f"{path}: {error.strerror}; expected a CSV file (source_spec.{split})") from None


SplitRows = tuple[np.ndarray, list[np.ndarray], np.ndarray | None, np.ndarray | None, np.ndarray | None]


def read_csv_split(spec: FeatureSpec, split: str, batch_size: int) -> Iterator[SplitRows]:
    """Yield batches of n rows; n is batch_size except in the last batch.

    Yields:
        numericals `[n, M]`, F id columns `[n]`, `[n, h]` or with weights `[n, 2h]` (`id_weights`), labels `[n]` uint8 if the split has them,
        groups `[n]` if there is a group, and weights `[n]` float32 if there are weights and labels.

    Raises:
        DatasetError: a file or column is missing, a value contradicts the specification (the message names file, line, feature and value), or
            chunks have different numbers of rows.
    """
    columns = columns_of(spec)
    chunks = csv_chunks(spec, split)
    streams = [_rebatch(_chunk_blocks(spec, chunk, columns), batch_size) for chunk in chunks]
    row = 0
    while True:
        parts = [next(stream, None) for stream in streams]
        lengths = [len(next(iter(part.values()))) if part else 0 for part in parts]
        if len(set(lengths)) > 1:
            short, long = int(np.argmin(lengths)), int(np.argmax(lengths))
            raise DatasetError(
                f"{spec.base_directory / chunks[short].files[-1]}: the chunk of feature {chunks[short].features[0]} ends after "
                f"{row + lengths[short]} rows, the chunk of feature {chunks[long].features[0]} has more; expected as many"
            )
        if lengths[0] == 0:
            return
        row += lengths[0]
        values = {name: column for part in parts if part for name, column in part.items()}
        numerical = np.empty((lengths[0], len(spec.numerical)), spec.numerical_dtype)
        for column, name in zip(numerical.T, spec.numerical, strict=True):
            column[:] = values[name]
        yield (
            numerical,
            [values[feature.name] for feature in spec.categorical],
            values.get(spec.label),
            values.get(spec.group),
            values.get(spec.weight),
        )


def _chunk_blocks(spec: FeatureSpec, chunk: Chunk, columns: Mapping[str, Column]) -> Iterator[dict[str, np.ndarray]]:
    for file in chunk.files:
        yield from _file_blocks(spec.base_directory / file, [columns[name] for name in chunk.features], set(columns), spec.sources is not None)


def _file_blocks(path: Path, wanted: list[Column], known: set[str], ordered: bool) -> Iterator[dict[str, np.ndarray]]:
    """Yield blocks of whole lines of one file, parsed and checked. An `ordered` file may lack a header; its columns are then those in `wanted`."""
    with path.open("rb") as file:
        first = file.readline(_HEADER_BYTES)
        without = ordered and _is_values(first, wanted)
        header = [column.name for column in wanted] if without else _header(path, first, wanted)
        if without:
            print(f"{path}: has no header; its columns are read as {', '.join(header[:5])}{', …' if len(header) > 5 else ''}", file=sys.stderr)
            file.seek(3 if first.startswith(codecs.BOM_UTF8) else 0)
        extra = [name for name in header if name not in known]
        if extra:
            shown = ", ".join(extra[:5]) + (", …" if len(extra) > 5 else "")
            print(f"{path}: {len(extra)} columns are not in the feature specification and are ignored: {shown}", file=sys.stderr)
        line, rest = 1 if without else 2, b""
        while True:
            read = file.read(BLOCK_BYTES)
            block = rest + read
            if read:
                # The last line and the blank lines after it are kept for the next block: at the end of the file, blank lines are not rows.
                end = block.rstrip(b"\r\n").rfind(b"\n") + 1
                if end == 0 and len(block) > 2 * BLOCK_BYTES:
                    raise DatasetError(f"{path}, line {line}: no end of line in {len(block)} bytes; expected lines of text")
                block, rest = block[:end], block[end:]
            else:
                block, rest = block.rstrip(b"\r\n"), b""
            if block:
                frame = _parse(path, line, block, header, wanted)
                yield _convert(path, line, block, header, frame, wanted)
                line += frame.height
            if not read:
                return


def _is_values(text: bytes, wanted: list[Column]) -> bool:
    """Return whether a first line holds numbers rather than feature names."""
    cells = text.decode("utf-8-sig", "replace").strip().split(",")
    names = {cell.strip(' "') for cell in cells}
    return any(cells) and all(map(_NUMBERS, cells)) and not {column.name for column in wanted} <= names


def _header(path: Path, text: bytes, wanted: list[Column]) -> list[str]:
    if not text.strip():
        raise DatasetError(f"{path}: no header; expected a first line with the names of the features")
    if fault := _not_utf8(path, 1, text):
        raise fault
    try:
        header = [name.strip() for name in csv_rows.fields(text.decode("utf-8-sig").rstrip("\r\n"), ",", strict=False)]
    except csv.Error as error:
        raise DatasetError(f"{path}: the first line is not a CSV header: {error}") from None
    if len(header) == 1 and header[0] not in {column.name for column in wanted}:
        for separator, name in (("\t", "tabs"), (";", "semicolons"), ("|", "bars")):
            if separator in header[0]:
                raise DatasetError(f"{path}: the header's names are separated by {name}, expected commas; write the file with commas")
    for column in wanted:
        if header.count(column.name) != 1:
            found = f"found {len(header)} columns: {', '.join(header[:5])}{', …' if len(header) > 5 else ''}"
            raise DatasetError(f"{path}: the header names feature {column.name} {header.count(column.name)} times, expected once; {found}")
    return header


def _parse(path: Path, line: int, block: bytes, header: list[str], wanted: list[Column], text: bool = False) -> pl.DataFrame:
    """Parse a block into columns. A value that is not a number becomes null; with `text`, all values are kept as text."""
    kinds = {column.name: column.parsed for column in wanted}
    # The index makes the names unique: ignored columns may share a name.
    schema = {f"{i} {name}": pl.String if text else kinds.get(name, pl.String) for i, name in enumerate(header)}
    block = block.replace(b"\r\n", b"\n").removesuffix(b"\n") + b"\n"
    lines = block.count(b"\n")
    if (rows := CsvRows(",", len(header), spans=False).of(block)) is not None:
        if rows.bad:
            raise _bad_line(path, line + rows.bad[0], block.split(b"\n")[rows.bad[0]], header)
        block = rows.text
    # Polars fills short rows with nulls, which cannot be told from empty lists.
    if block.count(b",") != lines * (len(header) - 1) and (ragged := _ragged(path, line, block, header)):
        raise ragged
    before = b".\n" if block.startswith(b"x^") else b""  # Polars takes a block that begins so for a compressed file
    options = {"skip_lines": len(before) // 2, "ignore_errors": True, "encoding": "utf8-lossy" if text else "utf8"}
    try:
        frame = pl.read_csv(io.BytesIO(before + block), has_header=False, schema=schema, **options)
    except pl.exceptions.PolarsError as error:
        raise (
            _not_utf8(path, line, block)
            or _ragged(path, line, block, header)
            or DatasetError(f"{path}, line {line} or later: {' '.join(str(error).split())}")
        ) from None
    if frame.height != lines:
        raise _ragged(path, line, block, header) or DatasetError(f"{path}, lines {line} to {line + lines - 1}: cannot be read as {lines} rows")
    return frame.rename({f"{i} {name}": name for i, name in enumerate(header) if name in kinds})


def _not_utf8(path: Path, line: int, block: bytes) -> DatasetError | None:
    try:
        block.decode()
    except UnicodeDecodeError as error:
        line += block.count(b"\n", 0, error.start)
        column = error.start - block.rfind(b"\n", 0, error.start)
        return DatasetError(f"{path}, line {line}, byte {column}: {block[error.start]:#04x} is not UTF-8, expected text in UTF-8")
    return None


def _ragged(path: Path, line: int, block: bytes, header: list[str]) -> DatasetError | None:
    for i, text in enumerate(block.removesuffix(b"\n").split(b"\n")):
        if text.strip() and len(csv_rows.fields(text.decode(errors="replace"), ",")) != len(header):
            return _bad_line(path, line + i, text, header)
    return None


def _bad_line(path: Path, line: int, text: bytes, header: list[str]) -> DatasetError:
    """Describe a line that is no row of the header's columns."""
    shown = text.decode(errors="replace")
    if fault := CsvRows(",", len(header)).fault(shown):
        fault = f"{OPEN} on its line; expected one row per line" if fault == OPEN else fault
        return DatasetError(f"{path}, line {line}: {fault}")
    return DatasetError(f"{path}, line {line}: {len(csv_rows.fields(shown, ','))} values, expected {len(header)} columns")


def _convert(path: Path, line: int, block: bytes, header: list[str], frame: pl.DataFrame, wanted: list[Column]) -> dict[str, np.ndarray]:
    converted, faults = {}, []
    for column in wanted:
        converted[column.name], bad = column.convert(frame[column.name])
        if bad is not None:
            faults.append((bad, column))
    if faults:
        row, column = min(faults, key=lambda fault: fault[0])
        value = _parse(path, line, block, header, wanted, text=True)[column.name][row]
        found = "nothing" if value is None or not value.strip() else repr(value[:60])
        if isinstance(column, ListColumn) and len(value or "") > 60:
            found += f" …: {column.fault(value)}"
        if type(column) is ListColumn and ":" in (value or ""):
            found += "; ids have weights, as in 12:0.5, where feature_spec says `weights: true`"
        raise DatasetError(f"{path}, line {line + row}, feature {column.name}: expected {column.expected}, found {found}")
    return converted


def _rebatch(blocks: Iterator[dict[str, np.ndarray]], size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the same rows in batches of `size`; only the last batch may be smaller."""
    pending: dict[str, np.ndarray] = {}
    for block in blocks:
        if pending:
            block = {name: np.concatenate([pending[name], column]) for name, column in block.items()}
        rows, start = len(next(iter(block.values()))), 0
        while rows - start >= size:
            yield {name: column[start : start + size] for name, column in block.items()}
            start += size
        pending = {name: column[start:] for name, column in block.items()} if start < rows else {}
    if pending:
        yield pending
