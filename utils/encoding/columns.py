"""Conversion of table columns of any type to texts, lists of texts, numbers, labels, groups and weights, by Polars expressions that also mark bad
values.

Preprocessing evaluates the expressions block by block, and `score_raw` on its arguments, so that both treat values alike.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import polars as pl

from utils.encoding import list_texts
from utils.encoding.marks import BLANKS, marked, text
from utils.encoding.recipe import BETWEEN, CROSS, DAYS_SINCE, HOUR, LIST, NUMERICAL, TIME, UNITS, Recipe
from utils.encoding.times import iso_times

MISSING_TEXTS = ("", "na", "n/a", "nan", "null", "none", "\\n")  # texts for a missing number or time, compared without case
FEW = 64  # Python converts or looks up as many texts one by one in less time than Polars needs to plan a query
_YEARS_S = (300_000_000, 4_102_444_800)  # July 1979 and the end of 2099, in seconds since 1970
_YES, _NO = ("1", "true", "yes", "t", "y", "1.0"), ("0", "false", "no", "f", "n", "0.0")
_COMPARISON = re.compile(r"""\s*(.+?)\s*(>=|<=|==|!=|>|<|=)\s*("[^"]*"|'[^']*'|.+?)\s*""").fullmatch


class Made(NamedTuple):
    """A conversion of a column.

    Attributes:
        value: the converted values.
        bad: true where a value is bad; None where no value can be.
        expected: the values expected, for the error message.
    """

    value: pl.Expr
    bad: pl.Expr | None
    expected: str


class Comparison(NamedTuple):
    """A label: a column of 0 and 1, or one comparison of a column with a number or a text."""

    column: str
    sign: str | None = None
    than: float | str | None = None


def parsed_label(text: str) -> Comparison:
    """Parse a label such as `clicked`, `rating >= 4` or `event == "buy"`. Raises ValueError where it is neither a column nor one comparison."""
    found = _COMPARISON(text)
    if found is None:
        return Comparison(text.strip())
    column, sign, than = found[1].strip("`"), found[2].replace("==", "="), found[3]
    quoted = len(than) > 1 and than[0] in "\"'" and than[-1] == than[0]
    if not quoted and re.search(r"[<>=]|\s(and|or)\s", than):
        raise ValueError(f"{text!r}: expected a column, or one comparison as in 'rating >= 4'")
    try:
        return Comparison(column, sign, float(than))
    except ValueError:
        if quoted and sign in ("=", "!="):
            return Comparison(column, sign, than[1:-1])
        if sign not in ("=", "!="):
            raise ValueError(f"{text!r}: {than!r} is not a number; texts can be compared with == and != only") from None
        return Comparison(column, sign, than)


def made(recipe: Recipe, schema: Mapping[str, pl.DataType]) -> Made:
    """Convert a feature's raw columns to the form in which they are kept until the vocabulary is known.

    Returns:
        String (null: missing) for ids, List(String) for lists, Float64 (null: missing) for numbers and buckets. Texts carry a type mark (see
        `marks`) where the recipe's `values` names the kind of the column's values; see `values.texts_of`.

    Raises:
        ValueError: a column's type cannot be converted to the recipe's kind.
    """
    column = recipe.columns[0]
    if recipe.kind == CROSS:
        parts = [made(part, schema) for part in recipe.parts]
        bad = [part.bad for part in parts if part.bad is not None]
        return Made(pl.concat_str([part.value for part in parts], separator=BETWEEN), pl.any_horizontal(bad) if bad else None, "a time")
    as_text = text if recipe.values is None else marked
    if recipe.stripped:
        as_text = partial(_stripped, as_text)
    if recipe.kind == LIST:
        value, bad = texts_of_list(column, schema[column], recipe.separator, as_text)
        return Made(value, bad, "" if bad is None else list_texts.EXPECTED)
    if recipe.kind == NUMERICAL:
        return number(column, schema[column])
    if recipe.kind == TIME:
        return _part(recipe, schema[column])
    return Made(as_text(pl.col(column), schema[column], column), None, "")


def _stripped(as_text: Callable[[pl.Expr, pl.DataType, str], pl.Expr], value: pl.Expr, dtype: pl.DataType, column: str) -> pl.Expr:
    """Convert values by `as_text`, texts without the blanks around them."""
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        value, dtype = value.cast(pl.String).str.strip_chars(BLANKS), pl.String()
    return as_text(value, dtype, column)


def texts_of_list(
    column: str, dtype: pl.DataType, separator: str, as_text: Callable[[pl.Expr, pl.DataType, str], pl.Expr]
) -> tuple[pl.Expr, pl.Expr | None]:
    """Convert a list to its texts, without missing and empty ones; a missing value gives an empty list. `as_text`: `text` or `marked`.

    Returns:
        List(String), and Boolean, true for a bad value; None where no value can be bad.
    """
    value, bad = pl.col(column), None
    if dtype in (pl.List, pl.Array):
        value = value.arr.to_list() if dtype == pl.Array else value
        words = value.list.eval(as_text(pl.element(), dtype.inner, column).drop_nulls())
    elif dtype == pl.Null:
        words = value.cast(pl.List(pl.String))
    else:
        texts = text(value, dtype, column)
        texts = _given(texts) if separator == list_texts.JSON else texts
        found = list_texts.items(texts, separator)
        bad = texts.is_not_null() & found.is_null() if separator == list_texts.JSON else None
        words = found.list.eval(as_text(pl.element().str.strip_chars(), pl.String(), column).drop_nulls())
    return words.fill_null(pl.lit([], pl.List(pl.String))), bad


def number(column: str, dtype: pl.DataType) -> Made:
    """Convert a column to finite numbers, Float64; null where a value is missing."""
    value, expected = pl.col(column), "a finite number, or nothing"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        given = _given(value.cast(pl.String))
        found = given.cast(pl.Float64, strict=False)
        return Made(found, given.is_not_null() & ~found.is_finite().fill_null(False), expected)
    if dtype.is_float():
        found = value.cast(pl.Float64).fill_nan(None)
        return Made(found, found.is_infinite().fill_null(False), expected)
    if dtype.is_integer() or dtype.is_decimal() or dtype in (pl.Boolean, pl.Null):
        return Made(value.cast(pl.Float64), None, expected)
    raise ValueError(f"column {column} holds {dtype}, expected numbers")


def moment(column: str, dtype: pl.DataType, form: str | None, unit: str | None, guessed: bool = False) -> Made:
    """Convert a column to times, Datetime in microseconds of UTC; null where a value is missing.

    Args:
        column: the column's name.
        dtype: the column's type: a date or a time, a text, or a number that counts `unit` since 1970.
        form: the format of texts, and of numbers whose digits are a time (`%y%m%d%H`); None for ISO 8601.
        unit: the unit of numbers and of texts of numbers: s, ms, us or ns; None for s.
        guessed: whether the unit was inferred: then numbers outside July 1979 to 2100 are bad, without a unit all.
    """
    value, kind = pl.col(column), pl.Datetime("us")
    if dtype.is_temporal() and dtype not in (pl.Duration, pl.Time):
        value = value.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if getattr(dtype, "time_zone", None) else value
        return Made(value.cast(kind), None, "a time")
    given = _given(text(value, dtype, column))
    if form is not None:
        return Made(found := _formatted(given, form).cast(kind), given.is_not_null() & found.is_null(), f"a time in the format {form}, or nothing")
    count = given.cast(pl.Float64, strict=False) if not dtype.is_integer() else value.cast(pl.Int64)
    micros = (count * UNITS[unit or "s"]).round().cast(pl.Int64, strict=False).cast(kind)
    if guessed:
        low, high = (moment * UNITS["s"] for moment in _YEARS_S)
        micros = pl.when(micros.dt.timestamp("us").is_between(low, high)).then(micros) if unit else pl.lit(None, kind)
    found = pl.coalesce(micros, iso_times(given)) if not dtype.is_numeric() else micros
    if guessed:
        counts = f"{unit} since 1970 from July 1979 to 2100, or as in" if unit else "no number, but as in"
        digits = "10 digits look like s, 13 like ms, 16 like us, 19 like ns: --time_unit; 8 like a date: --time_format %Y%m%d"
        expected = f"a time, as in the first training rows: {counts} 2020-01-31 13:45:00 ({digits})"
        return Made(found, given.is_not_null() & found.is_null(), expected)
    return Made(
        found, given.is_not_null() & found.is_null(), f"a time: {unit or 's'} since 1970, or as in 2020-01-31 13:45:00 or 2020-01-31T13:45:00+01:00"
    )


def label(comparison: Comparison, dtype: pl.DataType) -> Made:
    """Convert a column to labels, Boolean: true for a positive row. A missing value is bad."""
    column, sign, than = comparison
    if sign is None:
        lower = text(pl.col(column), dtype, column).str.to_lowercase().str.strip_chars()
        return Made(lower.is_in(_YES), ~lower.is_in(_YES + _NO).fill_null(False), "0 or 1, true or false, yes or no (or a comparison: 'rating >= 4')")
    if isinstance(than, str):
        value, than = text(pl.col(column), dtype, column).str.strip_chars(), than.strip()
        return Made(value == than if sign == "=" else value != than, (value == "").fill_null(True), "a text")
    found, bad, _ = number(column, dtype)
    signs = {">=": found >= than, "<=": found <= than, ">": found > than, "<": found < than, "=": found == than, "!=": found != than}
    return Made(signs[sign], found.is_null() if bad is None else bad | found.is_null(), "a number")


def flag(column: str, dtype: pl.DataType) -> Made:
    """Convert a column of 0 and 1 to Boolean; a missing value is false."""
    lower = text(pl.col(column), dtype, column).str.to_lowercase().str.strip_chars()
    bad = ~lower.is_in(_YES + _NO + MISSING_TEXTS).fill_null(True)
    return Made(lower.is_in(_YES).fill_null(False), bad, "0 or 1, true or false, yes or no, or nothing")


def group(column: str, dtype: pl.DataType) -> Made:
    """Convert a column to groups, Int64: whole numbers are unchanged, other texts become a hash of 63 bits. A missing value is bad."""
    value = text(pl.col(column), dtype, column)
    whole = pl.when(value.str.contains(r"^(0|-?[1-9][0-9]*)$")).then(value).cast(pl.Int64, strict=False)
    hashed = (hashes(value) // 2).cast(pl.Int64)
    return Made(pl.coalesce(whole, hashed), value.is_null(), "a group")


def weight(column: str, dtype: pl.DataType) -> Made:
    """Convert a column to weights of rows, Float64: finite numbers of at least 0 in float32's range. A missing value is bad."""
    found, bad, _ = number(column, dtype)
    good = (found >= 0) & found.cast(pl.Float32).is_finite()
    good = good.fill_null(False) if bad is None else good.fill_null(False) & ~bad
    return Made(found, ~good, "a number of at least 0 that float32 holds")


def hashes(value: pl.Expr) -> pl.Expr:
    """Hash texts to UInt64; the hash is the same on every machine and in every version."""
    return value.map_batches(hashed, return_dtype=pl.UInt64)


def hashed(texts: pl.Series) -> pl.Series:
    """Return the first 64 bits of each text's BLAKE2b digest; null where the text is missing."""
    if len(texts) <= FEW:
        return pl.Series(texts.name, [None if value is None else _hash(value) for value in texts.to_list()], pl.UInt64)
    distinct = texts.drop_nulls().unique()
    if distinct.is_empty():
        return pl.Series(texts.name, [None] * len(texts), dtype=pl.UInt64)
    return texts.replace_strict(distinct, pl.Series([*map(_hash, distinct)], dtype=pl.UInt64), default=None, return_dtype=pl.UInt64)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _given(texts: pl.Expr) -> pl.Expr:
    """Strip blanks, and replace the `MISSING_TEXTS` by null."""
    stripped = texts.str.strip_chars()
    return pl.when(~stripped.str.to_lowercase().is_in(MISSING_TEXTS)).then(stripped)


def _formatted(texts: pl.Expr, form: str) -> pl.Expr:
    """Parse times of a format, which may lack minutes or the time of day."""
    # Polars parses a time of day only with minutes, and a date without one only as a date.
    hours = any(mark in form for mark in ("%H", "%I", "%k", "%l"))
    if hours and not any(mark in form for mark in ("%M", "%T", "%R", "%X")):
        return (texts + ":00").str.to_datetime(f"{form}:%M", strict=False, time_unit="us")
    if hours or any(mark in form for mark in ("%s", "%T", "%R", "%X", "%c", "%+")):
        return texts.str.to_datetime(form, strict=False, time_unit="us")
    return texts.str.to_date(form, strict=False)


def _part(recipe: Recipe, dtype: pl.DataType) -> Made:
    found, bad, expected = moment(recipe.columns[0], dtype, recipe.format, recipe.unit, recipe.guessed)
    if recipe.part == DAYS_SINCE:
        start = pl.lit(recipe.since).str.to_datetime("%Y-%m-%d", time_unit="us")
        return Made((found - start).dt.total_microseconds() / 86_400e6, bad, expected)
    part = found.dt.hour() if recipe.part == HOUR else found.dt.weekday()
    return Made(part.cast(pl.String), bad, expected)
