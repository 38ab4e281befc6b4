"""A feature for training only from a raw table to scores: preproc.table, training, predictions, and scores of raw rows without the column."""

import random

import numpy as np
import polars as pl
import pytest
import tensorflow as tf
from runs import SMALL

import dlrm
from preproc.table import command as table
from run.command import do
from serving.raw_graph import RawFeature, RawGraph, check_possible
from utils.checkpoint.reading import Checkpoint
from utils.encoding.recipe import Recipe
from utils.errors import UserError

FLAGS = ("--label", "click", "--categorical", "user,item,position,device", "--training_only", "position=1,device=phone,height=0.5")


def log(rows: int, seed: int) -> pl.DataFrame:
    """Draw rows of texts whose clicks fall with the position."""
    draw, found = random.Random(seed), []
    for _ in range(rows):
        position, height = draw.randint(1, 5), draw.random()
        click = int(draw.random() < 1 / position * height)
        found.append([click, f"u{draw.randint(0, 9)}", f"i{draw.randint(0, 30)}", position, draw.choice(["phone", "tv", ""]), f"{height:.2f}"])
    return pl.DataFrame(found, schema=["click", "user", "item", "position", "device", "height"], orient="row").cast({"click": pl.Int8})


def predicted(folder, data, split):
    flags = ("--mode", "predict", "--split", split, "--cpu", "--dataset_path", data, "--restore_checkpoint_path", folder / "c", "--log_path", "")
    do([str(flag) for flag in (*flags, "--predictions_path", folder / f"{data.name}-{split}.parquet")], "dlrm.py", "")
    return pl.read_parquet(folder / f"{data.name}-{split}.parquet")["score"].to_numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a log, train a model on a dataset of it, and encode the rows of a later log without its columns for training only."""
    folder = tmp_path_factory.mktemp("training only")
    log(600, 0).write_csv(folder / "log.csv")
    log(200, 1).drop("click").write_csv(folder / "later.csv")
    log(200, 1).select("user", "item").write_csv(folder / "short.csv")
    assert table.main([str(word) for word in ("--train", folder / "log.csv", "--test_fraction", 0.2, *FLAGS, "--dst", folder / "data")]) == 0
    for name in ("later", "short"):
        words = ("--mode", "encode", "--data", folder / f"{name}.csv", "--vocabulary", folder / "data", "--dst", folder / name)
        assert table.main([str(word) for word in words]) == 0
    widths = {name.removeprefix("--"): value for name, value in zip(SMALL[::2], SMALL[1::2], strict=True)}
    fixed = {"cpu": True, "batch_size": 64, "valid_batch_size": 64, "optimizer": "adam", "learning_rate": 0.02, "warmup_steps": 0, "log_path": ""}
    dlrm.train(dataset_path=str(folder / "data"), save_checkpoint_path=str(folder / "c"), **widths, **fixed, max_steps=8)
    return folder


def test_raw_rows_score_as_predictions_with_and_without_the_columns(folder):
    served = Checkpoint(folder / "c").manifest["features"]["served"]
    vocabulary = {name: pl.read_parquet(folder / f"data/vocabulary/{name}.parquet") for name in ("position", "device")}
    ids = {name: vocabulary[name].filter(pl.col("value") == value)["id"].item() for name, value in (("position", "1"), ("device", "phone"))}
    assert {name: served[name] for name in ids} == ids and set(served) == {"position", "device", "height"}
    expected = predicted(folder, folder / "later", "new")
    assert len(np.unique(expected)) > 100
    np.testing.assert_array_equal(predicted(folder, folder / "short", "new"), expected)
    rows, model = pl.read_csv(folder / "later.csv", infer_schema=False), dlrm.load(folder / "c")
    np.testing.assert_array_equal(model.score_raw(rows.select("user", "item")), expected)
    np.testing.assert_array_equal(model.score_raw(rows), expected)
    odd = rows.with_columns(position=pl.lit("nowhere"), height=pl.lit("high"), device=pl.lit(None))
    np.testing.assert_array_equal(model.score_raw(odd), expected)
    as_served = rows.with_columns(position=pl.lit("1"), height=pl.lit("0.5"), device=pl.lit("phone"))
    np.testing.assert_array_equal(model.score_raw(as_served), expected)
    few = dlrm.load(folder / "c", mmap=True)
    np.testing.assert_allclose(few.score_raw(rows[3:7].select("user", "item")), expected[3:7], rtol=0, atol=1e-6)
    scorer = few.over_raw_arrays()
    texts = {name: rows[name].to_list() for name in ("user", "item")}
    np.testing.assert_allclose(scorer.score(*scorer.checked(texts)), expected, rtol=0, atol=1e-6)


def test_the_same_rows_with_the_served_values_in_the_log_score_alike(folder, tmp_path):
    """A dataset of rows that hold the values in the log gives the ids and numbers that are served."""
    rows = log(200, 1).drop("click").with_columns(position=pl.lit(1), device=pl.lit("phone"), height=pl.lit("0.5"))
    rows.write_csv(tmp_path / "rows.csv")
    words = ("--mode", "encode", "--data", tmp_path / "rows.csv", "--vocabulary", folder / "data", "--dst", tmp_path / "rows")
    assert table.main([str(word) for word in words]) == 0
    served = Checkpoint(folder / "c").manifest["features"]["served"]
    for name in ("position", "device"):
        assert np.fromfile(tmp_path / f"rows/new/{name}.bin", np.int8).tolist() == [served[name]] * 200
    assert np.fromfile(tmp_path / "rows/new/numerical.bin", np.float32).tolist() == [served["height"]] * 200


def test_exports_of_raw_values_do_without_the_columns(folder, capsys):
    """The export proves each version against `score_raw`; the SavedModel scores further rows here."""
    from serving.saved_model import LoadedModel

    words = ("--mode", "export", "--cpu", "--restore_checkpoint_path", folder / "c", "--export_path", folder / "r", "--log_path", "")
    do([str(word) for word in (*words, "--inputs", "raw", "--formats", "triton,savedmodel", "--model_name", "m")], "dlrm.py", "")
    assert capsys.readouterr().out.count("(drawn values") == 2
    rows = pl.read_csv(folder / "later.csv", infer_schema=False)
    given = {name: np.array([[value.encode()] for value in rows[name]], object) for name in ("user", "item")}
    scores = LoadedModel(folder / "r/m_savedmodel/1/model.savedmodel").score(given)
    np.testing.assert_allclose(scores, dlrm.load(folder / "c").score_raw(rows), rtol=0, atol=2e-6)
    scorer = dlrm.load(folder / "r/m/1/checkpoint", mmap=True).over_raw_arrays()
    np.testing.assert_allclose(scorer.score(*scorer.checked({name: rows[name].to_list() for name in given})), scores, rtol=0, atol=2e-6)


def test_explanations_of_raw_rows_do_without_the_columns(folder):
    rows, model = pl.read_csv(folder / "later.csv", infer_schema=False), dlrm.load(folder / "c")
    found, short = (model.explain_raw(some[:6], some[6:60]) for some in (rows, rows.select("user", "item")))
    np.testing.assert_array_equal(found.logits, short.logits)
    assert not any(np.any(found.contributions[name]) for name in found.contributions if name not in ("user", "item"))


def test_a_feature_that_tensorflow_cannot_make_is_served_all_the_same(tmp_path):
    """A SavedModel needs no hash of a feature for training only."""
    features = [RawFeature("device", Recipe("categorical", ("device",), hash_buckets=9), None, served) for served in (4, None)]
    check_possible(features[:1])
    with pytest.raises(UserError, match=r"feature device \(hash_buckets\)"):
        check_possible(features)
    number = RawFeature("height", Recipe("numerical", ("height",), transform="none"), None, 0.25)
    plain = RawFeature("price", Recipe("numerical", ("price",), transform="none"), None)
    graph = RawGraph((number, plain), tuple(features[:1]), "float32", tmp_path)
    numbers, ids = graph.encoded({"price": tf.constant([[1.0], [2.0]])})
    assert numbers.numpy().tolist() == [[0.25, 1.0], [0.25, 2.0]] and ids.numpy().tolist() == [[4], [4]] and ids.dtype == tf.int64
