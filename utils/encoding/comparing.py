"""Whether two datasets made a feature's inputs of raw values in the same way: recipes compared by what they do, not by how they are written."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from utils.encoding.recipe import DAYS_SINCE, LIST, NUMBERS, STANDARDISE, TIME, Recipe, recipe_of

# Vocabularies, tables and pooling are compared by themselves; lists may be longer or shorter than in training.
_NOT_COMPARED = frozenset({"frequency_threshold", "max_ids", "table", "embedding_dim", "pooling", "max_hotness"})
_UNKNOWN_BEFORE = frozenset({"values"})  # of datasets from before it was recorded


class Difference(NamedTuple):
    """An option, and its two values as text."""

    option: str
    before: str
    now: str


def difference(name: str, before: Any, now: Any) -> Difference | None:
    """The first difference of two entries of `metadata.transforms` for a feature; None where both do the same.

    Args:
        name: of the feature.
        before: a word, or a mapping.
        now: the same.
    """
    one, other = _options(name, before), _options(name, now)
    if one is None or other is None:  # words, or options of a version that is not this one
        return None if before == now else Difference("the transform", _shown(before), _shown(now))
    return _of_options(one, other, "")


def _of_options(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> Difference | None:
    for option in (*before, *(option for option in now if option not in before)):
        one, other = before.get(option), now.get(option)
        if one == other or (option in _UNKNOWN_BEFORE and None in (one, other)):
            continue
        if option == "parts" and len(one) == len(other):
            found = (_of_options(*pair, f"part {place + 1}: ") for place, pair in enumerate(zip(one, other, strict=True)))
            if first := next(filter(None, found), None):
                return first
            continue
        if option == "boundaries" and one and other and len(one) == len(other):
            place = next(place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
            return Difference(f"{where}boundary {place + 1}", _shown(one[place]), _shown(other[place]))
        return Difference(where + option, _shown(one), _shown(other))
    return None


def _options(name: str, entry: Any) -> dict[str, Any] | None:
    """What an entry does; None where it is no recipe of this version."""
    if not isinstance(entry, Mapping):
        return None
    try:
        return _of_recipe(recipe_of(name, entry, fitted=True))
    except (ValueError, TypeError):
        return None


def _of_recipe(recipe: Recipe) -> dict[str, Any]:
    """The options that say what becomes of a value, each in one form."""
    found = {field.name: getattr(recipe, field.name) for field in fields(recipe) if field.name not in _NOT_COMPARED}
    found["columns"] = list(recipe.columns)
    found["parts"] = [_of_recipe(part) for part in recipe.parts]
    found["clip"] = None if recipe.clip in (None, (None, None)) else recipe.clip
    found["unit"] = recipe.unit or "s"
    without_effect = {
        "separator": recipe.kind != LIST,
        "part": recipe.kind != TIME,
        "unit": recipe.kind != TIME,
        "since": recipe.kind != TIME or recipe.part != DAYS_SINCE,
        "transform": recipe.gives != NUMBERS,
        "mean": recipe.gives != NUMBERS or recipe.transform != STANDARDISE,
        "std": recipe.gives != NUMBERS or recipe.transform != STANDARDISE,
    }
    return {option: value for option, value in found.items() if not without_effect.get(option)}


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)[:60]
