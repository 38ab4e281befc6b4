"""Recipes: the user's options by which a feature is made from a table's columns, and the parameters fitted on the training rows.

A dataset's `metadata.transforms` holds a recipe for each feature, and a checkpoint keeps them. New rows need nothing but recipes and vocabularies.
"""

import dataclasses
import datetime
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

CATEGORICAL, NUMERICAL, LIST, CROSS, TIME = KINDS = ("categorical", "numerical", "list", "cross", "time")
TEXT, INTEGER, FLOAT, FLOAT32, DECIMAL, BOOLEAN, DATE, DATETIME = VALUES = (
    "text",
    "integer",
    "float",
    "float32",
    "decimal",
    "boolean",
    "date",
    "datetime",
)
HOUR, WEEKDAY, DAYS_SINCE = PARTS = ("hour", "weekday", "days_since")
NONE, LOG, LOG1P, STANDARDISE = TRANSFORMS = ("none", "log", "log1p", "standardise")
UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0.001}  # in microseconds
IDS, LISTS, NUMBERS = "ids", "lists", "numbers"
BETWEEN = "\x1f"  # separates the values of a cross in its texts

TRAINING_ONLY = "training_only"
_IDS = ("frequency_threshold", "max_ids", "hash_buckets", "table", "embedding_dim")
_NUMBERS = ("transform", "missing", "clip", "buckets", "embedding_dim")
_TIME = ("part", "format", "unit", "since", "guessed")
_OPTIONS = {
    CATEGORICAL: ("column", *_IDS, TRAINING_ONLY),
    NUMERICAL: ("column", *_NUMBERS, TRAINING_ONLY),
    LIST: ("column", "separator", "max_hotness", "pooling", "weights", *_IDS),
    CROSS: ("columns", *_IDS),
    TIME: ("column", *_TIME, *_NUMBERS[:3], *_IDS, TRAINING_ONLY),
}
_FITTED = ("parts", "mean", "std", "boundaries", "values", "stripped")


@dataclass(frozen=True)
class Recipe:
    """The recipe of one feature. Options that its kind does not have keep their defaults.

    `columns` are the table's columns that the feature reads; for a cross, `parts` holds the recipe by which each becomes a text.
    `frequency_threshold` and `max_ids` limit the vocabulary. `hash_buckets`: ids come from a hash, without a vocabulary. `missing` and `clip` are
    in the column's own unit. `guessed`: the unit of times was inferred, so that a count outside July 1979 to 2100 in this unit is bad; where no unit
    was, the times are no counts, and any count is bad. `mean`, `std` and `boundaries` are fitted, and so is `values`: the kind of the column's
    values, which determines the text of each value (see the module `values`; None: not recorded). `weights` is the column of the weights of a list's
    values (see the module `id_weights`; None: there are none). `training_only` is the raw value that scores take for a feature that is for training
    only, as it stands in the column (None: scores read the column). `stripped`: texts of ids count without the blanks around them; datasets of
    earlier versions keep these.
    """

    kind: str
    columns: tuple[str, ...]
    frequency_threshold: int = 0
    max_ids: int | None = None
    hash_buckets: int | None = None
    table: str | None = None
    embedding_dim: int | None = None
    separator: str = "|"
    max_hotness: int | None = None
    pooling: str = "sum"
    weights: str | None = None
    transform: str = STANDARDISE
    missing: float | None = None
    clip: tuple[float | None, float | None] | None = None
    buckets: int | None = None
    part: str = HOUR
    format: str | None = None
    unit: str | None = None
    since: str = "1970-01-01"
    guessed: bool = False
    parts: tuple["Recipe", ...] = ()
    mean: float | None = None
    std: float | None = None
    boundaries: tuple[float, ...] | None = None
    values: str | None = None
    training_only: str | int | float | bool | None = None
    stripped: bool = False

    @property
    def gives(self) -> str:
        """The form of the feature's values: `ids`, `lists` of ids, or `numbers`."""
        if self.kind == NUMERICAL or (self.kind == TIME and self.part == DAYS_SINCE):
            return NUMBERS if self.buckets is None else IDS
        return LISTS if self.kind == LIST else IDS

    @property
    def has_vocabulary(self) -> bool:
        """True where ids stand for texts in a vocabulary; otherwise they are hashes or buckets, or there are none."""
        return self.gives != NUMBERS and self.hash_buckets is None and self.buckets is None

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns of the table that the feature's values come from, each once."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.value_columns)) if self.parts else self.columns

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of the table that the feature reads, each once: those of its values, then that of their weights."""
        return self.value_columns if self.weights is None else (*self.value_columns, self.weights)

    @property
    def _stated(self) -> tuple[str, ...]:
        """The options that are written even at their defaults, to help the reader of the file."""
        transform = ("transform",) if self.gives == NUMBERS else ()
        return ("part", *transform) if self.kind == TIME else transform

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe for YAML and JSON: the kind, and the options that differ from their defaults."""
        found: dict[str, Any] = {"kind": self.kind}
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name == "columns":
                found |= {"columns": list(value)} if self.kind == CROSS else {"column": value[0]}
            elif field.name == "parts":
                found |= {"parts": [part.to_dict() for part in value]} if value else {}
            elif value != field.default or field.name in self._stated:
                found[field.name] = list(value) if isinstance(value, tuple) else value
        return found


def recipe_of(name: str, entry: Any, fitted: bool = False) -> Recipe:
    """Parse a recipe from its YAML form.

    Args:
        name: the feature's name; also the column's name where the entry gives none.
        entry: a kind, or a mapping of a kind and its options.
        fitted: true where the entry comes from a dataset and may hold fitted parameters.

    Raises:
        ValueError: the kind has no such option, or an option's value is invalid.
    """
    entry = {"kind": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, Mapping):
        raise ValueError(f"expected a kind or a mapping of options, found {_shown(entry)}")
    kind = entry.get("kind")
    if kind not in KINDS:
        raise ValueError(f"kind is {_shown(kind)}, expected one of {', '.join(KINDS)}")
    allowed = (*_OPTIONS[kind], *(_FITTED if fitted else ()))
    values: dict[str, Any] = {}
    for option, value in entry.items():
        if option == "kind":
            continue
        if option == TRAINING_ONLY and option not in allowed:
            raise ValueError(f"{option}: expected a feature of one value a sample, this one is a {kind}; remove it")
        if option not in allowed:
            raise ValueError(f"option {_shown(option)} is unknown for kind {kind}; expected one of {', '.join(_OPTIONS[kind])}")
        check, expected = _CHECKS[option]
        if not check(value) and (value is not None or option == TRAINING_ONLY):  # nothing in place of a served value is a slip, no default
            raise ValueError(f"{option} is {_shown(value)}, expected {expected}")
        if value is not None:
            values[option] = tuple(value) if isinstance(value, list) else value
    if kind == CROSS:
        if len(values.get("columns", ())) < 2:
            raise ValueError("columns: expected at least 2 column names to join")
        values["parts"] = tuple(recipe_of(name, part, fitted) for part in values.get("parts", ()))
    else:
        values["columns"] = (values.pop("column", name),)
    recipe = Recipe(kind, values.pop("columns"), **values)
    if recipe.weights in recipe.columns:
        raise ValueError(f"weights is {_shown(recipe.weights)}, the column of the values; expected another column, which holds their weights")
    _check_together(recipe, values)
    return recipe


def _check_together(recipe: Recipe, given: Mapping[str, Any]) -> None:
    """Raise ValueError where an option has no effect beside the others."""
    if recipe.gives == NUMBERS or recipe.buckets is not None:
        unread = [option for option in (*_IDS[:4], *(() if recipe.buckets else _IDS[4:])) if option in given]
    else:
        unread = [option for option in ("transform", "missing", "clip") if option in given] if recipe.kind == TIME else []
    if recipe.hash_buckets is not None:
        unread += [option for option in ("frequency_threshold", "max_ids") if option in given]
    if recipe.buckets is not None and "transform" in given:
        unread.append("transform")
    if unread:
        why = "buckets" if recipe.buckets else "hash_buckets" if recipe.hash_buckets else f"part {recipe.part}" if recipe.kind == TIME else "ids"
        raise ValueError(f"option {unread[0]} has no effect here ({'a numerical feature' if why == 'ids' else why}); remove it")


def _shown(value: Any) -> str:
    return repr(value)[:60]


def _whole(least: int, last: int = 2**31 - 3) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= last


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _single(value: Any) -> bool:
    return _text(value) or type(value) is bool or (_number(value) and (type(value) is float or -(2**63) <= value < 2**63))


def _names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value)


def _clip(value: Any) -> bool:
    sound = isinstance(value, list | tuple) and len(value) == 2 and all(bound is None or _number(bound) for bound in value)
    return sound and (None in value or value[0] <= value[1])


def _date(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(datetime.date.fromisoformat(value))
    except ValueError:
        return False


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _one_of(*words: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value in words), f"one of {', '.join(words)}"


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "column": (_text, "a column name"),
    "columns": (_names, "a list of column names"),
    "frequency_threshold": (_whole(0), "a whole number of at least 0"),
    "max_ids": (_whole(1), "a whole number of at least 1"),
    "hash_buckets": (_whole(1), "a whole number of at least 1"),
    "table": (_text, "a table name"),
    "embedding_dim": (_whole(1), "a whole number of at least 1"),
    "separator": (_text, "the text between the values of a list"),
    "max_hotness": (_whole(1, 65536), "a whole number from 1 to 65536"),
    "pooling": _one_of("sum", "mean"),
    "weights": (_text, "the name of the column that holds the weights of the values"),
    "transform": _one_of(*TRANSFORMS),
    "missing": (_number, "a number, in the column's unit"),
    "clip": (_clip, "[MIN, MAX], each a number or null"),
    "buckets": (_whole(2, 1 << 20), "a whole number from 2 to 1048576"),
    "part": _one_of(*PARTS),
    "format": (_text, "a format of strftime, such as '%Y-%m-%d %H:%M:%S'"),
    "unit": _one_of(*UNITS),
    "stripped": (lambda value: type(value) is bool, "true or false"),
    "guessed": (lambda value: type(value) is bool, "true or false"),
    "since": (_date, "a date in quotes, '2020-01-31'"),
    "parts": (lambda value: isinstance(value, list | tuple), "a list of recipes"),
    "mean": (_number, "a number"),
    "std": (_number, "a number"),
    "values": _one_of(*VALUES),
    TRAINING_ONLY: (_single, "a value as it stands in the column: a text, a finite number of 64 bits, or true or false; put dates in quotes"),
    "boundaries": (lambda value: isinstance(value, list | tuple) and all(map(_number, value)), "a list of numbers"),
}
