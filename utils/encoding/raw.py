"""Conversion of raw values in memory, as in a log, to a model's inputs, by the transforms and vocabularies of preprocessing.

`transforms` tells where a dataset records its transforms.
"""

from typing import Any

import numpy as np
import polars as pl

from utils.encoding import numerical
from utils.encoding.columns import Made

_SAME = {bool: (bool, np.bool_), int: (int, np.integer), float: (float, np.float64), str: (str,)}
_PLAIN = {bool, int, str}
_INTEGER, _HEX = r"^-?[0-9]+$", r"^[0-9a-fA-F]{1,8}$"


def whole_number(feature: str, dtype: pl.DataType) -> Made:
    """Convert a column of whole numbers, or of texts of them, to Int64; null where a value is missing, also where a text is empty.

    Args:
        feature: the feature's name, which is the column's, too.
        dtype: the column's type, as `series_of` gives it.

    Raises:
        ValueError: a column of this type holds no whole numbers.
    """
    value = pl.col(feature)
    given, whole = _given(value) if dtype == pl.String else value, value.cast(pl.Int64, strict=False)
    good = whole.is_not_null()
    if dtype == pl.String:
        good &= given.str.contains(_INTEGER)
    elif dtype.is_float():
        good &= whole.cast(pl.Float64) == given
    elif not (dtype.is_integer() or dtype == pl.Null):
        raise ValueError(f"feature {feature}: holds {dtype}, expected whole numbers, as in the log")
    return Made(whole, given.is_not_null() & ~good.fill_null(False), "a whole number of 64 bits, or nothing")


def hexadecimal(feature: str, dtype: pl.DataType) -> Made:
    """Convert a column of texts of up to 8 hexadecimal digits to UInt32; null where a value is missing, also where a text is empty.

    Args:
        feature: the feature's name, which is the column's, too.
        dtype: the column's type, as `series_of` gives it.

    Raises:
        ValueError: a column of this type holds no texts.
    """
    if dtype not in (pl.String, pl.Null):
        raise ValueError(f"feature {feature}: holds {dtype}, expected texts of up to 8 hexadecimal digits, as in the log")
    value = pl.col(feature).cast(pl.String)
    given = _given(value)
    bad = given.is_not_null() & ~given.str.contains(_HEX).fill_null(False)
    return Made(numerical.hexadecimal_values(value), bad, "up to 8 hexadecimal digits, or nothing")


def transformed(whole: pl.DataFrame, transform: str) -> np.ndarray:
    """Transform whole numbers to `[B, M]` float16, as preprocessing does.

    Args:
        whole: a column for each of M features.
        transform: one of `numerical.TRANSFORMS`.

    Raises:
        ValueError: a value is out of float16's range; the message names the feature, the sample and the value.
    """
    if transform == "log":
        return numerical.log_plus_3(whole)
    if found := numerical.beyond_float16(whole):
        raise ValueError(f"feature {found[1]}: value {found[2]} of sample {found[0]} is out of the range of float16, ±{numerical.FLOAT16_MAX}")
    return numerical.unchanged(whole)


def series_of(feature: str, values: Any) -> pl.Series:
    """Convert values `[B]` to a Polars series, null where one is missing. Raises ValueError for another shape or values of several kinds."""
    if not isinstance(values, pl.Series):
        values = values.tolist() if isinstance(values, np.ma.MaskedArray) else values  # masked values become None
        values = np.asarray(values, _dtype(values))
        if values.ndim != 1:
            raise ValueError(f"feature {feature}: has shape {list(values.shape)}, expected [B]")
        try:
            values = pl.Series(feature, _without_missing(values.tolist())) if values.dtype == object else pl.Series(values)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            raise ValueError(f"feature {feature}: mixes types or holds an unknown type; expected numbers or texts") from None
    values = values.alias(feature)
    if values.dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    return values.fill_nan(None) if values.dtype.is_float() else values


def lists_of(feature: str, values: Any, single: bool = False) -> pl.Series:
    """Convert values `[B]`, each a list or a text, to a Polars series of lists or of texts; with `single` also values that are all numbers.

    Raises:
        ValueError: the values are of several kinds.
    """
    if isinstance(values, pl.Series):
        return values.alias(feature)
    if hasattr(values, "dtype") and values.dtype != object:
        return series_of(feature, values) if np.ndim(values) == 1 else pl.Series(feature, list(np.asarray(values)))
    given = [None if np.ndim(value) == 0 and _missing(value) else value for value in values]
    if all(value is None or isinstance(value, str) for value in given):
        return pl.Series(feature, given, pl.String)
    if single and all(value is None or isinstance(value, int | float | np.number) for value in given):
        return series_of(feature, given)
    try:
        found = [None if value is None else [None if _missing(item) else item for item in value] for value in given if not isinstance(value, str)]
        if len(found) == len(given):
            kinds = {*map(_kind, {type(item) for value in found if value is not None for item in value if item is not None})}
            if len(kinds) < 2:
                return pl.Series(feature, found)
            if kinds == {int, float}:  # Polars would take the type of the first list for all lists, and so 0.5 for 0
                return pl.Series(feature, found, pl.List(pl.Float64))
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        pass
    raise ValueError(f"feature {feature}: mixes types; expected a list of texts or numbers for each sample, or a text")


class VocabularyLookup:
    """Lookup of the ids of whole numbers in a vocabulary.

    Args:
        vocabulary: columns `value`, whole numbers of at most 32 bits, and `id`; values are unique.
    """

    def __init__(self, vocabulary: pl.DataFrame):
        order = vocabulary["value"].arg_sort()
        self._values, self._ids = vocabulary["value"][order].to_numpy(), vocabulary["id"][order].to_numpy()

    def ids(self, values: pl.Series) -> np.ndarray:
        """Return ids `[B]` int32 of numbers; 0 where a number is missing or not in the vocabulary."""
        if not len(self._values):
            return np.zeros(len(values), np.int32)
        given, has_nulls = values.to_numpy(), values.null_count() > 0  # floats, NaN where one is missing, if there are nulls
        wanted = np.nan_to_num(given).astype(self._values.dtype) if has_nulls else given
        places = np.minimum(np.searchsorted(self._values, wanted), len(self._values) - 1)
        ids = np.where(self._values[places] == wanted, self._ids[places], 0).astype(np.int32)
        if has_nulls:
            ids[np.isnan(given)] = 0
        return ids


def _dtype(values: Any) -> type | None:
    """Return the dtype that NumPy is to convert values to; None for their own.

    pandas's nullable whole numbers become objects: NumPy would make floats of them where one is missing.
    """
    if not hasattr(values, "dtype"):
        return object
    return object if not isinstance(values.dtype, np.dtype) and getattr(values.dtype, "kind", "") in ("i", "u") else None


def _kind(found: type) -> type:
    """Return Python's type for those of NumPy that hold the same values: `int` for `np.int16`; other types as they are."""
    return next((kind for kind, others in _SAME.items() if issubclass(found, others)), found)


def _without_missing(values: list) -> list:
    """Replace missing values by None. Values of one plain type are not tested one by one: among floats NaN stays, if not all are NaN."""
    kinds = {*map(type, values)} - {type(None)}
    if len(kinds) == 1 and (kinds <= _PLAIN or (kinds == {float} and any(value == value for value in values if value is not None))):
        return values
    return [None if _missing(value) else value for value in values]


def _missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or pandas's NA or NaT; NA is known by its type's name, for its comparisons give NA."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def _given(texts: pl.Expr) -> pl.Expr:
    """Replace empty texts by null."""
    return pl.when(texts != "").then(texts)
