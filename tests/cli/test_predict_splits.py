"""Tests of `--mode predict --split`: any split of a dataset, with or without labels, with the columns kept for predictions."""

import shutil
import signal

import numpy as np
import polars
import pytest
from runs import ROWS, TRAIN, edit_spec

from tests.children import dispositions


@pytest.fixture
def predict(run, trained, tmp_path):
    """Return a function that predicts a dataset's split; it returns the predictions, None where the run fails, and the run's Result."""

    def call(folder, *flags):
        path = tmp_path / "p.parquet"
        path.unlink(missing_ok=True)
        named = ("--dataset_path", folder, "--restore_checkpoint_path", trained[0], "--predictions_path", path)
        result = run("--cpu", "--mode", "predict", *named, *flags)
        return polars.read_parquet(path) if result.code == 0 else None, result

    return call


def as_today(folder):
    """Add a split `today` to a dataset: the rows of `test` without labels."""
    shutil.copytree(folder / "test", folder / "today")
    (folder / "today" / "label.bin").unlink()

    def add(content):
        chunks = [chunk for chunk in content["source_spec"]["test"] if chunk["features"] != ["label"]]
        content["source_spec"]["today"] = [chunk | {"files": [file.replace("test/", "today/") for file in chunk["files"]]} for chunk in chunks]

    edit_spec(folder, add)


def test_any_split_is_scored(predict, copy):
    as_today(copy)
    test, _ = predict(copy)
    again, _ = predict(copy, "--split", "test")
    train, result = predict(copy, "--split", "train")
    today, _ = predict(copy, "--split", "today")
    assert again.equals(test)
    assert train["row"].to_list() == list(range(ROWS["train"])) and "train 4000 samples" in result.out.replace(",", "")
    np.testing.assert_array_equal(train["label"].to_numpy(), np.fromfile(copy / "train" / "label.bin", np.uint8))
    assert today.columns == ["row", "score"] and today.equals(test.drop("label"))
    _, result = predict(copy, "--split", "tday")
    assert result.code == 1 and "source_spec: split tday is missing; splits found: train, test, today" in result.err and result.err.count("\n") == 1


def test_key_columns_come_first(predict, copy):
    plain, _ = predict(copy)
    keys = polars.DataFrame({"user": [f"u{row % 7}" for row in range(ROWS["test"])], "when": np.arange(ROWS["test"])[::-1]})
    keys.write_parquet(copy / "test" / "keys.parquet")
    carried, _ = predict(copy)
    assert carried.columns == ["user", "when", "row", "score", "label"]
    assert carried.select("user", "when").equals(keys) and carried.drop("user", "when").equals(plain)
    keys.head(5).write_parquet(copy / "test" / "keys.parquet")
    _, result = predict(copy)
    assert result.code == 1 and "test/keys.parquet: 5 rows, the split test has 900" in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("mode", ["eval", "inference"])
def test_eval_and_inference_reject_a_split_without_labels(run, trained, copy, mode):
    drop_labels(copy, "test")
    result = run("--cpu", "--mode", mode, "--dataset_path", copy, "--restore_checkpoint_path", trained[0])
    assert result.code == 1 and result.err.count("\n") == 1
    assert "source_spec.test has no chunk of the label label, so the split is for prediction only; use --mode predict --split test" in result.err


def test_training_needs_labels_and_leaves_out_an_unlabelled_test_split(run, copy):
    drop_labels(copy, "test")
    result = run("--dataset_path", copy, *TRAIN, "--max_steps", "2")
    assert result.code == 0 and "the test split has no labels and is skipped" in result.err and "AUC" not in result.out
    stopped = run("--dataset_path", copy, *TRAIN, "--auc_threshold", "0.9")
    assert stopped.code == 1 and "--auc_threshold needs rows to evaluate" in stopped.err
    drop_labels(copy, "train")
    refused = run("--dataset_path", copy, *TRAIN)
    assert refused.code == 1 and "source_spec.train has no chunk of the label label" in refused.err


def drop_labels(folder, split):
    def drop(content):
        content["source_spec"][split] = [chunk for chunk in content["source_spec"][split] if chunk["features"] != ["label"]]

    edit_spec(folder, drop)


def test_signal_leaves_no_partial_file(predict, copy, tmp_path, monkeypatch, capfd):
    def write_parquet(frame, path):
        path.write_bytes(b"PAR1")
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise OSError("143") from None  # Polars wraps an exit during a write in an OSError, too

    monkeypatch.setattr(polars.DataFrame, "write_parquet", write_parquet)
    before = set(tmp_path.iterdir())
    with dispositions(), pytest.raises(SystemExit) as ended:
        predict(copy)
    assert ended.value.code == 143 and capfd.readouterr().err == "dlrm.py: stopped by SIGTERM\n"
    assert {path for path in tmp_path.iterdir() if path.suffix not in (".json", "")} <= before
