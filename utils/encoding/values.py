"""Canonical texts: one text for each value, whatever its type, by the kind that its column had when the vocabulary was made.

33, 33.0, "33" and "33.0" are the same value in a column of whole numbers, True and "true" in a column of booleans; 0.1 in 32 bits is no value of a
column of 64-bit floats. An ambiguous value is an error; it is not taken for another value.
"""

import decimal
import math
import re
from collections.abc import Callable, Iterable

import numpy as np
import polars as pl

from utils.encoding.columns import FEW
from utils.encoding.kinds import WHOLE, is_plain, parts_of, split
from utils.encoding.marks import MARK, NUMBERS, OF_BOOLEAN, OF_DATETIME, OF_DECIMAL, OF_FLOAT32, OF_INTEGER, TIMES, TYPES, split_mark
from utils.encoding.recipe import BETWEEN, BOOLEAN, DATE, DATETIME, DECIMAL, FLOAT, FLOAT32, INTEGER, TEXT, Recipe
from utils.encoding.times import iso_times

_EXACT = 2**53  # float64 represents every whole number below it exactly
_EXACT32 = 2**24  # the same for float32
_NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*")
_DIGITS = re.compile(r"\s*(?:\+|(-))?0*([0-9]+)(?:\.0*)?\s*")
_PLURAL = {INTEGER: "whole numbers", FLOAT: "floats of 64 bits", FLOAT32: "floats of 32 bits", DECIMAL: "decimal numbers", TEXT: "texts"}
_PLURAL |= {BOOLEAN: "booleans", DATE: "dates", DATETIME: "times"}


class ValueKindError(ValueError):
    """A value whose canonical text is ambiguous.

    Attributes:
        text: the value's text, with its type mark.
    """

    def __init__(self, kind: str, text: str, why: str = ""):
        mark, value = split_mark(text)
        self.text = text
        held = TYPES.get(mark, "texts")
        super().__init__(f"{value!r:.60} is from a column of {held}, expected {_PLURAL[kind]}, as in the vocabulary{why and f': {why}'}")


def texts_of(recipe: Recipe, texts: pl.Series) -> pl.Series:
    """Return the canonical text of each value of a feature, which its vocabulary holds or its hash is computed from.

    Args:
        recipe: the feature's recipe.
        texts: texts from `columns.made`, null where one is missing. They are returned themselves where the recipe records no kind, or they are
            texts that are canonical.

    Raises:
        ValueKindError: a value's text is ambiguous.
    """
    parts = parts_of(recipe)
    if all(part.values is None for part in parts):
        return texts
    found = [one if part.values is None else _texts(part.values, one) for part, one in zip(parts, split(recipe, texts), strict=True)]
    if len(found) == 1:
        return texts if found[0] is texts else found[0].alias(texts.name)
    columns = pl.DataFrame([column.alias(str(place)) for place, column in enumerate(found)])
    return columns.select(pl.concat_str(pl.all(), separator=BETWEEN)).to_series().alias(texts.name)


def _texts(kind: str, texts: pl.Series) -> pl.Series:
    """Return the canonical texts of a kind.

    An expression converts most of them; the others are converted one by one, each distinct text once. So are all where they are few.
    """
    if len(texts) <= FEW and kind not in (DATE, DATETIME):  # only the expression parses times
        given = texts.to_list()
        found = [None if text is None else text_of(kind, text) for text in given]
        return texts if found == given else pl.Series(texts.name, found, pl.String)
    column = pl.col("text")
    value, ready = _ready(kind, column)
    if kind == TEXT and texts.alias("text").to_frame().select(ready.all()).item():
        return texts
    found = texts.alias("text").to_frame().select(value=value, ready=ready.fill_null(False) | column.is_null())
    if found["ready"].all():
        return found["value"]
    others = texts.filter(~found["ready"]).unique(maintain_order=True)  # in order, so that an error is about the first bad value
    new = pl.Series([text_of(kind, other) for other in others], dtype=pl.String)
    found = found.with_columns(other=texts.replace_strict(others, new, default=None, return_dtype=pl.String))
    return found.select(pl.when("ready").then("value").otherwise("other")).to_series()


def _ready(kind: str, column: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return an expression of canonical texts, and one that is true where the first is valid."""
    if kind == TEXT:
        return column, is_plain(column)
    if kind == INTEGER:
        value = column.str.strip_prefix(OF_INTEGER)
        return value, value.str.contains(WHOLE)
    if kind == BOOLEAN:
        value = column.str.strip_prefix(OF_BOOLEAN)
        return value, value.is_in(["true", "false"])
    if kind in (DATE, DATETIME):
        plain = ~column.str.starts_with(MARK)
        value = column.str.replace(f"^{MARK}[dt]", "")
        time = iso_times(value.str.strip_chars())
        day, second = time.dt.strftime("%Y-%m-%d"), time.dt.strftime("%Y-%m-%d %H:%M:%S%.6f").str.replace(r"\.?0{1,6}$", "")
        second = pl.when(time.dt.microsecond() == 0).then(time.dt.strftime("%Y-%m-%d %H:%M:%S")).otherwise(second)
        if kind == DATETIME:
            return pl.coalesce(second, value), plain | (column.str.contains(f"^{MARK}[dt]") & time.is_not_null())
        midnight = time == time.dt.truncate("1d")
        return pl.when(midnight).then(day).otherwise(value), plain | (column.str.contains(f"^{MARK}[dt]") & midnight)
    return column, column.str.contains(r"^(0|-?[1-9][0-9]{0,6})$")


def text_of(kind: str, text: str) -> str | None:
    """Return the canonical text of a marked value; None where it is missing. Raises ValueKindError where it is ambiguous."""
    mark, value = split_mark(text)
    return _RULES[kind](kind, mark, value, text)


def _of_text(kind: str, mark: str, value: str, text: str) -> str:
    if mark:
        raise ValueKindError(kind, text, "texts can write this value in several ways (007, 7.0); pass the original texts")
    return value.replace("\r\n", "\n")


def _of_number(kind: str, mark: str, value: str, text: str) -> str | None:
    """Return whole numbers without a decimal point, other floats as Python's `repr`: the shortest text that gives the same bits."""
    if not mark and not _NUMBER.fullmatch(value):
        return None if value.strip().lower() == "nan" else value
    _refuse(kind, mark, NUMBERS, text)
    if kind in (INTEGER, DECIMAL) and mark in ("", OF_INTEGER, OF_DECIMAL) and (found := _DIGITS.fullmatch(value)):
        return _signed(found[1] or "", found[2])
    number = float(value)
    if mark == OF_FLOAT32 and kind != FLOAT32 and float(np.float32(number)) != number:
        raise ValueKindError(kind, text, "the 32-bit float is a different number")
    if kind == DECIMAL and math.isfinite(number):
        return _of_decimal(value)
    if kind == FLOAT32:
        with np.errstate(over="ignore"):
            number = float(str(np.float32(number)))  # the shortest digits that give the same float32
    whole = math.isfinite(number) and number.is_integer()
    if whole and (kind == INTEGER or mark == OF_INTEGER) and abs(number) >= (_EXACT32 if kind == FLOAT32 else _EXACT):
        raise ValueKindError(kind, text, "a float cannot tell whole numbers of this size apart")
    return str(int(number)) if whole and abs(number) < _EXACT else repr(number)


def _of_decimal(value: str) -> str:
    """Return all digits, without an exponent and without trailing zeros."""
    found = f"{decimal.Decimal(value.strip()):f}"
    whole, _, rest = found.lstrip("+-").partition(".")
    whole, rest = whole.lstrip("0") or "0", rest.rstrip("0")
    return _signed("-" if found.startswith("-") else "", f"{whole}.{rest}" if rest else whole)


def _of_boolean(kind: str, mark: str, value: str, text: str) -> str:
    _refuse(kind, mark, {OF_BOOLEAN}, text)
    lower = value.strip().lower()
    return lower if lower in ("true", "false") else value


def _of_time(kind: str, mark: str, value: str, text: str) -> str:
    _refuse(kind, mark, TIMES, text)
    if kind == DATE and mark == OF_DATETIME:
        raise ValueKindError(kind, text, "the value has a time of day")
    return value


def _refuse(kind: str, mark: str, allowed: Iterable[str], text: str) -> None:
    if mark and mark not in allowed:
        raise ValueKindError(kind, text)


def _signed(sign: str, digits: str) -> str:
    return digits if digits == "0" else sign + digits


_RULES: dict[str, Callable[[str, str, str, str], str | None]] = {
    TEXT: _of_text,
    INTEGER: _of_number,
    FLOAT: _of_number,
    FLOAT32: _of_number,
    DECIMAL: _of_number,
    BOOLEAN: _of_boolean,
    DATE: _of_time,
    DATETIME: _of_time,
}
