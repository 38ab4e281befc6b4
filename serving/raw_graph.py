"""Encoding of raw values from the log to a model's inputs in TensorFlow's own operations, for a SavedModel without further dependencies.

Transforms that these operations cannot repeat exactly as in preprocessing are refused: BLAKE2b hashes, times, crosses, lists.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import polars as pl
import tensorflow as tf

from utils.encoding.numerical import TRANSFORMS as CRITEO_TRANSFORMS
from utils.encoding.recipe import BOOLEAN, CATEGORICAL, INTEGER, LOG, LOG1P, NUMERICAL, STANDARDISE, TEXT, Recipe
from utils.encoding.transforms import HEXADECIMAL
from utils.errors import UserError

_TEXTS = (None, TEXT, INTEGER, BOOLEAN)  # kinds of values whose canonical texts TensorFlow's operations can make


@dataclass(frozen=True)
class RawFeature:
    """The source of a feature in the log.

    Attributes:
        name: name of the feature.
        how: `log`, `none` or `hexadecimal` for Criteo's logs, or the recipe of a table's feature.
        vocabulary: Parquet file of its values; None where it has none.
        served: the id or number that scores take for a feature for training only, whose column is not read; None for other features.
    """

    name: str
    how: str | Recipe
    vocabulary: Path | None
    served: int | float | None = None

    @property
    def column(self) -> str:
        """The column of the log that the feature is made of."""
        return self.name if isinstance(self.how, str) else self.how.columns[0]


class RawFeatures(NamedTuple):
    """The raw features of a model, in its order."""

    numerical: tuple[RawFeature, ...]
    categorical: tuple[RawFeature, ...]


def check_possible(features: Iterable[RawFeature]) -> None:
    """Raise UserError where TensorFlow's operations cannot make a feature exactly as preprocessing did."""
    for feature in features:
        recipe = None if isinstance(feature.how, str) or feature.served is not None else feature.how
        if recipe and (recipe.kind not in (CATEGORICAL, NUMERICAL) or recipe.hash_buckets is not None or recipe.values not in _TEXTS):
            what = "hash_buckets" if recipe.hash_buckets is not None else f"kind {recipe.kind}"
            what = f"values {recipe.values}" if recipe.values not in _TEXTS else what
            raise UserError(
                f"--formats savedmodel: feature {feature.name} ({what}): TensorFlow's operations cannot encode its raw values exactly as "
                "preprocessing did; use --formats triton, or --inputs ids"
            )
        if recipe and feature.vocabulary is not None:
            values = pl.read_parquet(feature.vocabulary, columns=["value"], glob=False)["value"].cast(pl.String)
            if len(broken := values.filter(values.str.contains("[\r\n]"))):
                raise UserError(
                    f"--formats savedmodel: feature {feature.name}: the value {broken[0]!r:.60} of its vocabulary has a line break, which "
                    "TensorFlow's vocabulary files cannot hold; use --formats triton, or --inputs ids"
                )


class RawGraph(tf.Module):
    """An encoder of columns of the log; its vocabularies become files of the SavedModel.

    Args:
        numerical: numerical features in the model's order.
        categorical: categorical features in the model's order, each with one id a sample.
        dtype: dtype of the dataset's numericals.
        folder: folder for the vocabularies' text files, which must exist until the model is saved.
    """

    def __init__(self, numerical: tuple[RawFeature, ...], categorical: tuple[RawFeature, ...], dtype: str, folder: Path):
        super().__init__(name="raw")
        self._numerical, self._categorical, self._dtype = numerical, categorical, tf.as_dtype(dtype)
        folder.mkdir(parents=True, exist_ok=True)
        with_values = (feature for feature in categorical if feature.vocabulary and feature.served is None)
        self._lookups = {feature.name: _Lookup(feature, folder / f"vocabulary_{place}.txt") for place, feature in enumerate(with_values)}
        self._owned = list(self._lookups.values())

    def encoded(self, columns: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor | None, tf.Tensor]:
        """Encode columns `[B, 1]`, float32 or texts -> numericals `[B, M]` float32 (None where M is 0) and ids `[B, F]` int64.

        Columns that only features for training only are made of may be missing; at least one other column is given.

        Raises:
            InvalidArgumentError: raised when the graph runs: a value is invalid.
        """
        flat = {name: column[:, 0] for name, column in columns.items()}
        samples = tf.shape(next(iter(flat.values())))
        numbers = [
            self._number(feature, flat[feature.column]) if feature.served is None else tf.fill(samples, tf.constant(feature.served, tf.float32))
            for feature in self._numerical
        ]
        ids = [
            self._id(feature, flat[feature.column]) if feature.served is None else tf.fill(samples, tf.constant(feature.served, tf.int64))
            for feature in self._categorical
        ]
        return tf.stack(numbers, axis=1) if numbers else None, tf.stack(ids, axis=1)

    def _number(self, feature: RawFeature, given: tf.Tensor) -> tf.Tensor:
        values, how = _checked_number(feature, given), feature.how
        if how in CRITEO_TRANSFORMS:
            values = _log(values) if how == LOG else values
        else:
            values = _bounded(how, values)
            if how.transform == LOG:
                values = _log(values)
            elif how.transform == LOG1P:
                values = tf.where(values < 0, -tf.math.log1p(tf.abs(values)), tf.math.log1p(tf.abs(values)))
            elif how.transform == STANDARDISE:
                values = (values - how.mean) / how.std
        held = tf.cast(_rounded(tf.where(tf.math.is_nan(values), tf.zeros_like(values), values), self._dtype), tf.float32)
        return _asserted(held, tf.math.is_finite(held), given, f"feature {feature.name}: value", f"is out of range of {self._dtype.name}")

    def _id(self, feature: RawFeature, given: tf.Tensor) -> tf.Tensor:
        if feature.how == HEXADECIMAL:
            good = tf.strings.regex_full_match(given, "[0-9a-fA-F]{0,8}")
            given = _asserted(given, good, given, f"feature {feature.name}: value", "is neither empty nor 1 to 8 hexadecimal digits")
            return self._lookups[feature.name].ids(tf.strings.regex_replace(tf.strings.lower(given), "^0+([0-9a-f])", r"\1"))
        if feature.how.buckets is None:
            given = tf.strings.strip(given) if feature.how.stripped else given
            return self._lookups[feature.name].ids(_text(feature.how.values, given))
        values = _bounded(feature.how, _checked_number(feature, given))
        boundaries = tf.constant([*feature.how.boundaries, float("inf")], tf.float64)  # infinity keeps the list from being empty
        places = tf.searchsorted(boundaries, values, side="right", out_type=tf.int64)
        return tf.where(tf.math.is_nan(values), tf.zeros_like(places), 1 + places)


class _Lookup(tf.Module):
    """A lookup of the ids of a vocabulary's texts."""

    def __init__(self, feature: RawFeature, path: Path):
        super().__init__()
        vocabulary = pl.read_parquet(feature.vocabulary, columns=["value", "id"], glob=False)
        values = vocabulary["value"]
        texts = values.to_list() if values.dtype == pl.String else [f"{value:x}" for value in values]
        path.write_bytes(b"".join(text.encode() + b"\n" for text in texts))
        self._first = int(vocabulary["id"][0]) if len(vocabulary) else 0
        self._table = None
        if texts:
            lines = tf.lookup.TextFileInitializer(
                str(path), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER, vocab_size=len(texts)
            )
            self._table = tf.lookup.StaticHashTable(lines, -1)

    def ids(self, texts: tf.Tensor) -> tf.Tensor:
        """Look up texts `[B]` -> ids `[B]` int64; 0 for missing values and values outside the vocabulary."""
        if self._table is None:
            return tf.zeros_like(texts, tf.int64)
        found = self._table.lookup(texts)
        return tf.where((found < 0) | (texts == ""), tf.zeros_like(found), found + self._first)


def _text(kind: str | None, given: tf.Tensor) -> tf.Tensor:
    """Return the canonical text of each value, as in `utils.encoding.values`. A text that is not a whole number stays: no vocabulary has it."""
    if kind == TEXT:
        return tf.strings.regex_replace(given, "\r\n", "\n")
    if kind == BOOLEAN:
        lower = tf.strings.lower(tf.strings.strip(given))
        return tf.where((lower == "true") | (lower == "false"), lower, given)
    if kind == INTEGER:
        digits = tf.strings.regex_replace(given, r"^\s*(?:\+|(-))?0*([0-9]+)(?:\.0*)?\s*$", r"\1\2")
        return tf.where(digits == "-0", "0", digits)
    return given


def _checked_number(feature: RawFeature, given: tf.Tensor) -> tf.Tensor:
    """Return float64 values, NaN where one is missing. The graph fails where a value is invalid."""
    values, missing = tf.cast(given, tf.float64), tf.math.is_nan(given)
    if isinstance(feature.how, str):
        return _asserted(values, missing | (values == tf.floor(values)), given, f"feature {feature.name}: value", "is not a whole number")
    return _asserted(values, missing | tf.math.is_finite(values), given, f"feature {feature.name}: value", "is not a finite number")


def _bounded(recipe: Recipe, values: tf.Tensor) -> tf.Tensor:
    if recipe.missing is not None:
        values = tf.where(tf.math.is_nan(values), tf.constant(float(recipe.missing), tf.float64), values)
    low, high = recipe.clip or (None, None)
    for bound, beyond in ((low, tf.less), (high, tf.greater)):  # comparisons with NaN are false, so NaN stays
        values = values if bound is None else tf.where(beyond(values, bound), tf.constant(float(bound), tf.float64), values)
    return values


def _log(values: tf.Tensor) -> tf.Tensor:
    """Compute log(x + 3), and 0 below -2 or where the value is missing."""
    logs = tf.math.log(tf.maximum(values, -2.0) + 3.0)
    return tf.where(values >= -2, logs, tf.zeros_like(values))


def _rounded(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Round float64 to the nearest float16 or float32.

    TensorFlow casts float64 to float16 through float32, which would round twice. Therefore the first step rounds to odd: a value that float32 cannot
    hold becomes the one of its two neighbours whose last bit is set, which is never a tie in float16.
    """
    near = tf.cast(values, tf.float32)
    if dtype == tf.float32:
        return near
    back = tf.cast(near, tf.float64)
    even = tf.bitwise.bitwise_and(tf.bitcast(near, tf.int32), 1) == 0
    other = tf.math.nextafter(near, tf.where(back < values, tf.constant(float("inf")), tf.constant(float("-inf"))))
    return tf.cast(tf.where((back != values) & even & tf.math.is_finite(near), other, near), dtype)


def _asserted(values: tf.Tensor, good: tf.Tensor, given: tf.Tensor, what: str, wrong: str) -> tf.Tensor:
    sound = tf.debugging.Assert(tf.reduce_all(good), [what, tf.boolean_mask(given, tf.logical_not(good))[:1], wrong])
    with tf.control_dependencies([sound]):
        return tf.identity(values)
