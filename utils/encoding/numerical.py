"""Fields of Criteo's logs as numbers: hexadecimal values as UInt32; integers as float16, by log(x + 3) or unchanged."""

import numpy as np
import polars as pl

TRANSFORMS = ("log", "none")
FLOAT16_MAX = 65504  # the largest finite float16


def hexadecimal_values(texts: pl.Expr) -> pl.Expr:
    """Parse texts of up to 8 hexadecimal digits: UInt32, null where a text is not hexadecimal."""
    return texts.str.to_integer(base=16, strict=False, dtype=pl.UInt32)


def log_plus_3(numbers: pl.DataFrame) -> np.ndarray:
    """log(x + 3), and 0 where x is missing or below -2: `[n, M]` float16.

    -2 is the smallest count the log was made for (it gives log 1 = 0); the logarithm of what lies below it is negative or
    does not exist. Computed in float64: x + 3 overflows 64-bit integers, and float32 would round twice.
    """
    logs = numbers.select(pl.when(pl.all() >= -2).then((pl.all().cast(pl.Float64) + 3).log()).otherwise(0.0))
    return logs.to_numpy().astype(np.float16, order="C")


def unchanged(numbers: pl.DataFrame) -> np.ndarray:
    """The values, and 0 where they are missing: `[n, M]` float16. They must lie in float16's range; see `beyond_float16`."""
    return numbers.fill_null(0).to_numpy().astype(np.float16, order="C")


def beyond_float16(numbers: pl.DataFrame) -> tuple[int, str, int] | None:
    """The first value too large for float16: (row, feature, value), or None."""
    outside = numbers.select(~pl.all().is_between(-FLOAT16_MAX, FLOAT16_MAX)).fill_null(False)
    if not any(outside.select(pl.all().any()).row(0)):
        return None
    row = outside.select(pl.any_horizontal(pl.all())).to_series().arg_max()
    name = next(name for name in outside.columns if outside[name][row])
    return row, name, numbers[name][row]
