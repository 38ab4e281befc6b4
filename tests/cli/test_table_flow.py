"""Tests of the whole way from a raw table to a trained model and scores of new rows, by commands only.

For every kind of column, `score_raw` and predictions agree bit by bit.
"""

import random
import re

import numpy as np
import polars as pl
import pytest
import yaml
from runs import SMALL

import dlrm
from benchmarks import table_logs
from preproc.table import command as table
from utils.checkpoint.reading import Checkpoint

FEATURES = {
    "user": "categorical",
    "item": {"kind": "categorical", "frequency_threshold": 2, "table": "items"},
    "bought": {
        "kind": "list",
        "column": "history",
        "separator": " ",
        "max_hotness": 3,
        "pooling": "mean",
        "frequency_threshold": 2,
        "table": "items",
    },
    "city": {"kind": "categorical", "hash_buckets": 20},
    "hour": {"kind": "time", "column": "when", "part": "hour"},
    "days": {"kind": "time", "column": "when", "part": "days_since", "transform": "standardise"},
    "user_hour": {"kind": "cross", "columns": ["user", "hour"], "max_ids": 50},
    "price": {"kind": "numerical", "transform": "log1p"},
    "price_range": {"kind": "numerical", "column": "price", "buckets": 4},
    "genre": {"kind": "numerical", "transform": "none"},
}
COLUMNS = ["user", "item", "history", "city", "when", "price", "genre"]


def log(rows: int, seed: int, users: int) -> str:
    draw = random.Random(seed)
    lines = [",".join(["rating", *COLUMNS])]
    for _ in range(rows):
        history = " ".join(f"i{draw.randint(0, 30)}" for _ in range(draw.randint(0, 5)))
        price, city = draw.choice(["", f"{draw.random() * 50:.2f}"]), draw.choice(["", '"New York, NY"', "Rome"])
        day, hour = draw.randint(1, 28), draw.randint(0, 23)
        when = f"2024-01-{day:02}T{hour:02}:15:00Z" if draw.random() < 0.95 else ""
        lines.append(f"{draw.randint(1, 5)},u{draw.randint(0, users)},i{draw.randint(0, 30)},{history},{city},{when},{price},{draw.randint(0, 1)}")
    return "\n".join(lines) + "\n"


def command(*words) -> None:
    assert table.main([str(word) for word in words]) == 0


def predicted(folder, data, checkpoint):
    from run.command import do

    flags = ("--mode", "predict", "--split", "new", "--cpu", "--dataset_path", data, "--restore_checkpoint_path", checkpoint, "--log_path", "")
    do([str(flag) for flag in (*flags, "--predictions_path", folder / f"{data.name}.parquet")], "dlrm.py", "")
    return pl.read_parquet(folder / f"{data.name}.parquet")


def train(data, checkpoint, **flags):
    widths = {name.removeprefix("--"): value for name, value in zip(SMALL[::2], SMALL[1::2], strict=True)}
    fixed = {"cpu": True, "batch_size": 64, "valid_batch_size": 64, "optimizer": "adam", "learning_rate": 0.01, "warmup_steps": 0, "log_path": ""}
    return dlrm.train(dataset_path=str(data), save_checkpoint_path=str(checkpoint), **widths, **(fixed | flags))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write logs of yesterday and today, train a model on yesterday's, and encode today's rows without their ratings; return the folder."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "columns.yaml").write_text(yaml.safe_dump({"label": "rating >= 4", "features": FEATURES}, sort_keys=False))
    (folder / "yesterday.csv").write_text(log(800, 0, users=20))
    (folder / "today.csv").write_text(log(200, 1, users=25))
    flags = ("--train", folder / "yesterday.csv", "--split_by", "when", "--test_fraction", 0.2, "--bad_lines", "skip")
    command(*flags, "--dst", folder / "data", "--config", folder / "columns.yaml")
    train(folder / "data", folder / "c", max_steps=5)
    pl.read_csv(folder / "today.csv", infer_schema=False).drop("rating").write_csv(folder / "rows.csv", quote_style="necessary")
    command("--mode", "encode", "--data", folder / "rows.csv", "--vocabulary", folder / "data", "--keep", "user,item", "--dst", folder / "rows")
    return folder


def test_command_and_python_score_new_rows_alike(folder):
    found = predicted(folder, folder / "rows", folder / "c")
    rows = pl.read_csv(folder / "rows.csv", infer_schema=False)
    assert found.select("user", "item").equals(rows.select("user", "item")) and found["score"].n_unique() > 100
    model = dlrm.load(folder / "c")
    typed = rows.with_columns(
        pl.col("price").cast(pl.Float64),
        pl.col("genre").cast(pl.Int8),
        pl.col("when").str.to_datetime("%Y-%m-%dT%H:%M:%SZ"),
        pl.when(pl.col("history").is_null()).then(pl.lit([], pl.List(pl.String))).otherwise(pl.col("history").str.split(" ")).alias("history"),
    )
    forms = {"texts": rows, "typed": typed, "lists": rows.to_dict(as_series=False), "typed lists": typed.to_dict(as_series=False)}
    for form, samples in forms.items():
        np.testing.assert_array_equal(model.score_raw(samples), found["score"].to_numpy(), err_msg=form)
    assert model.score_raw({name: [] for name in COLUMNS}).shape == (0,)


def test_score_raw_takes_raw_columns(folder):
    model = dlrm.load(folder / "c")
    assert model.raw_columns == {
        "user": "text", "item": "text", "history": "list", "city": "text", "when": "time", "price": "number", "genre": "number"
    }  # fmt: skip
    rows = pl.read_csv(folder / "rows.csv", infer_schema=False).with_columns(another=pl.lit(1))
    with pytest.raises(ValueError, match="column another: is unknown"):
        model.score_raw(rows)
    assert len(model.score_raw(rows[list(model.raw_columns)])) == len(rows)


def test_advice_about_an_unknown_column_works(folder):
    model = dlrm.load(folder / "c")
    frame = pl.read_csv(folder / "rows.csv", infer_schema=False).with_columns(another=pl.lit(1))
    with pytest.raises(ValueError, match="another: is unknown") as caught:
        model.score_raw(frame)
    names = getattr(model, re.search(r"frame\[list\(model\.(\w+)\)\]", str(caught.value))[1])
    assert len(model.score_raw(frame[list(names)])) == len(frame)


def test_times_with_offsets_score_as_their_moment(folder):
    rows = pl.read_csv(folder / "rows.csv", infer_schema=False)
    there = rows.with_columns(
        pl.col("when").str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.offset_by("-8h").dt.strftime("%Y-%m-%dT%H:%M:%S-08:00").alias("when")
    )
    model = dlrm.load(folder / "c")
    np.testing.assert_array_equal(model.score_raw(there), model.score_raw(rows))
    there.write_csv(folder / "offsets.csv", quote_style="necessary")
    command("--mode", "encode", "--data", folder / "offsets.csv", "--vocabulary", folder / "data", "--dst", folder / "offsets")
    for name in ("hour", "days", "user_hour"):
        ids = [(folder / data / "new" / f"{name}.bin") for data in ("rows", "offsets")]
        assert not ids[0].exists() or ids[0].read_bytes() == ids[1].read_bytes()
    assert (folder / "rows" / "new" / "numerical.bin").read_bytes() == (folder / "offsets" / "new" / "numerical.bin").read_bytes()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("price", "dear", "feature price: value 'dear' of sample 0, expected a finite number, or nothing"),
        ("when", "soon", "feature days: value 'soon' of sample 0, expected a time"),
        ("nobody", "1", r"column nobody: is unknown; .*select frame\[list\(model\.raw_columns\)\]"),
        ("user", None, "column user: is missing"),
        ("history", 3.5, "feature history: mixes types"),
    ],
)
def test_invalid_raw_values_are_rejected(folder, column, value, message):
    samples = {name: ["1"] for name in COLUMNS} | {"when": [None], column: [value]}
    if value is None:
        del samples[column]
    with pytest.raises(ValueError, match=message):
        dlrm.load(folder / "c").score_raw(samples)


def test_extended_vocabulary_keeps_the_vectors_of_its_values(folder):
    flags = ("--train", folder / "today.csv", "--test", folder / "yesterday.csv", "--bad_lines", "skip")
    command(*flags, "--vocabulary", folder / "data", "--extend_vocabulary", "--dst", folder / "grown")
    old, new = (pl.read_parquet(folder / name / "vocabulary" / "user.parquet") for name in ("data", "grown"))
    assert new.height > old.height and new["value"][: old.height].equals(old["value"])
    # One step with a tiny learning rate writes the grown tables. Each old value keeps its vector, and rows of old values keep their scores.
    train(folder / "grown", folder / "g", restore_checkpoint_path=str(folder / "c"), allow_growth=True, max_steps=1, learning_rate=1e-30)
    before, after = (Checkpoint(folder / name).read("tables/user/weights") for name in ("c", "g"))
    assert after.shape[0] == new.height + 1 and before.shape[0] == old.height + 1
    np.testing.assert_array_equal(after[: len(before)], before)
    rows = pl.read_csv(folder / "rows.csv", infer_schema=False)
    known = rows.filter(pl.col("user").is_in(old["value"].to_list())).with_columns(
        when=pl.lit(None, pl.String)
    )  # without times, no cross of features has a new value
    scores = [dlrm.load(folder / name).score_raw(known) for name in ("c", "g")]
    np.testing.assert_array_equal(*scores)
    assert len(known) > 50 and len(np.unique(scores[0])) > 30


MOVIES = "--columns user_id,movie_id,rating,time --categorical user_id,movie_id --times time --split_by time --test_fraction 0.1"
SIDES = ["--join", "users.csv:user_id", "movies.csv:movie_id", "--list", "genres=genre_*"]
CLICKS = "--label click --ignore id --categorical C1,banner_pos,device_type,C14,C17 --times hour --split_by hour --test_fraction 0.2"
FLOWS = {
    "movies": (
        "ratings.dat",
        "pairs.dat",
        [*MOVIES.split(), *SIDES, "--label", "rating >= 4", "--data_columns", "user_id,movie_id,time"],
        "user_id,movie_id",
        0.8,
    ),
    "clicks": ("clicks_*.csv.gz", "today.csv.gz", [*CLICKS.split(), "--time_format", "%y%m%d%H", "--frequency_threshold", "3"], "id", 0.65),
}


@pytest.mark.parametrize("kind", FLOWS)
def test_raw_files_to_scores_in_three_commands(tmp_path, kind, monkeypatch):
    table_logs.main(["--dst", str(tmp_path / "raw"), "--rows", "20000"])
    monkeypatch.chdir(tmp_path / "raw")
    train_files, data, flags, keep, least = FLOWS[kind]
    command("--train", tmp_path / "raw" / train_files, "--data", tmp_path / "raw" / data, *flags, "--keep", keep, "--dst", tmp_path / "new")
    result = train(tmp_path / "new", tmp_path / "c", learning_rate=0.003)
    assert result.figures["auc"] > least
    found = predicted(tmp_path, tmp_path / "new", tmp_path / "c")
    assert len(found) == 400 and found.columns[:-2] == keep.split(",") and found["score"].is_between(0, 1).all()
