"""Values as they stand in a log, in memory, to a model's inputs: by the transforms and vocabularies that preprocessing used.

See `transforms` for where these stand.
"""

from typing import Any

import numpy as np
import polars as pl

from utils.encoding import numerical

_NAME = "column"
_GIVEN = pl.when(pl.col(_NAME) != "").then(pl.col(_NAME))  # null for an empty text, too
_INTEGER, _HEX = r"^-?[0-9]+$", r"^[0-9a-fA-F]{1,8}$"


def whole_numbers(feature: str, values: Any) -> pl.Series:
    """A numerical feature, Int64, null where a value is missing.

    Args:
        feature: its name, for messages.
        values: whole numbers, or texts of them; None, NaN and empty texts are missing.

    Raises:
        ValueError: names the feature, the sample and the value.
    """
    column = series_of(feature, values)
    given, whole = _GIVEN if column.dtype == pl.String else pl.col(_NAME), pl.col(_NAME).cast(pl.Int64, strict=False)
    good = whole.is_not_null()
    if column.dtype == pl.String:
        good &= given.str.contains(_INTEGER)
    elif column.dtype.is_float():
        good &= whole.cast(pl.Float64) == given
    elif not (column.dtype.is_integer() or column.dtype == pl.Null):
        raise ValueError(f"feature {feature}: holds {column.dtype}, expected whole numbers as they stand in the log")
    return _checked(feature, column, whole, given, good, "a whole number of 64 bits, or nothing")


def transformed(whole: pl.DataFrame, transform: str) -> np.ndarray:
    """`[B, M]` float16 of whole numbers, as the dataset would hold them; `transform` of `numerical.TRANSFORMS`. Raises ValueError as above."""
    if transform == "log":
        return numerical.log_plus_3(whole)
    if found := numerical.beyond_float16(whole):
        raise ValueError(f"feature {found[1]}: value {found[2]} of sample {found[0]} is beyond ±{numerical.FLOAT16_MAX}, what float16 holds")
    return numerical.unchanged(whole)


def series_of(feature: str, values: Any) -> pl.Series:
    """Values `[B]` as a Polars series, with null for what is missing. Raises ValueError where they are of another shape or of several kinds."""
    if not isinstance(values, pl.Series):
        values = values.tolist() if isinstance(values, np.ma.MaskedArray) else values  # with None for what is masked
        values = np.asarray(values, _dtype(values))
        if values.ndim != 1:
            raise ValueError(f"feature {feature}: has shape {list(values.shape)}, expected [B]")
        try:
            values = pl.Series(feature, [None if _missing(value) else value for value in values]) if values.dtype == object else pl.Series(values)
        except (TypeError, pl.exceptions.PolarsError):
            raise ValueError(f"feature {feature}: holds values of several kinds, or of a kind that is unknown; expected numbers or texts") from None
    values = values.alias(feature)
    if values.dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    return values.fill_nan(None) if values.dtype.is_float() else values


def lists_of(feature: str, values: Any) -> pl.Series:
    """Values `[B]`, each a list or a text, as a Polars series of lists of texts or of texts. Raises ValueError where they are of several kinds."""
    if isinstance(values, pl.Series):
        return values.alias(feature)
    if hasattr(values, "dtype") and values.dtype != object:
        return series_of(feature, values) if np.ndim(values) == 1 else pl.Series(feature, list(np.asarray(values)))
    given = [None if np.ndim(value) == 0 and _missing(value) else value for value in values]
    if all(value is None or isinstance(value, str) for value in given):
        return pl.Series(feature, given, pl.String)
    try:
        found = [None if value is None else [None if _missing(item) else item for item in value] for value in given if not isinstance(value, str)]
        if len(found) == len(given):
            return pl.Series(feature, found)
    except (TypeError, pl.exceptions.PolarsError):
        pass
    raise ValueError(f"feature {feature}: holds values of several kinds; expected a list of texts or numbers for each sample, or a text")


class VocabularyLookup:
    """The ids of a vocabulary's values.

    Args:
        vocabulary: columns `value` and `id`, each value once.
    """

    def __init__(self, vocabulary: pl.DataFrame):
        order = vocabulary["value"].arg_sort()
        self._values, self._ids = vocabulary["value"][order].to_numpy(), vocabulary["id"][order].to_numpy()

    def ids(self, values: pl.Series) -> np.ndarray:
        """Ids `[B]` int32 of numbers; 0 for what is missing or not in the vocabulary."""
        wanted, known = values.fill_null(0).to_numpy(), values.is_not_null().to_numpy()
        if not len(self._values):
            return np.zeros(len(wanted), np.int32)
        places = np.minimum(np.searchsorted(self._values, wanted), len(self._values) - 1)
        return np.where(known & (self._values[places] == wanted), self._ids[places], 0).astype(np.int32)


def numbers_of_hexadecimal(feature: str, values: Any) -> pl.Series:
    """The numbers, UInt32, of texts of up to 8 hexadecimal digits, null where one is missing. Raises ValueError where one is no such text."""
    column = series_of(feature, values)
    if column.dtype not in (pl.String, pl.Null):
        raise ValueError(f"feature {feature}: holds {column.dtype}, expected texts of up to 8 hexadecimal digits, as they stand in the log")
    value = numerical.hexadecimal_values(pl.col(_NAME))
    return _checked(feature, column.cast(pl.String), value, _GIVEN, _GIVEN.str.contains(_HEX), "up to 8 hexadecimal digits, or nothing")


def _dtype(values: Any) -> type | None:
    """As what NumPy is to take values: pandas's nullable whole numbers as they are, of which it would make floats where one is missing."""
    if not hasattr(values, "dtype"):
        return object
    return object if not isinstance(values.dtype, np.dtype) and getattr(values.dtype, "kind", "") in ("i", "u") else None


def _missing(value: Any) -> bool:
    """None, NaN, and pandas's NA, of which a comparison says nothing."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def _checked(feature: str, column: pl.Series, value: pl.Expr, given: pl.Expr, good: pl.Expr, expected: str) -> pl.Series:
    """Values of a column, which the expressions call `_NAME`, in one pass; raises ValueError for the first that is given and not good."""
    found = column.alias(_NAME).to_frame().select(value=value, bad=given.is_not_null() & ~good.fill_null(False))
    if found["bad"].any():
        row = found["bad"].arg_max()
        raise ValueError(f"feature {feature}: value {column[row]!r:.60} of sample {row}, expected {expected}")
    return found["value"]
