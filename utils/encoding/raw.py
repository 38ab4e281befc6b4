"""Values as they stand in a log, in memory, to a model's inputs: by the transforms and vocabularies that preprocessing used.

See `transforms` for where these stand.
"""

from typing import Any

import numpy as np
import polars as pl

from utils.encoding import hexadecimal, numerical

_INTEGER, _HEX = r"^-?[0-9]+$", r"^[0-9a-fA-F]{1,8}$"


def numbers(feature: str, values: Any, transform: str) -> np.ndarray:
    """A numerical feature `[B]` float16, as the dataset would hold it.

    Args:
        feature: its name, for messages.
        values: whole numbers, or texts of them; None, NaN and empty texts are missing.
        transform: of `numerical.TRANSFORMS`.

    Raises:
        ValueError: names the feature, the sample and the value.
    """
    column = _column(feature, values)
    if column.dtype == pl.String:
        _refuse(feature, column, column.str.contains(_INTEGER), "a whole number, or nothing")
        whole = column.cast(pl.Int64, strict=False)
    elif column.dtype.is_float():
        whole = column.cast(pl.Int64, strict=False)
        _refuse(feature, column, whole.cast(pl.Float64) == column, "a whole number, or nothing")
    elif column.dtype.is_integer() or column.dtype == pl.Null:
        whole = column.cast(pl.Int64, strict=False)
    else:
        raise ValueError(f"feature {feature}: holds {column.dtype}, expected whole numbers as they stand in the log")
    _refuse(feature, column, whole.is_not_null(), "an integer of 64 bits")
    frame = whole.to_frame()
    if transform == "log":
        return numerical.log_plus_3(frame)[:, 0]
    if found := numerical.beyond_float16(frame):
        raise ValueError(f"feature {feature}: value {found[2]} of sample {found[0]} is beyond ±{numerical.FLOAT16_MAX}, what float16 holds")
    return numerical.unchanged(frame)[:, 0]


class Lookup:
    """The ids of a vocabulary's values.

    Args:
        vocabulary: columns `value` and `id`, each value once.
    """

    def __init__(self, vocabulary: pl.DataFrame):
        order = vocabulary["value"].arg_sort()
        self._values, self._ids = vocabulary["value"][order].to_numpy(), vocabulary["id"][order].to_numpy()

    def ids(self, feature: str, values: Any) -> np.ndarray:
        """Ids `[B]` int32 of hexadecimal texts; 0 for what is missing or not in the vocabulary. Raises ValueError where one is no such text."""
        column = _column(feature, values)
        if column.dtype not in (pl.String, pl.Null):
            raise ValueError(f"feature {feature}: holds {column.dtype}, expected texts of up to 8 hexadecimal digits, as they stand in the log")
        column = column.cast(pl.String)
        _refuse(feature, column, column.str.contains(_HEX), "up to 8 hexadecimal digits, or nothing")
        found = column.to_frame().select(hexadecimal.values(pl.all())).to_series()
        wanted, known = found.fill_null(0).to_numpy(), found.is_not_null().to_numpy()
        if not len(self._values):
            return np.zeros(len(wanted), np.int32)
        places = np.minimum(np.searchsorted(self._values, wanted), len(self._values) - 1)
        return np.where(known & (self._values[places] == wanted), self._ids[places], 0).astype(np.int32)


def _column(feature: str, values: Any) -> pl.Series:
    """Values as a Polars series, with null for what is missing."""
    if not isinstance(values, pl.Series):
        values = values.tolist() if isinstance(values, np.ma.MaskedArray) else values  # with None for what is masked
        values = np.asarray(values, None if hasattr(values, "dtype") else object)
        if values.ndim != 1:
            raise ValueError(f"feature {feature}: has shape {list(values.shape)}, expected [B]")
        try:
            values = pl.Series(feature, [None if _missing(value) else value for value in values]) if values.dtype == object else pl.Series(values)
        except (TypeError, pl.exceptions.PolarsError):
            raise ValueError(f"feature {feature}: holds values of several kinds, or of a kind that is unknown; expected numbers or texts") from None
    values = values.alias(feature)
    if values.dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    if values.dtype == pl.String:
        return values.replace("", None)
    return values.fill_nan(None) if values.dtype.is_float() else values


def _missing(value: Any) -> bool:
    """None, NaN, and pandas's NA, of which a comparison says nothing."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def _refuse(feature: str, values: pl.Series, good: pl.Series, expected: str) -> None:
    """Raise ValueError for the first value that is there and not good."""
    bad = values.is_not_null() & ~good.fill_null(False)
    if bad.any():
        row = bad.arg_max()
        raise ValueError(f"feature {feature}: value {values[row]!r:.60} of sample {row}, expected {expected}")
