"""Tests of the whole way from synthetic raw files in Outbrain's format to a trained DLRM, by commands only."""

import json

import polars as pl
import pytest
from runs import TRAIN

from dataloading import generate_outbrain
from dataloading.feature_spec import FeatureSpec
from preproc.outbrain import command as outbrain
from utils.checkpoint.reading import Checkpoint


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outbrain")
    assert generate_outbrain.main(["--displays", "6000", "--dst", str(folder / "raw")]) == 0
    assert outbrain.main(["--src", str(folder / "raw"), "--dst", str(folder / "data")]) == 0
    return folder / "data"


def precision(predictions):
    """Return the scores' MAP@12 over displays with a click, and the number of these displays."""
    ranked = predictions.with_columns(pl.col("score").rank("ordinal", descending=True).over("group").alias("rank"))
    clicked = ranked.filter(pl.col("label").cast(pl.Int8) == 1)
    return clicked.select(pl.when(pl.col("rank") <= 12).then(1 / pl.col("rank")).otherwise(0).mean()).item(), len(clicked)


def test_dlrm_trains_and_comes_near_the_best_order(run, data, tmp_path):
    spec = FeatureSpec.from_yaml(data / "feature_spec.yaml")
    result = run("--dataset_path", data, *TRAIN, "--epochs", "3", "--save_checkpoint_path", tmp_path / "model")
    assert result.code == 0
    assert result.err.count("--interaction dot takes tables of one width: all have the 8 columns of --embedding_dim, and embedding_dim of the") == 1
    assert "(16 to 128) has no effect; --interaction cross and cat take any width" in result.err
    assert Checkpoint(tmp_path / "model").shape("tables/event_platform/weights") == (4, 8)
    flags = ("--mode", "predict", "--split", "test", "--cpu", "--restore_checkpoint_path", tmp_path / "model")
    assert run("--dataset_path", data, *flags, "--predictions_path", tmp_path / "scores.parquet").code == 0
    reached, displays = precision(pl.read_parquet(tmp_path / "scores.parquet"))
    assert displays == spec.metadata["test"]["displays"] == result.final["groups_with_positive"]
    assert result.final["map_at_12"] == pytest.approx(reached, abs=1e-4)  # `precision` ranks tied scores in the order of the rows
    assert spec.metadata["map_at_12_of_the_true_order"] - 0.03 < reached < spec.metadata["map_at_12_of_the_true_order"] + 0.01


@pytest.mark.parametrize(("interaction", "parameters"), [("dot", 16 * 672_304), ("cross", 84_627_264), ("cat", 84_627_264)])
def test_specified_widths_apply_except_with_dot(run, data, interaction, parameters):
    flags = ("--mode", "plan", "--plan_format", "json", "--interaction", interaction, "--embedding_dim", "16", "--cpu")
    result = run("--dataset_path", data, *flags)
    assert result.code == 0 and ("takes tables of one width" in result.err) == (interaction == "dot")
    assert json.loads(result.out)["embedding_parameters"] == parameters  # some 84.6 million with the published widths
