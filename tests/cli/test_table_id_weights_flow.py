"""Weights of ids the whole way: a raw table, preproc.table, training, predictions, scores of raw rows, and an export for raw values."""

import random

import numpy as np
import pandas
import polars as pl
import pytest
import yaml
from runs import SMALL

import dlrm
from preproc.table import command as table
from run.command import do
from run.raw_rows import drawn_columns
from utils.checkpoint.reading import Checkpoint
from utils.errors import UserError

FEATURES = {
    "user": "categorical",
    "tags": {"kind": "list", "weights": "strength", "max_hotness": 3, "pooling": "mean", "frequency_threshold": 2},
    "liked": {"kind": "list", "column": "history", "separator": " ", "weights": "ratings", "table": "items"},
    "item": {"kind": "categorical", "table": "items"},
    "place": {"kind": "list", "separator": "json", "weights": "near", "hash_buckets": 20},
    "price": {"kind": "numerical", "transform": "log1p"},
}
COLUMNS = ["user", "tags", "strength", "history", "ratings", "item", "place", "near", "price"]


def log(rows: int, seed: int) -> pl.DataFrame:
    """Draw rows of texts; the label depends on the weights."""
    draw, found = random.Random(seed), []
    for _ in range(rows):
        tags = [draw.choice(["a", "b", "c", "d", f"e{draw.randint(0, 20)}", ""]) for _ in range(draw.randint(0, 5))]
        tags = [] if tags == [""] else tags
        history = [f"i{draw.randint(0, 30)}" for _ in range(draw.randint(0, 4))]
        strength = [draw.choice(["0", "0.1", "2.5", "1e-60", "1e-40", f"{draw.random():.3f}"]) for _ in tags]
        ratings = [f"{draw.gauss(0, 1):.2f}" for _ in history]
        place = draw.choice(["", '["Rome"]', '["Oslo"]'])
        values = [f"u{draw.randint(0, 9)}", "|".join(tags), "|".join(strength), " ".join(history), " ".join(ratings), f"i{draw.randint(0, 30)}"]
        label = int(sum(map(float, ratings)) + draw.gauss(0, 1) > 0)
        found.append([label, *values, place, "" if not place else f"[{draw.random() * 3:.1f}]", f"{draw.random() * 50:.2f}"])
    return pl.DataFrame(found, schema=["label", *COLUMNS], orient="row")


def predicted(folder, data, split):
    flags = ("--mode", "predict", "--split", split, "--cpu", "--dataset_path", data, "--restore_checkpoint_path", folder / "c", "--log_path", "")
    do([str(flag) for flag in (*flags, "--predictions_path", folder / f"{data.name}-{split}.parquet")], "dlrm.py", "")
    return pl.read_parquet(folder / f"{data.name}-{split}.parquet")["score"].to_numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a log, train a model on a dataset of it, and encode the rows of a later log; return the folder."""
    folder = tmp_path_factory.mktemp("weights of ids")
    (folder / "columns.yaml").write_text(yaml.safe_dump({"label": "label", "features": FEATURES}, sort_keys=False))
    log(600, 0).write_csv(folder / "log.csv")
    log(200, 1).drop("label").write_csv(folder / "later.csv")
    words = ("--train", folder / "log.csv", "--test_fraction", 0.2, "--config", folder / "columns.yaml", "--dst", folder / "data")
    assert table.main([str(word) for word in words]) == 0
    words = ("--mode", "encode", "--data", folder / "later.csv", "--vocabulary", folder / "data", "--dst", folder / "later")
    assert table.main([str(word) for word in words]) == 0
    widths = {name.removeprefix("--"): value for name, value in zip(SMALL[::2], SMALL[1::2], strict=True)}
    fixed = {"cpu": True, "batch_size": 64, "valid_batch_size": 64, "optimizer": "adam", "learning_rate": 0.02, "warmup_steps": 0, "log_path": ""}
    dlrm.train(dataset_path=str(folder / "data"), save_checkpoint_path=str(folder / "c"), **widths, **fixed, max_steps=8)
    return folder


@pytest.fixture
def rows(folder):
    """Return the later log's rows as a frame of texts."""
    return pl.read_csv(folder / "later.csv", infer_schema=False)


def typed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with lists and numbers, null where a text is empty."""
    lists = [pl.col("tags").str.split("|").list.eval(pl.when(pl.element() != "").then(pl.element()))]
    lists += [pl.col("history").str.split(" "), pl.when(pl.col("place") != "").then(pl.col("place")).str.json_decode(pl.List(pl.String))]
    numbers = [pl.col(name).str.split(mark).list.eval(pl.element().cast(float, strict=False)) for name, mark in (("strength", "|"), ("ratings", " "))]
    numbers.append(pl.when(pl.col("near") != "").then(pl.col("near")).str.json_decode(pl.List(pl.Float64)))
    return rows.with_columns(*lists, *numbers, pl.col("price").cast(pl.Float64))


def test_raw_rows_score_as_predictions_to_the_last_bit(folder, rows):
    expected = predicted(folder, folder / "later", "new")
    assert len(np.unique(expected)) > 100
    model = dlrm.load(folder / "c")
    forms = {
        "texts": rows,
        "typed": typed(rows),
        "texts in lists": rows.to_dict(as_series=False),
        "typed in lists": typed(rows).to_dict(as_series=False),
        "pandas": pandas.DataFrame(typed(rows).to_dict(as_series=False)),
    }
    for form, samples in forms.items():
        np.testing.assert_array_equal(model.score_raw(samples), expected, err_msg=form)
    np.testing.assert_allclose(dlrm.load(folder / "c", mmap=True).score_raw(rows[5:9]), expected[5:9], rtol=0, atol=1e-6)
    assert model.score_raw({name: [] for name in COLUMNS}).shape == (0,)
    assert not np.array_equal(model.score_raw(rows.with_columns(ratings=rows["ratings"].str.replace_all("-", ""))), expected)


def test_whole_numbers_beside_decimals_stay_what_they_are(folder):
    """Polars takes the type of the first list for all, so 0.5 after whole numbers would become 0."""
    model = dlrm.load(folder / "c")
    samples = {name: ["", ""] for name in COLUMNS} | {"history": ["i1 i2", "i3"], "price": [1, 1]}
    as_texts, as_lists = ({"ratings": ["1 2", "0.5"]}, {"ratings": [[1, 2], [0.5]]})
    np.testing.assert_array_equal(model.score_raw(samples | as_lists), model.score_raw(samples | as_texts))


def test_the_weight_of_a_single_value_may_be_a_number(folder):
    model = dlrm.load(folder / "c")
    samples = {name: ["", ""] for name in COLUMNS} | {"place": ['["Rome"]', ""]}
    expected = model.score_raw(samples | {"near": ["[0.5]", ""]})
    for near in ([0.5, None], np.array([0.5, np.nan]), [[0.5], []], [0.5, float("nan")]):
        np.testing.assert_array_equal(model.score_raw(samples | {"near": near}), expected)


def test_the_model_says_which_columns_hold_weights(folder, rows):
    model = dlrm.load(folder / "c")
    assert {name for name, kind in model.raw_columns.items() if kind == "weights"} == {"strength", "ratings", "near"}
    with pytest.raises(ValueError, match="column strength: is missing; the model has "):
        model.score_raw(rows.drop("strength"))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("strength", "1|2|3|4|5|6", "feature tags: sample 1: 2 values in column tags, but 6 weights in column strength; expected a weight for each"),
        ("strength", "", "feature tags: sample 1: 2 values in column tags, but 0 weights in column strength"),
        ("strength", "1|x", "feature tags: sample 1: the weight of value 2 in column strength is 'x', expected a finite number of at least 0"),
        ("strength", "-1|2", "the weight of value 1 in column strength is '-1', expected a finite number of at least 0, as a weighted mean needs"),
        ("strength", "1|1e39", "the weight of value 2 in column strength is '1e39', expected"),
        ("tags", "a", "feature tags: sample 1: 1 value in column tags, but 2 weights in column strength"),
        ("near", "nan", "feature place: sample 1: 1 value in column place, but 0 weights in column near"),
        ("near", "inf", "the weight of value 1 in column near is 'inf', expected a finite number that float32 holds"),
    ],
)
def test_a_wrong_row_is_one_line_that_names_it(folder, column, value, message):
    samples = {name: ["", "", ""] for name in COLUMNS} | {"price": ["1", "1", "1"]}
    samples |= {"tags": ["", "a|b", ""], "strength": ["", "1|2", ""], "place": ["", '["Rome"]', ""], "near": ["", "[1]", ""]}
    samples[column] = ["", value, ""]
    with pytest.raises(ValueError) as error:
        dlrm.load(folder / "c").score_raw(samples)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_raw_explanations_take_the_weights(folder, rows):
    found = dlrm.load(folder / "c").explain_raw(rows[:5], rows[5:])
    assert len(found.logits) == 5 and found.features["tags"] == ("tags",) and np.any(found.contributions["liked"])


def test_an_export_of_raw_values_takes_the_weights_as_inputs(folder, capsys):
    words = (
        "--mode",
        "export",
        "--cpu",
        "--log_path",
        "",
        "--restore_checkpoint_path",
        folder / "c",
        "--export_path",
        folder / "r",
        "--inputs",
        "raw",
    )
    do([str(word) for word in words], "dlrm.py", "")
    assert "(drawn values)" in capsys.readouterr().out
    for column in COLUMNS:
        assert f'name: "{column}"' in (folder / "r/dlrm/config.pbtxt").read_text()
    loaded = dlrm.load(folder / "c", mmap=True)
    columns = drawn_columns(loaded.raw_inputs(), seed=5)
    assert any("0.25" in text for text in columns["ratings"])
    scorer = dlrm.load(folder / "r/dlrm/1/checkpoint", mmap=True).over_raw_arrays()
    np.testing.assert_allclose(scorer.score(*scorer.checked(columns)), loaded.score_raw(columns), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="feature liked: sample 0: "):
        scorer.checked(columns | {"ratings": ["1 2 3 4 5 6 7"] * len(columns["user"])})
    with pytest.raises(UserError, match=r"--formats savedmodel: feature tags \(kind list\): .* use --formats triton, or --inputs ids"):
        do([*map(str, words), "--formats", "savedmodel", "--model_name", "other"], "dlrm.py", "")


def test_a_checkpoint_whose_transforms_disagree_about_weights_is_refused(folder, monkeypatch):
    transforms = Checkpoint(folder / "c").manifest["transforms"]
    without = {name: {option: value for option, value in entry.items() if option != "weights"} for name, entry in transforms.items()}
    model = dlrm.load(folder / "c")
    monkeypatch.setitem(model._opened.manifest, "transforms", without)
    with pytest.raises(UserError, match="the transform of feature tags names no column of weights, but the model has them"):
        model.score_raw({name: [""] for name in COLUMNS})
