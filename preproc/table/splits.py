"""The division of rows into training, validation and test splits: by files, by time, by a fraction, or by a column's value."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from dataloading.features import DatasetError
from preproc.shared import polars_engine as engine
from preproc.table.staging import SPLIT
from utils.encoding.columns import Made, hashes, moment, text

FILES, TIME, KEY, ROWS, COLUMN = "files", "time", "key", "rows", "column"
# The units of counts, each with the least one that is later than July 1979, or than the year 9999 in the unit before.
_LEAST_S = (("ns", 2e17), ("us", 2e14), ("ms", 2.6e11), ("s", -math.inf))
TRAIN, VALID, TEST = SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class SplitRule:
    """The rule that divides the rows of the training files.

    `by` is `files` (rows are not divided), `time` (the latest rows are held out), `key` (by a hash of a column, so that rows of one value stay
    together), `rows` (by a hash of the row's place) or `column` (by the column's value). Fractions are shares of the training files' rows.
    """

    by: str = FILES
    column: str | None = None
    valid_fraction: float = 0.0
    test_fraction: float = 0.0
    valid_values: tuple[str, ...] = ()
    test_values: tuple[str, ...] = ()
    by_name: bool = False  # the column's values are the splits' names
    form: str | None = None  # the format of times
    seed: int = 0

    @property
    def made(self) -> tuple[str, ...]:
        """The splits that the rule takes from the training files, besides `train`."""
        shares = {VALID: self.valid_fraction or self.valid_values, TEST: self.test_fraction or self.test_values}
        return tuple(split for split, share in shares.items() if share)

    def staged(self, schema: Mapping[str, pl.DataType]) -> Made | None:
        """Return the value that is staged for each row, by which it is split; None where the rule needs no value, or the row's place only."""
        if self.by == TIME:
            found, _, expected = moment(self.column, schema[self.column], self.form, None)
            return Made(found.dt.timestamp("us"), found.is_null(), expected.removesuffix(", or nothing"))
        if self.by in (KEY, COLUMN):
            value = text(pl.col(self.column), schema[self.column], self.column).fill_null("")
            return Made(value if self.by == COLUMN else hashes(pl.lit(f"{self.seed}:") + value) / 2.0**64, None, "")
        return None

    def places(self, first: int, count: int) -> pl.Series:
        """Return hashes of the rows' places in the table, uniform in [0, 1)."""
        return self._even(np.arange(first, first + count, dtype=np.uint64))

    def split_of(self, first: int) -> pl.Expr:
        """Return the expression of `places` for rows whose staged split is their place after the `first` rows of the table."""
        places = pl.col(SPLIT).cast(pl.UInt64) + first
        return places.map_batches(lambda found: self._even(found.to_numpy()), return_dtype=pl.Float64, is_elementwise=True).alias(SPLIT)

    def _even(self, places: np.ndarray) -> pl.Series:
        return pl.Series(SPLIT, split_mix(places + np.uint64((self.seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)) / 2.0**64)

    def bounds(self, counts: Callable[[], pl.DataFrame]) -> dict[str, pl.Expr | None]:
        """Return the condition on staged rows of the training files for each split; None for all rows.

        Args:
            counts: returns each staged `value` with its `count`; called where the rule needs them.

        Raises:
            DatasetError: a value of the column names no split, or no row has a value of a split.
        """
        value = pl.col(SPLIT)
        if self.by == FILES:
            return {TRAIN: None}
        if self.by == COLUMN:
            return self._by_values({*counts()[engine.VALUE]})
        if self.by == TIME:
            found = counts().sort(engine.VALUE)
            self._check_units(found[engine.VALUE])
            low, high = _times(found, self.valid_fraction, self.test_fraction)
        else:
            low, high = 1 - self.valid_fraction - self.test_fraction, 1 - self.test_fraction
        found = {TRAIN: value < low, VALID: (value >= low) & (value < high), TEST: value >= high}
        return {split: found[split] for split in (TRAIN, *self.made)}

    def _check_units(self, micros: pl.Series) -> None:
        """Raise DatasetError where counts of two units were read as seconds: rows could not be put in order."""
        ends = [int(micros[place]) // 1_000_000 for place in (0, -1)]
        units = [next(unit for unit, least in _LEAST_S if end >= least) for end in ends]
        if units[0] != units[1]:
            shown = " and ".join(f"{unit} ({end})" for unit, end in zip(units, ends, strict=True))
            raise DatasetError(f"--split_by {self.column}: holds times in {shown} since 1970; expected one unit, as rows are put in order by it")

    def _by_values(self, found: set[str]) -> dict[str, pl.Expr | None]:
        """Return the conditions of splits by a column, whose values are the splits' names or the given values."""
        chosen = {VALID: self.valid_values, TEST: self.test_values}
        if self.by_name:
            if other := sorted(found - {*SPLITS}):
                raise DatasetError(
                    f"--split_column {self.column}: holds {other[0]!r}, expected {', '.join(SPLITS)}, or values of --test_values and --valid_values"
                )
            chosen[VALID] = chosen[VALID] if VALID in found else ()
        for split, values in chosen.items():
            if values and not found & {*values}:
                raise DatasetError(f"--split_column {self.column}: no row has the value {' or '.join(values)} of the {split} split")
        splits = {split: pl.col(SPLIT).is_in(values) for split, values in chosen.items() if values}
        return {TRAIN: ~pl.col(SPLIT).is_in([value for values in chosen.values() for value in values])} | splits


def split_mix(counters: np.ndarray) -> np.ndarray:
    """Return uniform hashes uint64 of counters uint64, by the finalizer of SplitMix64."""
    mixed = counters
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _times(found: pl.DataFrame, valid_fraction: float, test_fraction: float) -> tuple[int, int]:
    """Return the times at which the validation and test rows begin; rows of the same time stay together, on the later side."""
    last = found["count"].cum_sum().to_numpy()
    rows = int(last[-1])

    def at(held_out: float) -> int:
        place = rows - round(rows * held_out)
        return int(found[engine.VALUE][int(np.searchsorted(last, place, side="right"))]) if place < rows else int(found[engine.VALUE][-1]) + 1

    return at(valid_fraction + test_fraction), at(test_fraction)
