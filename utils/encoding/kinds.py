"""Inference of the kind of a column's values from the training rows; the same values are of the same kind in every file format."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import polars as pl

from utils.encoding.marks import MARK, NUMBERS, OF_BOOLEAN, OF_DATETIME, OF_DECIMAL, OF_FLOAT, OF_FLOAT32, TIMES, TYPES
from utils.encoding.recipe import BETWEEN, BOOLEAN, CATEGORICAL, CROSS, DATE, DATETIME, DECIMAL, FLOAT, FLOAT32, INTEGER, LIST, TEXT, Recipe
from utils.encoding.times import iso_times

UNDECIDED = "undecided"  # not inferred from the training rows yet
WHOLE = r"^(0|-?[1-9][0-9]*)$"
# Numbers as programs write them: without leading or trailing zeros, so that versions (1.10) and codes (007) stay texts.
_WRITTEN = r"^-?(0|[1-9][0-9]{0,16}0*)(\.0|\.0*[0-9]{0,16}[1-9])?(e-[0-9]{1,3}|e\+[0-9]{2,3})?$"
_DATE, _TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ].+)?$"
_FIRST = 16  # texts of which one mostly shows that a column holds neither numbers nor booleans nor times

# Tests of single texts. A text that polars finds to be of a kind passes the kind's test.
_FITS = (re.compile(WHOLE).match, re.compile(_WRITTEN).match, lambda text: text.lower() in ("true", "false"), re.compile(_TIME).match)


@dataclass(frozen=True)
class Evidence:
    """The evidence for the kind of a column's values.

    Attributes:
        marks: the type marks among the values.
        fits: the kinds that all texts without a mark fit; None where there are no such texts.
        plain: True if all texts are plain; see `is_plain`.
    """

    marks: frozenset[str] = frozenset()
    fits: frozenset[str] | None = None
    plain: bool = True

    def joined(self, other: "Evidence") -> "Evidence":
        """Combine the evidence of two sets of values."""
        fits = self.fits if other.fits is None else other.fits if self.fits is None else self.fits & other.fits
        return Evidence(self.marks | other.marks, fits, self.plain and other.plain)

    @property
    def kind(self) -> str | None:
        """The kind of the values; None where there are no values. Raises ValueError where the values' types have no kind in common."""
        if not self.marks:
            return None if self.fits is None else next((kind for kind in (INTEGER, FLOAT, BOOLEAN, DATE, DATETIME) if kind in self.fits), TEXT)
        kind = self._of_marks()
        if kind is None or (self.fits is not None and kind not in self.fits):
            among = [TYPES[mark] for mark in sorted(self.marks)] + ([] if self.fits is None else ["other texts"])
            raise ValueError(f"holds {' and '.join(among)}, which are not of one kind; use one type for it in all files")
        return kind

    def _of_marks(self) -> str | None:
        if self.marks <= NUMBERS:
            if OF_DECIMAL in self.marks:
                return DECIMAL if not self.marks & {OF_FLOAT, OF_FLOAT32} else FLOAT
            if self.marks & {OF_FLOAT, OF_FLOAT32}:
                return FLOAT if OF_FLOAT in self.marks else FLOAT32
            return INTEGER if self.fits is None or INTEGER in self.fits else FLOAT
        if self.marks <= TIMES:
            return DATE if OF_DATETIME not in self.marks and (self.fits is None or DATE in self.fits) else DATETIME
        return BOOLEAN if self.marks == {OF_BOOLEAN} else None


def is_plain(text: pl.Expr) -> pl.Expr:
    """Return an expression that is true where a text has no type mark and no line end of two characters: in a column of texts it is canonical."""
    return ~(text.str.starts_with(MARK) | text.str.contains("\r\n", literal=True))


def evidence(texts: pl.Series) -> Evidence:
    """Return the evidence of marked texts, null where one is missing."""
    given = texts.drop_nulls()
    plain = given.alias("text").to_frame().select(is_plain(pl.col("text")).all()).item()
    if plain or not (is_marked := given.str.starts_with(MARK)).any():
        return Evidence(fits=_fitting(given), plain=plain)
    marks = given.filter(is_marked).str.slice(0, 2).unique().to_list()
    known = frozenset(marks) & frozenset(TYPES)
    return Evidence(known, _fitting(given.filter(~given.str.slice(0, 2).is_in(list(known)))), plain=False)


def _fitting(texts: pl.Series) -> frozenset[str] | None:
    """Return the kinds that all texts fit; None where there are no texts."""
    if texts.is_empty():
        return None
    first = texts.head(_FIRST).to_list()
    if not any(all(map(fits, first)) for fits in _FITS):
        return frozenset()
    whole, written = texts.str.contains(WHOLE).all(), texts.str.contains(_WRITTEN).all()
    if whole or written:
        return frozenset({*((INTEGER,) if whole else ()), *((FLOAT, FLOAT32) if written else ()), DECIMAL})
    if texts.str.to_lowercase().is_in(["true", "false"]).all():
        return frozenset({BOOLEAN})
    if not texts.str.contains(_TIME).all() or texts.to_frame("time").select(iso_times(pl.col("time"))).to_series().has_nulls():
        return frozenset()
    return frozenset({DATE, DATETIME} if texts.str.contains(_DATE).all() else {DATETIME})


def parts_of(recipe: Recipe) -> tuple[Recipe, ...]:
    """Return the recipes of the values inside a feature's texts: the feature's own recipe, or those of a cross's parts."""
    return recipe.parts if recipe.kind == CROSS else (recipe,)


def split(recipe: Recipe, texts: pl.Series) -> list[pl.Series]:
    """Split a feature's texts into the texts of each part."""
    if recipe.kind != CROSS:
        return [texts]
    return texts.str.splitn(BETWEEN, len(recipe.parts)).struct.unnest().get_columns()


def undecided(recipe: Recipe) -> Recipe:
    """Mark the kind of a new recipe's values as to be inferred from the training rows, and the values as stripped."""
    if recipe.kind == CROSS:
        return replace(recipe, parts=tuple(undecided(part) for part in recipe.parts))
    return replace(recipe, values=UNDECIDED, stripped=True) if recipe.kind in (CATEGORICAL, LIST) else recipe


def is_undecided(recipe: Recipe) -> bool:
    """Return whether a kind in the recipe is still to be inferred from the training rows."""
    return any(part.values == UNDECIDED for part in parts_of(recipe))


def evidence_of(recipe: Recipe, texts: pl.Series) -> tuple[Evidence, ...]:
    """Return the evidence of each part of a feature's texts."""
    return tuple(map(evidence, split(recipe, texts)))


def joined(found: Iterable[tuple[Evidence, ...]]) -> tuple[Evidence, ...]:
    """Combine the evidence of several blocks; return an empty tuple where there are none."""
    together: tuple[Evidence, ...] = ()
    for one in found:
        together = tuple(a.joined(b) for a, b in zip(together, one, strict=True)) if together else one
    return together


def decided(recipe: Recipe, found: tuple[Evidence, ...]) -> Recipe:
    """Return the recipe with the kinds inferred from the evidence. Raises ValueError where a column's values have no kind in common."""
    parts, given = [], parts_of(recipe)
    for part, one in zip(given, found or (Evidence(),) * len(given), strict=True):
        try:
            parts.append(replace(part, values=one.kind) if part.values == UNDECIDED else part)
        except ValueError as error:
            raise ValueError(f"column {part.columns[0]} {error}") from None
    return replace(recipe, parts=tuple(parts)) if recipe.kind == CROSS else parts[0]
