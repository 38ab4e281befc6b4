"""Tests of the features that move together, and of copies."""

import numpy as np
import pytest

from run.explain_units import Inputs, Places, Unit, copies_among, joined, joint_units, places_of, units_of
from training.features import ModelFeatures

FEATURES = ModelFeatures({"a": 50, "tags": 9, "b": 50}, ("x", "y"), {"tags": {"hotness": 3}})


def test_places_of_lists_and_numericals():
    assert places_of(FEATURES, ["y", "b"]) == Places([1], [4])
    assert places_of(FEATURES, ["tags", "a"]) == Places([], [0, 1, 2, 3])
    assert places_of(FEATURES, []) == Places([], [])


def test_values_of_a_list_move_as_a_whole():
    rows = joined(np.zeros((4, 2)), [np.arange(4), np.arange(12).reshape(4, 3), np.arange(4)])
    moved = rows.with_values(places_of(FEATURES, ["tags"]), rows.taken([1, 2, 3, 0]))
    np.testing.assert_array_equal(moved.ids[:, 1:4], rows.ids[[1, 2, 3, 0], 1:4])
    np.testing.assert_array_equal(moved.ids[:, [0, 4]], rows.ids[:, [0, 4]])
    assert [column.shape for column in rows.by_feature(FEATURES)] == [(4,), (4, 3), (4,)]
    assert joined(np.zeros((0, 2)), [np.zeros(0), np.zeros((0, 3)), np.zeros(0)]).ids.shape == (0, 5)


def units(transforms, names=("a", "tags", "b", "x", "y")):
    features = ModelFeatures({name: 9 for name in names if name not in "xy"}, tuple(name for name in names if name in "xy"))
    return units_of(features, transforms)


@pytest.mark.parametrize("transforms", [None, {}, "text", {"a": "hexadecimal", "x": "log"}, {"a": {"kind": "unheard of"}}])
def test_each_feature_moves_alone_where_no_columns_are_recorded(transforms):
    assert units(transforms) == [Unit(name, (name,)) for name in ("x", "y", "a", "tags", "b")]


def test_features_of_one_column_move_together():
    transforms = {
        "x": {"kind": "numerical", "column": "price"},
        "y": {"kind": "numerical"},
        "a": {"kind": "numerical", "column": "price", "buckets": 9},
        "tags": {"kind": "categorical", "column": "page"},
        "b": {"kind": "categorical"},
    }
    assert units(transforms) == [Unit("price", ("x", "a")), Unit("y", ("y",)), Unit("tags", ("tags",)), Unit("b", ("b",))]


def test_a_cross_moves_with_each_of_its_columns_and_by_itself():
    part = {"kind": "categorical"}
    cross = {"kind": "cross", "columns": ["a", "b"], "parts": [part | {"column": "a"}, part | {"column": "b"}]}
    found = units({"a": part, "b": part, "tags": cross, "x": {"kind": "numerical"}, "y": {"kind": "numerical"}})
    assert {unit.name: unit.features for unit in found} == {"x": ("x",), "y": ("y",), "a": ("a", "tags"), "b": ("tags", "b"), "tags": ("tags",)}
    alone = units({"tags": cross}, ("tags",))
    assert alone == [Unit("tags", ("tags",))]


def test_names_of_units_differ():
    """A column may have the name of another feature."""
    kind = {"kind": "categorical"}
    found = units({"a": kind | {"column": "tags"}, "b": kind | {"column": "tags"}, "tags": kind | {"column": "other"}}, ("a", "b", "tags"))
    assert found == [Unit("a + b", ("a", "b")), Unit("tags", ("tags",))]


COUNT = 4000


def found_copies(one, other, lists=False):
    """Return whether two features are found to be copies; floating-point values are numericals."""
    columns = {"one": np.asarray(one), "other": np.asarray(other)}
    numerical = tuple(name for name, values in columns.items() if values.dtype.kind == "f")
    features = ModelFeatures({name: 10**6 for name in columns if name not in numerical}, numerical, {"one": {"hotness": 3}} if lists else {})
    numbers = np.stack([columns[name] for name in numerical], axis=1) if numerical else np.zeros((len(one), 0))
    return [tuple(pair[:2]) for pair in copies_among(features, joined(numbers, [columns[name] for name in features.categorical]))]


def test_copies_are_found_under_other_ids_other_scales_and_in_lists():
    random = np.random.default_rng(1)
    ids = random.integers(0, 300, COUNT)
    assert found_copies(ids, random.permutation(300)[ids]) == [("one", "other")]
    values = random.gamma(1.0, size=COUNT)
    assert found_copies(values, np.log(values)) == [("one", "other")]
    assert found_copies(values, values) == [("one", "other")]
    lists = random.integers(0, 4, (COUNT, 3))
    codes = np.sort(lists, axis=1) @ [16, 4, 1]
    assert found_copies(lists, codes, lists=True) == [("one", "other")]
    few = random.integers(0, 5, COUNT)
    assert found_copies(few.astype(float), few) == [("one", "other")]


def test_what_only_resembles_is_no_copy():
    random = np.random.default_rng(2)
    ids = random.integers(0, 300, COUNT)
    assert found_copies(ids, np.where(random.random(COUNT) < 0.1, 0, ids)) == []
    assert found_copies(ids, random.integers(0, 300, COUNT)) == []
    assert found_copies(ids, ids % 50) == []
    assert found_copies(np.zeros(COUNT, int), np.zeros(COUNT, int)) == []
    assert found_copies(random.gamma(1.0, size=COUNT), random.gamma(1.0, size=COUNT)) == []


def test_features_with_a_value_for_each_row_are_copies_only_if_equal():
    random = np.random.default_rng(3)
    rows, other = random.permutation(COUNT), random.permutation(COUNT)
    assert found_copies(rows, other) == []
    assert found_copies(rows, rows) == [("one", "other")]
    nearly = random.integers(0, 40 * COUNT, COUNT)
    assert found_copies(nearly, random.integers(0, 40 * COUNT, COUNT)) == []


def test_copies_of_copies_are_one_joint_unit():
    features = ModelFeatures({name: 50 for name in "abcd"}, ())
    ids = np.random.default_rng(4).integers(0, 50, (COUNT, 2))
    pairs = copies_among(features, Inputs(np.zeros((COUNT, 0), np.float32), ids[:, [0, 0, 1, 0]].astype(np.int32)))
    assert [pair[:2] for pair in pairs] == [("a", "b"), ("a", "d"), ("b", "d")] and all(pair.information == pytest.approx(1) for pair in pairs)
    assert joint_units(pairs, units_of(features, None)) == [Unit("a + b + d", ("a", "b", "d"))]
    assert joint_units(pairs, [Unit("column", ("a", "b", "c", "d"))]) == []
