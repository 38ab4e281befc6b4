"""Values in memory, of any type that a caller may have, converted to a model's inputs; and ids by a vocabulary or a hash."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from utils.encoding.conversions import Conversions
from utils.encoding.ids import TextLookup, hashed_ids, padded
from utils.encoding.raw import VocabularyLookup, hexadecimal, lists_of, series_of, transformed, whole_number


def converted(make, values) -> pl.Series:
    return Conversions({"x": ("x",)}, lambda name, types: make(name, types[name])).values(series_of("x", values).to_frame())["x"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, None, -4], [3, None, -4]),
        (["3", "", None, "-4"], [3, None, None, -4]),
        ([3.0, float("nan"), None], [3, None, None]),
        (np.array([3, 4], np.int8), [3, 4]),
        (np.array([3.0, np.nan], np.float32), [3, None]),
        (np.ma.array([3, 4], mask=[False, True]), [3, None]),
        (pl.Series(["3", None], dtype=pl.Categorical), [3, None]),
        (pl.Series([3, None]), [3, None]),
        (pandas.Series([3, None], dtype="Int64").array, [3, None]),
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_whole_numbers(values, expected):
    found = converted(whole_number, values)
    assert found.to_list() == expected and found.dtype == pl.Int64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["3", "4.5"], "feature x: value '4.5' of sample 1, expected a whole number of 64 bits, or nothing"),
        ([1.0, 2.5], "feature x: value 2.5 of sample 1, expected a whole number"),
        (["1", "2", "99999999999999999999"], "of sample 2, expected"),
        (["+3"], "value '\\+3' of sample 0"),
        ([True], "feature x: holds Boolean, expected whole numbers, as in the log"),
        ([[1], [2]], "expected"),
        (np.zeros((2, 2)), r"feature x: has shape \[2, 2\], expected \[B\]"),
        (["a", 3], "feature x: mixes types"),
    ],
)
def test_other_values_are_rejected_as_whole_numbers(values, message):
    with pytest.raises(ValueError, match=message):
        converted(whole_number, values)


def test_series_have_the_features_name_and_null_for_missing_values():
    for values in ([1.5, None, float("nan")], np.array([1.5, np.nan, np.nan]), pl.Series("other", [1.5, None, float("nan")])):
        found = series_of("x", values)
        assert found.name == "x" and found.to_list() == [1.5, None, None]
    assert series_of("x", [pandas.NA, pandas.NaT, "a"]).to_list() == [None, None, "a"]
    for nothing in ([float("nan")], [None, float("nan")], [None], [pandas.NA, float("nan")]):
        assert series_of("x", nothing).dtype == pl.Null, "missing values alone are of no type: a column of texts may hold them"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([["a", None, "b"], None, []], [["a", None, "b"], None, []]),
        (["a|b", None, ""], ["a|b", None, ""]),
        ([None, float("nan")], [None, None]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1, 2]), [1, 2]),
        ([[1.5, float("nan")], (2.5,)], [[1.5, None], [2.5]]),
        (pl.Series("other", [["a"]]), [["a"]]),
    ],
)
def test_lists(values, expected):
    found = lists_of("x", values)
    assert found.name == "x" and found.to_list() == expected


def test_lists_of_missing_values_are_texts():
    assert lists_of("x", [None, "a"]).dtype == pl.String and lists_of("x", [None, None]).dtype == pl.String


@pytest.mark.parametrize("values", [[[1, 2], [0.5]], [[np.int8(1), 2.0], (0.5,)], [np.array([1, 2]), np.array([0.5])]])
def test_whole_numbers_and_decimals_in_lists_are_decimals(values):
    """Polars takes the type of the first list for all, and 0.5 for 0."""
    assert lists_of("x", values).to_list() == [[1.0, 2.0], [0.5]]


def test_single_numbers_are_allowed_on_request():
    assert lists_of("x", [0.5, None, 2.0], single=True).to_list() == lists_of("x", np.array([0.5, np.nan, 2.0])).to_list() == [0.5, None, 2.0]


@pytest.mark.parametrize("values", [[["a"], "b"], [3, "b"], [[True], [2]], [["1"], [1]], [[np.float32(0.1)], [0.1]], [[10**50]]])
def test_mixed_types_are_rejected(values):
    with pytest.raises(ValueError, match="feature x: mixes types; expected a list of texts or numbers for each sample, or a text"):
        lists_of("x", values)


def test_transforms_match_the_dataset():
    frame = pl.DataFrame({"a": [0, None, 65504]}, schema={"a": pl.Int64})
    assert_array_equal(transformed(frame, "none"), np.array([[0], [0], [65504]], np.float16))
    assert_array_equal(transformed(frame, "log")[:2], np.log([[3], [1]]).astype(np.float16))
    with pytest.raises(ValueError, match="feature a: value 65505 of sample 1 is out of the range of float16, ±65504"):
        transformed(pl.DataFrame({"a": [0, 65505]}), "none")


def test_hexadecimal_texts():
    found = converted(hexadecimal, ["0", "ff", "FFFFFFFF", "", None])
    assert found.to_list() == [0, 255, 2**32 - 1, None, None] and found.dtype == pl.UInt32
    assert converted(hexadecimal, [None]).to_list() == [None] and converted(hexadecimal, [float("nan")]).to_list() == [None]
    for bad in ("g", "123456789", "0x1", " 1"):
        with pytest.raises(ValueError, match=f"feature x: value '{bad}' of sample 1, expected up to 8 hexadecimal digits, or nothing"):
            converted(hexadecimal, ["1", bad])
    with pytest.raises(ValueError, match="feature x: holds Int64, expected texts of up to 8 hexadecimal digits"):
        converted(hexadecimal, [1])


def test_all_features_are_converted_by_one_query_whatever_types_come():
    made_for = []

    def make(name, types):
        made_for.append(types[name])
        return (whole_number if name == "x" else hexadecimal)(name, types[name])

    conversions = Conversions({"x": ("x",), "y": ("y",)}, make)
    for x in ([1, 2], ["3", None], [4.0, 5.0], [6, 7], [8, 9]):
        found = conversions.values(pl.DataFrame({"x": x, "y": ["a", "10"]}))
        assert found["x"].to_list() == [None if value is None else int(value) for value in x] and found["y"].to_list() == [10, 16]
    assert made_for == [pl.Int64, pl.String, pl.String, pl.Float64], "once for each feature and type"
    with pytest.raises(ValueError, match="feature y: value 'g' of sample 1, expected up to 8 hexadecimal digits, or nothing"):
        conversions.values(pl.DataFrame({"x": [1, 2], "y": ["a", "g"]}))
    with pytest.raises(ValueError, match="feature x: holds Boolean"):
        conversions.values(pl.DataFrame({"x": [True, False], "y": ["a", "b"]}))
    assert conversions.values(pl.DataFrame({"x": [1], "y": ["f"]}))["y"].to_list() == [15]


def test_conversions_are_shared_by_threads_whose_columns_differ():
    conversions = Conversions({"x": ("x",), "y": ("y",)}, lambda name, types: (whole_number if name == "x" else hexadecimal)(name, types[name]))

    def ask(place: int) -> bool:
        x = ([place, None], [str(place), ""], [float(place), None])[place % 3]
        found = conversions.values(pl.DataFrame({"x": x, "y": [f"{place:x}", None]}))
        return found["x"].to_list() == found["y"].to_list() == [place, None]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(600)))


def test_ids_of_numbers():
    lookup = VocabularyLookup(pl.DataFrame({"value": pl.Series([7, 0, 300], dtype=pl.UInt32), "id": pl.Series([1, 2, 3], dtype=pl.Int32)}))
    found = lookup.ids(pl.Series([300, 0, 7, 8, 2**32 - 1, None], dtype=pl.UInt32))
    assert found.dtype == np.int32 and found.tolist() == [3, 2, 1, 0, 0, 0]
    assert lookup.ids(pl.Series([0, 300], dtype=pl.UInt32)).tolist() == [2, 3] and lookup.ids(pl.Series([None], dtype=pl.UInt32)).tolist() == [0]
    without = VocabularyLookup(pl.DataFrame({"value": [], "id": []}, schema={"value": pl.UInt32, "id": pl.Int32}))
    assert without.ids(pl.Series([1, None], dtype=pl.UInt32)).tolist() == [0, 0]


def test_ids_of_texts():
    lookup = TextLookup(pl.DataFrame({"value": ["b", "a", "ü"], "id": pl.Series([1, 2, 3], dtype=pl.Int32)}))
    found = lookup.ids(pl.Series(["ü", "a", "b", "c", "", None, "zz"]))
    assert found.dtype == np.int32 and found.tolist() == [3, 2, 1, 0, 0, 0, 0]
    assert lookup.ids(pl.Series([], dtype=pl.String)).tolist() == []
    without = TextLookup(pl.DataFrame({"value": [], "id": []}, schema={"value": pl.String, "id": pl.Int32}))
    assert without.ids(pl.Series(["a", None])).tolist() == [0, 0]


def test_few_texts_have_the_ids_that_they_have_among_many():
    """Python looks few texts up, Polars many: both order texts by their bytes."""
    starts = "aZé\uffff\U0001f600"
    texts = [f"{starts[place % 5]}{place // 7}" for place in range(300)]
    lookup = TextLookup(pl.DataFrame({"value": pl.Series(texts[::2]).unique(), "id": np.arange(1, 1 + len({*texts[::2]}), dtype=np.int32)}))
    wanted = pl.Series([*texts, None, "", "\U0010ffff"])
    many = lookup.ids(wanted)
    assert (many > 0).sum() > 50 and (many == 0).sum() > 50
    for few in (1, 3, 64):
        assert np.concatenate([lookup.ids(wanted[start : start + few]) for start in range(0, len(wanted), few)]).tolist() == many.tolist()


def test_hashed_ids_are_stable():
    found = hashed_ids(pl.Series(["a", "b", None, "a"]), 5)
    assert found.dtype == np.int32 and found.tolist() == [3405396810240292928 % 5 + 1, found[1], 0, found[0]]
    many = hashed_ids(pl.Series([str(i) for i in range(500)]), 3)
    assert set(many) == {1, 2, 3}
    assert [hashed_ids(pl.Series([str(i), None]), 3).tolist() for i in range(500)] == [[one, 0] for one in many.tolist()]


def test_lists_of_ids_are_padded_to_rows():
    ids, lengths = np.array([5, 6, 7, 8]), np.array([2, 0, 1, 1])
    assert padded(ids, lengths, 3).tolist() == [[5, 6, -1], [-1, -1, -1], [7, -1, -1], [8, -1, -1]]
    assert padded(ids[:3], np.array([1, 0, 1, 1]), 1).tolist() == [5, 0, 6, 7]
