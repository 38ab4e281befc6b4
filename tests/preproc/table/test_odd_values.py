"""Values of tables as others write them: join keys, JSON's NaN and surrogates, texts that look like type marks, labels, numbers as texts."""

import json

import polars as pl
import pytest

from dataloading.features import DatasetError
from preproc.table import command as table
from tests.helpers.commands import do
from tests.helpers.folders import write
from tests.preproc.table.tables import make
from utils.encoding.columns import parsed_label

LABELLED = ("--label", "y", "--categorical", "c")


@pytest.mark.parametrize("keys", [["1", "2", "3"], ["1.0", "2.0", "3.0"], [1, 2, 3], [1.0, 2.0, 3.0], [" 1", "2 ", "3"]], ids=str)
@pytest.mark.parametrize("others", [["1", "2", "3"], ["1.0", "2.0", "3.0"], [1, 2, 3], [1.0, 2.0, 3.0]], ids=str)
def test_a_join_key_is_one_value_however_it_is_written(tmp_path, keys, others):
    rows = pl.DataFrame({"k": [*keys, keys[0]], "c": list("abcd"), "y": [0, 1, 0, 1]})
    side = pl.DataFrame({"k": others, "told": ["p", "q", "r"]})
    for name, frame in (("rows", rows), ("side", side)):
        if isinstance(frame["k"][0], str):
            frame.write_csv(tmp_path / name)
        else:
            frame.write_parquet(tmp_path / name)
    made = make(
        tmp_path, tmp_path / "rows", tmp_path / "rows", "--label", "y", "--categorical", "c,told", "--join", f"{tmp_path}/side:k", "--keep", "told"
    )
    assert pl.read_parquet(made.folder / "train/keys.parquet")["told"].to_list() == ["p", "q", "r", "p"]


def test_keys_that_are_one_value_are_twice_the_same_key(tmp_path):
    write(tmp_path / "side.csv", "k,told\n1,p\n1.0,q\n")
    with pytest.raises(DatasetError, match=r"side.csv, line 3: column k: '1' is also in .*side.csv, line 2; expected each key once"):
        make(tmp_path, "k,c,y\n1,a,1\n2,b,0\n", "k,c,y\n1,a,1\n", *LABELLED, "--join", f"{tmp_path}/side.csv:k")


def test_nan_in_json_lines_is_a_missing_value(tmp_path):
    lines = [{"n": value, "c": 'NaN " NaN', "y": i % 2} for i, value in enumerate([1.5, float("nan"), 2.5, float("nan")])]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    assert "NaN," in content
    made = make(tmp_path, content, content, *LABELLED, "--numerical_transform", "none")
    assert made["train"]["n"] == [1.5, 0, 2.5, 0] and made.values("c") == ['NaN " NaN']


@pytest.mark.parametrize(("text", "half"), [("\\ud83d", "\\ud83d"), ("a\\uDE00b", "\\uDE00"), ("\\ud83d\\ud83d\\ude00", "\\ud83d")])
def test_half_a_pair_of_surrogates_is_a_bad_line(tmp_path, text, half):
    good = '{"c": "\\ud83d\\ude00", "y": 1}\n{"c": "\\\\ud83d", "y": 0}\n'
    with pytest.raises(DatasetError, match=r"line 3: .*half of a pair of surrogates") as error:
        make(tmp_path, good + f'{{"c": "{text}", "y": 0}}\n', good, *LABELLED)
    assert half in str(error.value)
    assert make(tmp_path, good, good, *LABELLED, dst="good").values("c") == ["\\ud83d", "😀"]


@pytest.mark.parametrize("coded", [True, False])
def test_a_text_that_begins_like_a_type_mark_is_a_text(tmp_path, coded):
    values = ["\0fabc", "\0i7", "\0\0", "\0", "7", "\0d2024-01-01"]
    content = "c,y\n" + "".join(f"{value},{i % 2}\n" for i, value in enumerate(values))
    keep = () if coded else ("--keep", "c")  # columns that are kept are read as texts, the others as categories
    made = make(tmp_path, content, content, *LABELLED, *keep)
    assert sorted(made.values("c")) == sorted(values) and sorted(made["train"]["c"]) == list(range(1, 7))
    flags = ("--mode", "encode", "--data", write(tmp_path / "later.csv", content), "--vocabulary", made.folder, "--dst", tmp_path / "later")
    assert do(table, *flags, *keep) == 0
    assert (tmp_path / "later/new/c.bin").read_bytes() == (made.folder / "train/c.bin").read_bytes()


def test_quotes_in_a_label_protect_every_character_and_blanks_do_not_count(tmp_path):
    assert parsed_label('income == ">50K"')[1:] == ("=", ">50K") and parsed_label("a != 'x and y = z'")[1:] == ("!=", "x and y = z")
    content = "income,c,y\n >50K,a,0\n<=50K,b,1\n>50K ,a,0\n"
    made = make(tmp_path, content, content, "--label", 'income == ">50K"', "--categorical", "c,y")
    assert made["train"]["label"] == [1, 0, 1]
    content = "ev,c\n buy,a\nsee,b\nbuy,a\n"
    assert make(tmp_path, content, content, "--label", "ev == buy", "--categorical", "c", dst="ev")["train"]["label"] == [1, 0, 1]


@pytest.mark.parametrize("texts", [[" 5", " 40"], ["+5", "7"], ["5E+03", "6e3"], ["-0", "7"], ["3 ", "-4"], ["0", "-0.5"]], ids=str)
def test_texts_of_numbers_are_numbers(tmp_path, texts):
    content = "n,c,y\n" + "".join(f"{text},a,{i % 2}\n" for i, text in enumerate(texts * 3))
    made = make(tmp_path, content, content, *LABELLED, "--numerical_transform", "none")
    assert made["train"]["n"] == [float(text) for text in texts] * 3


@pytest.mark.parametrize("texts", [["007", "012"], ["+01", "2"], ["-00", "1"]], ids=str)
def test_codes_stay_texts(tmp_path, texts):
    content = "n,c,y\n" + "".join(f"{text},a,{i % 2}\n" for i, text in enumerate(texts * 3))
    assert "n" in {feature.name for feature in make(tmp_path, content, content, *LABELLED).spec.categorical}


@pytest.mark.parametrize("texts", [["52%", "7.5%"], ["$9.99", "$12"], ["31,55", "7,5"], ["7,796.50", "12,000"]], ids=str)
def test_numbers_with_a_sign_or_a_comma_are_named(tmp_path, capsys, texts):
    content = "n;c;y\n" + "".join(f"{text};a;{i % 2}\n" for i, text in enumerate(texts * 3))
    make(tmp_path, content, content, *LABELLED)
    assert (
        "column n: numbers written with %, a currency or a comma are used as ids; if they are numbers, write them plainly" in capsys.readouterr().err
    )


def test_columns_of_0_and_1_with_one_prefix_point_to_a_list(tmp_path, capsys):
    content = "genre_a,genre_b,genre_c,x_1,c,y\n" + "0,1,1,0,a,1\n1,0,0,1,b,0\n" * 3
    make(tmp_path, content, content, *LABELLED)
    said = capsys.readouterr().err
    assert "columns genre_a, genre_b, genre_c: hold 0 and 1 only; if they say what is in a list: --list genre=genre_*" in said and "x_1" not in said


@pytest.mark.parametrize("keep", [(), ("--keep", "c,l")], ids=["categories", "texts"])
def test_blanks_around_values_do_not_count_in_new_datasets(tmp_path, keep):
    content = "c; l; y\n Private; a| b;1\nPrivate;b|a ;0\n ; ;1\n\tx y\t;x y;0\n"
    made = make(tmp_path, content, content, "--label", "y", "--lists", "l", "--categorical", "c", *keep)
    assert made.values("c") == ["Private", "x y"] and made["train"]["c"] == [1, 1, 0, 2]
    assert made.values("l") == ["a", "b", "x y"] and made.metadata["transforms"]["c"]["stripped"] is True
    typed = pl.DataFrame({"c": [" Private", None, "x y "], "l": [[" a", "b"], [], ["x y "]], "y": [1, 0, 1]})
    typed.write_parquet(tmp_path / "typed")
    again = make(tmp_path, None, tmp_path / "typed", "--vocabulary", made.folder, dst="again")
    assert again["test"]["c"] == [1, 0, 2] and again["test"]["l"] == [[1, 2], [-1, -1], [3, -1]]


def test_datasets_of_earlier_versions_keep_the_blanks(tmp_path):
    content = "c,y\n a,1\nb,0\n"
    old = make(tmp_path, content, content, *LABELLED)
    path = old.folder / "feature_spec.yaml"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "stripped" not in line))
    pl.DataFrame({"value": ["b", " a"], "id": [1, 2], "count": [1, 1]}).cast({"id": pl.Int32, "count": pl.UInt32}).write_parquet(
        old.folder / "vocabulary/c.parquet"
    )
    assert make(tmp_path, None, content, "--vocabulary", old.folder, dst="again")["test"]["c"] == [2, 1]
