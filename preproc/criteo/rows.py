"""Counts of the rows of click logs, and the transform of their integers, for all engines."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dataloading.features import DatasetError
from preproc.criteo.clicklog import LABEL, LogBlock, LogForm
from preproc.reading.stores import Source
from preproc.shared.negatives import KeptRows
from utils.encoding import numerical

_BELOW, _LARGEST = -3, 1 << 16  # bounds of the table of logs; values below -2 give 0, as missing ones do, so -3 stands for both


@dataclass
class SplitCounts:
    """Counts of the rows of one split.

    Attributes:
        files: names of its logs.
        rows: number of rows.
        clicks: number of positives.
        bad_lines: number of malformed lines that were skipped.
        labelled: whether the rows have labels.
        file_rows: number of rows of each log.
        rows_before: number of rows before negatives were left out; None where all are there.
        negative_rate: probability with which each negative was kept.
    """

    files: list[str]
    rows: int = 0
    clicks: int = 0
    bad_lines: int = 0
    labelled: bool = True
    file_rows: list[int] = field(default_factory=list)
    rows_before: int | None = None
    negative_rate: float = 1.0

    def sampled(self, kept: KeptRows, rate: float) -> "SplitCounts":
        """Return the counts of the kept rows, among which are all positives; each negative was kept with the probability `rate`."""
        return replace(self, rows=kept.rows, file_rows=kept.counts(self.file_rows), rows_before=self.rows, negative_rate=rate)

    def statistics(self) -> dict[str, Any]:
        """Return the split's part of the dataset's metadata."""
        clicks = {"click_rate": round(self.clicks / self.rows, 6)} if self.labelled else {}
        before = {} if self.rows_before is None else {"rows_before_sampling": self.rows_before}
        return {"files": self.files, "rows": self.rows, **before, **clicks, "bad_lines_skipped": self.bad_lines}

    def described(self) -> str:
        """Describe the rows for messages."""
        before = "" if self.rows_before is None else f", of {self.rows_before:,}, negatives kept at {self.negative_rate:g}"
        return f"{self.rows:,} rows" + (f" (click rate {self.clicks / self.rows:.4f}{before})" if self.labelled else "")

    def check_rows(self, split: str) -> None:
        """Raise DatasetError where the split has no rows; called after its last file."""
        if not self.rows:
            raise DatasetError(f"the {split} split holds no rows: every line of {', '.join(self.files)} is malformed")


def skipped(path: Source, bad_lines: int, first_fault: str) -> str:
    """Return the message about a log whose malformed lines were skipped."""
    return f"preproc.criteo: {path}: bad lines skipped: {bad_lines}, the first: {first_fault}"


def transformed(log: object, rows: LogBlock, names: Sequence[str], transform: str) -> np.ndarray:
    """Return the numerical features of a block of a log, `[n, M]` float16. Raises DatasetError where a value is out of range for float16."""
    if not names:
        return np.empty((rows.frame.height, 0), np.float16)
    numbers = rows.frame.select(names)
    if transform == "log":
        return log_plus_3(numbers)
    if found := numerical.beyond_float16(numbers):
        # An error with --bad_lines skip, too: the line is well-formed, and large values are too common to be dropped silently.
        row, name, value = found
        where = f"{log}: line {rows.lines[row]}: field {rows.frame.columns.index(name) + 1} ({name})"
        raise DatasetError(f"{where} is {value}, expected at most ±{numerical.FLOAT16_MAX}, the range of float16; use --numerical_transform log")
    return numerical.unchanged(numbers)


class Staged(NamedTuple):
    """The staged columns of a block of n rows (see `Staging.append`), and the faults of the lines that were skipped."""

    labels: np.ndarray | None
    numbers: np.ndarray
    categorical: pl.DataFrame
    faults: tuple[str, ...]


def staged(log: object, block: Callable[[], LogBlock], form: LogForm, transform: str) -> Staged:
    """Parse a block of a log and transform its integers. Raises DatasetError as `transformed` does."""
    rows = block()
    labels = rows.frame[LABEL].to_numpy() if form.labelled else None
    return Staged(labels, transformed(log, rows, form.numerical, transform), rows.frame.select(form.categorical), rows.faults)


@functools.cache
def _logs() -> np.ndarray:
    return numerical.log_plus_3(pl.DataFrame({"x": np.arange(_BELOW, _LARGEST + 1)}))[:, 0]


def log_plus_3(numbers: pl.DataFrame) -> np.ndarray:
    """Compute log(x + 3), and 0 where x is missing or below -2: `[n, M]` float16, bit for bit the result of `numerical.log_plus_3`.

    Small values are looked up in a table, which is faster.
    """
    found = np.empty(numbers.shape, np.float16)
    for place, column in enumerate(numbers):
        whole = column.fill_null(_BELOW).to_numpy()
        found[:, place] = _logs()[np.clip(whole, _BELOW, _LARGEST) - _BELOW]
        large = np.flatnonzero(whole > _LARGEST)
        if len(large):
            found[large, place] = numerical.log_plus_3(pl.DataFrame({"x": whole[large]}))[:, 0]
    return found
