"""Tests of metrics by group in training and evaluation: in the console, the log and the checkpoint; and their errors."""

import polars
import pytest
from runs import TRAIN, write_grouped

from utils.metrics.ranking import rank
from utils.metrics.ranking_metric import parse

ALL = "map@12,ndcg@3,mrr,recall@2,group_auc,gauc"
FAST = (*TRAIN, "--batch_size", "512")


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    return write_grouped(tmp_path_factory.mktemp("grouped") / "dataset")


@pytest.fixture(scope="module")
def without_valid(tmp_path_factory):
    return write_grouped(tmp_path_factory.mktemp("grouped") / "dataset", ("train", "test"), "int32")


def by_predictions(path, words):
    """Return the metrics of the rows that `--mode predict` wrote, under the keys of the log."""
    rows = polars.read_parquet(path)
    return rank(rows["score"].to_numpy(), rows["label"].to_numpy(), rows["group"].to_numpy(), parse(words.split(","))).figures()


def evaluations(*results):
    """Return the data of the log's lines of evaluations on the valid split."""
    lines = [line["data"] for result in results for line in result.log if line["type"] == "LOG" and line["step"]]
    return [data for data in lines if "valid_loss" in data]


def test_train_and_eval_metrics_match_the_predictions(run, grouped, tmp_path):
    flags = ("--dataset_path", grouped, "--cpu")
    trained = run(*flags, *FAST, "--save_checkpoint_path", tmp_path / "c", "--ranking_metrics", ALL, "--evals_per_epoch", "2")
    restored = ("--restore_checkpoint_path", tmp_path / "c")
    assert run(*flags, *restored, "--mode", "predict", "--predictions_path", tmp_path / "p.parquet").code == 0
    expected = by_predictions(tmp_path / "p.parquet", ALL)
    assert 100 < expected["groups_with_positive"] < expected["groups"] <= 120
    assert {name: trained.final[name] for name in expected} == expected
    assert {f"valid_{name}" for name in expected} <= trained.final.keys()
    found = evaluations(trained)
    assert len(found) == 2 and found[-1]["valid_map_at_12"] == trained.final["valid_map_at_12"] != expected["map_at_12"]
    assert f"test MAP@12 {expected['map_at_12']:.10f}, NDCG@3 {expected['ndcg_at_3']:.10f}, MRR " in trained.out
    for size in ("512", "64", "901"):
        evaluated = run(*flags, *restored, "--mode", "eval", "--ranking_metrics", ALL, "--valid_batch_size", size)
        assert {name: evaluated.final[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    units = {line["metric"]: line["metadata"]["unit"] for line in evaluated.log if line["type"] == "METADATA"}
    assert units["map_at_12"] is None and units["groups_with_positive"] == "groups"
    assert f"{expected['groups_with_positive']} of {expected['groups']} groups have a positive" in evaluated.out


def test_map_at_12_is_reported_by_default(run, without_valid, tmp_path):
    flags = ("--dataset_path", without_valid, "--cpu")
    trained = run(*flags, *FAST, "--save_checkpoint_path", tmp_path / "c")
    evaluate = (*flags, "--mode", "eval", "--restore_checkpoint_path", tmp_path / "c")
    default, off = run(*evaluate), run(*evaluate, "--ranking_metrics", "none")
    assert default.final["map_at_12"] == trained.final["map_at_12"] and "test MAP@12 " in default.out
    assert "valid_map_at_12" not in trained.final
    assert default.final.keys() - off.final.keys() == {"map_at_12", "groups", "groups_with_positive"}
    assert off.final["auc"] == default.final["auc"] and "MAP" not in off.out
    best = run(*evaluate, "--best_metric", "mrr")
    assert "--best_metric has no effect with --mode eval" in best.err and best.final.keys() == default.final.keys()
    other = run(*flags, "--mode", "inference", "--restore_checkpoint_path", tmp_path / "c", "--max_steps", "2", "--ranking_metrics", "mrr")
    assert "--ranking_metrics has no effect with --mode inference" in other.err
    assert not {"map_at_12", "mrr"} & other.final.keys()


def test_best_model_by_a_ranking_metric(run, grouped, tmp_path):
    flags = ("--dataset_path", grouped, *FAST, "--epochs", "3", "--save_checkpoint_path", tmp_path / "c", "--keep_best_checkpoint")
    first = run(*flags, "--best_metric", "ndcg@3", "--max_steps", "4", "--ranking_metrics", "mrr")
    assert first.final["best_ndcg_at_3"] == first.final["valid_ndcg_at_3"] and "valid_mrr" in first.final
    rest = run(*flags, "--resume", "auto")
    assert rest.code == 0 and "best_metric ndcg@3" in rest.out, rest.err
    values = [data["valid_ndcg_at_3"] for data in evaluations(first, rest)]
    assert len(values) == 3 and rest.final["best_ndcg_at_3"] == max(values) and rest.final["best_epoch"] == 1 + values.index(max(values))
    whole = run(*flags, "--best_metric", "ndcg@3", "--ranking_metrics", "mrr", "--overwrite_checkpoints")
    assert whole.final["best_ndcg_at_3"] == rest.final["best_ndcg_at_3"] and whole.final["best_auc"] == rest.final["best_auc"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--ranking_metrics", "map@12,mrr"), "--ranking_metrics map@12,mrr needs groups: {path}/feature_spec.yaml has none; name their column in "),
        (("--best_metric", "mrr"), "--best_metric mrr needs groups: {path}/feature_spec.yaml has none"),
        (("--ranking_metrics", "map"), "--ranking_metrics map: 'map' is not one of map@K, ndcg@K, recall@K, mrr, mrr@K, group_auc, gauc"),
        (("--ranking_metrics", ""), "--ranking_metrics : '' is not one of map@K"),
        (("--best_metric", "mrr,map@12"), "--best_metric mrr,map@12: expected auc, or one of map@K"),
        (("--best_metric", "none"), "--best_metric none: expected auc, or one of map@K"),
        (("--best_metric", "mrr", "--ranking_metrics", "none"), "--best_metric mrr and --ranking_metrics none exclude each other"),
    ],
)
def test_invalid_metric_flags_are_a_one_line_error(run, dataset, flags, message):
    result = run("--dataset_path", dataset, *FAST, *flags)
    assert result.code == 1 and result.err.count("\n") == 1 and message.format(path=dataset) in result.err, result.err


def test_metric_flags_without_effect_need_no_groups(run, dataset, trained):
    restored = ("--dataset_path", dataset, "--cpu", "--restore_checkpoint_path", trained[0])
    assert run(*restored, "--mode", "eval", "--best_metric", "mrr").code == 0
    result = run("--dataset_path", dataset, *FAST, "--max_steps", "2", "--ranking_metrics", "none")
    assert result.code == 0 and "groups" not in result.final


def test_ranking_metrics_on_synthetic_data_are_an_error(run):
    result = run("--dataset_type", "synthetic", *FAST, "--ranking_metrics", "mrr")
    assert result.code == 1 and "--ranking_metrics mrr needs groups: the synthetic data has none" in result.err
