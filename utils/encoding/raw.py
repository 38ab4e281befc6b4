"""Conversion of raw values in memory, as in a log, to a model's inputs, by the transforms and vocabularies of preprocessing.

`transforms` tells where a dataset records its transforms.
"""

from typing import Any

import numpy as np
import polars as pl

from utils.encoding import numerical

_NAME = "column"
_GIVEN = pl.when(pl.col(_NAME) != "").then(pl.col(_NAME))  # null for an empty text, too
_SAME = {bool: (bool, np.bool_), int: (int, np.integer), float: (float, np.float64), str: (str,)}
_INTEGER, _HEX = r"^-?[0-9]+$", r"^[0-9a-fA-F]{1,8}$"


def whole_numbers(feature: str, values: Any) -> pl.Series:
    """Convert the values of a numerical feature to Int64, null where one is missing.

    Args:
        feature: the feature's name, for messages.
        values: whole numbers, or texts of them; None, NaN and empty texts are missing.

    Raises:
        ValueError: a value is no whole number; the message names the feature, the sample and the value.
    """
    column = series_of(feature, values)
    given, whole = _GIVEN if column.dtype == pl.String else pl.col(_NAME), pl.col(_NAME).cast(pl.Int64, strict=False)
    good = whole.is_not_null()
    if column.dtype == pl.String:
        good &= given.str.contains(_INTEGER)
    elif column.dtype.is_float():
        good &= whole.cast(pl.Float64) == given
    elif not (column.dtype.is_integer() or column.dtype == pl.Null):
        raise ValueError(f"feature {feature}: holds {column.dtype}, expected whole numbers, as in the log")
    return _checked(feature, column, whole, given, good, "a whole number of 64 bits, or nothing")


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
            values = pl.Series(feature, [None if _missing(value) else value for value in values]) if values.dtype == object else pl.Series(values)
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
    """Lookup of numbers' ids in a vocabulary.

    Args:
        vocabulary: columns `value` and `id`; values are unique.
    """

    def __init__(self, vocabulary: pl.DataFrame):
        order = vocabulary["value"].arg_sort()
        self._values, self._ids = vocabulary["value"][order].to_numpy(), vocabulary["id"][order].to_numpy()

    def ids(self, values: pl.Series) -> np.ndarray:
        """Return ids `[B]` int32 of numbers; 0 where a number is missing or not in the vocabulary."""
        wanted, known = values.fill_null(0).to_numpy(), values.is_not_null().to_numpy()
        if not len(self._values):
            return np.zeros(len(wanted), np.int32)
        places = np.minimum(np.searchsorted(self._values, wanted), len(self._values) - 1)
        return np.where(known & (self._values[places] == wanted), self._ids[places], 0).astype(np.int32)


def numbers_of_hexadecimal(feature: str, values: Any) -> pl.Series:
    """Parse texts of up to 8 hexadecimal digits to UInt32, null where one is missing. Raises ValueError for any other text."""
    column = series_of(feature, values)
    if column.dtype not in (pl.String, pl.Null):
        raise ValueError(f"feature {feature}: holds {column.dtype}, expected texts of up to 8 hexadecimal digits, as in the log")
    value = numerical.hexadecimal_values(pl.col(_NAME))
    return _checked(feature, column.cast(pl.String), value, _GIVEN, _GIVEN.str.contains(_HEX), "up to 8 hexadecimal digits, or nothing")


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


def _missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or pandas's NA or NaT; NA is known by its type's name, for its comparisons give NA."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def _checked(feature: str, column: pl.Series, value: pl.Expr, given: pl.Expr, good: pl.Expr, expected: str) -> pl.Series:
    """Evaluate expressions on a column, which they call `_NAME`, in one pass. Raises ValueError for the first value that is given and not good."""
    found = column.alias(_NAME).to_frame().select(value=value, bad=given.is_not_null() & ~good.fill_null(False))
    if found["bad"].any():
        row = found["bad"].arg_max()
        raise ValueError(f"feature {feature}: value {column[row]!r:.60} of sample {row}, expected {expected}")
    return found["value"]
