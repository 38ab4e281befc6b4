"""Codes of texts, which are their indices in the list of texts seen so far, by a hash table of Polars."""

from typing import TypeVar

import polars as pl

T = TypeVar("T", pl.Expr, pl.Series)


class TextPlaces:
    """A growing list of distinct texts, in the order in which they were first seen."""

    def __init__(self):
        self._kind = pl.Categorical(pl.Categories.random())
        self._held = pl.Series([], dtype=self._kind)  # keeps the categories alive: Polars drops those that no column uses

    def of(self, texts: T) -> T:
        """Return the indices of texts in the list, UInt32, null where a text is null; new texts are appended."""
        return texts.cast(self._kind).to_physical()

    @property
    def texts(self) -> pl.Series:
        """The distinct texts, in the order of their indices."""
        return self._kind.categories.to_series()
