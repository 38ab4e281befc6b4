"""Metrics by the values of a feature, on tiny datasets whose groups are known."""

import numpy as np
import polars as pl
import pytest
from drawn_rows import write_dataset, write_predictions, write_vocabulary
from hypothesis import given
from hypothesis import strategies as st

from report.rows import dataset as rows_dataset
from report.rows.dataset import most_frequent
from report.rows.predictions import by_value, read_predictions
from utils.errors import UserError


def shown(found):
    return {one.value: (one.rows, one.positives) for one in found.values}


@pytest.fixture
def given_rows(tmp_path):
    """Return a function that writes a dataset and predictions of its test rows, and returns both."""

    def write(columns, labels, scores=None, rows=None, **about):
        count = len(labels)
        scores = np.linspace(0.1, 0.9, count) if scores is None else scores
        train = {name: np.asarray(values)[:1] for name, values in columns.items()} | {"label": [0]}
        folder = write_dataset(tmp_path / "d", {"train": train, "test": columns | {"label": labels}}, **about)
        path = write_predictions(tmp_path / "p.parquet", scores, labels, rows)
        return read_predictions(path), folder

    return write


def test_rows_are_counted_by_id(given_rows):
    found = by_value(*given_rows({"a": [3, 1, 3, 2, 3, 1]}, [1, 0, 0, 1, 1, 0], cardinalities={"a": 5}), "a")
    assert list(shown(found).items()) == [("id 3", (3, 2)), ("id 1", (2, 0)), ("id 2", (1, 1))]
    assert (found.split, found.kind, found.overlap, found.whole.rows) == ("test", "categorical", False, 6)
    three = found.values[0]  # probabilities 0.1, 0.42 and 0.74 of labels 1, 0 and 1
    assert three.auc.value == 0.5 and three.mean_prediction == pytest.approx(0.42)
    assert three.log_loss.value == pytest.approx(-(np.log(0.1) + np.log(0.58) + np.log(0.74)) / 3)


def test_twenty_values_stand_alone(given_rows):
    ids = np.repeat(np.arange(30), np.arange(31, 1, -1))
    labels = np.arange(len(ids)) % 2
    found = by_value(*given_rows({"a": ids}, labels, cardinalities={"a": 40}), "a")
    assert [one.value for one in found.values] == [*(f"id {k}" for k in range(20)), "(10 other values)"]
    assert [one.rows for one in found.values] == [*range(31, 11, -1), sum(range(2, 12))]
    assert found.note == "the 20 most frequent of 30 values"


def test_values_are_named_by_the_vocabulary(given_rows):
    predictions, folder = given_rows({"a": [0, 1, 2, 2, 0, 3]}, [1, 0, 1, 0, 1, 0], cardinalities={"a": 5})
    write_vocabulary(folder, "a", ["<script>alert(1)</script>", "b\x1fc"])
    found = shown(by_value(predictions, folder, "a"))
    assert found == {"b\x1fc".replace("\x1f", ", "): (2, 1), "<script>alert(1)</script>": (1, 0), "id 3": (1, 0), "(missing or unknown)": (2, 2)}


def test_criteos_values_are_hexadecimal(given_rows):
    about = {"cardinalities": {"a": 3}, "metadata": {"transforms": {"a": "hexadecimal"}}}
    predictions, folder = given_rows({"a": [1, 2, 0]}, [1, 0, 1], **about)
    write_vocabulary(folder, "a", pl.Series([0x05DB9164, 255], dtype=pl.UInt32))
    assert set(shown(by_value(predictions, folder, "a"))) == {"05db9164", "000000ff", "(missing or unknown)"}


def test_buckets_are_named_by_their_ranges(given_rows):
    recipe = {"kind": "numerical", "column": "age", "buckets": 3, "boundaries": [18.0, 65.0]}
    about = {"cardinalities": {"age": 4}, "metadata": {"transforms": {"age": recipe}}}
    found = by_value(*given_rows({"age": [0, 1, 2, 3, 3, 2, 2]}, [1, 0, 1, 0, 1, 0, 0], **about), "age")
    assert shown(found) == {"18 to below 65": (3, 1), "65 or more": (2, 1), "below 18": (1, 0), "(missing)": (1, 1)}


def test_rows_of_lists_count_for_each_value(given_rows):
    lists = [[1, 2, -1], [2, 2, 1], [-1, -1, -1], [0, -1, -1], [-1, -1, 2]]
    found = by_value(*given_rows({"a": lists}, [1, 0, 1, 0, 1], cardinalities={"a": 4}, hotness={"a": 3}), "a")
    assert shown(found) == {"id 2": (3, 2), "id 1": (2, 1), "id 0": (1, 0), "(no id)": (1, 1)}
    assert found.overlap and "each value in its list" in found.note


def test_ids_out_of_range_are_a_group(given_rows):
    predictions, folder = given_rows({"a": [0, 1, 1, 0]}, [1, 0, 1, 0], cardinalities={"a": 100})
    (folder / "test/a.bin").write_bytes(np.array([0, 101, -3, 0], np.int8).tobytes())
    assert shown(by_value(predictions, folder, "a")) == {"id 0": (2, 1), "(out of range)": (2, 1)}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numbers_are_grouped_in_ten_ranges(given_rows, dtype):
    values = np.random.default_rng(0).permutation(100)
    found = by_value(*given_rows({"n": values}, values < 30, cardinalities={}, numerical=["n"], numerical_dtype=dtype), "n")
    expected = {f"{10 * k} to {10 * k + 9}": (10, 10 if k < 3 else 0) for k in range(10)}
    assert list(shown(found).items()) == list(expected.items()) and found.kind == "numerical"


def test_frequent_number_is_a_range_of_its_own(given_rows):
    found = by_value(*given_rows({"n": [0.0] * 80 + [*range(1, 21)]}, np.arange(100) % 2, cardinalities={}, numerical=["n"]), "n")
    assert list(shown(found).items()) == [("0", (80, 40)), ("1 to 10", (10, 5)), ("11 to 20", (10, 5))]


def test_numbers_that_are_not_finite_are_a_group(given_rows):
    found = by_value(*given_rows({"n": [np.nan, 1, np.inf, -np.inf, 2]}, [1, 0, 1, 0, 1], cardinalities={}, numerical=["n"]), "n")
    assert shown(found) == {"1": (1, 0), "2": (1, 1), "(not finite)": (3, 2)}
    nothing = by_value(*given_rows({"n": [np.nan] * 3}, [1, 0, 1], cardinalities={}, numerical=["n"]), "n")
    assert shown(nothing) == {"(not finite)": (3, 2)}


@pytest.mark.parametrize(
    ("transform", "stored", "name"),
    [
        ({"kind": "numerical", "transform": "standardise", "mean": 50.0, "std": 10.0}, -1.5, "35"),
        ({"kind": "numerical", "transform": "log1p"}, np.log1p(99), "99"),
        ({"kind": "numerical", "transform": "log1p"}, -np.log1p(99), "-99"),
        ({"kind": "numerical", "transform": "log"}, np.log(10), "7"),
        ({"kind": "numerical", "transform": "none"}, 4.5, "4.5"),
        ("log", np.log(10), "7"),
        ("none", 4.5, "4.5"),
        ({"kind": "of another program"}, 4.5, "4.5"),
    ],
)
def test_ranges_are_in_the_columns_own_unit(given_rows, transform, stored, name):
    about = {"cardinalities": {}, "numerical": ["n"], "metadata": {"transforms": {"n": transform}}}
    assert set(shown(by_value(*given_rows({"n": [stored] * 2}, [0, 1], **about), "n"))) == {name}


def test_blocks_do_not_change_the_groups(given_rows, monkeypatch):
    draw = np.random.default_rng(3)
    columns = {"a": draw.integers(0, 60, 500), "b": draw.integers(-1, 9, (500, 4)), "n": draw.normal(size=500), "m": draw.normal(size=500)}
    about = {"cardinalities": {"a": 70, "b": 9}, "hotness": {"b": 4}, "numerical": ["n", "m"]}
    predictions, folder = given_rows(columns, draw.integers(0, 2, 500), **about)
    whole = [by_value(predictions, folder, name) for name in "abnm"]
    monkeypatch.setattr(rows_dataset, "BLOCK_BYTES", 64)
    monkeypatch.setattr(rows_dataset, "_BLOCK", 7)
    assert [by_value(predictions, folder, name) for name in "abnm"] == whole
    assert sum(one.rows for one in whole[0].values) == sum(one.rows for one in whole[2].values) == 500


def test_some_rows_in_any_order_are_found_by_their_numbers(given_rows, tmp_path):
    draw = np.random.default_rng(3)
    ids, labels = draw.integers(0, 5, 200), draw.integers(0, 2, 200)
    _, folder = given_rows({"a": ids}, labels, cardinalities={"a": 5})
    rows = draw.permutation(200)[:60]
    found = by_value(read_predictions(write_predictions(tmp_path / "some.parquet", draw.random(60), labels[rows], rows)), folder, "a")
    assert shown(found) == {f"id {k}": (np.sum(ids[rows] == k), np.sum(labels[rows][ids[rows] == k])) for k in range(5)}


def test_the_split_is_found_by_its_rows_and_labels(tmp_path):
    splits = {name: {"a": np.full(6, k), "label": np.arange(6) % (k + 2) == 0} for k, name in enumerate(("train", "valid", "test"))}
    folder = write_dataset(tmp_path / "d", splits, cardinalities={"a": 3})
    for name, columns in splits.items():
        found = by_value(read_predictions(write_predictions(tmp_path / "p", np.full(6, 0.5), columns["label"])), folder, "a")
        assert found.split == name and set(shown(found)) == {f"id {columns['a'][0]}"}


@pytest.mark.parametrize(
    ("labels", "rows", "feature", "line"),
    [
        ([1, 0], None, "a", r"no split has the 2 rows and labels .*found: test 3 rows, train 1 rows"),
        ([1, 1, 1], None, "a", r"found: test 3 rows \(other labels\)"),
        ([0, 1], [2, 9], "a", "no split has the 2 rows"),
        ([0, 1, 0], None, "b", r"--by b: .* has no such feature; features: a, <script>"),
        ([0, 1, 0], None, "label", "has no such feature"),
    ],
)
def test_what_does_not_fit_is_one_line(given_rows, tmp_path, labels, rows, feature, line):
    _, folder = given_rows({"a": [0, 1, 2], "<script>": [0, 0, 1]}, [0, 1, 0], cardinalities={"a": 3, "<script>": 2})
    predictions = read_predictions(write_predictions(tmp_path / "other.parquet", np.full(len(labels), 0.5), labels, rows))
    with pytest.raises(UserError, match=line) as found:
        by_value(predictions, folder, feature)
    assert "\n" not in str(found.value)


def test_feature_of_any_name_is_found(given_rows):
    name = "<script>alert(1)"
    found = by_value(*given_rows({name: [0, 1, 1]}, [0, 1, 0], cardinalities={name: 2}), name)
    assert found.feature == name and shown(found) == {"id 1": (2, 1), "id 0": (1, 0)}


def test_damaged_vocabulary_is_one_line(given_rows):
    predictions, folder = given_rows({"a": [0, 1, 1]}, [0, 1, 0], cardinalities={"a": 2})
    (folder / "vocabulary").mkdir()
    (folder / "vocabulary/a.parquet").write_text("value,id\n")
    with pytest.raises(UserError, match=r"a\.parquet: cannot be read as a vocabulary"):
        by_value(predictions, folder, "a")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 9))
def test_most_frequent_are_those_of_a_sort(counts, wanted):
    expected = sorted((k for k, count in enumerate(counts) if count), key=lambda k: (-counts[k], k))[:wanted]
    assert most_frequent(np.array(counts, np.uint32), wanted).tolist() == expected
