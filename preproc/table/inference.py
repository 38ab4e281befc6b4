"""Inference of column types from a first block of rows, for the columns that the user does not name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from dataloading.features import DatasetError
from preproc.table.columns import Plan, checked, resolved
from utils.encoding.columns import MISSING_TEXTS, moment, parsed_label
from utils.encoding.list_texts import JSON, json_share
from utils.encoding.recipe import CATEGORICAL, HOUR, LIST, NUMERICAL, STANDARDISE, TIME, WEEKDAY, Recipe

_INTEGER, _DECIMAL = r"^(0|[-+]?[1-9][0-9]*)$", r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
_CODE = r"^[-+]?0[0-9]"  # of a column of numbers such as 007, which are texts
# A column of whole numbers may hold ids if it has at most _FEW distinct values, or at most _SHARE_FEW as many as rows.
# A column with more than _SHARE_MANY as many distinct values as rows may name the row.
_FEW, _SHARE_FEW, _SHARE_MANY = 20, 0.05, 0.5
_SHARE_SURE = 0.9  # a column of texts may hold numbers, or JSON lists, if more than this share of its values do
_LEAST_ONE_HOT = 3  # columns
_DRESSED = r"^[-+]?[$€£¥]?\s*[-+]?[0-9]{1,3}([., ]?[0-9]{3})*([.,][0-9]+)?\s*[%$€£¥]?$"  # 52%, $9.99, 31,55, 7,796.50
_MANY_ROWS = 100  # fewer rows do not show how often values repeat
_SAID = {  # of doubtful columns
    "few": "whole numbers with few distinct values are used as numbers; if they are ids: --categorical {0}; if not: --numerical {0}",
    "some": "whole numbers are used as numbers; if they are ids: --categorical {0}; if not: --numerical {0}",
    "dressed": "numbers written with %, a currency or a comma are used as ids; if they are numbers, write them plainly: 52, 9.99, 31.55, 7796.50",
    "many": "over half of the values are distinct; if they name rows: --ignore {0}; if they are ids: --categorical {0}; else: --numerical {0}",
    "empty": "no values in the first rows, so left out; --categorical {0}, --numerical {0} or --ignore {0} sets the type",
    "lists": "JSON lists are used as ids, each list as one; if their values are the ids: --lists {0}",
    "brackets": 'values in brackets, but no JSON lists, so used as they stand; if they are lists, write ["red", "blue"] or red|blue: --lists {0}',
    "unknown": "the type is not supported, so left out (--ignore {0})",
    "mostly": "most values are numbers, but some are not, so used as ids; if they are numbers: --numerical {0}, which reports the others",
}
_BOOLEANS = ("true", "false", "yes", "no", "t", "f", "y", "n")


@dataclass(frozen=True)
class Named:
    """The columns that the user names by flags, and the options for all features of a kind."""

    label: str | None = None
    group: str | None = None
    categorical: Sequence[str] = ()
    numerical: Sequence[str] = ()
    lists: Sequence[str] = ()
    times: Sequence[str] = ()
    ignored: Sequence[str] = ()
    not_features: Sequence[str] = ()  # columns that are read for another purpose: those that divide the rows into splits
    ids: dict[str, Any] = field(default_factory=dict)  # frequency_threshold, max_ids
    of_lists: dict[str, Any] = field(default_factory=dict)
    of_times: dict[str, Any] = field(default_factory=dict)
    transform: str = STANDARDISE
    weight: str | None = None
    id_weights: Mapping[str, str] = field(default_factory=dict)  # the columns of the weights of lists' values, by the lists' columns
    training_only: Mapping[str, str] = field(default_factory=dict)  # the raw values that scores take, by the columns of features for training only


def inferred(sample: pl.DataFrame, named: Named, warn: Callable[[str], None]) -> Plan:
    """Infer a plan for every column of a table.

    Args:
        sample: the first rows, with all columns.
        named: the columns and options that are set by flags.
        warn: called with a message for columns whose type is doubtful.

    Raises:
        DatasetError: a name is no column or is given by two flags, there is no label, or the plan is not valid.
    """
    kinds = _named_kinds(sample, named)
    if named.label is None:
        raise DatasetError(f"--label is missing: expected --label COLUMN, or --label 'rating >= 4'; the columns are {', '.join(sample.columns[:12])}")
    try:
        label = parsed_label(named.label).column
    except ValueError as error:
        raise DatasetError(f"--label {error}") from None
    if label not in sample.columns:
        expected = "expected a column, or a comparison such as 'rating >= 4'"
        one = "" if sample.width > 1 else "; is --separator right?"
        raise DatasetError(f"--label {named.label}: no column {label}; {expected}; the columns are {', '.join(sample.columns[:12])}{one}")
    features: dict[str, Recipe] = {}
    doubtful: dict[str, list[str]] = {doubt: [] for doubt in _SAID}
    ignored, left_out = list(named.ignored), {label, named.group, named.weight, *named.not_features, *named.ignored, *named.id_weights.values()}
    for column in sample.columns:
        if column in kinds:
            kind = kinds[column]
            if kind == LIST and not _are_json(given := _given(sample[column])) and _in_brackets(given) and "separator" not in named.of_lists:
                doubtful["brackets"].append(column)
        elif column in left_out:
            continue
        else:
            kind, doubt = _kind(sample[column])
            if doubt:
                doubtful[doubt].append(column)
        if kind is None:
            ignored.append(column)
            continue
        features |= _recipes(column, kind, named, sample)
    _check_training_only(named, features, label, ignored)
    _warn_of(doubtful, warn)
    for prefix, names in _one_hot(sample, [name for name in features if name not in kinds]).items():
        shown = f"{', '.join(names[:4])}{', …' if len(names) > 4 else ''}"
        warn(f"columns {shown}: hold 0 and 1 only; if they say what is in a list: --list {prefix}={prefix}_*")
    return checked(resolved(Plan(features, named.label, named.group, tuple(ignored), named.weight)))


def _named_kinds(sample: pl.DataFrame, named: Named) -> dict[str, str]:
    """Return the kinds of the columns that flags name. Raises DatasetError where a column does not exist or is given by two flags."""
    found: dict[str, str] = {}
    flags = {
        "--categorical": (named.categorical, CATEGORICAL),
        "--numerical": (named.numerical, NUMERICAL),
        "--lists": (named.lists, LIST),
        "--times": (named.times, TIME),
    }
    for flag, (columns, kind) in flags.items():
        for column in columns:
            _check_column(sample, flag, column)
            if column in found or column in named.ignored:
                raise DatasetError(f"{flag} {column}: the column is given by two flags; expected one kind")
            found[column] = kind
    for column, weights in named.id_weights.items():
        flag = f"--id_weights {column}={weights}"
        for name in (column, weights):
            _check_column(sample, f"{flag}: column", name)
        if found.setdefault(column, LIST) != LIST or column in named.ignored:
            raise DatasetError(f"{flag}: another flag says that {column} is no list, and only values of lists have weights; remove one of the flags")
    for column in named.ignored:
        _check_column(sample, "--ignore", column)
    for column, value in named.training_only.items():
        _check_column(sample, f"--training_only {column}={value}: column", column)
    for flag, column in (("--group", named.group), ("--weight", named.weight)):
        if column is not None:
            _check_column(sample, flag, column)
    return found


def _check_training_only(named: Named, features: Mapping[str, Recipe], label: str, ignored: Sequence[str]) -> None:
    """Raise DatasetError where a column of --training_only is no feature, or a list."""
    kinds = {recipe.columns[0]: recipe.kind for recipe in features.values()}
    for column, value in named.training_only.items():
        flag = f"--training_only {column}={value}"
        if kinds.get(column) == LIST:
            raise DatasetError(f"{flag}: {column} is a list; expected a feature of one value a sample")
        if column not in kinds:
            uses = {label: "is the label", named.group: "is the group", named.weight: "is the weight"}
            uses |= dict.fromkeys(named.id_weights.values(), "holds the weights of a list") | dict.fromkeys(ignored, "is left out")
            why = uses.get(column, "is no feature")
            raise DatasetError(f"{flag}: {column} {why}; expected the column of a feature (--categorical, --numerical or --times makes it one)")


def _check_column(sample: pl.DataFrame, flag: str, column: str) -> None:
    if column not in sample.columns:
        raise DatasetError(f"{flag} {column}: no such column; the columns are {', '.join(sample.columns[:12])}{', …' if sample.width > 12 else ''}")


def _recipes(column: str, kind: str, named: Named, sample: pl.DataFrame) -> dict[str, Recipe]:
    """Return the features made of a column."""
    served = named.training_only.get(column)
    if kind == NUMERICAL:
        return {column: Recipe(NUMERICAL, (column,), transform=named.transform, training_only=served)}
    if kind == CATEGORICAL:
        return {column: Recipe(CATEGORICAL, (column,), training_only=served, **named.ids)}
    if kind == LIST:
        form = {"separator": JSON} if _are_json(_given(sample[column])) else {}
        return {column: Recipe(LIST, (column,), weights=named.id_weights.get(column), **named.ids, **form | named.of_lists)}
    times = named.of_times if named.of_times else {"unit": unit_of(sample[column]), "guessed": True}
    return {f"{column}_{part}": Recipe(TIME, (column,), part=part, training_only=served, **times, **named.ids) for part in (HOUR, WEEKDAY)}


def unit_of(values: pl.Series) -> str | None:
    """Infer the unit of times since 1970 from the largest number; return None where the values are not numbers."""
    numbers = values.cast(pl.String).cast(pl.Float64, strict=False) if values.dtype == pl.String else values
    if not numbers.dtype.is_numeric() or numbers.drop_nulls().is_empty():
        return None
    size = abs(numbers.drop_nulls().max())
    return next(unit for unit, least in (("ns", 1e17), ("us", 1e14), ("ms", 1e11), ("s", 0)) if size >= least)


def _one_hot(sample: pl.DataFrame, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of 0 and 1 that may be one list, by the text before their last underscore: three or more of them."""
    found: dict[str, list[str]] = {}
    for name in columns:
        prefix, between, _ = name.rpartition("_")
        if between and prefix and name in sample.columns and sample[name].cast(pl.String, strict=False).drop_nulls().is_in(["0", "1"]).all():
            found.setdefault(prefix, []).append(name)
    return {prefix: names for prefix, names in found.items() if len(names) >= _LEAST_ONE_HOT}


def _kind(values: pl.Series) -> tuple[str | None, str]:
    """Infer a column's kind (None: it is left out) and the doubt about it, a key of `_warn_of`'s messages or an empty text."""
    dtype = values.dtype
    if dtype in (pl.List, pl.Array):
        return (LIST, "") if not (dtype.inner.is_nested() or dtype.inner == pl.Binary) else (None, "unknown")
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object, pl.Duration, pl.Time):
        return None, "unknown"
    given = _given(values)
    if given.is_empty():
        return None, "empty"
    if dtype.is_temporal():
        return TIME, ""
    if dtype in (pl.Boolean, pl.Categorical, pl.Enum):
        return CATEGORICAL, ""
    if dtype.is_float() or dtype.is_decimal():
        return NUMERICAL, ""
    if dtype.is_integer():
        return NUMERICAL, _doubt(given, few=True)
    numbers = given.str.contains(_DECIMAL).all() and not given.str.contains(_CODE).any()
    if numbers and (given.str.contains(_INTEGER) | given.str.contains(r"^[-+]0$")).all():
        return NUMERICAL, _doubt(given, few=True)
    if numbers:
        return NUMERICAL, ""
    if given.str.to_lowercase().is_in(_BOOLEANS).all():
        return CATEGORICAL, ""
    if given.str.contains(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}").all():
        # texts that begin with a date are times only if all of them parse
        found = given.alias("time").to_frame().select(moment("time", pl.String(), None, None).bad)
        return (CATEGORICAL, "") if found.to_series().any() else (TIME, "")
    if given.str.contains(_DRESSED).all() and given.str.contains(r"[%$€£¥,]").any():
        return CATEGORICAL, "dressed"
    if _are_json(given):
        return CATEGORICAL, "lists"
    if _in_brackets(given):
        return CATEGORICAL, "brackets"
    if _SHARE_SURE < given.str.contains(_DECIMAL).mean() < 1:
        return CATEGORICAL, "mostly"
    return CATEGORICAL, _doubt(given, few=False)


def _given(values: pl.Series) -> pl.Series:
    """Return the values that are not missing; texts without the blanks around them."""
    given = values.drop_nulls()
    if given.dtype != pl.String:
        return given
    given = given.str.strip_chars()
    return given.filter(~given.str.to_lowercase().is_in(MISSING_TEXTS))


def _are_json(given: pl.Series) -> bool:
    """Return whether nearly all values are JSON lists: the others are then bad values."""
    return given.dtype == pl.String and json_share(given) > _SHARE_SURE


def _in_brackets(given: pl.Series) -> bool:
    return given.dtype == pl.String and given.str.contains(r"(?s)^(\[.*\]|\{.*\})$").all() and given.str.contains("[,'\"]").any()


def _doubt(given: pl.Series, few: bool) -> str:
    distinct, rows = given.n_unique(), len(given)
    if rows >= _MANY_ROWS and distinct > _SHARE_MANY * rows:
        return "many"
    if not few or distinct <= 2:
        return ""
    return "few" if distinct <= max(_FEW, _SHARE_FEW * rows) else "some" if rows >= _MANY_ROWS else ""


def _warn_of(doubtful: dict[str, list[str]], warn: Callable[[str], None]) -> None:
    for doubt, columns in doubtful.items():
        if columns:
            names = ",".join(columns)
            warn(f"column{'s' if len(columns) > 1 else ''} {names}: {_SAID[doubt].format(names)}")
