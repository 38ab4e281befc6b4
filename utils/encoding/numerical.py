"""Conversion of the fields of Criteo's logs: hexadecimal values to UInt32; integers to float16, by log(x + 3) or unchanged."""

import numpy as np
import polars as pl

TRANSFORMS = ("log", "none")
FLOAT16_MAX = 65504  # the largest finite float16


def hexadecimal_values(texts: pl.Expr) -> pl.Expr:
    """Parse texts of up to 8 hexadecimal digits: UInt32, null where a text is not hexadecimal."""
    return texts.str.to_integer(base=16, strict=False, dtype=pl.UInt32)


def log_plus_3(numbers: pl.DataFrame) -> np.ndarray:
    """Compute log(x + 3), and 0 where x is missing or below -2: `[n, M]` float16.

    The transform is meant for counts from -2 on (-2 gives log 1 = 0); for smaller values the logarithm is negative or undefined.
    It is computed in float64: x + 3 can overflow 64-bit integers, and float32 would round twice.
    """
    logs = numbers.select(pl.when(pl.all() >= -2).then((pl.all().cast(pl.Float64) + 3).log()).otherwise(0.0))
    return logs.to_numpy().astype(np.float16, order="C")


def unchanged(numbers: pl.DataFrame) -> np.ndarray:
    """Return the values as `[n, M]` float16, 0 where one is missing. They must be in the range of float16; see `beyond_float16`."""
    return numbers.fill_null(0).to_numpy().astype(np.float16, order="C")


def beyond_float16(numbers: pl.DataFrame) -> tuple[int, str, int] | None:
    """Return the first value that is out of float16's range as (row, feature, value), or None."""
    outside = numbers.select(~pl.all().is_between(-FLOAT16_MAX, FLOAT16_MAX)).fill_null(False)
    if not any(outside.select(pl.all().any()).row(0)):
        return None
    row = outside.select(pl.any_horizontal(pl.all())).to_series().arg_max()
    name = next(name for name in outside.columns if outside[name][row])
    return row, name, numbers[name][row]
