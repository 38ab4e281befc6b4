"""Raw values for the proof of an export: known, unseen and missing values of the vocabularies, and numbers distributed like the training rows."""

import datetime
from collections.abc import Sequence

import numpy as np

from run.raw_inputs import CriteoInputs, TableInputs
from serving.proof import ROWS
from serving.raw_graph import RawFeature, RawFeatures
from utils.encoding.list_texts import JSON, joined
from utils.encoding.recipe import BETWEEN, CROSS, LIST, NUMERICAL, TIME, UNITS, Recipe

_MISSING, _UNSEEN, _LONGEST = 0.05, "never seen", 5
_WEIGHTS = ("0", "0.25", "0.7", "1", "3e-5", "12")


def raw_features(inputs: CriteoInputs | TableInputs, numerical: Sequence[str], categorical: Sequence[str]) -> RawFeatures:
    """Return, for each feature, how it is made from the columns of the log."""
    found = [
        [RawFeature(name, inputs.transforms[name], inputs.vocabularies.get(name), inputs.served.get(name)) for name in names]
        for names in (numerical, categorical)
    ]
    return RawFeatures(*map(tuple, found))


def drawn_columns(inputs: CriteoInputs | TableInputs, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw a value of every column for `ROWS` samples: float32 with NaN, or texts."""
    draw = np.random.default_rng(seed)
    found = {}
    weighted = {recipe.weights: recipe for how in inputs.transforms.values() for recipe in _parts(how) if recipe.weights is not None}
    # one length for all lists of a sample, since several lists may have the same column of weights
    lengths = draw.integers(0, _LONGEST + 1, ROWS) if weighted else None
    for column in inputs.columns:
        recipes = [recipe for how in inputs.transforms.values() for recipe in _parts(how) if column in recipe.columns]
        if column in weighted:
            found[column] = _weights(weighted[column], lengths, draw)
        elif column in inputs.numbers:
            found[column] = _numbers(recipes, draw)
        elif not recipes:
            found[column] = _texts([f"{value:08x}" for value in _values(inputs, column)], "ffffffff", draw)
        else:
            found[column] = _of_recipes(inputs, column, recipes, lengths, draw)
    return found


def _parts(how: str | Recipe) -> Sequence[Recipe]:
    return () if isinstance(how, str) else how.parts or (how,)


def _numbers(recipes: Sequence[Recipe], draw: np.random.Generator) -> np.ndarray:
    fitted = next((recipe for recipe in recipes if recipe.mean is not None), None)
    values = draw.integers(-3, 300, ROWS) if fitted is None else draw.normal(fitted.mean, fitted.std or 1.0, ROWS)
    return np.where(draw.random(ROWS) < _MISSING, np.nan, values).astype(np.float32)


def _weights(recipe: Recipe, lengths: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    return np.array([joined(draw.choice(_WEIGHTS, length), recipe.separator) for length in lengths], object)


def _of_recipes(inputs: TableInputs, column: str, recipes: Sequence[Recipe], lengths: np.ndarray | None, draw: np.random.Generator) -> np.ndarray:
    time = next((recipe for recipe in recipes if recipe.kind == TIME), None)
    if time is not None:
        return _times(time, draw)
    as_number = any(recipe.kind == NUMERICAL for recipe in recipes)
    values: list[str] = []
    for name, how in inputs.transforms.items():
        for place, part in enumerate(_parts(how)):
            if column in part.columns and name in inputs.vocabularies:
                known = _values(inputs, name)
                values += [value.split(BETWEEN)[place] for value in known] if how.kind == CROSS else known
    listed = next((recipe for recipe in recipes if recipe.kind == LIST), None)
    if listed is not None:
        words = [*values[:1000], _UNSEEN]
        if lengths is None:
            return np.array([joined(draw.choice(words, draw.integers(0, _LONGEST + 1)), listed.separator) for _ in range(ROWS)], object)
        words = [word for word in words if word.strip() and (listed.separator == JSON or listed.separator not in word)]  # each counts as one value
        return np.array([joined(draw.choice(words, length), listed.separator) for length in lengths], object)
    return _texts(values, "17" if as_number else _UNSEEN, draw)


def _texts(values: Sequence[str], unseen: str, draw: np.random.Generator) -> np.ndarray:
    words = np.array([*values, unseen, ""], object)
    return words[draw.integers(0, len(words), ROWS)]


def _times(recipe: Recipe, draw: np.random.Generator) -> np.ndarray:
    start = datetime.datetime(2020, 1, 1)
    seconds = [int(value) for value in draw.integers(0, 86_400 * 365, ROWS)]
    if recipe.format is not None:
        return np.array([(start + datetime.timedelta(seconds=value)).strftime(recipe.format) for value in seconds], object)
    since = int((start - datetime.datetime(1970, 1, 1)).total_seconds())
    return np.array([str(int((since + value) * 1_000_000 / UNITS[recipe.unit or "s"])) for value in seconds], object)


def _values(inputs: CriteoInputs | TableInputs, feature: str) -> list:
    import polars as pl

    if feature not in inputs.vocabularies:  # of a feature for training only, whose values are not read
        return []
    return pl.scan_parquet(inputs.vocabularies[feature], glob=False).select("value").head(10_000).collect()["value"].to_list()
