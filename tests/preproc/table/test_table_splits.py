"""Splits that hold rows out, which nothing is fitted on; vocabularies that are kept, extended, or encode rows without a label."""

import polars as pl
import pytest
import yaml

from dataloading.features import DatasetError
from preproc.table import command as table
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml
from tests.helpers.folders import write
from tests.preproc.table.tables import Made, make
from utils.errors import UserError

HEAD = "s,t,part,y\n"
CONFIG = {"label": "y", "features": {"s": "categorical", "n": {"kind": "numerical", "column": "t", "transform": "standardise"}}}


def rows(times, part=lambda t: "train") -> str:
    return HEAD + "".join(f"v{t},{t},{part(t)},{i % 2}\n" for i, t in enumerate(times))


def held_out(made: Made) -> dict[str, list[int]]:
    """Return the times of each split's rows."""
    return {split: pl.read_parquet(made.folder / split / "keys.parquet")["t"].cast(pl.Int64).to_list() for split in made.spec.sources}


def test_by_time_the_latest_rows_are_held_out(tmp_path):
    times = [5, 3, 9, 1, 7, 2, 8, 4, 6, 10]
    flags = ("--split_by", "t", "--valid_fraction", "0.2", "--test_fraction", "0.3", "--keep", "t")
    made = make(tmp_path, rows(times), None, *flags, config=CONFIG)
    assert held_out(made) == {"train": [5, 3, 1, 2, 4], "valid": [7, 6], "test": [9, 8, 10]}  # in the order of the file
    assert made.values("s") == ["v1", "v2", "v3", "v4", "v5"]
    assert made["test"]["s"] == [0, 0, 0]
    assert made.metadata["transforms"]["n"]["mean"] == 3  # over the training rows
    assert {split: made.metadata[split]["rows"] for split in ("train", "valid", "test")} == {"train": 5, "valid": 2, "test": 3}


def test_rows_of_one_time_stay_together(tmp_path):
    made = make(tmp_path, rows([1, 2, 2, 2, 2, 1]), None, "--split_by", "t", "--test_fraction", "0.2", "--keep", "t", config=CONFIG)
    assert held_out(made) == {"train": [1, 1], "test": [2, 2, 2, 2]}
    with pytest.raises(DatasetError, match="the train split holds no rows: 3 were read"):
        make(tmp_path, rows([4, 4, 4]), None, "--split_by", "t", "--test_fraction", "0.4", config=CONFIG, dst="none")
    with pytest.raises(DatasetError, match="line 3, column t: nothing, expected a time"):
        make(
            tmp_path, f"{rows([4])}v,,train,0\n{rows([5])[len(HEAD) :]}", None, "--split_by", "t", "--test_fraction", "0.5", config=CONFIG, dst="none"
        )


def test_by_key_the_rows_of_a_value_stay_together(tmp_path):
    text = HEAD + "".join(f"v{i % 40},{i},train,{i % 2}\n" for i in range(400))
    flags = ("--split_key", "s", "--valid_fraction", "0.25", "--test_fraction", "0.25", "--keep", "t,s")
    made = make(tmp_path, text, None, *flags, config=CONFIG)
    keys = {split: set(pl.read_parquet(made.folder / split / "keys.parquet")["s"]) for split in ("train", "valid", "test")}
    assert sum(map(len, keys.values())) == len(set.union(*keys.values())) == 40
    assert all(3 <= len(keys[split]) <= 18 for split in ("valid", "test"))
    again = make(tmp_path, text, None, *flags, config=CONFIG, dst="again")
    other = make(tmp_path, text, None, *flags, "--seed", "1", config=CONFIG, dst="other")
    assert held_out(again) == held_out(made) != held_out(other)


def test_split_by_fraction_does_not_depend_on_blocks(tmp_path):
    text = rows(range(2000))
    made = make(tmp_path, text, None, "--test_fraction", "0.3", "--keep", "t", config=CONFIG)
    found = held_out(made)
    assert abs(len(found["test"]) - 600) < 5 * (2000 * 0.3 * 0.7) ** 0.5
    assert sorted(found["train"] + found["test"]) == list(range(2000)) and found["test"] == sorted(found["test"])
    blocks = make(tmp_path, text, None, "--test_fraction", "0.3", "--keep", "t", "--block_bytes", "999", config=CONFIG, dst="blocks")
    assert held_out(blocks) == found


def test_by_a_column(tmp_path):
    part = lambda t: {0: "train", 1: "valid", 2: "test"}[t % 3]  # noqa: E731
    made = make(tmp_path, rows(range(9), part), None, "--split_column", "part", "--keep", "t", config=CONFIG)
    assert held_out(made) == {"train": [0, 3, 6], "valid": [1, 4, 7], "test": [2, 5, 8]}
    named = ("--split_column", "t", "--test_values", "2,3", "--valid_values", "1", "--keep", "t")
    assert held_out(make(tmp_path, rows(range(6)), None, *named, config=CONFIG, dst="b")) == {"train": [0, 4, 5], "valid": [1], "test": [2, 3]}
    with pytest.raises(DatasetError, match="--split_column part: holds 'fold1', expected train, valid, test"):
        make(tmp_path, rows(range(3), lambda t: "fold1"), None, "--split_column", "part", config=CONFIG, dst="c")
    with pytest.raises(DatasetError, match="no row has the value 77 of the test split"):
        make(tmp_path, rows(range(3)), None, "--split_column", "t", "--test_values", "77", config=CONFIG, dst="c")


def test_validation_files_and_a_fraction_of_the_training_files(tmp_path):
    valid = write(tmp_path / "v.csv", rows([50]))
    made = make(tmp_path, rows(range(10)), None, "--valid", valid, "--split_by", "t", "--test_fraction", "0.2", "--keep", "t", config=CONFIG)
    assert held_out(made) == {"train": list(range(8)), "valid": [50], "test": [8, 9]}


OLD = "s,n,tags,g,y\na,1,x|y,1,1\nb,3,x,1,0\na,5,,2,1\n"
NEW = "s,n,tags,g,y\nc,100,z|x,3,1\na,7,q,3,0\nc,9,,4,1\n"
FLAGS = ("--label", "y", "--group", "g", "--lists", "tags")


@pytest.fixture(name="old")
def _old(tmp_path):
    return make(tmp_path, OLD, OLD, *FLAGS, dst="old")


def test_frozen_vocabularies(tmp_path, old):
    made = make(tmp_path, NEW, OLD, "--vocabulary", old.folder, dst="new")
    for name in ("s", "tags"):
        assert made.vocabulary(name) == old.vocabulary(name)
    assert made.metadata["vocabularies"] == old.metadata["vocabularies"] and made.metadata["transforms"] == old.metadata["transforms"]
    assert made["test"] == old["test"]
    assert made["train"]["s"] == [0, 1, 0] and made["train"]["tags"] == [[0, 1], [0, -1], [-1, -1]]
    assert made["train"]["n"] == pytest.approx([(x - 3) / (8 / 3) ** 0.5 for x in (100, 7, 9)])  # with the old mean and deviation
    only = make(tmp_path, None, NEW, "--vocabulary", old.folder, dst="only")  # today's labelled rows, to evaluate yesterday's model on
    assert only["test"] == made["train"] and list(only.spec.sources) == ["test"]


def test_extended_vocabularies_append(tmp_path, old):
    made = make(tmp_path, NEW, OLD, "--vocabulary", old.folder, "--extend_vocabulary", dst="new")
    assert old.vocabulary("s") == [("a", 1, 2), ("b", 2, 1)]
    assert made.vocabulary("s") == [("a", 1, 3), ("b", 2, 1), ("c", 3, 2)]
    assert made.vocabulary("tags") == [("x", 1, 3), ("y", 2, 1), ("q", 3, 1), ("z", 4, 1)]
    assert made["test"] == old["test"] and made["train"]["s"] == [3, 1, 3]
    with pytest.raises(UserError, match="--valid_fraction takes rows from the training files, and there are none"):
        make(tmp_path, None, NEW, "--vocabulary", made.folder, "--valid_fraction", "0.5", dst="none")
    third = make(tmp_path, OLD, NEW, "--vocabulary", made.folder, "--extend_vocabulary", dst="third")
    assert third.values("s") == ["a", "b", "c"] and third["test"] == made["train"]


def test_extension_keeps_thresholds_and_caps(tmp_path):
    flags = ("--label", "y", "--frequency_threshold", "2", "--max_ids", "2")
    old = make(tmp_path, "s,y\na,1\na,0\nb,1\n", "s,y\na,1\n", *flags, dst="old")
    new = "s,y\nb,1\nc,1\nc,0\nd,1\nd,1\nd,0\n"
    made = make(tmp_path, new, "s,y\na,1\n", "--vocabulary", old.folder, "--extend_vocabulary", dst="new")
    assert made.vocabulary("s") == [("a", 1, 2), ("d", 2, 3)]  # b is rare in these rows, too, and c has no room


def test_rows_without_a_label(tmp_path, old):
    rows = write(tmp_path / "rows.csv", "tags,extra,g,n,s\nx,?,9,3,b\n,?,8,,zz\n")
    flags = ("--mode", "encode", "--data", rows, "--vocabulary", old.folder, "--keep", "extra,s", "--dst", tmp_path / "rows")
    assert do(table, *flags) == 0
    made = Made(tmp_path / "rows")
    assert made["new"] == {"s": [2, 0], "tags": [[1, -1], [-1, -1]], "n": [0, 0], "group": [9, 8]}
    assert not made.spec.labelled("new")
    assert pl.read_parquet(tmp_path / "rows" / "new" / "keys.parquet").to_dicts() == [{"extra": "?", "s": "b"}, {"extra": "?", "s": "zz"}]
    assert made.metadata["label"] == "y" and read_yaml(made.folder / "columns.yaml")["label"] == "y"


def test_rows_without_a_label_beside_those_that_have_one(tmp_path):
    today = write(tmp_path / "today.csv", "s,n,tags,g\nb,3,q,5\nnew,5,,6\n")
    made = make(tmp_path, OLD, OLD, *FLAGS, "--data", today, "--split_name", "today", "--keep", "s")
    assert made["today"] == {"s": [2, 0], "tags": [[0, -1], [-1, -1]], "n": pytest.approx([0, 2 / (8 / 3) ** 0.5]), "group": [5, 6]}
    assert made.values("s") == ["a", "b"] and list(made.spec.sources) == ["train", "test", "today"]
    assert pl.read_parquet(made.folder / "today" / "keys.parquet")["s"].to_list() == ["b", "new"]
    assert made.metadata["today"] == {"files": ["today.csv"], "rows": 2, "bad_lines_skipped": 0}


def test_keys_keep_their_types(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame({"s": ["a", "b"], "i": pl.Series([7, None], dtype=pl.Int8), "f": [0.5, 1.0], "y": [1, 0]}).write_parquet(path)
    made = make(tmp_path, path, path, "--label", "y", "--keep", "i,f,s")
    found = pl.read_parquet(made.folder / "test" / "keys.parquet")
    assert found.to_dicts() == [{"i": 7, "f": 0.5, "s": "a"}, {"i": None, "f": 1.0, "s": "b"}] and found.schema["i"] == pl.Int64
    with pytest.raises(DatasetError, match="column i holds String, but Int64 in the files before it"):
        make(tmp_path, path, "s,i,f,y\na,1,2,0\n", "--label", "y", "--keep", "i", dst="other")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train", "T"], "no test rows are given; expected --test FILES"),
        (["--train", "T", "--test", "T", "--test_fraction", "0.1"], "--test gives the test split, and --test_fraction or --test_values takes it"),
        (["--train", "T", "--split_by", "t"], "--split_by needs --test_fraction or --valid_fraction"),
        (["--train", "T", "--split_by", "t", "--split_key", "s", "--test_fraction", "0.1"], "--split_by and --split_key: expected only one of them"),
        (["--train", "T", "--test_fraction", "0.6", "--valid_fraction", "0.4"], "add up to 1, expected less than 1"),
        (["--train", "T", "--test_values", "a"], "--test_values needs --split_column"),
        (["--mode", "encode", "--data", "T"], "--mode encode needs --data, the rows, and --vocabulary"),
        (["--mode", "encode", "--data", "T", "--vocabulary", "D", "--train", "T"], "--train has no effect with --mode encode"),
        (["--train", "T", "--test", "T", "--split_name", "today"], "--split_name needs --data"),
        (["--train", "T", "--test", "T", "--data", "T", "--split_name", "valid"], "--split_name valid: splits of that name have labels"),
        (["--data", "T"], "--train is missing"),
        (["--test", "T"], "--train is missing"),
        (["--train", "T", "--test", "T", "--label", "y", "--time_format", "%Y"], "--time_format needs --times or --split_by"),
        (["--train", "T", "--test", "T", "--extend_vocabulary"], "--extend_vocabulary needs --vocabulary"),
        (["--train", "T", "--test", "T", "--config", "c", "--categorical", "s"], "--categorical and --config: --config already sets the use"),
        (["--train", "T", "--test", "T", "--vocabulary", "D", "--label", "y"], "--label and --vocabulary"),
        (["--train", "T", "--test", "T", "--vocabulary", "D"], "no such file; expected a feature specification \\(path from --vocabulary"),
        (["--train", "T", "--test", "T"], "--label is missing: expected --label COLUMN"),
        (["--train", "T", "--test", "T", "--label", "z"], "--label z: no column z; .*; the columns are s, t, part, y"),
        (["--train", "T", "--test", "T", "--label", "y > 1 and s > 2"], "expected a column, or one comparison"),
        (["--train", "T", "--test", "T", "--label", "s > b"], "'b' is not a number"),
        (["--train", "T", "--test", "T", "--label", "y", "--categorical", "q"], "--categorical q: no such column; the columns are s, t"),
        (
            ["--train", "T", "--test", "T", "--label", "y", "--categorical", "s", "--numerical", "s"],
            "--numerical s: the column is given by two flags",
        ),
        (["--train", "T", "--test", "T", "--label", "y", "--keep", "score"], "--keep score: predictions have a column of this name"),
        (["--train", "T", "--test", "T", "--label", "y", "--keep", "q"], "--keep q: no such column; the columns are s, t, part, y"),
        (["--train", "nothing*.csv", "--test", "T"], "matches no file"),
        (["--train", "T", "T", "--test", "T"], "is given twice"),
        (["--train", "nobody.csv", "--test", "T"], "nobody.csv: no such file"),
    ],
)
def test_invalid_flags_are_rejected(tmp_path, flags, message):
    path = write(tmp_path / "t.csv", rows(range(6)))
    words = [{"T": str(path), "D": str(tmp_path / "nowhere")}.get(word, word) for word in flags]
    with pytest.raises(UserError, match=message) as raised:
        do(table, *words, "--dst", tmp_path / "out")
    assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()


def test_a_dataset_is_not_replaced_unless_asked(tmp_path, old):
    with pytest.raises(UserError, match="holds a dataset already"):
        make(tmp_path, NEW, NEW, *FLAGS, dst="old")
    made = make(tmp_path, NEW, NEW, *FLAGS, "--overwrite", dst="old")
    assert made.values("s") == ["c", "a"]
    inside = write(made.folder / "train" / "rows.csv", NEW)
    with pytest.raises(DatasetError, match="which the dataset will replace; choose another --dst"):
        make(tmp_path, inside, NEW, *FLAGS, "--overwrite", dst="old")


def test_unusable_vocabulary_is_rejected(tmp_path, old):
    path = old.folder / "vocabulary" / "s.parquet"
    pl.read_parquet(path).reverse().write_parquet(path)
    with pytest.raises(DatasetError, match="expected the ids 1, 2, … in order"):
        make(tmp_path, NEW, NEW, "--vocabulary", old.folder, dst="new")
    path.write_bytes(b"damaged")
    with pytest.raises(DatasetError, match="cannot be read as a vocabulary"):
        make(tmp_path, NEW, NEW, "--vocabulary", old.folder, dst="new")
    spec = read_yaml(old.folder / "feature_spec.yaml")
    del spec["metadata"]["transforms"]
    (old.folder / "feature_spec.yaml").write_text(yaml.safe_dump(spec))
    with pytest.raises(DatasetError, match=r"has no metadata.transforms of preproc.table"):
        make(tmp_path, NEW, NEW, "--vocabulary", old.folder, dst="new")


def test_dictionary_days_all_learns_from_every_labelled_row_and_warns(tmp_path, capsys):
    """Vocabularies, means, boundaries and the longest list are those of one training file with all labelled rows."""
    head = "s,n,b,l,y\n"
    parts = {"train": "a,1,1,p,1\na,2,2,p|q,0\n", "valid": "b,4,3,r,1\n", "test": "c,9,4,p|q|r,0\nb,4,5,s,1\n"}
    kinds = {"s": "categorical", "n": {"kind": "numerical"}, "b": {"kind": "numerical", "buckets": 3}, "l": {"kind": "list"}}
    valid, data = write(tmp_path / "valid.csv", head + parts["valid"]), write(tmp_path / "data.csv", "s,n,b,l\nz,100,9,z|z|z|z\n")
    config = {"label": "y", "features": kinds}
    flags = ("--valid", valid, "--data", data, "--dictionary_days", "all")
    leaky = make(tmp_path, head + parts["train"], head + parts["test"], *flags, config=config)
    assert "warning: --dictionary_days all: values of test rows are in the vocabularies" in capsys.readouterr().err
    whole = make(tmp_path, head + "".join(parts.values()), head + parts["test"], config=config, dst="whole")
    for name in ("s", "l"):
        assert leaky.vocabulary(name) == whole.vocabulary(name)
    assert leaky.metadata["transforms"] == whole.metadata["transforms"]
    assert leaky.metadata["transforms"]["n"]["mean"] == 4 and leaky.metadata["transforms"]["l"]["max_hotness"] == 3
    assert leaky.metadata["dictionary_days"] == "all" and "dictionary_days" not in whole.metadata
    assert leaky["test"] == whole["test"]
    with pytest.raises(UserError, match="--dictionary_days all: nothing is learned with --vocabulary"):
        make(tmp_path, None, head + parts["test"], "--vocabulary", tmp_path / "out", "--dictionary_days", "all", dst="frozen")


def test_dictionary_days_all_extends_by_the_values_of_test_rows_too(tmp_path):
    make(tmp_path, "s,y\na,1\n", "s,y\na,1\n", "--label", "y", dst="old")
    flags = ("--vocabulary", tmp_path / "old", "--extend_vocabulary", "--dictionary_days", "all")
    made = make(tmp_path, "s,y\nb,1\n", "s,y\nc,1\nc,0\n", *flags, dst="new")
    assert made.values("s") == ["a", "c", "b"]
