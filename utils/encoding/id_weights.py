"""Weights of the values in lists, from a second column of the table with a number for each value of the first.

The column is read as the list is: a list of numbers, or a text with the list's separator. What happens to a value in a list happens to its weight.
"""

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from utils.encoding import list_texts
from utils.encoding.columns import MISSING_TEXTS
from utils.encoding.ids import places_in_rows
from utils.encoding.marks import text
from utils.encoding.recipe import Recipe

_NOTHING = pl.lit([], pl.List(pl.Float64))
_TEXTS = (pl.String, pl.Categorical, pl.Enum)


def id_weights(recipe: Recipe, rows: pl.DataFrame, pooling: str) -> tuple[pl.Series, pl.Series]:
    """Convert a feature's column of weights to those of the texts that `columns.made` gives.

    Args:
        recipe: the feature's recipe, which names a column of weights.
        rows: n rows with the columns of the feature.
        pooling: the pooling of the feature; the weights of a mean are at least 0.

    Returns:
        List(Float64) of finite numbers in float32's range, as many as texts; and Boolean, true for a bad row, which `fault` describes: it has
        another number of weights than values, or a value's weight is another one.

    Raises:
        ValueError: the type of a column holds no weights or no values.
    """
    given, weights = rows.select(given=_given(recipe, rows.schema), weights=_numbers(recipe, rows.schema)).get_columns()
    counts = given.list.len()
    same = counts == weights.list.len()
    if not same.all():
        given, weights = (pl.select(pl.when(same).then(lists).otherwise(_NOTHING)).to_series() for lists in (given, weights))
    if (given.list.sum() != counts).any():  # values are left out; a weight times 1 is the weight, and it is null where there is no value
        weights = (given * weights).list.eval(pl.element().drop_nulls())
    return weights, ~(same & weights.list.eval(_sound(pooling)).list.all())


def fault(recipe: Recipe, row: pl.DataFrame, pooling: str) -> str:
    """Describe a bad row.

    Args:
        recipe: the feature's recipe.
        row: the row, with the columns of the feature.
        pooling: the pooling of the feature.
    """
    column = recipe.weights
    found = row.select(given=_given(recipe, row.schema), weights=_numbers(recipe, row.schema))
    given, weights = found["given"][0], found["weights"][0]
    if len(given) != len(weights):
        counts = f"{_counted(len(given), 'value')} in column {recipe.columns[0]}, but {_counted(len(weights), 'weight')} in column {column}"
        return f"{counts}; expected a weight for each value, empty ones included"
    sound = found.select(pl.col("weights").list.eval(_sound(pooling))).item()
    place = next(place for place, value in enumerate(given) if value is not None and not sound[place])
    shown = row.select(_items(column, row.schema[column], recipe.separator, lambda item, _: item)).item()[place]
    expected = "a finite number of at least 0, as a weighted mean needs" if pooling == "mean" else "a finite number that float32 holds"
    return f"the weight of value {place + 1} in column {column} is {'missing' if shown in (None, '') else repr(shown)[:60]}, expected {expected}"


def padded_weights(weights: pl.Series, hotness: int) -> np.ndarray:
    """Pad lists of weights, of which the first `hotness` count, to `[n, hotness]` float64 with 0."""
    kept = weights.list.head(hotness)
    found = np.zeros((len(weights), hotness), np.float64)
    found[places_in_rows(kept.list.len().to_numpy().astype(np.int64))] = kept.filter(kept.list.len() > 0).explode().to_numpy()
    return found


def _given(recipe: Recipe, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return for each place in a list of values 1 where it has a value and null where it is left out: List(Float64)."""
    column = recipe.columns[0]
    items = _items(column, schema[column], recipe.separator, lambda item, dtype: pl.when(text(item, dtype, column).is_not_null()).then(1.0))
    return items.fill_null(_NOTHING)


def _numbers(recipe: Recipe, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return the number in each place of a list of weights, NaN where there is none. Raises ValueError for a column of another type."""
    column, dtype = recipe.weights, schema[recipe.weights]
    inner = dtype.inner if dtype in (pl.List, pl.Array) else dtype
    if not (inner.is_numeric() or inner in (*_TEXTS, pl.Boolean, pl.Null)):
        raise ValueError(f"column {column} holds {dtype}, expected the weights of {recipe.columns[0]}: lists of numbers, or texts of them")
    if dtype.is_numeric() or dtype == pl.Boolean:
        number = pl.col(column).cast(pl.Float64).fill_nan(None)
        return pl.when(number.is_not_null()).then(pl.concat_list(number)).otherwise(_NOTHING)
    return _items(column, dtype, recipe.separator, _number, MISSING_TEXTS).fill_null(_NOTHING)


def _number(item: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    item = item.cast(pl.String).str.strip_chars() if dtype in _TEXTS else item
    return item.cast(pl.Float64, strict=False).fill_null(float("nan"))


def _items(
    column: str, dtype: pl.DataType, separator: str, of: Callable[[pl.Expr, pl.DataType], pl.Expr], missing: tuple[str, ...] = ("",)
) -> pl.Expr:
    """Return the items of lists, or of texts with a separator, each converted by `of`; null where there is no list, or the text is `missing`."""
    value = pl.col(column)
    if dtype in (pl.List, pl.Array):
        value = value.arr.to_list() if dtype == pl.Array else value
        return value.list.eval(of(pl.element(), dtype.inner))
    if dtype == pl.Null:
        return value.cast(pl.List(pl.Float64))
    words = text(value, dtype, column)
    words = pl.when(~words.str.strip_chars().str.to_lowercase().is_in(MISSING_TEXTS if separator == list_texts.JSON else missing)).then(words)
    found = list_texts.items(words, separator)
    if separator == list_texts.JSON:  # a text that is no list is one item, which is no weight
        found = pl.coalesce(found, pl.when(words.is_not_null()).then(pl.concat_list(words)))
    return found.list.eval(of(pl.element().str.strip_chars(), pl.String()))


def _sound(pooling: str) -> pl.Expr:
    """Return whether an element is a weight."""
    held = pl.element().cast(pl.Float32).is_finite()
    return held & (pl.element() >= 0) if pooling == "mean" else held


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
