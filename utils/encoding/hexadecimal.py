"""Categorical values that stand in a log as up to 8 hexadecimal digits."""

import polars as pl


def values(texts: pl.Expr) -> pl.Expr:
    """The numbers, UInt32; null for what is none."""
    return texts.str.to_integer(base=16, strict=False, dtype=pl.UInt32)
