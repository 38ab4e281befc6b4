"""Comparison of two datasets' recipes of a feature, by their effect on raw values and not by their notation."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from utils.encoding.recipe import DAYS_SINCE, LIST, NUMBERS, STANDARDISE, TIME, Recipe, recipe_of

# Vocabularies, tables, pooling and served values are compared elsewhere; lists may be longer or shorter than in training.
_NOT_COMPARED = frozenset({"frequency_threshold", "max_ids", "table", "embedding_dim", "pooling", "max_hotness", "training_only", "guessed"})
_UNKNOWN_BEFORE = frozenset({"values"})  # options that older datasets did not record


class Difference(NamedTuple):
    """A difference between two recipes: an option, and its two values as text."""

    option: str
    before: str
    now: str


def difference(name: str, before: Any, now: Any) -> Difference | None:
    """Return the first difference between two entries of `metadata.transforms` for a feature; None where they have the same effect.

    Args:
        name: the feature's name.
        before: one entry, a word or a mapping.
        now: the other entry, a word or a mapping.
    """
    one, other = _options(name, before), _options(name, now)
    if one is None or other is None:  # words, or recipes of another version: compare them literally
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
    """Return the effective options of an entry; None where it is no recipe of this version."""
    if not isinstance(entry, Mapping):
        return None
    try:
        return _of_recipe(recipe_of(name, entry, fitted=True))
    except (ValueError, TypeError):
        return None


def _of_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the options that affect a value, each in canonical form."""
    found = {field.name: getattr(recipe, field.name) for field in fields(recipe) if field.name not in _NOT_COMPARED}
    found["columns"] = list(recipe.columns)
    found["parts"] = [_of_recipe(part) for part in recipe.parts]
    found["clip"] = None if recipe.clip in (None, (None, None)) else recipe.clip
    found["unit"] = recipe.unit or "s"
    without_effect = {
        "separator": recipe.kind != LIST,
        "stripped": recipe.hash_buckets is None,  # where it has an effect, vocabularies differ
        "part": recipe.kind != TIME,
        "unit": recipe.kind != TIME,
        "since": recipe.kind != TIME or recipe.part != DAYS_SINCE,
        "transform": recipe.gives != NUMBERS,
        "mean": recipe.gives != NUMBERS or recipe.transform != STANDARDISE,
        "std": recipe.gives != NUMBERS or recipe.transform != STANDARDISE,
    }
    return {option: value for option, value in found.items() if not without_effect.get(option)}


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)[:60]
