"""Lists in texts: values with a separator between them, or a JSON list."""

import json
from collections.abc import Iterable
from typing import Any, NoReturn

import polars as pl

JSON = "json"  # in place of a separator
EXPECTED = 'a JSON list of texts and numbers, as in ["red", "blue"], or nothing'
_TEXT, _NUMBER = r'"[^"\\\x00-\x1f]*"', r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?"
_BLANK = r"[ \t\r\n]*"
_PLAIN = rf"^{_BLANK}\[{_BLANK}({_TEXT}{_BLANK}(,{_BLANK}{_TEXT}{_BLANK})*)?\]{_BLANK}$"
_NUMBERS = rf"^{_BLANK}\[{_BLANK}{_NUMBER}{_BLANK}(,{_BLANK}{_NUMBER}{_BLANK})*\]{_BLANK}$"


def items(texts: pl.Expr, separator: str) -> pl.Expr:
    """Split texts to List(String), null where a text is null or no list; an item is null where JSON has `null`. Items may have blanks around them."""
    if separator != JSON:
        return texts.str.split(separator)
    return texts.map_batches(_lists, return_dtype=pl.List(pl.String))


def joined(values: Iterable[str], separator: str) -> str:
    """Return the text of a list; with a separator, no value may contain it."""
    return json.dumps(list(values), ensure_ascii=False) if separator == JSON else separator.join(values)


def json_share(texts: pl.Series) -> float:
    """Return the share of the texts that are JSON lists; 0 where there are no texts."""
    begun = texts.filter(texts.str.starts_with("["))
    return sum(_of_json(text) is not None for text in begun) / max(1, len(texts))


def _lists(texts: pl.Series) -> pl.Series:
    """Return the items of JSON lists, null where a text is none; Polars converts those of plain texts or of numbers, Python the others."""
    column = pl.col("text")
    form = pl.when(column.str.contains(_PLAIN)).then(0).when(column.str.contains(_NUMBERS)).then(1).when(column.is_not_null()).then(2)
    rows = texts.alias("text").to_frame().with_columns(form=form)
    plain, numbers, others = (pl.when(pl.col("form") == number).then(column) for number in range(3))
    split = numbers.str.strip_chars("[] \t\r\n").str.split(",")
    found = rows.select(plain=plain.str.json_decode(pl.List(pl.String)), numbers=split, others=others)
    slow = pl.Series("others", [*map(_of_json, found["others"])], pl.List(pl.String)) if (rows["form"] == 2).any() else None
    made = found.select(pl.coalesce("plain", "numbers") if slow is None else pl.coalesce("plain", "numbers", slow))
    return made.to_series().alias(texts.name)


def _of_json(text: str | None) -> list[str | None] | None:
    """Return the items of a JSON list, numbers as they are written; None for another text."""
    if text is None:
        return None
    try:
        found = _DECODER.decode(text)
        return [_text(item) for item in found] if isinstance(found, list) else None
    except (ValueError, RecursionError):
        return None


def _text(item: Any) -> str | None:
    if isinstance(item, bool):
        return "true" if item else "false"
    if item is None:
        return None
    if not isinstance(item, str):
        raise ValueError("a list or an object within the list")
    item.encode()  # raises UnicodeEncodeError, a ValueError, where half of a character stands alone
    return item


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
