"""Rows of click logs on their way into a dataset: what is counted of them, and what becomes of their integers; whichever engine does it."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dataloading.features import DatasetError
from preproc.criteo.clicklog import LABEL, LogBlock, LogForm
from preproc.reading.stores import Source
from utils.encoding import numerical

_BELOW, _LARGEST = -3, 1 << 16  # of the table of logs; what lies below -2 gives 0, as what is missing does


@dataclass
class SplitCounts:
    """What was read into one split."""

    files: list[str]
    rows: int = 0
    clicks: int = 0
    bad_lines: int = 0
    labelled: bool = True
    file_rows: list[int] = field(default_factory=list)  # of each file

    def statistics(self) -> dict[str, Any]:
        """The split's part of the dataset's metadata."""
        clicks = {"click_rate": round(self.clicks / self.rows, 6)} if self.labelled else {}
        return {"files": self.files, "rows": self.rows, **clicks, "bad_lines_skipped": self.bad_lines}

    def described(self) -> str:
        """For people."""
        return f"{self.rows:,} rows" + (f" (click rate {self.clicks / self.rows:.4f})" if self.labelled else "")

    def check_rows(self, split: str) -> None:
        """After its last file. Raises DatasetError where the split has no rows."""
        if not self.rows:
            raise DatasetError(f"the {split} split holds no rows: every line of {', '.join(self.files)} is malformed")


def skipped(path: Source, bad_lines: int, first_fault: str) -> str:
    """What is said of a log whose malformed lines were left out."""
    return f"preproc.criteo: {path}: bad lines skipped: {bad_lines}, the first: {first_fault}"


def transformed(log: object, rows: LogBlock, names: Sequence[str], transform: str) -> np.ndarray:
    """The numerical features of a block of a log, `[n, M]` float16. Raises DatasetError where one is beyond what that holds."""
    if not names:
        return np.empty((rows.frame.height, 0), np.float16)
    numbers = rows.frame.select(names)
    if transform == "log":
        return log_plus_3(numbers)
    if found := numerical.beyond_float16(numbers):
        # An error under --bad_lines skip too: the line is sound, and large values are too common to be dropped unseen.
        row, name, value = found
        where = f"{log}: line {rows.lines[row]}: field {rows.frame.columns.index(name) + 1} ({name})"
        raise DatasetError(f"{where} is {value}, expected at most ±{numerical.FLOAT16_MAX}, what float16 holds; use --numerical_transform log")
    return numerical.unchanged(numbers)


class Staged(NamedTuple):
    """What is staged of a block of n rows (`Staging.append`), and what was wrong with the lines that were skipped."""

    labels: np.ndarray | None
    numbers: np.ndarray
    categorical: pl.DataFrame
    faults: tuple[str, ...]


def staged(log: object, block: Callable[[], LogBlock], form: LogForm, transform: str) -> Staged:
    """Parse a block of a log; see `transformed`."""
    rows = block()
    labels = rows.frame[LABEL].to_numpy() if form.labelled else None
    return Staged(labels, transformed(log, rows, form.numerical, transform), rows.frame.select(form.categorical), rows.faults)


@functools.cache
def _logs() -> np.ndarray:
    return numerical.log_plus_3(pl.DataFrame({"x": np.arange(_BELOW, _LARGEST + 1)}))[:, 0]


def log_plus_3(numbers: pl.DataFrame) -> np.ndarray:
    """log(x + 3), and 0 where x is missing or below -2: `[n, M]` float16, bit for bit what `numerical.log_plus_3` gives, of small ones by a table."""
    found = np.empty(numbers.shape, np.float16)
    for place, column in enumerate(numbers):
        whole = column.fill_null(_BELOW).to_numpy()
        found[:, place] = _logs()[np.clip(whole, _BELOW, _LARGEST) - _BELOW]
        large = np.flatnonzero(whole > _LARGEST)
        if len(large):
            found[large, place] = numerical.log_plus_3(pl.DataFrame({"x": whole[large]}))[:, 0]
    return found
