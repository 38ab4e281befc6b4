"""Tests of the log's lines "EVALUATION": one for each evaluation, final ones for the tested weights, equal to the metrics of the predictions."""

import numpy as np
import polars
import pytest
from runs import TRAIN

from utils.metrics.delong import area

WORSENS = ("--epochs", "4", "--learning_rate", "0.1", "--evals_per_epoch", "2")


def lines(result):
    assert result.code == 0, result.err
    return [line["data"] for line in result.log if line["type"] == "LOG" and line["step"] == "EVALUATION"]


def placed(found):
    return [(one["split"], one["step"], one["final"]) for one in found]


def evaluations(result, key):
    return [
        line["data"][key]
        for line in result.log
        if line["type"] == "LOG" and isinstance(line["step"], list) and len(line["step"]) == 2 and key in line["data"]
    ]


def test_every_evaluation_of_a_run_has_a_line_and_the_last_is_final(run, dataset):
    result = run("--dataset_path", dataset, *TRAIN, "--epochs", "2")
    found = lines(result)
    assert placed(found) == [("test", 16, False), ("test", 32, False), ("test", 32, True)]
    assert [one["auc"] for one in found[:2]] == evaluations(result, "auc") and [one["epoch"] for one in found] == [0, 1, 1]
    assert found[1] == found[2] | {"final": False}
    assert found[2]["auc"] == result.final["auc"] and found[2]["log_loss"] == result.final["validation_loss"]


def test_valid_split_has_lines_and_the_test_is_final(run, dataset):
    result = run("--dataset_path", dataset, *TRAIN, "--epochs", "2", "--valid_fraction", "0.25")
    found = lines(result)
    assert placed(found) == [("valid", 12, False), ("valid", 24, False), ("test", 24, True)]
    assert [one["auc"] for one in found] == [*evaluations(result, "valid_auc"), result.final["auc"]]


@pytest.mark.parametrize("valid", [(), ("--valid_fraction", "0.25")])
def test_best_weights_are_the_final_ones(run, dataset, tmp_path, valid):
    result = run("--dataset_path", dataset, *TRAIN, *WORSENS, *valid, "--keep_best_checkpoint", "--save_checkpoint_path", tmp_path / "c")
    found = [one for one in lines(result) if one["split"] == "test" and (not valid or one["step"])]
    last, best = found[-2:]
    assert best["final"] and best["step"] == result.final["tested_step"] < last["step"] == result.final["steps"] and not last["final"]
    assert (best["auc"], last["auc"]) == (result.final["auc"], result.final["last_auc"])
    assert sum(one["final"] for one in lines(result)) == 1


def test_run_without_evaluations_has_lines_of_its_tests_only(run, dataset):
    assert lines(run("--dataset_path", dataset, *TRAIN, "--evals_per_epoch", "0")) == []
    found = run("--dataset_path", dataset, *TRAIN, "--evals_per_epoch", "0", "--valid_fraction", "0.25")
    assert placed(lines(found)) == [("test", 12, True)] and lines(found)[0]["epoch"] == 0


def test_evaluation_alone_is_final_and_agrees_with_the_predictions(run, dataset, trained, tmp_path):
    flags = ("--dataset_path", dataset, "--cpu", "--restore_checkpoint_path", trained[0])
    (found,) = lines(run(*flags, "--mode", "eval"))
    assert placed([found]) == [("test", 48, True)] and found["epoch"] == 2
    assert run(*flags, "--mode", "predict", "--predictions_path", tmp_path / "p.parquet").code == 0
    frame = polars.read_parquet(tmp_path / "p.parquet")
    scores, labels = frame["score"].to_numpy(), frame["label"].to_numpy().astype(bool)
    expected = area(np.sort(scores[~labels]), np.sort(scores[labels]))
    assert (found["auc"], found["auc_variance"]) == pytest.approx(expected, rel=1e-9)
    assert (found["samples"], found["positives"]) == (900, labels.sum())
    losses = -np.where(labels, np.log(scores), np.log1p(-scores))
    assert (found["log_loss"], found["log_loss_variance"]) == pytest.approx((losses.mean(), losses.var(ddof=1) / 900), rel=1e-4)
    order = np.argsort(scores, kind="stable").reshape(10, 90)
    for decile, rows in zip(found["deciles"], order, strict=True):
        assert decile[:2] == [90, labels[rows].sum()]
        assert decile[2:] == pytest.approx([scores[rows].sum(), scores[rows].min(), scores[rows].max()], rel=1e-5)
    histogram = found["histogram"]
    assert (sum(histogram["negative"]), sum(histogram["positive"])) == ((~labels).sum(), labels.sum())
    logits = np.log(scores) - np.log1p(-scores)
    assert (histogram["low"], histogram["high"]) == pytest.approx((logits.min(), logits.max()), abs=1e-4)


def test_variance_is_the_exact_one_beside_an_approximate_auc(run, dataset, trained):
    flags = ("--dataset_path", dataset, "--cpu", "--restore_checkpoint_path", trained[0], "--mode", "eval")
    (exact,), (approximate,) = lines(run(*flags)), lines(run(*flags, "--auc_thresholds", "10"))
    assert approximate["auc"] != exact["auc"]
    assert {**approximate, "auc": None} == {**exact, "auc": None}


def test_labels_that_are_all_the_same_leave_nulls(run, copy, trained):
    (copy / "test/label.bin").write_bytes(bytes(900))
    (found,) = lines(run("--dataset_path", copy, "--cpu", "--restore_checkpoint_path", trained[0], "--mode", "eval"))
    assert found["auc"] is found["auc_variance"] is found["normalized_entropy"] is found["calibration"] is None
    assert found["positives"] == sum(found["histogram"]["positive"]) == 0 and sum(found["histogram"]["negative"]) == 900
