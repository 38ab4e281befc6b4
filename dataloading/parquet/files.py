"""The Parquet files of a split: their columns, checked before any row is read, and ranges of their rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dataloading.feature_spec import FeatureSpec
from dataloading.features import Categorical, DatasetError
from dataloading.parquet.footer import group_rows

_FAULTS = (pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException)  # errors of a damaged file


@dataclass(frozen=True)
class ParquetFile:
    """A readable Parquet file."""

    path: Path
    schema: dict[str, pl.DataType]

    @cached_property
    def groups(self) -> list[int]:
        """The rows of each row group; all rows in one where the footer does not tell."""
        return group_rows(self.path) or [int(self._tried(lambda: self._scan().select(pl.len()).collect().item()))]

    def read(self, columns: Sequence[str], start: int, stop: int) -> pl.DataFrame:
        """Return rows start to stop of some columns. Raises DatasetError where the file is damaged."""
        found = self._tried(lambda: self._scan().slice(start, stop - start).select(columns).collect())
        if found.height != stop - start:
            promised = f"its footer promises {sum(self.groups)} rows"
            raise DatasetError(f"{self.path}: ends after row {start + found.height}, {promised}; the file is damaged")
        return found

    def count(self, conditions: Sequence[pl.Expr]) -> list[int]:
        """Return the number of rows that fulfil each condition."""
        totals = [condition.sum().alias(str(i)) for i, condition in enumerate(conditions)]
        return list(self._tried(lambda: self._scan().select(totals).collect()).row(0))

    def _scan(self) -> pl.LazyFrame:
        return pl.scan_parquet(self.path, glob=False, hive_partitioning=False)

    def _tried(self, call: Callable[[], Any]) -> Any:
        return _tried(call, self.path)


def _tried(call: Callable[[], Any], path: Path) -> Any:
    try:
        return call()
    except _FAULTS as error:
        raise DatasetError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())[:200]}; the file is damaged or truncated") from None


def files_of(spec: FeatureSpec, split: str) -> tuple[Path, ...]:
    """Return the paths of a split's files, in the order of its rows. Raises DatasetError if the specification has no such split."""
    if split not in spec.sources:
        raise DatasetError(f"{spec.path}: no split {split}; splits found: {', '.join(spec.sources)}")
    return tuple(Path(file) for chunk in spec.sources[split] for file in chunk.files)


def opened_files(spec: FeatureSpec, split: str) -> list[ParquetFile]:
    """Return the files of a split, with the types of their columns checked; files may differ in columns that are not read.

    Raises:
        DatasetError: a file is missing or no Parquet file, lacks a column, or a column has a type that its channel cannot have.
    """
    found = []
    for path in files_of(spec, split):
        if not path.is_file():  # opening a named pipe would block forever
            raise DatasetError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}; {spec.path} lists it in source_spec.{split}")
        with _tried(lambda path=path: path.open("rb"), path) as file:
            mark = file.read(4)
        if mark != b"PAR1":
            raise DatasetError(f"{path}: is not Parquet; {spec.path} lists it in source_spec.{split}")
        file = ParquetFile(path, dict(_tried(lambda path=path: pl.read_parquet_schema(path), path)))
        _check_columns(spec, file, spec.labelled(split), split != "train")
        found.append(file)
    if not sum(sum(file.groups) for file in found):
        raise DatasetError(f"{spec.path}: split {split} is empty: its files have no rows")
    return found


def _check_columns(spec: FeatureSpec, file: ParquetFile, labelled: bool, grouped: bool) -> None:
    def check(name: str, fits: Callable[[pl.DataType], bool], expected: str, needed: bool = True) -> None:
        kind = file.schema.get(name)
        if kind is None and needed:
            raise DatasetError(f"{file.path}: no column {name}, a feature of {spec.path}; expected {expected}")
        if kind is not None and not fits(kind):
            raise DatasetError(f"{file.path}: feature {name}: the column's type is {kind}, expected {expected}")

    for feature in spec.categorical:
        if feature.hotness > 1:
            check(feature.name, _is_list_of_ids, f"lists of integers (max_hotness {feature.hotness})")
        else:
            check(feature.name, lambda kind: kind.is_integer() or _is_list_of_ids(kind), "integers")
    for name in spec.numerical:
        check(name, lambda kind: kind.is_float() or kind.is_integer(), "floating-point numbers")
    if labelled:
        check(spec.label, lambda kind: kind.is_numeric() or kind == pl.Boolean, "numbers 0 and 1")
    if spec.group is not None:
        check(spec.group, lambda kind: kind.is_integer(), "integers", grouped)


def _is_list_of_ids(kind: pl.DataType) -> bool:
    # NVIDIA's transcode.py writes lists of float64.
    return isinstance(kind, pl.List | pl.Array) and (kind.inner.is_integer() or kind.inner.is_float())


class BadValueError(ValueError):
    """A value that a column cannot have, its row among the rows that were converted, and its column (None: the only one)."""

    def __init__(self, row: int, text: str, feature: str | None = None):
        super().__init__(text)
        self.row, self.feature = row, feature


def ids_of(column: pl.Series, feature: Categorical) -> np.ndarray:
    """Return the ids of a column: `[n]`, or for a feature with several ids per sample `[n, h]`, shorter lists padded with -1, longer ones cut.

    The type is that of the specification if all ids fit it, else int64. Raises BadValueError.
    """
    _check_nulls(column)
    ids = _lists(column, feature.hotness) if column.dtype.is_nested() else _integers(column, lambda place: place)
    narrow = np.iinfo(feature.dtype)
    fits = not ids.size or (ids.min() >= narrow.min and ids.max() <= narrow.max)
    return ids.astype(feature.dtype if fits else np.int64, copy=False)


def _lists(column: pl.Series, hotness: int) -> np.ndarray:
    lists = column.arr.to_list() if isinstance(column.dtype, pl.Array) else column
    lengths = lists.list.len().to_numpy()
    if hotness == 1 and (lengths != 1).any():  # a list feature of one id per sample is read as single ids
        row = int(np.argmax(lengths != 1))
        raise BadValueError(row, f"a list of {lengths[row]} ids, expected exactly 1, its max_hotness")
    lengths = np.minimum(lengths, hotness)
    kept = lists.list.head(hotness)
    values = kept.filter(kept.list.len() > 0).explode()
    filled = np.arange(hotness) < lengths[:, None]
    rows = np.nonzero(filled)[0] if values.null_count() or values.dtype.is_float() else None
    if values.null_count():
        raise BadValueError(int(rows[int(values.is_null().arg_max())]), "a list holds null; expected ids")
    found = _integers(values, lambda place: int(rows[place]))
    ids = np.full((len(lists), hotness), -1, found.dtype)
    ids[filled] = found
    return ids[:, 0] if hotness == 1 else ids


def _integers(values: pl.Series, row_of: Callable[[int], int]) -> np.ndarray:
    """Return whole numbers as an array of signed integers; `row_of` returns the row of a value."""
    found = values.to_numpy()
    if found.dtype.kind == "f":
        whole = np.isfinite(found) & (np.trunc(found) == found) & (np.abs(found) < 2**53)
        if not whole.all():
            place = int(np.argmin(whole))
            raise BadValueError(row_of(place), f"id {found[place]} is not a whole number")
        return found.astype(np.int64)
    if found.dtype == np.uint64 and found.size and found.max() >= 2**63:
        place = int(np.argmax(found >= 2**63))
        raise BadValueError(row_of(place), f"{found[place]} does not fit 64 bits with a sign")
    return found.astype(np.int64) if found.dtype.kind == "u" else found


def numbers_of(frame: pl.DataFrame, names: Sequence[str], dtype: str) -> np.ndarray:
    """Return numerical columns as `[n, M]`. Raises BadValueError for a null."""
    found = np.empty((frame.height, len(names)), dtype)
    for place, name in enumerate(names):
        _check_nulls(frame[name])
        with np.errstate(over="ignore"):  # the check of the batches names a number that became infinite
            found[:, place] = frame[name].to_numpy()
    return found


def labels_of(column: pl.Series) -> np.ndarray:
    """Return labels: `[n]` uint8. Raises BadValueError for a null and for a number that is not 0 or 1."""
    _check_nulls(column)
    found = column.to_numpy()
    if (bad := (found != 0) & (found != 1)).any():
        row = int(np.argmax(bad))
        raise BadValueError(row, f"label {found[row]} is not 0 or 1")
    return found.astype(np.uint8)


def groups_of(column: pl.Series, dtype: str) -> np.ndarray:
    """Return groups: `[n]` in the given type. Raises BadValueError for a null and for a number that does not fit the type."""
    _check_nulls(column)
    found, bounds = _integers(column, lambda place: place), np.iinfo(dtype)
    if (bad := (found < bounds.min) | (found > bounds.max)).any():
        row = int(np.argmax(bad))
        raise BadValueError(row, f"{found[row]} does not fit {dtype}, its dtype in the feature specification")
    return found.astype(dtype)


def _check_nulls(column: pl.Series) -> None:
    if column.null_count():
        raise BadValueError(int(column.is_null().arg_max()), "is null; expected a value", column.name)
