"""Columns of a table converted value by value: texts, lists, numbers, times, labels and groups."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import polars as pl
import pytest

from utils.encoding.columns import Comparison, group, hashed, label, made, moment, number, parsed_label
from utils.encoding.recipe import recipe_of


def values(made, series):
    """Return the values that an expression gives for a column called x, with "bad" in the place of each invalid one."""
    frame = series.alias("x").to_frame().select(value=made.value, bad=pl.lit(False) if made.bad is None else made.bad)
    bad = frame["bad"].to_list() * (len(series) if len(frame) == 1 else 1)
    return ["bad" if wrong else value for value, wrong in zip(frame["value"].to_list(), bad, strict=False)]


def of_recipe(entry, series):
    return values(made(recipe_of("x", entry, fitted=True), {"x": series.dtype}), series)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clicked", Comparison("clicked")),
        (" clicked ", Comparison("clicked")),
        ("rating >= 4", Comparison("rating", ">=", 4.0)),
        ("rating<=4.5", Comparison("rating", "<=", 4.5)),
        ("rating > 4", Comparison("rating", ">", 4.0)),
        ("rating < 4", Comparison("rating", "<", 4.0)),
        ("rating == 4", Comparison("rating", "=", 4.0)),
        ("rating = 4", Comparison("rating", "=", 4.0)),
        ("rating != 4", Comparison("rating", "!=", 4.0)),
        ("`the event` == 'buy'", Comparison("the event", "=", "buy")),
        ('event != "buy"', Comparison("event", "!=", "buy")),
        ("event = buy", Comparison("event", "=", "buy")),
        ("event = 'buy", Comparison("event", "=", "'buy")),
        ("event = '", Comparison("event", "=", "'")),
        ("event = \"buy'", Comparison("event", "=", "\"buy'")),
    ],
)
def test_a_label_is_a_column_or_a_comparison(text, expected):
    assert parsed_label(text) == expected


@pytest.mark.parametrize(
    ("text", "message"), [("a < 3 and b > 4", "expected a column, or one comparison"), ("event >= buy", "'buy' is not a number")]
)
def test_invalid_label_is_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        parsed_label(text)


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (pl.Series(["a", "", None, " b "]), ["a", None, None, " b "]),
        (pl.Series(["a", None], dtype=pl.Categorical), ["a", None]),
        (pl.Series(["", "b"], dtype=pl.Enum(["", "b"])), [None, "b"]),
        (pl.Series([3.0, -2.5, float("nan"), None, -0.0]), ["3", "-2.5", None, None, "0"]),
        (
            pl.Series([2.0**53 - 1, 2.0**53, -(2.0**53), 1 - 2.0**53]),
            ["9007199254740991", "9007199254740992.0", "-9007199254740992.0", "-9007199254740991"],
        ),
        (pl.Series([3, None, -4]), ["3", None, "-4"]),
        (pl.Series([True, None, False]), ["true", None, "false"]),
        (pl.Series([Decimal("1.50"), None]), ["1.50", None]),
        (pl.Series([None, None]), [None, None]),
    ],
)
def test_texts_of_values(series, expected):
    assert of_recipe("categorical", series) == expected


def test_lists_and_binary_are_rejected_as_categorical():
    with pytest.raises(ValueError, match=r"column x holds List\(String\), expected texts, numbers or booleans; use kind: list for lists"):
        of_recipe("categorical", pl.Series([["a"]]))
    with pytest.raises(ValueError, match=r"column x holds Binary, expected texts, numbers or booleans$"):
        of_recipe("categorical", pl.Series([b"a"]))


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (pl.Series(["a|b", " a | |b|", "", None]), [["a", "b"], ["a", "b"], [], []]),
        (pl.Series([["a", "", None, "b"], [], None]), [["a", "b"], [], []]),
        (pl.Series([[1.0, 2.5], [None]]), [["1", "2.5"], []]),
        (pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2)), [["1", "2"], ["3", "4"]]),
        (pl.Series([None, None]), [[], []]),
        (pl.Series([3, 4]), [["3"], ["4"]]),
    ],
)
def test_lists(series, expected):
    assert of_recipe("list", series) == expected


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (pl.Series(["1", " 2.5 ", "", "NA", "n/a", "NaN", "null", "None", "\\N", None, "x", "inf"]), [1.0, 2.5, *[None] * 8, "bad", "bad"]),
        (pl.Series([1.0, float("nan"), None, float("inf"), float("-inf")]), [1.0, None, None, "bad", "bad"]),
        (pl.Series([1.5, 2.0], dtype=pl.Float32), [1.5, 2.0]),
        (pl.Series([3, None]), [3.0, None]),
        (pl.Series([True, None, False]), [1.0, None, 0.0]),
        (pl.Series([Decimal("1.50")]), [1.5]),
        (pl.Series(["7", "8"], dtype=pl.Categorical), [7.0, 8.0]),
        (pl.Series([None, None]), [None, None]),
    ],
)
def test_numbers(series, expected):
    assert values(number("x", series.dtype), series) == expected


def test_dates_are_rejected_as_numbers():
    with pytest.raises(ValueError, match="column x holds Date, expected numbers"):
        number("x", pl.Date())


NOON = datetime(2024, 3, 10, 12, 30, 15)


@pytest.mark.parametrize(
    ("series", "form", "unit", "expected"),
    [
        (pl.Series(["2024-03-10 12:30:15", "2024-03-10T12:30:15.250Z", "2024-03-10 12:30", "2024-03-10", "", "NA", None, "noon"]), None, None,
         [NOON, NOON + timedelta(milliseconds=250), datetime(2024, 3, 10, 12, 30), datetime(2024, 3, 10), None, None, None, "bad"]),
        (pl.Series([NOON, None]), None, None, [NOON, None]),
        (pl.Series([NOON.replace(tzinfo=UTC)]).dt.convert_time_zone("Asia/Tokyo"), None, None, [NOON]),
        (pl.Series([NOON.date()]), None, None, [datetime(2024, 3, 10)]),
        (pl.Series([1710073815, None]), None, None, [NOON, None]),
        (pl.Series([1710073815000]), None, "ms", [NOON]),
        (pl.Series([1710073815000000]), None, "us", [NOON]),
        (pl.Series([1710073815000000000]), None, "ns", [NOON]),
        (pl.Series(["1710073815", "1710073815.25"]), None, None, [NOON, NOON + timedelta(milliseconds=250)]),
        (pl.Series([1710073815.25]), None, "s", [NOON + timedelta(milliseconds=250)]),
        (pl.Series(["24031012", "", "24139912"]), "%y%m%d%H", None, [datetime(2024, 3, 10, 12), None, "bad"]),
        (pl.Series([24031012]), "%y%m%d%H", None, [datetime(2024, 3, 10, 12)]),
        (pl.Series(["10.03.2024 12:30", "10.03.2024 12:75"]), "%d.%m.%Y %H:%M", None, [datetime(2024, 3, 10, 12, 30), "bad"]),
        (pl.Series(["10.03.2024 12:30:15"]), "%d.%m.%Y %T", None, [NOON]),
        (pl.Series(["10.03.2024 12:30"]), "%d.%m.%Y %R", None, [datetime(2024, 3, 10, 12, 30)]),
        (pl.Series(["10.03.2024 12:30:15"]), "%d.%m.%Y %X", None, [NOON]),
        (pl.Series(["Sun Mar 10 12:30:15 2024"]), "%c", None, [NOON]),
        (pl.Series(["1710073815"]), "%s", None, [NOON]),
        (pl.Series(["10.03.2024 01 PM"]), "%d.%m.%Y %I %p", None, [datetime(2024, 3, 10, 13)]),
        (pl.Series(["10.03.2024  9", "10.03.2024 12"]), "%d.%m.%Y %k", None, [datetime(2024, 3, 10, 9), datetime(2024, 3, 10, 12)]),
        (pl.Series(["10.03.2024  1 PM"]), "%d.%m.%Y %l %p", None, [datetime(2024, 3, 10, 13)]),
        (pl.Series(["30 12 10.03.2024"]), "%M %H %d.%m.%Y", None, [datetime(2024, 3, 10, 12, 30)]),
        (pl.Series(["10.03.2024", "40.03.2024"]), "%d.%m.%Y", None, [datetime(2024, 3, 10), "bad"]),
    ],
)  # fmt: skip
def test_times(series, form, unit, expected):
    assert values(moment("x", series.dtype, form, unit), series) == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"kind": "time"}, ["12", None, "bad"]),
        ({"kind": "time", "part": "weekday"}, ["7", None, "bad"]),  # a Sunday
        ({"kind": "time", "part": "days_since", "since": "2024-03-08"}, [2 + (12 * 3600 + 30 * 60 + 15) / 86400, None, "bad"]),
    ],
)
def test_parts_of_times(entry, expected):
    assert of_recipe(entry, pl.Series(["2024-03-10 12:30:15", None, "noon"])) == expected


def test_cross_joins_its_columns_and_is_missing_if_one_is():
    entry = {"kind": "cross", "columns": ["x", "t"], "parts": [{"kind": "categorical", "column": "x"}, {"kind": "time", "column": "t"}]}
    frame = pl.DataFrame({"x": ["a", None, "b", "c"], "t": ["2024-03-10 12:30", "2024-03-10", "", "noon"]})
    found = made(recipe_of("c", entry, fitted=True), frame.schema)
    frame = frame.select(value=found.value, bad=found.bad)
    assert frame["value"].to_list() == ["a\x1f12", None, None, None] and frame["bad"].to_list() == [False, False, False, True]


@pytest.mark.parametrize(
    ("comparison", "series", "expected"),
    [
        (Comparison("x"), pl.Series(["1", "0", "Yes", " no ", "T", "f", "true", "FALSE", "y", "n", "1.0", "0.0"]), [True, False] * 6),
        (Comparison("x"), pl.Series([1, 0, 2, None]), [True, False, "bad", "bad"]),
        (Comparison("x"), pl.Series([1.0, 0.0, 0.5]), [True, False, "bad"]),
        (Comparison("x"), pl.Series([True, False]), [True, False]),
        (Comparison("x", ">=", 4.0), pl.Series([3, 4, 5, None]), [False, True, True, "bad"]),
        (Comparison("x", "<=", 4.0), pl.Series([3, 4, 5]), [True, True, False]),
        (Comparison("x", ">", 4.0), pl.Series([3, 4, 5]), [False, False, True]),
        (Comparison("x", "<", 4.0), pl.Series(["3", "4", "five", ""]), [True, False, "bad", "bad"]),
        (Comparison("x", "=", 4.0), pl.Series([3.0, 4.0, float("inf")]), [False, True, "bad"]),
        (Comparison("x", "!=", 4.0), pl.Series([3, 4]), [True, False]),
        (Comparison("x", "=", "buy"), pl.Series(["buy", "view", "", None]), [True, False, "bad", "bad"]),
        (Comparison("x", "!=", "buy"), pl.Series(["buy", "view"]), [False, True]),
    ],
)
def test_labels(comparison, series, expected):
    assert values(label(comparison, series.dtype), series) == expected


def test_groups_are_whole_numbers_or_hashes():
    texts = pl.Series(["12", "-3", "0", "007", "-0", "a", "", None, "99999999999999999999"])
    found = values(group("x", texts.dtype), texts)
    assert found[:3] == [12, -3, 0] and found[6:8] == ["bad", "bad"]
    others = [found[i] for i in (3, 4, 5, 8)]
    assert others == [value // 2 for value in hashed(pl.Series(["007", "-0", "a", "99999999999999999999"]))] and len(set(others)) == 4
    assert values(group("x", pl.Int64()), pl.Series([5, None])) == [5, "bad"]


def test_hashes_are_stable():
    assert hashed(pl.Series("x", ["a", None, "a", "ü"])).to_list() == [3405396810240292928, None, 3405396810240292928, hashed(pl.Series(["ü"]))[0]]
    assert hashed(pl.Series("x", [None], dtype=pl.String)).to_list() == [None]
