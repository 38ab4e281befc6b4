"""Recipes of features: the round trip through their YAML form, and the errors for invalid ones."""

import pytest

from utils.encoding.recipe import recipe_of

EVERYTHING = {
    "categorical": {"column": "c", "frequency_threshold": 2, "max_ids": 9, "table": "t", "embedding_dim": 4, "training_only": 7},
    "hashed": {"column": "c", "hash_buckets": 7, "embedding_dim": 4},
    "numerical": {"column": "c", "transform": "log1p", "missing": -1, "clip": [0, None], "mean": 1.5, "std": 2.0},
    "buckets": {"column": "c", "buckets": 3, "missing": 0.5, "clip": [None, 9.5], "embedding_dim": 4, "boundaries": [1.0, 2.0]},
    "list": {"column": "c", "separator": ",", "max_hotness": 5, "pooling": "mean", "frequency_threshold": 3},
    "cross": {
        "columns": ["a", "b"],
        "hash_buckets": 8,
        "parts": [{"kind": "categorical", "column": "a"}, {"kind": "time", "column": "b", "part": "hour"}],
    },
    "time": {"column": "c", "part": "days_since", "format": "%y", "since": "2020-01-31", "transform": "none", "missing": 3, "mean": 0.5, "std": 2.5},
    "hour": {"column": "c", "part": "weekday", "unit": "ms", "max_ids": 5, "training_only": "2024-01-31"},
}
KINDS = {"hashed": "categorical", "buckets": "numerical", "hour": "time"}
CASES = [(name, {"kind": KINDS.get(name, name)} | options) for name, options in EVERYTHING.items()]


@pytest.mark.parametrize(("name", "entry"), CASES, ids=[name for name, _ in CASES])
def test_recipe_round_trip(name, entry):
    recipe = recipe_of("feature", entry, fitted=True)
    assert recipe.to_dict() == entry
    for option, value in entry.items():
        if option not in ("kind", "column", "parts"):
            assert getattr(recipe, option) == (tuple(value) if isinstance(value, list) else value)
    assert recipe_of("feature", recipe.to_dict(), fitted=True) == recipe


@pytest.mark.parametrize(
    ("entry", "gives", "has_vocabulary", "inputs"),
    [
        ("categorical", "ids", True, ("f",)),
        ({"kind": "categorical", "hash_buckets": 3}, "ids", False, ("f",)),
        ("numerical", "numbers", False, ("f",)),
        ({"kind": "numerical", "buckets": 3}, "ids", False, ("f",)),
        ("list", "lists", True, ("f",)),
        ("time", "ids", True, ("f",)),
        ({"kind": "time", "part": "days_since"}, "numbers", False, ("f",)),
        ({"kind": "cross", "columns": ["a", "b"]}, "ids", True, ("a", "b")),
    ],
)
def test_properties_of_recipes(entry, gives, has_vocabulary, inputs):
    recipe = recipe_of("f", entry)
    assert (recipe.gives, recipe.has_vocabulary, recipe.inputs) == (gives, has_vocabulary, inputs)
    assert recipe.to_dict()["kind"] == recipe.kind


def test_main_options_are_written_even_at_their_defaults():
    assert recipe_of("f", "numerical").to_dict() == {"kind": "numerical", "column": "f", "transform": "standardise"}
    assert recipe_of("f", {"kind": "numerical", "buckets": 3}).to_dict() == {"kind": "numerical", "column": "f", "buckets": 3}
    assert recipe_of("f", "time").to_dict() == {"kind": "time", "column": "f", "part": "hour"}
    days = {"kind": "time", "part": "days_since", "column": "f", "transform": "standardise"}
    assert recipe_of("f", {"kind": "time", "part": "days_since"}).to_dict() == days
    assert recipe_of("f", "categorical").to_dict() == {"kind": "categorical", "column": "f"}


def test_a_cross_reads_each_column_once():
    parts = [{"kind": "categorical", "column": "a"}, {"kind": "time", "column": "b"}, {"kind": "categorical", "column": "a"}]
    assert recipe_of("f", {"kind": "cross", "columns": ["a", "b", "a"], "parts": parts}, fitted=True).inputs == ("a", "b")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "expected a kind or a mapping of options, found 3"),
        ("word", "kind is 'word', expected one of categorical, numerical, list, cross, time"),
        ({}, "kind is None, expected one of"),
        ({"kind": "numerical", "separator": ","}, "option 'separator' is unknown for kind numerical"),
        ({"kind": "numerical", "mean": 3}, "option 'mean' is unknown for kind numerical"),  # a mean is fitted, and nothing has fitted one here
        ({"kind": "categorical", "max_ids": 0}, "max_ids is 0, expected a whole number of at least 1"),
        ({"kind": "categorical", "max_ids": 2**31 - 2}, "max_ids is 2147483646, expected"),
        ({"kind": "categorical", "max_ids": True}, "max_ids is True, expected"),
        ({"kind": "categorical", "frequency_threshold": -1}, "frequency_threshold is -1, expected a whole number of at least 0"),
        ({"kind": "categorical", "hash_buckets": 1.5}, "hash_buckets is 1.5, expected"),
        ({"kind": "categorical", "table": ""}, "table is '', expected a table name"),
        ({"kind": "list", "max_hotness": 65537}, "max_hotness is 65537, expected a whole number from 1 to 65536"),
        ({"kind": "list", "pooling": "max"}, "pooling is 'max', expected one of sum, mean"),
        ({"kind": "list", "separator": ""}, "separator is '', expected"),
        ({"kind": "numerical", "missing": float("nan")}, "missing is nan, expected a number"),
        ({"kind": "numerical", "missing": True}, "missing is True, expected a number"),
        ({"kind": "numerical", "clip": [3, 2]}, r"clip is \[3, 2\], expected \[MIN, MAX\]"),
        ({"kind": "numerical", "clip": [3]}, r"clip is \[3\], expected"),
        ({"kind": "numerical", "clip": ["a", None]}, "clip is .*, expected"),
        ({"kind": "numerical", "buckets": 1}, "buckets is 1, expected a whole number from 2"),
        ({"kind": "numerical", "buckets": 2**20 + 1}, "buckets is 1048577, expected"),
        ({"kind": "time", "since": "2020-02-30"}, "since is '2020-02-30', expected a date"),
        ({"kind": "time", "since": 2020}, "since is 2020, expected a date"),
        ({"kind": "time", "unit": "h"}, "unit is 'h', expected one of s, ms, us, ns"),
        ({"kind": "cross", "columns": ["a"]}, "columns: expected at least 2 column names to join"),
        ({"kind": "cross"}, "columns: expected at least 2 column names to join"),
        ({"kind": "cross", "columns": ["a", ""]}, "columns is .*, expected a list of column names"),
        ({"kind": "list", "training_only": "a"}, "training_only: expected a feature of one value a sample, this one is a list; remove it"),
        (
            {"kind": "cross", "columns": ["a", "b"], "training_only": 1},
            "training_only: expected a feature of one value a sample, this one is a cross",
        ),
        ({"kind": "categorical", "training_only": None}, "training_only is None, expected a value as it stands in the column"),
        ({"kind": "categorical", "training_only": ""}, "training_only is '', expected a value as it stands in the column"),
        ({"kind": "categorical", "training_only": 2**63}, "training_only is 9223372036854775808, expected a value"),
        ({"kind": "numerical", "training_only": float("nan")}, "training_only is nan, expected a value"),
        # Options without effect
        ({"kind": "time", "transform": "log"}, "option transform has no effect here .part hour.; remove it"),
        ({"kind": "time", "part": "days_since", "max_ids": 3}, "option max_ids has no effect here .part days_since."),
        ({"kind": "numerical", "embedding_dim": 3}, r"option embedding_dim has no effect here \(a numerical feature\)"),
        ({"kind": "numerical", "buckets": 3, "transform": "log"}, "option transform has no effect here .buckets."),
        ({"kind": "categorical", "hash_buckets": 3, "max_ids": 4}, "option max_ids has no effect here .hash_buckets."),
        ({"kind": "categorical", "hash_buckets": 3, "frequency_threshold": 4}, "option frequency_threshold has no effect here .hash_buckets."),
    ],
)
def test_invalid_recipe_is_rejected(entry, message):
    with pytest.raises(ValueError, match=message):
        recipe_of("f", entry)


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "categorical", "max_ids": 1, "frequency_threshold": 0, "embedding_dim": 1},
        {"kind": "categorical", "max_ids": 2**31 - 3},
        {"kind": "categorical", "max_ids": None},
        {"kind": "list", "max_hotness": 65536},
        {"kind": "list", "max_hotness": 1},
        {"kind": "numerical", "buckets": 2, "embedding_dim": 4},
        {"kind": "numerical", "buckets": 2**20},
        {"kind": "numerical", "clip": [2, 2]},
        {"kind": "numerical", "training_only": 0},
        {"kind": "categorical", "training_only": False},
        {"kind": "categorical", "training_only": -(2**63)},
        {"kind": "numerical", "clip": [None, None]},
    ],
)
def test_options_at_their_bounds_are_accepted(entry):
    recipe = recipe_of("f", entry)
    for option, value in entry.items():
        assert getattr(recipe, option) == (tuple(value) if isinstance(value, list) else value)
