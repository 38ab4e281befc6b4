"""Every kind of column, worked out by hand on a table of a dozen rows."""

import hashlib
import math

import pytest
from numpy.testing import assert_allclose

from dataloading.features import DatasetError
from tests.helpers.datasets import read_yaml
from tests.helpers.errors import refused
from tests.preproc.table.tables import make

# shop: rome 5 times, oslo 3, "a,b" twice, paris once, missing once.
TRAIN = """\
shop,price,tags,when,user,clicked
rome,1,x|y,2024-01-01 00:10:00,7,1
oslo,3,,2024-01-01 13:00:00,7,0
rome,,y,2024-01-02 13:59:59,8,0
"a,b",5,y|x|y,2024-01-07 23:00:00,9,1
rome,2,z,2024-01-01,7,0
oslo,4,x,2024-01-03T01:02:03Z,7,0
,6,y|,2024-01-01 00:00,8,0
paris,8,|,,9,1
rome,7,x,2024-01-01 00:10:00,7,0
"a,b",10,x,2024-01-01 00:10:00,7,0
oslo,9,x,2024-01-01 00:10:00,7,0
rome,,q,2024-01-01 00:10:00,8,1
"""
TEST = """\
clicked,user,when,tags,price,shop
1,3,2024-01-08 13:00:00,q|new|x,100,rome
0,7,,,-1,lima
"""


def of(tmp_path, features, **sections):
    """Make the dataset of these features from TRAIN and TEST."""
    return make(tmp_path, TRAIN, TEST, config={"label": "clicked", "features": {"shop": "categorical"} | features} | sections)


def test_categorical_ids_by_frequency_then_value(tmp_path):
    made = of(tmp_path, {"shop": {"kind": "categorical"}})
    assert made.vocabulary("shop") == [("rome", 1, 5), ("oslo", 2, 3), ("a,b", 3, 2), ("paris", 4, 1)]
    assert made["train"]["shop"] == [1, 2, 1, 3, 1, 2, 0, 4, 1, 3, 2, 1]
    assert made["test"]["shop"] == [1, 0]  # lima is unknown; test rows are not fitted on
    assert made["train"]["label"] == [1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert made["test"]["label"] == [1, 0]
    assert made.spec.cardinalities == (5,)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"frequency_threshold": 2}, ["rome", "oslo", "a,b"]),
        ({"frequency_threshold": 3}, ["rome", "oslo"]),
        ({"max_ids": 1}, ["rome"]),
        ({"frequency_threshold": 2, "max_ids": 2}, ["rome", "oslo"]),
        ({"frequency_threshold": 6}, []),
    ],
)
def test_rare_values_and_a_cap(tmp_path, options, kept):
    made = of(tmp_path, {"shop": {"kind": "categorical", **options}, "user": "categorical"})
    assert made.values("shop") == kept
    names = ["rome", "oslo", "rome", "a,b", "rome", "oslo", "", "paris", "rome", "a,b", "oslo", "rome"]
    assert made["train"]["shop"] == [kept.index(name) + 1 if name in kept else 0 for name in names]


def test_hashes_never_change(tmp_path):
    made = of(tmp_path, {"shop": {"kind": "categorical", "hash_buckets": 1000}})

    rome, lima = (int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") % 1000 + 1 for name in (b"rome", b"lima"))
    assert made["train"]["shop"][0] == made["train"]["shop"][2] == rome
    assert made["train"]["shop"][6] == 0  # missing
    assert made["test"]["shop"] == [rome, lima]
    assert made.spec.cardinalities == (1001,)
    assert not (made.folder / "vocabulary" / "shop.parquet").exists()


PRICES = [1, 3, None, 5, 2, 4, 6, 8, 7, 10, 9, None]


@pytest.mark.parametrize(
    ("options", "expected", "of_test"),
    [
        ({"transform": "none"}, lambda x: x, [100, -1]),
        ({"transform": "none", "missing": -5}, lambda x: x, [100, -1]),
        ({"transform": "none", "clip": [2, 8]}, lambda x: min(max(x, 2), 8), [8, 2]),
        ({"transform": "none", "clip": [None, 8]}, lambda x: min(x, 8), [8, -1]),
        ({"transform": "log"}, lambda x: math.log(x + 3), [math.log(103), math.log(2)]),
        ({"transform": "log1p"}, lambda x: math.log(1 + x), [math.log(101), -math.log(2)]),
        # mean 5.5 and variance 8.25 of 1 to 10
        ({"transform": "standardise"}, lambda x: (x - 5.5) / math.sqrt(8.25), [94.5 / math.sqrt(8.25), -6.5 / math.sqrt(8.25)]),
        # 1 to 10 and twice 0: mean 55/12, variance 385/12 - (55/12)^2
        ({"transform": "standardise", "missing": 0}, lambda x: (x - 55 / 12) / math.sqrt(385 / 12 - (55 / 12) ** 2), None),
    ],
)
def test_numerical(tmp_path, options, expected, of_test):
    made = of(tmp_path, {"price": {"kind": "numerical", **options}})
    missing = expected(options["missing"]) if "missing" in options else 0
    assert_allclose(made["train"]["price"], [missing if x is None else expected(x) for x in PRICES], rtol=1e-6, atol=1e-7)
    if of_test:
        assert_allclose(made["test"]["price"], of_test, rtol=1e-6)
    assert made.spec.numerical_dtype == "float32"


def test_quantile_buckets(tmp_path):
    made = of(tmp_path, {"price": {"kind": "numerical", "buckets": 5}})
    # ten prices, two in each bucket: 1 2 | 3 4 | 5 6 | 7 8 | 9 10; 0 where missing
    assert made["train"]["price"] == [0 if x is None else (x + 1) // 2 for x in PRICES]
    assert made["test"]["price"] == [5, 1]
    assert made.metadata["transforms"]["price"]["boundaries"] == [3.0, 5.0, 7.0, 9.0]
    assert dict(zip([c.name for c in made.spec.categorical], made.spec.cardinalities, strict=True))["price"] == 6


def test_lists(tmp_path):
    made = of(tmp_path, {"tags": {"kind": "list", "pooling": "mean"}})
    # x 6 times, y 5, then q and z once; empty words do not count; the longest list has 3
    assert made.vocabulary("tags") == [("x", 1, 6), ("y", 2, 5), ("q", 3, 1), ("z", 4, 1)]
    assert made["train"]["tags"][:8] == [[1, 2, -1], [-1, -1, -1], [2, -1, -1], [2, 1, 2], [4, -1, -1], [1, -1, -1], [2, -1, -1], [-1, -1, -1]]
    assert made["test"]["tags"] == [[3, 0, 1], [-1, -1, -1]]  # an unknown value has id 0
    feature = made.spec.categorical[1]
    assert (feature.hotness, feature.pooling, feature.cardinality) == (3, "mean", 5)


def test_long_lists_are_cut_and_counted(tmp_path, capsys):
    made = of(tmp_path, {"tags": {"kind": "list", "max_hotness": 2}})
    assert made["train"]["tags"][3] == [2, 1] and made["test"]["tags"][0] == [3, 0]
    assert made.vocabulary("tags")[:2] == [("x", 1, 6), ("y", 2, 4)]  # values that are cut off are not counted
    said = capsys.readouterr().err
    assert "preproc.table: train: feature tags: lists cut to their first 2 values: 1\n" in said
    assert "preproc.table: test: feature tags: lists cut to their first 2 values: 1\n" in said


def test_a_list_of_one_value(tmp_path):
    made = of(tmp_path, {"tags": {"kind": "list", "max_hotness": 1}})
    assert made["train"]["tags"][:4] == [1, 0, 2, 2]  # a feature of one id a sample has no -1: an empty list is id 0
    assert made.spec.categorical[1].hotness == 1


def test_times(tmp_path):
    features = {
        "hour": {"kind": "time", "column": "when", "part": "hour"},
        "day": {"kind": "time", "column": "when", "part": "weekday"},
        "age": {"kind": "time", "column": "when", "part": "days_since", "since": "2024-01-01", "transform": "none"},
    }
    made = of(tmp_path, features)
    hours = {id: value for value, id, _ in made.vocabulary("hour")} | {0: None}
    assert [hours[id] for id in made["train"]["hour"]] == ["0", "13", "13", "23", "0", "1", "0", None, "0", "0", "0", "0"]
    days = {id: value for value, id, _ in made.vocabulary("day")} | {0: None}  # 1 January 2024 was a Monday
    assert [days[id] for id in made["train"]["day"]] == ["1", "1", "2", "7", "1", "3", "1", None, "1", "1", "1", "1"]
    assert [days[id] for id in made["test"]["day"]] == ["1", None]
    assert_allclose(made["train"]["age"][:5], [10 / 1440, 13 / 24, 1 + 50399 / 86400, 6 + 23 / 24, 0], rtol=1e-6)
    assert made["test"]["age"] == [pytest.approx(7 + 13 / 24), 0]


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (("14102213", "14102301"), {"format": "%y%m%d%H"}),
        (("1413983333", "1414026000"), {}),
        (("1413983333123", "1414026000000"), {"unit": "ms"}),
        (("22/10/2014 13:08", "23/10/2014 01:59"), {"format": "%d/%m/%Y %H:%M"}),
    ],
)
def test_time_formats(tmp_path, values, options):
    config = {
        "label": "y",
        "features": {"h": {"kind": "time", "column": "t", "part": "hour", **options}, "w": {"kind": "time", "column": "t", **options}},
    }
    config["features"]["w"]["part"] = "weekday"
    made = make(tmp_path, f"t,y\n{values[0]},1\n{values[1]},0\n{values[0]},0\n", f"t,y\n{values[1]},1\n", config=config)
    assert (made.values("h"), made["train"]["h"]) == (["13", "1"], [1, 2, 1])
    assert (made.values("w"), made["test"]["w"]) == (["3", "4"], [2])


def test_crosses_join_texts_and_parts_of_times(tmp_path):
    features = {
        "hour": {"kind": "time", "column": "when", "part": "hour"},
        "shop_hour": {"kind": "cross", "columns": ["shop", "hour"]},
        "user_shop": {"kind": "cross", "columns": ["user", "shop"], "hash_buckets": 50},
    }
    made = of(tmp_path, features)
    # rome at 0 four times; oslo 0, 1 and 13 once each, "a,b" 0 and 23, rome 13; no cross where one part is missing
    assert made.vocabulary("shop_hour")[0] == ("rome\x1f0", 1, 4)
    assert made.values("shop_hour")[1:] == ["a,b\x1f0", "a,b\x1f23", "oslo\x1f0", "oslo\x1f1", "oslo\x1f13", "rome\x1f13"]
    assert made["train"]["shop_hour"] == [1, 6, 7, 3, 1, 5, 0, 0, 1, 2, 4, 1]
    assert made["test"]["shop_hour"] == [7, 0]
    joined = made["train"]["user_shop"]
    assert joined[0] == joined[4] == joined[8] != joined[2] and joined[6] == 0 and max(joined) <= 50


def test_shared_tables(tmp_path):
    train = "bought,item,y\na|b,b,1\nc,a,0\n,b,1\n"
    features = {"bought": {"kind": "list", "table": "items"}, "item": {"kind": "categorical", "table": "items", "embedding_dim": 16}}
    made = make(tmp_path, train, "bought,item,y\nc|zz,c,0\n", config={"label": "y", "features": features})
    assert made.vocabulary("item") == made.vocabulary("bought") == [("b", 1, 3), ("a", 2, 2), ("c", 3, 1)]
    assert made["train"] == {"bought": [[2, 1], [3, -1], [-1, -1]], "item": [1, 2, 1], "label": [1, 0, 1]}
    assert made["test"]["bought"] == [[3, 0]] and made["test"]["item"] == [3]
    assert made.spec.embedding_dims == {"items": 16}


def test_groups_are_numbers_or_hashes_of_texts(tmp_path):
    made = of(tmp_path, {}, group="user")
    assert made["train"]["group"] == [7, 7, 8, 9, 7, 7, 8, 9, 7, 7, 7, 8]
    texts = make(tmp_path, "s,g,y\na,u1,0\nb,-5,1\nc,u1,1\n", "s,g,y\na,9223372036854775808,1\n", "--label", "y", "--group", "g", dst="texts")
    first, second, third = texts["train"]["group"]
    assert first == third > 2**32 and second == -5
    assert 0 <= texts["test"]["group"][0] < 2**63  # beyond 64 bits: hashed like a text


LABELS = [
    ("y", ["1", "0", "true", "False", "YES", "no", "1.0", "0.0", "t", "F"], [1, 0, 1, 0, 1, 0, 1, 0, 1, 0]),
    ("y >= 4", ["3", "4", "4.5", "-1"], [0, 1, 1, 0]),
    ("y<4", ["3", "4", "4.5", "-1"], [1, 0, 0, 1]),
    ("y != 4", ["3", "4", "4.0", "-1"], [1, 0, 0, 1]),
    ('y == "buy"', ["buy", "view", "Buy"], [1, 0, 0]),
    ("y != view", ["buy", "view", "Buy"], [1, 0, 1]),
]


@pytest.mark.parametrize(("label", "values", "expected"), LABELS, ids=[label for label, _, _ in LABELS])
def test_labels(tmp_path, label, values, expected):
    text = "".join(f"a,{value}\n" for value in values)
    made = make(tmp_path, f"s,y\n{text}", f"s,y\n{text}", "--label", label)
    assert made["train"]["label"] == made["test"]["label"] == expected
    assert list(made["train"]) == ["s", "label"]  # the label's column is no feature


def test_columns_yaml_round_trip(tmp_path):
    features = {
        "hour": {"kind": "time", "column": "when", "part": "hour"},
        "tags": {"kind": "list", "pooling": "mean"},
        "price": {"kind": "numerical", "transform": "standardise", "clip": [0, 9]},
        "bucket": {"kind": "numerical", "column": "price", "buckets": 3},
        "both": {"kind": "cross", "columns": ["shop", "hour"]},
    }
    made = of(tmp_path, features, group="user", ignore=["nothing"])
    again = make(tmp_path, TRAIN, TEST, "--config", made.folder / "columns.yaml", dst="again")
    files = {path.relative_to(made.folder): path.read_bytes() for path in made.folder.rglob("*") if path.is_file()}
    assert files == {path.relative_to(again.folder): path.read_bytes() for path in again.folder.rglob("*") if path.is_file()} | {
        path: content
        for path, content in files.items()
        if path.name == "feature_spec.yaml"  # excluded, because it names the files
    }
    assert again.metadata["transforms"] == made.metadata["transforms"]


def test_metadata(tmp_path):
    made = of(tmp_path, {})
    found = read_yaml(made.folder / "feature_spec.yaml")["metadata"]
    assert found["source"] == "table" and found["label"] == "clicked"
    assert found["train"] == {"files": ["out-train.csv"], "rows": 12, "click_rate": 0.333333, "bad_lines_skipped": 0}
    assert found["vocabularies"]["shop"]["values"] == 4 and len(found["vocabularies"]["shop"]["digest"]) == 32
    assert found["transforms"] == {"shop": {"kind": "categorical", "column": "shop", "values": "text", "stripped": True}}


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"price": {"kind": "number"}}, "feature price: kind is 'number', expected one of categorical, numerical, list, cross, time"),
        ({"price": {"kind": "numerical", "bucket": 4}}, "feature price: option 'bucket' is unknown for kind numerical"),
        ({"price": {"kind": "numerical", "clip": [9, 1]}}, "clip is [9, 1], expected [MIN, MAX]"),
        ({"price": {"kind": "numerical", "buckets": 3, "transform": "log"}}, "option transform has no effect here"),
        ({"price": {"kind": "numerical", "mean": 3.0}}, "option 'mean' is unknown"),
        ({"c": {"kind": "cross", "columns": ["shop"]}}, "at least 2 column names"),
        ({"c": {"kind": "cross", "columns": ["shop", "price"]}, "price": "numerical"}, "feature c: price cannot be part of a cross"),
        ({"u": {"kind": "categorical", "column": "clicked"}}, "feature u: reads clicked, the label's column, and so reveals the label"),
        ({"u": {"kind": "categorical", "column": "nobody"}}, "has no column nobody; it has shop, price, tags"),
        (
            {"shop": {"kind": "categorical", "table": "t", "max_ids": 2}, "user": {"kind": "categorical", "table": "t"}},
            "max_ids is None, but 2 for feature shop",
        ),
        ({"shop": {"kind": "categorical", "hash_buckets": 5, "max_ids": 2}}, "option max_ids has no effect here (hash_buckets)"),
        ({"shop": "numerical"}, "no feature is categorical"),
    ],
)
def test_invalid_configuration_is_rejected(tmp_path, features, message):
    with refused(message, DatasetError):
        of(tmp_path, features)
    assert not (tmp_path / "out").exists()
