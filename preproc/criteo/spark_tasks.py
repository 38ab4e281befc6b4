"""Tasks that executors run for `preproc.criteo`: reading a part of a log into typed columns, and assigning ids to a part of a column."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from preproc.criteo.clicklog import LABEL, LogForm, read_rows
from preproc.criteo.id_table import IdLookup, IdTable, write_looked_up
from preproc.criteo.rows import transformed
from preproc.criteo.sorted_ids import SortedIds, write_sorted
from preproc.reading.stores import Source
from utils.naming import naming

LABELS, NUMBERS, COUNTS = "label.bin", "numerical.bin", "counts"
_COUNTED_ROWS = 1 << 20  # rows whose values are counted at once


@dataclass(frozen=True)
class Reading:
    """A part of a log that a task reads.

    Attributes:
        log: the whole log, by a name that is valid on every machine.
        byte_range: range of the part; None for the whole log.
        form: fields of a line.
        transform: transform of the integers.
        block_bytes: text parsed at once, in bytes.
        skip_bad_lines: skip malformed lines, or stop at the first.
        counted: whether its values are counted for the dictionaries.
    """

    log: Source
    byte_range: tuple[int, int] | None
    form: LogForm
    transform: str
    block_bytes: int
    skip_bad_lines: bool
    counted: bool


@dataclass
class LogPartRead:
    """The result of reading a part; its columns are files in the task's folder.

    `first_fault` names its line by the number in the part. `chunks` are files of categorical values with their numbers of rows, `counts` is the
    number of counted pairs of a feature and a value.
    """

    chunks: list[tuple[str, int]]
    rows: int = 0
    clicks: int = 0
    lines: int = 0
    bad_lines: int = 0
    first_fault: str = ""
    counts: int = 0


def read_part(item: Reading, folder: Path) -> LogPartRead:
    """Read a part of a log into files. Raises DatasetError where it is malformed, with the number of the line in the part."""
    found = LogPartRead([])
    counter = _Counter(folder, item.form.categorical) if item.counted else None
    with (folder / LABELS).open("wb") as labels, (folder / NUMBERS).open("wb") as numbers:
        for rows in read_rows(item.log, item.block_bytes, item.skip_bad_lines, item.form, byte_range=item.byte_range):
            found.first_fault = found.first_fault or next(iter(rows.faults), "")
            found.bad_lines += len(rows.faults)
            found.lines += len(rows.lines) + len(rows.faults)
            if not rows.lines:
                continue
            if item.form.labelled:
                _write(labels, folder / LABELS, clicked := rows.frame[LABEL].to_numpy())
                found.clicks += int(clicked.sum())
            _write(numbers, folder / NUMBERS, transformed(item.log, rows, item.form.numerical, item.transform))
            values, path = rows.frame.select(item.form.categorical), folder / f"{len(found.chunks):06d}.arrow"
            with naming(path):
                values.write_ipc(path)
            found.chunks.append((path.name, values.height))
            found.rows += values.height
            if counter:
                counter.add(values)
    if counter:
        found.counts = counter.flush()
    return found


def _write(file, path: Path, values: np.ndarray) -> None:
    with naming(path):
        file.write(values.data if values.size else b"")


class _Counter:
    """A counter of the values of each feature in a part. Writes files of `feature` Int32 (its index), `value` Int64 and `count` Int64."""

    def __init__(self, folder: Path, features: Sequence[str]):
        self._folder, self._features = folder, features
        self._frames: list[pl.DataFrame] = []
        self._rows = self._files = self._counts = 0

    def add(self, values: pl.DataFrame) -> None:
        """Count the values of some rows, UInt32 columns with null for missing."""
        self._frames.append(values)
        self._rows += values.height
        if self._rows >= _COUNTED_ROWS:
            self.flush()

    def flush(self) -> int:
        """Write the counts of the added values. Return the number of pairs of a feature and a value in all files so far."""
        values = pl.concat(self._frames) if self._frames else pl.DataFrame(schema=dict.fromkeys(self._features, pl.UInt32))
        self._frames.clear()
        self._rows = 0
        if values.is_empty() and self._files:  # the first file is written even without rows, so that there is always one
            return self._counts
        counted = pl.concat(_counts(place, values[feature]) for place, feature in enumerate(self._features))
        path = self._folder / f"{COUNTS}-{self._files}.parquet"
        with naming(path):
            counted.write_parquet(path, compression="snappy", statistics=False)
        self._files += 1
        self._counts += counted.height
        return self._counts


def _counts(place: int, values: pl.Series) -> pl.DataFrame:
    found = values.drop_nulls().alias("value").value_counts(name="count")
    return found.select(pl.lit(place, pl.Int32).alias("feature"), pl.col("value").cast(pl.Int64), pl.col("count").cast(pl.Int64))


@dataclass(frozen=True)
class Numbering:
    """A part of a feature's column to which a task assigns ids.

    Attributes:
        feature: name of the feature.
        dtype: dtype of the ids.
        dictionary: a vocabulary's Parquet file, or the folder of a sorted one.
        pieces: for each split its name and its files of categorical values.
    """

    feature: str
    dtype: str
    dictionary: Path
    pieces: Sequence[tuple[str, Sequence[Path]]]


def number_part(item: Numbering, folder: Path) -> None:
    """Write the ids of a part of a column, one file `SPLIT.bin` for each split."""
    table = _lookup(item.dictionary, item.dtype)
    for split, chunks in item.pieces:
        write_looked_up(_columns(chunks, item.feature), table, folder / f"{split}.bin")


def _columns(chunks: Sequence[Path], feature: str) -> Iterator[pl.Series]:
    return (pl.scan_ipc(path, glob=False).select(feature).collect().to_series() for path in chunks)


_held: dict[tuple[Path, str], IdLookup] = {}  # cache of one: the next task of this process often needs the same dictionary


def _lookup(dictionary: Path, dtype: str) -> IdLookup:
    key = (dictionary, dtype)
    if key not in _held:
        _held.clear()
        if dictionary.is_dir():
            _held[key] = SortedIds(dictionary, dtype)
        else:
            _held[key] = IdTable(pl.read_parquet(dictionary, columns=["value", "id"], glob=False), dtype)
    return _held[key]


@dataclass(frozen=True)
class Sorting:
    """A range of the values of a vocabulary that a task sorts: those in [low, high)."""

    vocabulary: Path
    low: int
    high: int


def sort_part(item: Sorting, folder: Path) -> None:
    """Write a part of a sorted dictionary."""
    write_sorted(pl.scan_parquet(item.vocabulary, glob=False), item.low, item.high, folder)
