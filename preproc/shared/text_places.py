"""Texts to their places in a list of those seen: a hash table of Polars."""

from typing import TypeVar

import polars as pl

T = TypeVar("T", pl.Expr, pl.Series)


class TextPlaces:
    """The texts that were asked for, in the order in which they first were."""

    def __init__(self):
        self._kind = pl.Categorical(pl.Categories.random())
        self._held = pl.Series([], dtype=self._kind)  # Polars forgets categories that no column has

    def of(self, texts: T) -> T:
        """The places, UInt32, null where a text is; what was not seen before is put behind the others."""
        return texts.cast(self._kind).to_physical()

    @property
    def texts(self) -> pl.Series:
        """Each text once."""
        return self._kind.categories.to_series()
