"""Conversion of the raw columns of a request to the values of a model's features, all by one query."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import polars as pl

from utils.encoding.columns import Made

_BAD = "\0bad"  # ends the name of the column that marks a feature's bad values


_KEPT = 16  # conversions kept for each feature: of a column of texts, of numbers, of nothing but missing values
_Types = tuple[pl.DataType, ...]


class _Conversion(NamedTuple):
    made: Made
    expressions: list[pl.Expr]


class Conversions:
    """Conversions of columns to the values of features.

    One query computes all, because Polars plans a query in more time than it needs for a few rows. A feature's expressions are made when columns of
    these types come for the first time. Thread-safe.

    Args:
        columns: the columns of each feature, for messages.
        make: returns the conversion of a feature, given its name and the types of its columns. It raises ValueError for a type that it cannot
            convert.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]], make: Callable[[str, Mapping[str, pl.DataType]], Made]):
        self._columns, self._make = columns, make
        self._conversion = lru_cache(_KEPT * len(columns))(self._made)

    def values(self, raw: pl.DataFrame) -> dict[str, pl.Series]:
        """Return the values `[B]` of each feature. Raises ValueError that names the feature, and the value and the sample where one is bad."""
        schema = raw.schema
        conversions = {name: self._conversion(name, tuple(schema[column] for column in columns)) for name, columns in self._columns.items()}
        try:
            found = raw.select([expression for one in conversions.values() for expression in one.expressions])
        except pl.exceptions.PolarsError:
            for name, one in conversions.items():
                try:
                    raw.select(one.expressions)
                except pl.exceptions.PolarsError as error:
                    raise ValueError(f"feature {name}: {' '.join(str(error).split())[:200]}") from None
            raise
        for name, (one, _) in conversions.items():
            if one.bad is not None and (bad := found[name + _BAD]).any():
                row = bad.arg_max()
                shown = ", ".join(repr(raw[column][row])[:60] for column in self._columns[name])
                raise ValueError(f"feature {name}: value {shown} of sample {row}, expected {one.expected}")
        return {name: found[name] for name in conversions}

    def _made(self, name: str, types: _Types) -> _Conversion:
        made = self._make(name, dict(zip(self._columns[name], types, strict=True)))
        bad = [] if made.bad is None else [made.bad.fill_null(False).alias(name + _BAD)]
        return _Conversion(made, [made.value.alias(name), *bad])
