"""Tests of runs on weighted rows: metrics, predictions, batches without weight, exact resumes, and errors."""

import shutil
from dataclasses import replace

import numpy as np
import polars
import pytest
from runs import CARDINALITIES, TRAIN, edit_spec, write_dataset

from dataloading.feature_spec import generator_spec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter
from report.command import main as report
from report.rows.describe import describe
from report.rows.predictions import metrics_of
from utils.checkpoint.reading import Checkpoint
from utils.metrics.binary import evaluate

BATCH = 256
ROWS = {"train": 6 * BATCH - 31, "valid": 300, "test": 500}
WEIGHTLESS = (1, 4)  # batches of the training split


def write_weighted(folder, rows=ROWS, **changes):
    """Write a dataset with weights from 0 to 3; `changes` are functions of a split's weights."""
    spec = generator_spec(CARDINALITIES, 3, 1.2)
    spec = replace(spec, weight="heft", dtypes=dict(spec.dtypes) | {"heft": "float32"})
    with TfRawWriter(folder, spec, tuple(rows)) as writer:
        for split, count in rows.items():
            numerical, ids, labels, _ = SyntheticSplit(spec, split, count, seed=1).read_rows(0, count)
            draw = np.random.default_rng(count)
            weights = (3 * draw.random(count) * (draw.random(count) < 0.8)).astype(np.float32)
            writer.append(split, numerical, ids, labels, None, changes.get(split, lambda weights: weights)(weights))
        writer.publish({})
    return folder


def without_some_batches(weights):
    for batch in WEIGHTLESS:
        weights[batch * BATCH : (batch + 1) * BATCH] = 0
    return weights


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    return write_weighted(tmp_path_factory.mktemp("weighted") / "dataset", train=without_some_batches)


def arrays_of(folder):
    """Return the bytes of every array of the newest checkpoint."""
    checkpoint = Checkpoint(folder)
    return {name: checkpoint.read(name).tobytes() for name in checkpoint.manifest["arrays"]}


def test_metrics_predictions_and_resumes_of_weighted_rows(run, weighted, tmp_path):
    flags = ("--dataset_path", weighted, "--cpu")
    whole = run(*flags, *TRAIN, "--epochs", "2", "--save_checkpoint_path", tmp_path / "c")
    assert whole.final["weightless_steps"] == 4 and whole.final["steps"] == 12
    restored = ("--restore_checkpoint_path", tmp_path / "c")
    assert run(*flags, *restored, "--mode", "predict", "--predictions_path", tmp_path / "p.parquet").code == 0
    rows = polars.read_parquet(tmp_path / "p.parquet")
    np.testing.assert_array_equal(rows["weight"], np.fromfile(weighted / "test/weight.bin", np.float32))
    scores = rows["score"].to_numpy().astype(np.float64)
    logits = np.log(scores / (1 - scores)).astype(np.float32)
    expected = evaluate(logits, rows["label"].to_numpy(), weights=rows["weight"].to_numpy())
    assert abs(expected.auc - expected.unweighted.auc) > 1e-4
    for size in ("512", "77"):
        found = run(*flags, *restored, "--mode", "eval", "--valid_batch_size", size)
        assert found.final["auc"] == pytest.approx(expected.auc, abs=1e-5) and found.final["test_loss"] == pytest.approx(expected.log_loss, abs=1e-6)
        assert found.final["auc_unweighted"] == pytest.approx(expected.unweighted.auc, abs=1e-5)
        assert found.final["calibration_unweighted"] == pytest.approx(expected.unweighted.calibration, abs=1e-5)
        assert f"by the weights of column heft, {expected.weight:,.6g} in all; unweighted: AUC 0." in found.out
    assert {"auc_unweighted", "valid_auc_unweighted"} <= whole.final.keys()
    by_value = metrics_of("all", rows["score"].to_numpy(), rows["label"].to_numpy() == 1, rows["weight"].to_numpy())
    assert (by_value.auc.value, by_value.calibration.value) == pytest.approx((expected.auc, expected.calibration), rel=1e-5)
    (summary,) = [line["data"] for line in whole.log if line.get("step") == "EVALUATION" and line["data"]["final"]]
    assert sum(tenth[0] for tenth in summary["deciles"]) == pytest.approx(expected.weight)
    calibration = sum(tenth[2] for tenth in summary["deciles"]) / sum(tenth[1] for tenth in summary["deciles"])
    assert calibration == pytest.approx(expected.calibration, rel=1e-4)
    words = ("--predictions", tmp_path / "p.parquet", "--dataset_path", weighted, "--by", "cat_0", "-o", tmp_path / "r.html")
    assert report([*map(str, (tmp_path / "run.json", *words))]) == 0
    page = (tmp_path / "r.html").read_text()
    assert page.count("Weighted: every row counts by its weight.") == 2 and "Unweighted" not in page
    weights, labels = (np.fromfile(weighted / f"test/{name}.bin", kind) for name, kind in (("weight", np.float32), ("label", np.bool_)))
    (tests,) = [split for split in describe(weighted).splits if split.split == "test"]
    assert tests.click_rate == pytest.approx(weights[labels].sum(dtype=np.float64) / weights.sum(dtype=np.float64), rel=1e-6)
    for steps in ("1", "5"):  # cut before and after batches without weight
        resumed = tmp_path / f"c{steps}"
        assert run(*flags, *TRAIN, "--epochs", "2", "--max_steps", steps, "--save_checkpoint_path", resumed).code == 0
        again = run(*flags, *TRAIN, "--epochs", "2", "--save_checkpoint_path", resumed, "--resume", "auto")
        assert again.final["weightless_steps"] == 4 and arrays_of(resumed) == arrays_of(tmp_path / "c")
        assert again.final["train_loss"] == whole.final["train_loss"]


def test_a_model_without_weights_is_evaluated_with_those_of_a_dataset(run, weighted, tmp_path):
    plain = write_dataset(tmp_path / "plain", rows={"train": 1000, "test": 500})
    assert run("--dataset_path", plain, *TRAIN, "--save_checkpoint_path", tmp_path / "c").code == 0
    found = run("--dataset_path", weighted, "--cpu", "--mode", "eval", "--restore_checkpoint_path", tmp_path / "c")
    assert "by the weights of column heft" in found.out and found.final["auc"] != found.final["auc_unweighted"]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_split_without_weight_is_refused_at_the_start(run, tmp_path, split):
    folder = write_weighted(tmp_path / "d", {"train": 600, "valid": 300, "test": 300}, **{split: np.zeros_like})
    found = run("--dataset_path", folder, *TRAIN)
    assert found.code == 1 and found.err.count("\n") == 1
    assert f"{split}/weight.bin: feature heft: all {600 if split == 'train' else 300} weights of {split} are 0; expected some above 0" in found.err


@pytest.mark.parametrize(
    ("split", "value", "shown"), [("train", -0.5, "-0.5"), ("train", np.nan, "nan"), ("test", np.inf, "inf"), ("test", -np.inf, "-inf")]
)
def test_an_impossible_weight_is_named(run, tmp_path, split, value, shown):
    def changed(weights):
        weights[290] = value
        return weights

    folder = write_weighted(tmp_path / "d", {"train": 600, "test": 300}, **{split: changed})
    found = run("--dataset_path", folder, *TRAIN)
    assert found.code == 1
    assert f"{split}/weight.bin: feature heft, row 290: weight {shown} is not a finite number of at least 0" in found.err.splitlines()[-1]


def test_a_weight_channel_of_another_type_is_refused(run, tmp_path):
    folder = write_weighted(tmp_path / "d", {"train": 600, "test": 300})
    edit_spec(folder, lambda spec: spec["feature_spec"]["heft"].update(dtype="float64"))
    found = run("--dataset_path", folder, *TRAIN)
    assert found.code == 1 and "feature heft: dtype is float64, the weight must be float32" in found.err


def test_huge_and_tiny_weights_train_as_their_ratios(run, tmp_path):
    folders = [write_weighted(tmp_path / f"{power}", {"train": 600, "test": 300}, train=lambda w, f=10.0**power: w * f) for power in (-2, -38, 37)]
    losses = [run("--dataset_path", folder, *TRAIN).final["train_loss"] for folder in folders]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


@pytest.mark.parametrize("flags", [("--log_norms",), ("--interaction", "wide_and_deep"), ("--amp", "--amp_dtype", "float16")], ids=" ".join)
def test_batches_without_weight_in_every_kind_of_log(run, weighted, flags):
    """Steps 2 and 5 of 6 are reported without having been trained."""
    found = run("--dataset_path", weighted, *TRAIN, *flags, "--print_freq", "1", "--log_steps")
    assert found.code == 0 and found.final["weightless_steps"] == 2, found.err


def test_explain_counts_rows_by_their_weights(run, weighted, tmp_path):
    """On all rows, its AUC and log loss are those of the evaluation."""
    trained = run("--dataset_path", weighted, *TRAIN, "--save_checkpoint_path", tmp_path / "c")
    flags = ("--dataset_path", weighted, "--cpu", "--restore_checkpoint_path", tmp_path / "c")
    found = run(*flags, "--mode", "explain", "--split", "test", "--explain_samples", "100000")
    assert found.code == 0 and "rows count by their weights (column heft), as in training" in found.out, found.err
    assert found.final["auc"] == pytest.approx(trained.final["auc"], abs=1e-6) != trained.final["auc_unweighted"]
    assert found.final["log_loss"] == pytest.approx(trained.final["validation_loss"], abs=1e-6)


def test_keys_may_be_called_weight_in_a_dataset_without_weights(run, weighted, tmp_path):
    plain = write_dataset(tmp_path / "plain", rows={"train": 1000, "test": 500})
    assert run("--dataset_path", plain, *TRAIN, "--save_checkpoint_path", tmp_path / "c").code == 0
    shutil.copytree(weighted, tmp_path / "weighted")
    for folder, code in ((plain, 0), (tmp_path / "weighted", 1)):
        polars.DataFrame({"weight": range(500)}).write_parquet(folder / "test" / "keys.parquet")
        flags = ("--mode", "predict", "--restore_checkpoint_path", tmp_path / "c", "--predictions_path", tmp_path / "p.parquet")
        assert run("--dataset_path", folder, "--cpu", *flags).code == code
