"""Numbers of a table to what a dataset holds of them: transforms, and the ids of buckets."""

import numpy as np

from utils.encoding.recipe import LOG, LOG1P, STANDARDISE, Recipe


def bounded(recipe: Recipe, values: np.ndarray) -> np.ndarray:
    """Values `[n]` float64, NaN where missing, with `missing` and `clip` applied."""
    if recipe.missing is not None:
        values = np.where(np.isnan(values), recipe.missing, values)
    if recipe.clip is not None:
        low, high = recipe.clip
        values = np.clip(values, -np.inf if low is None else low, np.inf if high is None else high)
    return values


def transformed(recipe: Recipe, values: np.ndarray) -> np.ndarray:
    """What the dataset holds, `[n]` float64, of values `[n]` float64, NaN where missing, which become 0 if the recipe says nothing else.

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
    """Ids `[n]` int32: 0 where missing, else 1 + the boundaries at or below the value."""
    values = bounded(recipe, values)
    ids = 1 + np.searchsorted(np.asarray(recipe.boundaries, np.float64), values, side="right")
    return np.where(np.isnan(values), 0, ids).astype(np.int32)


def stored(values: np.ndarray, dtype: str) -> tuple[np.ndarray, int | None]:
    """Values in a dataset's dtype, and the place of the first that it cannot hold (None where it holds all)."""
    with np.errstate(over="ignore"):
        found = values.astype(dtype)
    infinite = ~np.isfinite(found)
    return found, int(np.argmax(infinite)) if infinite.any() else None
