"""Raw rows of a CSV or Parquet file, as inputs of a model of raw values."""

import codecs
import csv
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from serving.connection import Input
from serving.description import CATEGORICAL, ID_WEIGHTS, NUMERICAL
from utils.csv_rows import CsvRows, fields
from utils.errors import UserError

_FLOATS, _TEXTS = "FP32", "BYTES"
_MISSING = ("", "na", "n/a", "nan", "null", "none", "\\n")  # spellings of a missing number, in lower case
_YES, _NO = ("1", "true", "yes", "t", "y", "1.0"), ("0", "false", "no", "f", "n", "0.0")


class RawFile:
    """The rows of a file.

    Args:
        path: path of a Parquet file, or of a CSV file with a header, whose values are all read as texts.
        inputs: inputs of the model: columns of the log.
        label: name of a column of 0 and 1; None where rows have no labels.

    Raises:
        UserError: the file cannot be read, lacks a column, or holds a value that is invalid for an input.
    """

    def __init__(self, path: str, inputs: Sequence[Input], label: str | None):
        frame = _read(path)
        for name in [*(one.name for one in inputs), *([] if label is None else [label])]:
            if name not in frame.columns:
                raise UserError(f"{path}: has no column {name}; the model takes {', '.join(one.name for one in inputs)}")
        self.num_samples = frame.height
        if not self.num_samples:
            raise UserError(f"{path}: holds no rows")
        self._columns = {one.name: (_numbers if one.kind == _FLOATS else _texts)(path, frame[one.name]) for one in inputs}
        self._labels = None if label is None else _labels(path, frame[label])

    def inputs(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return each column of some rows as `[n, 1]`, float32 or texts as bytes."""
        return {name: values[start:stop, np.newaxis] for name, values in self._columns.items()}

    def labels(self, stop: int) -> np.ndarray | None:
        """Return the labels of the first rows; None where there are none."""
        return None if self._labels is None else self._labels[:stop]


def _read(path: str) -> Any:
    import polars as pl

    if not Path(path).is_file():
        raise UserError(f"--data {path}: no such file")
    try:
        with open(path, "rb") as file:
            parquet = file.read(4) == b"PAR1"
        return pl.read_parquet(path, glob=False) if parquet else _read_csv(path)
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error, zstandard.ZstdError, csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"--data {path}: cannot be read as CSV with a header, or Parquet: {' '.join(str(error).split())[:200]}") from None


def _read_csv(path: str) -> Any:
    """Read a CSV file as texts. Raises UserError for a row that is malformed, and csv.Error for such a header."""
    import polars as pl

    text = _plain(Path(path).read_bytes()).removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n"
    names = [name.strip() for name in fields(text[: text.index(b"\n")].decode(), ",", strict=False)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--data {path}: names column {twice[0]} twice; expected a header of unique names")
    rows = CsvRows(",", len(names))
    found = rows.of(text)
    by_line = text if found is None else found.text
    wrong = min({*(() if found is None else found.bad), *rows.miscounted(by_line).tolist()} - {0}, default=None)  # 0: the header, read above
    if wrong is not None:
        given = by_line.split(b"\n", wrong + 1)[wrong].decode(errors="replace")
        fault = rows.fault(given) or f"{len(fields(given, ','))} values, expected {len(names)} separated by commas"
        raise UserError(f"--data {path}, line {1 + (wrong if found is None else int(found.starts[wrong]))}: {fault}")
    by_line = b"," * (len(names) - 1) + by_line[by_line.index(b"\n") :]  # without the header, whose first bytes Polars may not take for text
    schema = {str(i): pl.String for i in range(len(names))}
    frame = pl.read_csv(by_line, has_header=False, schema=schema, empty_string_is_null=False)
    if found is not None and found.stand_in:
        frame = frame.with_columns(pl.all().str.replace_all(found.stand_in.decode(), "\n", literal=True))
    return frame.rename(dict(zip(schema, names, strict=True)))[1:]


def _plain(content: bytes) -> bytes:
    if content.startswith(b"\x1f\x8b"):
        return gzip.decompress(content)
    if content.startswith(b"\x28\xb5\x2f\xfd"):
        with zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True) as stream:
            return stream.read()
    return content


def _numbers(path: str, column: Any) -> np.ndarray:
    """Convert a column to float32, NaN where a value is missing."""
    import polars as pl

    given = column
    if column.dtype == pl.String:
        stripped = column.str.strip_chars()
        given = stripped.set(stripped.str.to_lowercase().is_in(_MISSING), None)
    if given.dtype.is_nested() or given.dtype.is_temporal() or given.dtype == pl.Binary:
        raise UserError(f"{path}: column {column.name} holds {column.dtype}, expected numbers")
    found = given.cast(pl.Float64, strict=False)
    _refuse(path, column, given.is_not_null() & found.is_null(), "a number, or nothing")
    return found.cast(pl.Float32).fill_null(float("nan")).to_numpy()


def _texts(path: str, column: Any) -> np.ndarray:
    """Convert a column to bytes, empty where a value is missing. Numbers and booleans become Polars' texts, which the model parses."""
    import polars as pl

    if column.dtype.is_nested() or column.dtype == pl.Binary:
        raise UserError(f"{path}: column {column.name} holds {column.dtype}, expected texts; join the values of a list by its separator")
    values = column.fill_nan(None) if column.dtype.is_float() else column
    return np.array([(value or "").encode() for value in values.cast(pl.String).to_list()], object)


def _labels(path: str, column: Any) -> np.ndarray:
    import polars as pl

    lower = column.cast(pl.String).str.to_lowercase().str.strip_chars()
    _refuse(path, column, ~lower.is_in(_YES + _NO).fill_null(False), "0 or 1, true or false, yes or no (--label)")
    return lower.is_in(_YES).to_numpy()


def _refuse(path: str, column: Any, wrong: Any, expected: str) -> None:
    if wrong.any():
        row = wrong.arg_max()
        raise UserError(f"{path}, row {row + 1}, column {column.name}: {column[row]!r:.60}, expected {expected}")


def is_raw(inputs: Sequence[Input]) -> bool:
    """Return whether a model takes columns of the log; other models take `numerical`, `categorical` and `id_weights`."""
    return not {one.name for one in inputs} <= {NUMERICAL, CATEGORICAL, ID_WEIGHTS} or any(one.kind == _TEXTS for one in inputs)
