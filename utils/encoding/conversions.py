"""Conversion of the raw columns of a request to the values of a model's features, all by one query."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from utils.encoding.columns import Made

_BAD = "\0bad"  # ends the name of the column that marks a feature's bad values


class _Query(NamedTuple):
    schema: Mapping[str, pl.DataType]
    conversions: dict[str, Made]
    expressions: list[pl.Expr]


class Conversions:
    """Conversions of columns to the values of features.

    One query computes all, because Polars plans a query in more time than it needs for a few rows. Its expressions are made when the first columns
    come, and again when columns of other types come. Thread-safe.

    Args:
        columns: the columns of each feature, for messages.
        make: returns the conversion of a feature, given its name and the types of all columns. It raises ValueError for a type that it cannot
            convert.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]], make: Callable[[str, Mapping[str, pl.DataType]], Made]):
        self._columns, self._make = columns, make
        self._kept: _Query | None = None

    def values(self, raw: pl.DataFrame) -> dict[str, pl.Series]:
        """Return the values `[B]` of each feature. Raises ValueError that names the feature, and the value and the sample where one is bad."""
        query = self._query(raw.schema)
        try:
            found = raw.select(query.expressions)
        except pl.exceptions.PolarsError:
            for name, one in query.conversions.items():
                try:
                    raw.select(one.value.alias(name))
                except pl.exceptions.PolarsError as error:
                    raise ValueError(f"feature {name}: {' '.join(str(error).split())[:200]}") from None
            raise
        for name, one in query.conversions.items():
            if one.bad is not None and (bad := found[name + _BAD]).any():
                row = bad.arg_max()
                shown = ", ".join(repr(raw[column][row])[:60] for column in self._columns[name])
                raise ValueError(f"feature {name}: value {shown} of sample {row}, expected {one.expected}")
        return {name: found[name] for name in query.conversions}

    def _query(self, schema: Mapping[str, pl.DataType]) -> _Query:
        kept = self._kept
        if kept is None or kept.schema != schema:
            conversions = {name: self._make(name, schema) for name in self._columns}
            expressions = [one.value.alias(name) for name, one in conversions.items()]
            expressions += [one.bad.fill_null(False).alias(name + _BAD) for name, one in conversions.items() if one.bad is not None]
            kept = self._kept = _Query(schema, conversions, expressions)
        return kept
