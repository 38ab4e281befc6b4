"""Column types of CSV files: parsing of the values, and the values that are allowed."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from dataloading.feature_spec import FeatureSpec

_BETWEEN = "|"  # separates the ids of a list


@dataclass(frozen=True)
class NumericalColumn:
    """A column of finite numbers in the range of its type, float16 or float32."""

    name: str
    dtype: str
    parsed = pl.Float64

    @property
    def expected(self) -> str:
        """A description of the allowed values, for messages."""
        return f"a finite number that {self.dtype} holds (up to {float(np.finfo(self.dtype).max):.6g})"

    def convert(self, values: pl.Series) -> tuple[np.ndarray, int | None]:
        """Return the values as stored, and the index of the first invalid value (None if all are valid)."""
        with np.errstate(over="ignore"):  # an overflow becomes infinite, which the next lines find
            numbers = values.fill_null(float("nan")).to_numpy().astype(self.dtype)
        return numbers, _first(~np.isfinite(numbers))


@dataclass(frozen=True)
class IdColumn:
    """A column of whole numbers from `least` to `last`: ids, labels, groups."""

    name: str
    dtype: str
    last: int
    least: int = 0
    parsed = pl.Int64

    @property
    def expected(self) -> str:
        """A description of the allowed values, for messages."""
        if self.dtype == "uint8":
            return "0 or 1"
        return f"a whole number in [{self.least}, {self.last + 1})" if self.least == 0 else f"a whole number that {self.dtype} holds"

    def convert(self, values: pl.Series) -> tuple[np.ndarray, int | None]:
        """Return the values as stored, and the index of the first invalid value (None if all are valid)."""
        ids = values.fill_null(self.least).to_numpy()
        first = _first((ids < self.least) | (ids > self.last) | values.is_null().to_numpy())
        return ids.astype(self.dtype) if first is None else ids, first


@dataclass(frozen=True)
class ListColumn:
    """A column of lists of up to `hotness` ids in [0, cardinality), as `1|5|9`; an empty cell is an empty list."""

    name: str
    dtype: str
    cardinality: int
    hotness: int
    parsed = pl.String

    @property
    def expected(self) -> str:
        """A description of the allowed values, for messages."""
        return f"at most {self.hotness} whole numbers in [0, {self.cardinality}), separated by {_BETWEEN}"

    def convert(self, values: pl.Series) -> tuple[np.ndarray, int | None]:
        """Return the ids `[n, hotness]`, padded with -1, and the index of the first invalid list (None if all are valid)."""
        texts = values.fill_null("").str.strip_chars()
        lengths = np.where((texts == "").to_numpy(), 0, texts.str.count_matches(_BETWEEN, literal=True).to_numpy().astype(np.int64) + 1)
        words = texts.filter(texts != "").str.split(_BETWEEN).explode().str.strip_chars()
        ids = words.cast(pl.Int64, strict=False).fill_null(-1).to_numpy()
        rows = np.repeat(np.arange(len(lengths)), lengths)
        bad = lengths > self.hotness
        bad[rows[(ids < 0) | (ids >= self.cardinality)]] = True
        out = np.full((len(lengths), self.hotness), -1, self.dtype)
        first = _first(bad)
        if first is None:
            out[rows, np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)] = ids
        return out, first


@dataclass(frozen=True)
class WeightColumn(NumericalColumn):
    """A column of the rows' weights: finite numbers of at least 0."""

    @property
    def expected(self) -> str:
        """A description of the allowed values, for messages."""
        return f"{super().expected} of at least 0"

    def convert(self, values: pl.Series) -> tuple[np.ndarray, int | None]:
        """Return the values as stored, and the index of the first invalid value (None if all are valid)."""
        weights, _ = super().convert(values)
        negative = (values < 0).fill_null(False).to_numpy()  # before rounding, which makes a tiny negative number 0
        return weights, _first(negative | ~np.isfinite(weights))


Column = NumericalColumn | IdColumn | ListColumn | WeightColumn


def columns_of(spec: FeatureSpec) -> dict[str, Column]:
    """Return a column for each feature. Raises FeatureSpecError for a type that a dataset cannot hold."""
    columns: dict[str, Column] = {}
    for feature in spec.categorical:
        if feature.hotness > 1:
            columns[feature.name] = ListColumn(feature.name, "int32", feature.cardinality, feature.hotness)
        else:
            columns[feature.name] = IdColumn(feature.name, "int32", feature.cardinality - 1)
    columns |= {name: NumericalColumn(name, spec.numerical_dtype) for name in spec.numerical}
    columns[spec.label] = IdColumn(spec.label, "uint8", 1)
    if spec.group is not None:
        limits = np.iinfo(spec.group_dtype)
        columns[spec.group] = IdColumn(spec.group, spec.group_dtype, int(limits.max), int(limits.min))
    if spec.weight is not None:
        columns[spec.weight] = WeightColumn(spec.weight, spec.weight_dtype)
    return columns


def _first(bad: np.ndarray) -> int | None:
    return int(np.argmax(bad)) if bad.any() else None
