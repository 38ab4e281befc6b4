"""Column types of CSV files: parsing of the values, and the values that are allowed."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from dataloading.feature_spec import FeatureSpec
from dataloading.features import MEAN
from dataloading.id_weights import expected_weights, joined

_BETWEEN = "|"  # separates the ids of a list
_BEFORE_WEIGHT = ":"  # separates an id from its weight


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
        words, lengths = _split(values)
        ids, bad = self._ids(words)
        return self._filled(ids, lengths, np.int32(-1)), self._first_bad(bad, lengths)

    def fault(self, cell: str) -> str:
        """Return what is wrong with an invalid cell, for messages: its length, or its first bad word."""
        words, lengths = _split(pl.Series([cell]))
        if lengths[0] > self.hotness:
            return f"{lengths[0]} of them"
        place = int(np.argmax(self._bad(words)))
        return f"{words[place][:60]!r} in place {place} of its list"

    def _bad(self, words: pl.Series) -> np.ndarray:
        return self._ids(words)[1]

    def _ids(self, words: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of words, `[k]` int64, and a mask of those that are none."""
        ids = words.cast(pl.Int64, strict=False).fill_null(-1).to_numpy()
        return ids, (ids < 0) | (ids >= self.cardinality)

    def _first_bad(self, bad: np.ndarray, lengths: np.ndarray) -> int | None:
        """Return the index of the first list that is too long or has a bad word; `bad` `[k]` is of all words, `lengths` `[n]` of the lists."""
        rows = lengths > self.hotness
        rows[np.repeat(np.arange(len(lengths)), lengths)[bad]] = True
        return _first(rows)

    def _filled(self, values: np.ndarray, lengths: np.ndarray, padding: np.generic) -> np.ndarray:
        """Return the values of all words `[k]` as lists `[n, hotness]` of the type of `padding`; only padding if a list is too long."""
        out, there = np.full((len(lengths), self.hotness), padding), np.arange(self.hotness) < lengths[:, np.newaxis]
        if np.count_nonzero(there) == len(values):
            out[there] = values
        return out


@dataclass(frozen=True)
class WeightedListColumn(ListColumn):
    """A column of lists of up to `hotness` ids with a weight each, as `1:0.5|9:2`; an empty cell is an empty list."""

    pooling: str

    @property
    def expected(self) -> str:
        """A description of the allowed values, for messages."""
        one = f"id{_BEFORE_WEIGHT}weight, the id a whole number in [0, {self.cardinality}), the weight {expected_weights(self.pooling)}"
        return f"at most {self.hotness} of {one}, separated by {_BETWEEN}" if self.hotness > 1 else f"nothing or {one}"

    def convert(self, values: pl.Series) -> tuple[np.ndarray, int | None]:
        """Return ids and weights `[n, 2 hotness]` (`id_weights`), and the index of the first invalid list (None if all are valid)."""
        words, lengths = _split(values)
        ids, weights, bad = self._pairs(words)
        first = self._first_bad(bad, lengths)
        return joined(self._filled(ids, lengths, np.int32(-1)), self._filled(weights, lengths, np.float32(0))), first

    def _bad(self, words: pl.Series) -> np.ndarray:
        return self._pairs(words)[2]

    def _pairs(self, words: pl.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the ids of words, `[k]` int64, their weights, float32, and a mask of the words that are no id with a weight."""
        names, numbers = (part.str.strip_chars() for part in words.str.splitn(_BEFORE_WEIGHT, 2).struct.unnest())
        ids, bad = self._ids(names)
        weights = numbers.cast(pl.Float32, strict=False).fill_null(float("nan")).to_numpy()  # at once: rounding twice may give a neighbour
        bad |= ~np.isfinite(weights)
        if self.pooling == MEAN:
            bad |= (numbers.cast(pl.Float64, strict=False) < 0).fill_null(False).to_numpy()  # float32 makes a tiny negative number 0
        return ids, weights, bad


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


Column = NumericalColumn | IdColumn | ListColumn | WeightedListColumn | WeightColumn


def columns_of(spec: FeatureSpec) -> dict[str, Column]:
    """Return a column for each feature. Raises FeatureSpecError for a type that a dataset cannot hold."""
    columns: dict[str, Column] = {}
    for feature in spec.categorical:
        if feature.weights:
            columns[feature.name] = WeightedListColumn(feature.name, "int32", feature.cardinality, feature.hotness, feature.pooling)
        elif feature.is_list:
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


def list_cells(ids: np.ndarray, weights: np.ndarray | None = None) -> pl.Series:
    """Return the cells of lists: `1|9`, or with weights `1:0.5|9:2.0`, which are read back to the same float32.

    Args:
        ids: `[n, h]`, -1 for no id.
        weights: `[n, h]` float32.
    """
    words = pl.Series(ids.reshape(-1)).cast(pl.String)
    if weights is not None:
        words = words + _BEFORE_WEIGHT + pl.Series(weights.reshape(-1)).cast(pl.String)
    words = pl.select(pl.when(pl.Series((ids >= 0).reshape(-1))).then(words)).to_series()
    return words.reshape(ids.shape).arr.join(_BETWEEN, ignore_nulls=True)


def _split(values: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """Return the words of cells, all in one series `[k]`, and the number of words of each cell `[n]`."""
    texts = values.fill_null("").str.strip_chars()
    lengths = np.where((texts == "").to_numpy(), 0, texts.str.count_matches(_BETWEEN, literal=True).to_numpy().astype(np.int64) + 1)
    return texts.filter(texts != "").str.split(_BETWEEN).explode().str.strip_chars(), lengths


def _first(bad: np.ndarray) -> int | None:
    return int(np.argmax(bad)) if bad.any() else None
