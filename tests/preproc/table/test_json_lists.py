"""Lists as JSON texts, as `json.dumps` and dataframes write them into CSV: they give what the lists themselves give."""

import csv
import io
import json
import random

import numpy as np
import polars as pl
import pytest

from dataloading.features import DatasetError
from dataloading.id_weights import ids_and_weights
from tests.helpers.folders import tree, write
from tests.preproc.table.tables import make
from tests.preproc.table.test_table_id_weights import inputs_of
from utils.encoding.columns import made
from utils.encoding.recipe import LIST, Recipe

WORDS = ["red", "b,l", 'q"t', "né", "a|b", "[x]", "back\\slash", "two\nlines", " edge "]
FLAGS = ("--label", "y", "--lists", "tags", "--id_weights", "tags=w")


def csv_of(*rows: tuple) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def drawn(count: int) -> list[tuple[list[str], list[float]]]:
    draw = random.Random(3)
    lists = [[draw.choice(WORDS) for _ in range(draw.randrange(4))] for _ in range(count)]
    return [(words, [draw.choice([0.5, 2, 1e-3, -4]) for _ in words]) for words in lists]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_lists_are_the_lists_that_they_say(tmp_path, ascii_only):
    rows = drawn(300)
    text = csv_of(("y", "tags", "w"), *((i % 2, json.dumps(tags, ensure_ascii=ascii_only), json.dumps(w)) for i, (tags, w) in enumerate(rows)))
    found = make(tmp_path, text, text, *FLAGS)
    words = [tags for tags, _ in rows]
    pl.DataFrame({"y": [i % 2 for i in range(len(rows))], "tags": words, "w": [[float(x) for x in w] for _, w in rows]}).write_parquet(
        tmp_path / "lists"
    )
    expected = make(tmp_path, tmp_path / "lists", tmp_path / "lists", *FLAGS, dst="expected")
    assert found.values("tags") == expected.values("tags") and len(found.values("tags")) == len(WORDS)
    assert tree(found.folder / "train") == tree(expected.folder / "train")
    assert "separator: json" in (found.folder / "columns.yaml").read_text()
    by_file = make(tmp_path, text, text, "--config", found.folder / "columns.yaml", dst="by_file")
    assert tree(by_file.folder / "train") == tree(found.folder / "train")


def test_raw_values_are_json_texts_or_lists(tmp_path):
    rows = drawn(50)
    text = csv_of(("y", "tags", "w"), *((i % 2, json.dumps(tags), json.dumps(w)) for i, (tags, w) in enumerate(rows)))
    found = make(tmp_path, text, text, *FLAGS)
    inputs = inputs_of(found)
    _, (by_text,) = inputs.encoded({"tags": [json.dumps(tags) for tags, _ in rows], "w": [json.dumps(w) for _, w in rows]})
    _, (by_list,) = inputs.encoded({"tags": [tags for tags, _ in rows], "w": [w for _, w in rows]})
    stored = ids_and_weights(np.array(found["train"]["tags"], np.int32))
    assert all(np.array_equal(*ids) for one in (by_text, by_list) for ids in zip(ids_and_weights(one), stored, strict=True))
    with pytest.raises(ValueError, match=r"feature tags: .*'red'.*, expected a JSON list"):
        inputs.encoded({"tags": ["red"], "w": ["[1]"]})


@pytest.mark.parametrize("bad", ['["a", ["b"]]', '["a"', '{"a": 1}', '["\\ud83d"]', "[NaN]", "red", '["a"] b', "[01]"])
def test_a_value_that_is_no_json_list_is_a_bad_row(tmp_path, bad):
    rows = [(i % 2, json.dumps(["a", "b"])) for i in range(40)]
    text = csv_of(("y", "tags"), *rows, (1, bad))
    with pytest.raises(DatasetError, match=r"line 42, column tags: .*, expected a JSON list of texts and numbers, as in \[\"red\", \"blue\"\]"):
        make(tmp_path, text, csv_of(("y", "tags"), *rows), "--label", "y", "--lists", "tags")


@pytest.mark.parametrize("bad", ["0.5", "[0.5]", "[0.5, x]", '[0.5, "y"]', "[0.5, null]", ""])
def test_weights_are_json_lists_too(tmp_path, bad):
    rows = [(i % 2, json.dumps(["a", "b"]), "[1, 0.5]") for i in range(40)]
    text = csv_of(("y", "tags", "w"), *rows, (1, '["a", "b"]', bad))
    with pytest.raises(DatasetError, match=r"line 42, feature tags: (2 values in column tags, but [01] weights? in column w|the weight of value)"):
        make(tmp_path, text, csv_of(("y", "tags", "w"), *rows), *FLAGS)


def test_numbers_keep_their_digits_and_missing_items_are_left_out(tmp_path):
    text = csv_of(
        ("y", "tags"),
        *[(i % 2, value) for i, value in enumerate(['[1, 1.0, "1", null, true, ""]', "", "null", "[]", '[" x ", 12345678901234567890]'])],
    )
    found = make(tmp_path, text, text, "--label", "y", "--lists", "tags")
    assert sorted(found.values("tags")) == ["1", "1.0", "12345678901234567890", "true", "x"]
    assert [sum(id >= 0 for id in row) for row in found["train"]["tags"]] == [4, 0, 0, 0, 2]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (['["a", "b"]', "[]", ""], "JSON lists are used as ids, each list as one; if their values are the ids: --lists t"),
        (["['a', 'b']", "['c']", ""], 'values in brackets, but no JSON lists, so used as they stand; if they are lists, write ["red", "blue"]'),
        (["{a,b}", "{c}"], "values in brackets, but no JSON lists"),
        (["[a]", "{b}", "(1, 2]"], None),
    ],
)
def test_lists_that_nobody_named_are_warned_of(tmp_path, capsys, values, said):
    text = csv_of(("y", "t"), *[(i % 2, values[i % len(values)]) for i in range(90)])
    make(tmp_path, text, text, "--label", "y")
    assert (f"column t: {said}" in capsys.readouterr().err) if said else "column t" not in capsys.readouterr().err


def test_lists_in_pythons_notation_that_were_named_are_warned_of(tmp_path, capsys):
    text = csv_of(("y", "t"), *[(i % 2, "['a', 'b']") for i in range(90)])
    make(tmp_path, text, text, "--label", "y", "--lists", "t")
    assert "column t: values in brackets, but no JSON lists" in capsys.readouterr().err
    make(tmp_path, text, text, "--label", "y", "--lists", "t", "--list_separator", ", ", dst="split")
    assert capsys.readouterr().err == ""


def test_a_separator_that_was_given_is_the_one(tmp_path):
    text = csv_of(("y", "t"), *[(i % 2, '["a", "b"]') for i in range(90)])
    assert make(tmp_path, text, text, "--label", "y", "--lists", "t", "--list_separator", ", ").values("t") == ['"b"]', '["a"']
    plain = csv_of(("y", "t"), (0, "a|b"), (1, "c"))
    write(tmp_path / "plain.csv", plain)
    with pytest.raises(DatasetError, match=r"line 2, column t: 'a\|b', expected a JSON list"):
        make(tmp_path, plain, plain, "--label", "y", "--lists", "t", "--list_separator", "json", dst="refused")


def test_fast_and_slow_conversions_agree():
    """Polars converts plain lists, Python the others: each text gives the same alone and beside texts of the other form."""
    draw = random.Random(11)
    items = ['"a"', '"b c"', '"\\u00e9"', "1", "1.50", "-0", "null", "true", '"\\ud83d"', "01", "1.", '"x,y"', '""', '" z "', "[1]", "-1e5", "NaN"]
    some = (items, [one for one in items if one.startswith('"')], ["1", "1.50", "-0", "-1e5", "0.25E+3"])
    texts = [
        "[" + draw.choice([",", " , ", ",\n"]).join(draw.choices(draw.choice(some), k=draw.randrange(4))) + draw.choice(["]", "]", " ] ", ""])
        for _ in range(2000)
    ]
    recipe = Recipe(LIST, ("t",), separator="json", values="text")

    def by_json(text: str) -> list[str] | None:
        try:
            found = json.loads(text, parse_int=lambda digits: digits, parse_float=lambda digits: digits, parse_constant=lambda _: 1 / 0)
            words = [{True: "true", False: "false"}.get(one, one) if isinstance(one, bool) else one for one in found]
            assert all(one is None or (isinstance(one, str) and one.encode() is not None) for one in words)
        except (ValueError, AssertionError, ZeroDivisionError):
            return None
        return [word.strip() for word in words if word is not None and word.strip()]

    frame = pl.DataFrame({"t": texts})
    how = made(recipe, frame.schema)
    found = frame.select(value=how.value, bad=how.bad)
    expected = [by_json(text) for text in texts]
    assert found["bad"].to_list() == [one is None for one in expected] and 200 < found["bad"].sum() < 1800
    assert found["value"].to_list() == [one or [] for one in expected]
