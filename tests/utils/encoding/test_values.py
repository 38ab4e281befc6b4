"""One text for each value, by the kind of its column; expected texts are worked out by hand."""

import datetime
from decimal import Decimal

import polars as pl
import pytest

from utils.encoding.kinds import Evidence, evidence
from utils.encoding.marks import marked
from utils.encoding.recipe import VALUES, recipe_of
from utils.encoding.times import iso_times
from utils.encoding.values import ValueKindError, texts_of

DAY, MOMENT = datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3, 4, 5, 600)
TYPES = {"Int8": pl.Int8, "UInt64": pl.UInt64, "Float32": pl.Float32, "ns": pl.Datetime("ns"), "ms": pl.Datetime("ms")}


def marks(values, dtype=None) -> pl.Series:
    series = pl.Series("c", values, dtype=TYPES.get(dtype))
    return series.to_frame().select(marked(pl.col("c"), series.dtype, "c")).to_series()


def texts(kind, values, dtype=None):
    return texts_of(recipe_of("f", {"kind": "categorical", "values": kind}, fitted=True), marks(values, dtype)).to_list()


def text(kind, value, dtype=None):
    return texts(kind, [value], dtype)[0]


def test_whole_numbers_beyond_float32_precision_are_errors():
    assert text("float32", 2**24 - 1) == "16777215" and text("float32", 1 - 2**24) == "-16777215"
    for value in (2**24, -(2**24)):
        with pytest.raises(ValueKindError, match="cannot tell whole numbers of this size apart"):
            text("float32", value)


@pytest.mark.parametrize(
    ("kind", "value", "dtype", "expected"),
    [
        ("text", "a\r\nb", None, "a\nb"),
        ("text", "a\rb", None, "a\rb"),
        ("text", "33.0", None, "33.0"),
        ("text", "", None, None),
        ("integer", 33, "Int8", "33"),
        ("integer", 2**64 - 1, "UInt64", "18446744073709551615"),
        ("integer", 33.0, None, "33"),
        ("integer", 33.0, "Float32", "33"),
        ("integer", -0.0, None, "0"),
        ("integer", 33.5, None, "33.5"),
        ("integer", Decimal("33.00"), None, "33"),
        ("integer", "33.0", None, "33"),
        ("integer", "-033.", None, "-33"),
        ("integer", "18446744073709551616.0", None, "18446744073709551616"),
        ("integer", "33.50", None, "33.5"),
        ("integer", "x33", None, "x33"),
        ("integer", "NaN", None, None),
        ("float", 0.1, None, "0.1"),
        ("float", "1e-7", None, "1e-07"),
        ("float", "0.0000001", None, "1e-07"),
        ("float", 1e-7, None, "1e-07"),
        ("float", 1e16, None, "1e+16"),
        ("float", "1E16", None, "1e+16"),
        ("float", 33, "Int8", "33"),
        ("float", 0.5, "Float32", "0.5"),
        ("float", float("nan"), None, None),
        ("float", float("inf"), None, "inf"),
        ("float32", 0.1, "Float32", "0.1"),
        ("float32", 0.1, None, "0.1"),
        ("float32", 0.10000000149011612, None, "0.1"),
        ("float32", "0.1", None, "0.1"),
        ("float32", 16777216.0, "Float32", "16777216"),
        ("decimal", Decimal("1.50"), None, "1.5"),
        ("decimal", "1.50", None, "1.5"),
        ("decimal", 1.5, None, "1.5"),
        ("decimal", "1e-7", None, "0.0000001"),
        ("decimal", "-0.0", None, "0"),
        ("boolean", True, None, "true"),
        ("boolean", "TRUE", None, "true"),
        ("boolean", "False", None, "false"),
        ("boolean", "maybe", None, "maybe"),
        ("date", DAY, None, "2024-01-02"),
        ("date", datetime.datetime(2024, 1, 2), "ns", "2024-01-02"),
        ("date", "2024-01-02T00:00:00Z", None, "2024-01-02"),
        ("date", "2024-01-02 03:04", None, "2024-01-02 03:04"),
        ("datetime", MOMENT, None, "2024-01-02 03:04:05.0006"),
        ("datetime", MOMENT, "ns", "2024-01-02 03:04:05.0006"),
        ("datetime", MOMENT, "ms", "2024-01-02 03:04:05"),
        ("datetime", MOMENT.replace(microsecond=0, tzinfo=datetime.timezone(datetime.timedelta(hours=3))), None, "2024-01-02 00:04:05"),
        ("datetime", DAY, None, "2024-01-02 00:00:00"),
        ("datetime", "2024-01-02T03:04:05.000600-00:30", None, "2024-01-02 03:34:05.0006"),
        ("datetime", "yesterday", None, "yesterday"),
    ],
)
def test_canonical_text_of_a_value(kind, value, dtype, expected):
    assert text(kind, value, dtype) == expected
    if expected is not None:
        assert text(kind, expected) == expected  # the text of a text is the same text
    assert texts(kind, [value, None] * 40, dtype) == [expected, None] * 40  # Polars converts many texts, Python few


@pytest.mark.parametrize(
    ("kind", "value", "dtype", "message"),
    [
        ("text", 7, None, "'7' is from a column of whole numbers, expected texts, as in the vocabulary: texts can write this value"),
        ("text", 7.0, None, "'7.0' is from a column of floats of 64 bits"),
        ("text", True, None, "'true' is from a column of booleans"),
        ("integer", True, None, "'true' is from a column of booleans, expected whole numbers"),
        ("integer", 2.0**53, None, "a float cannot tell whole numbers of this size apart"),
        ("integer", 0.1, "Float32", "'0.1' is from a column of floats of 32 bits, expected whole numbers"),
        ("float", 0.1, "Float32", "'0.1' is from a column of floats of 32 bits, expected floats of 64 bits, as in the vocabulary: the 32-bit float"),
        ("float", 2**53, None, "'9007199254740992' is from a column of whole numbers, expected floats of 64 bits"),
        ("float32", 2**24, None, "'16777216' is from a column of whole numbers, expected floats of 32 bits"),
        ("decimal", 0.1, "Float32", "'0.1' is from a column of floats of 32 bits, expected decimal numbers"),
        ("boolean", 1, None, "'1' is from a column of whole numbers, expected booleans"),
        ("date", MOMENT, None, "'2024-01-02 03:04:05.000600' is from a column of times, expected dates, as in the vocabulary: the value has a time"),
        ("date", 20240102, None, "'20240102' is from a column of whole numbers, expected dates"),
        ("datetime", 1.5, None, "'1.5' is from a column of floats of 64 bits, expected times"),
    ],
)
def test_ambiguous_value_is_an_error(kind, value, dtype, message):
    for values in ([value], [None, value] * 40):
        with pytest.raises(ValueKindError) as raised:
            texts(kind, values, dtype)
        assert str(raised.value).startswith(message) or str(raised.value).endswith(message)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (["1", "-20", "0"], None, "integer"),
        (["1", "007"], None, "text"),
        (["1", "-0"], None, "float"),
        (["1", "2.5"], None, "float"),
        (["33.0", "7.0"], None, "float"),
        (["1.1", "1.10"], None, "text"),  # versions of software, for example: 1.1 and 1.10 differ
        (["1e5", "2e7"], None, "text"),  # hexadecimal digits, for example
        (["0.5", "1e-07", "1e+16"], None, "float"),
        (["0.5", "12345678901234567890"], None, "text"),
        (["12345678901234567890"], None, "integer"),
        (["True", "false"], None, "boolean"),
        (["true", "1"], None, "text"),
        (["2024-01-02"], None, "date"),
        (["2024-01-02", "2024-01-02T03:04:05+01:00"], None, "datetime"),
        (["2024-01-32"], None, "text"),
        (["a"], None, "text"),
        ([None, ""], None, None),
        ([1, None], None, "integer"),
        ([1.0], None, "float"),
        ([1.0], "Float32", "float32"),
        ([Decimal("1.0")], None, "decimal"),
        ([True], None, "boolean"),
        ([DAY], None, "date"),
        ([MOMENT], "ns", "datetime"),
    ],
)
def test_inferred_kind_of_values(values, dtype, expected):
    assert evidence(marks(values, dtype)).kind == expected


def of(*columns) -> Evidence:
    together = Evidence()
    for values in columns:
        together = together.joined(evidence(marks(*values)))
    return together


def test_inferred_kind_of_columns_of_mixed_types():
    assert of(([1],), ([2.0],), (["3"],), ([4.0], "Float32")).kind == "float"
    assert of(([1],), (["2.5"],)).kind == "float"
    assert of(([1],), ([Decimal("2.5")],), (["3"],)).kind == "decimal"
    assert of(([1],), ([0.5], "Float32")).kind == "float32"
    assert of(([DAY],), ([MOMENT],)).kind == of(([DAY],), (["2024-01-02 03:04"],)).kind == "datetime"
    assert of(([True],), (["False"],)).kind == "boolean"
    for columns in [([1],), (["a"],)], [([True],), ([1],)], [([DAY],), (["soon"],)], [([1],), (["007"],)]:
        with pytest.raises(ValueError, match="are not of one kind; use one type for it in all files"):
            _ = of(*columns).kind


def test_every_kind_has_a_rule_and_is_accepted_in_fitted_recipes():
    for kind in VALUES:
        assert text(kind, "a") == "a"
    with pytest.raises(ValueError, match="values is 'number', expected one of text, integer"):
        recipe_of("f", {"kind": "categorical", "values": "number"}, fitted=True)
    with pytest.raises(ValueError, match="option 'values' is unknown"):
        recipe_of("f", {"kind": "categorical", "values": "text"})


UTC = {
    "2024-03-10T02:30:00-08:00": "2024-03-10 10:30:00",
    "2024-03-10 02:30:00+0530": "2024-03-09 21:00:00",
    "2024-03-10T02:30:00.25Z": "2024-03-10 02:30:00.250000",
    "2024-03-10t02:30z": "2024-03-10 02:30:00",
    "2024-03-10T02:30+05": "2024-03-09 21:30:00",
    "2024-03-10T02:30:00-00:30": "2024-03-10 03:00:00",
    "2024-03-10 02:30:00 +00:00": "2024-03-10 02:30:00",
    "2024-03-10T02:30:00": "2024-03-10 02:30:00",
    "2024-03-10": "2024-03-10 00:00:00",
}
NO_TIMES = ["2024-03-10-08:00", "2024-03-10T02:30:00+25:00", "2024-03-10T02:30:00+05:61", "2024-03-10T02:30:00+5", "2024-03-10T02-08", "soon"]
NO_TIMES += ["2024-02-30T01:00:00Z", "0001-01-01T00:00:00+08:00", "9999-12-31T23:59:59-08:00"]


def test_times_with_offsets():
    found = pl.DataFrame({"t": [*UTC, *NO_TIMES, None]}).select(iso_times(pl.col("t"))).to_series()
    assert [value and str(value) for value in found.to_list()] == [*UTC.values(), *([None] * (len(NO_TIMES) + 1))]


LOCAL = ["2024-03-10 02:30:00.25", "2024-03-10t02:30", "0001-01-01", "9999-12-31T23:59:59"]


@pytest.mark.parametrize("texts", [LOCAL, [*LOCAL, None], [*LOCAL, "10000-01-01 00:00"], [*LOCAL, "2024-03-10T02:30Z"], [None], []])
def test_times_do_not_depend_on_the_others_of_their_column(texts):
    def alone(text):
        return pl.DataFrame({"t": pl.Series([text], dtype=pl.String)}).select(iso_times(pl.col("t"))).item()

    column = pl.DataFrame({"t": pl.Series(texts, dtype=pl.String)}).lazy()
    for frame in (column, pl.concat([column, column.slice(1)], rechunk=False)):
        texts = frame.collect()["t"].to_list()
        found = frame.select(iso_times(pl.col("t")))
        assert found.collect_schema()["t"] == pl.Datetime("us")
        assert found.collect()["t"].to_list() == found.collect(engine="streaming")["t"].to_list() == [text and alone(text) for text in texts]


@pytest.mark.parametrize(("last", "kind", "plain"), [("a", "text", True), ("7", "integer", True), ("7\r\n7", "text", False), (None, "integer", True)])
def test_the_last_of_many_texts_counts(last, kind, plain):
    numbers = pl.Series([*map(str, range(100)), last], dtype=pl.String)
    assert (evidence(numbers).kind, evidence(numbers).plain) == (kind, plain)
    assert evidence(numbers.reverse()).kind == kind
    assert Evidence().joined(evidence(numbers)).joined(evidence(numbers.head(5))).plain == plain


def test_texts_with_a_mark_are_not_plain():
    found = evidence(pl.concat([pl.Series(["a"] * 100), marks([1])]))
    assert not found.plain
    with pytest.raises(ValueError, match="whole numbers and other texts"):
        found.kind  # noqa: B018
