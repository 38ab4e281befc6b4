"""Features for training only: the id or number that scores take for each, from the raw value that its recipe states.

See `dataloading.training_only` for what becomes of it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl

from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from dataloading.training_only import served_values
from preproc.table.columns import Plan
from preproc.table.fit import vocabulary_path
from utils.encoding.columns import made
from utils.encoding.ids import hashed_ids
from utils.encoding.numbers import bucketed, stored, transformed
from utils.encoding.recipe import NUMBERS, Recipe
from utils.encoding.values import ValueKindError, texts_of

Served = dict[str, int | float]
_SHOWN = 5  # values of a vocabulary in a message


def check(plan: Plan) -> None:
    """Raise DatasetError where a stated value cannot be one of its column: called before rows are read."""
    for name, recipe in plan.features.items():
        if recipe.training_only is not None:
            _single(name, recipe)


def with_served(spec: FeatureSpec, plan: Plan, old: FeatureSpec | None, folder: Path, warn: Callable[[str], None]) -> FeatureSpec:
    """Return the specification with the id or number that scores take for each feature for training only.

    Args:
        spec: the specification of the dataset.
        plan: the fitted plan.
        old: the specification of the older dataset whose vocabularies and transforms are used: its values are kept; None where there is none.
        folder: the folder that holds the vocabularies.
        warn: called with a line where the older dataset's value is not that of its recipe.

    Raises:
        DatasetError: the vocabulary lacks a stated value, or the dtype cannot hold it.
    """
    found: Served = {name: _served(name, recipe, spec, folder) for name, recipe in plan.features.items() if recipe.training_only is not None}
    if old is not None:
        kept = served_values(old)
        for name, value in found.items():  # `plan_of_dataset` has left out those that the specification does not state
            if value != kept[name]:
                said = f"{plan.features[name].training_only!r:.60} in its metadata"
                warn(f"feature {name}: scores take {kept[name]}, as {old.path} states, not {value}, which {said} would give")
        found = kept
    categorical = tuple(replace(one, serve=found.get(one.name)) for one in spec.categorical)
    return replace(spec, categorical=categorical, serve={name: found[name] for name in spec.numerical if name in found})


def _served(name: str, recipe: Recipe, spec: FeatureSpec, folder: Path) -> int | float:
    value, stated = _single(name, recipe), _stated(name, recipe)
    if recipe.gives == NUMBERS:
        held, beyond = stored(transformed(recipe, value.to_numpy()), spec.numerical_dtype)
        if beyond is not None:
            raise DatasetError(f"{stated}, which is out of range for {spec.numerical_dtype}; expected a smaller number, or another transform")
        return float(held[0])
    if recipe.buckets is not None:
        return int(bucketed(recipe, value.to_numpy())[0])
    try:
        text = texts_of(recipe, value)
    except ValueKindError as error:
        raise DatasetError(f"{stated}, but {error}; put it in quotes in columns.yaml, as the log writes it") from None
    if text[0] is None:
        raise DatasetError(f"{stated}, which stands for a missing value; expected a value of column {recipe.columns[0]}")
    return int(hashed_ids(text, recipe.hash_buckets)[0]) if recipe.hash_buckets is not None else _id(stated, text[0], vocabulary_path(folder, name))


def _id(stated: str, text: str, path: Path) -> int:
    known = pl.scan_parquet(path, glob=False)
    found = known.filter(pl.col("value") == text).select("id").collect()
    if found.is_empty():
        some = known.select("value").head(_SHOWN).collect()["value"].to_list()
        listed = f"expected one that is in it, such as {', '.join(map(repr, some))}" if some else "it has none"
        raise DatasetError(f"{stated}, which its vocabulary lacks, so scores would take id 0, that of unknown values; {listed}")
    return found.item()


def _single(name: str, recipe: Recipe) -> pl.Series:
    """Return the stated value in the form in which rows are staged, `[1]`. Raises DatasetError where it is none of the column's kind, or missing."""
    column, stated = recipe.columns[0], _stated(name, recipe)
    row = pl.DataFrame({column: [recipe.training_only]})
    try:
        value, bad, expected = made(recipe, row.schema)
        found = row.select(value=value, bad=pl.lit(False) if bad is None else bad.fill_null(False))
    except (ValueError, pl.exceptions.PolarsError) as error:
        raise DatasetError(f"{stated}: {' '.join(str(error).split())[:200]}") from None
    expected = expected.removesuffix(", or nothing") or f"a value of column {column}"
    if found["bad"][0]:
        raise DatasetError(f"{stated}, expected {expected}")
    if found["value"][0] is None or found["value"][0] == "":
        raise DatasetError(f"{stated}, which stands for a missing value; expected {expected}")
    return found["value"]


def _stated(name: str, recipe: Recipe) -> str:
    return f"feature {name}: training_only (--training_only, or columns.yaml) is {str(recipe.training_only)[:60]!r}"
