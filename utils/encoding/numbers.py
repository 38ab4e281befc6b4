"""Conversion of a table's numbers to the values of a dataset: transforms, and the ids of buckets."""

import numpy as np

from utils.encoding.recipe import LOG, LOG1P, STANDARDISE, Recipe


def bounded(recipe: Recipe, values: np.ndarray) -> np.ndarray:
    """Apply the recipe's `missing` and `clip` to values `[n]` float64, NaN where missing."""
    if recipe.missing is not None:
        values = np.where(np.isnan(values), recipe.missing, values)
    if recipe.clip is not None:
        low, high = recipe.clip
        values = np.clip(values, -np.inf if low is None else low, np.inf if high is None else high)
    return values


def transformed(recipe: Recipe, values: np.ndarray) -> np.ndarray:
    """Transform values `[n]` float64, NaN where missing, to the dataset's, `[n]` float64; missing ones become 0 without the recipe's `missing`.

    log: log(x + 3), and 0 below -2, as for Criteo's counts. log1p: log(1 + x), and -log(1 - x) below 0. standardise: (x - mean) / std.
    """
    values = bounded(recipe, values)
    if recipe.transform == LOG:
        values = np.where(values >= -2, np.log(np.maximum(values, -2) + 3), 0.0)
    elif recipe.transform == LOG1P:
        values = np.copysign(np.log1p(np.abs(values)), values)
    elif recipe.transform == STANDARDISE:
        values = (values - recipe.mean) / recipe.std
    return np.where(np.isnan(values), 0.0, values)


def bucketed(recipe: Recipe, values: np.ndarray) -> np.ndarray:
    """Return the bucket ids `[n]` int32: 0 where a value is missing, else 1 + the number of boundaries at or below the value."""
    values = bounded(recipe, values)
    ids = 1 + np.searchsorted(np.asarray(recipe.boundaries, np.float64), values, side="right")
    return np.where(np.isnan(values), 0, ids).astype(np.int32)


def stored(values: np.ndarray, dtype: str) -> tuple[np.ndarray, int | None]:
    """Convert values to a dataset's dtype; also return the index of the first value out of its range (None where there is none)."""
    with np.errstate(over="ignore"):
        found = values.astype(dtype)
    infinite = ~np.isfinite(found)
    return found, int(np.argmax(infinite)) if infinite.any() else None
