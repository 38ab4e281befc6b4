"""Evaluations that have no AUC, or no metric by group: they choose no weights, reduce no rate and end no run; where it is known, no run starts."""

import numpy as np
import pytest
from runs import GROUPED_ROWS, TRAIN, edit_spec, write_grouped

WATCHING = (
    ("--lr_schedule", "plateau"),
    ("--early_stop_patience", "3"),
    ("--auc_threshold", "0.9"),
    ("--keep_best_checkpoint", "--save_checkpoint_path"),
)


def with_valid(folder, labels):
    """Give the dataset a valid split: its first training rows, with these labels."""
    (folder / "valid").mkdir()
    count = (folder / "train/label.bin").stat().st_size
    for path in (folder / "train").iterdir():
        content = path.read_bytes()
        (folder / "valid" / path.name).write_bytes(content[: len(content) // count * len(labels)])
    (folder / "valid/label.bin").write_bytes(bytes(labels))

    def add(spec):
        chunks = spec["source_spec"]["train"]
        spec["source_spec"]["valid"] = [chunk | {"files": [name.replace("train/", "valid/") for name in chunk["files"]]} for chunk in chunks]

    edit_spec(folder, add)


@pytest.mark.parametrize("flags", WATCHING, ids=lambda flags: flags[0])
@pytest.mark.parametrize("label", [0, 1])
def test_labels_that_are_all_alike_are_an_error_at_the_start(run, copy, tmp_path, flags, label):
    with_valid(copy, [label] * 100)
    flags = (*flags, tmp_path / "c") if flags[-1] == "--save_checkpoint_path" else flags
    result = run("--dataset_path", copy, *TRAIN, *flags)
    assert result.code == 1 and not (tmp_path / "c").exists()
    name = f"{flags[0]} plateau" if flags[0] == "--lr_schedule" else flags[0]
    assert f"{name}: the valid split has only label {label} in its 100 rows, so no AUC exists; give it rows of both classes" in result.err


def test_a_run_that_needs_no_auc_says_that_there_is_none(run, copy):
    with_valid(copy, [0] * 100)
    result = run("--dataset_path", copy, *TRAIN, "--epochs", "2", "--evals_per_epoch", "2")
    assert result.code == 0 and result.err.count("the valid split has no AUC at step") == 1 and result.final["valid_auc"] is None


def test_a_metric_without_a_group_of_both_classes_reduces_no_rate_and_ends_no_run(run, tmp_path):
    folder = write_grouped(tmp_path / "d")
    rows = GROUPED_ROWS["valid"]
    (path,) = (path for path in (folder / "valid").iterdir() if path.stat().st_size == 8 * rows)
    np.arange(rows).tofile(path)  # each row is a group by itself
    flags = ("--ranking_metrics", "gauc", "--best_metric", "gauc", "--early_stop_patience", "2", "--epochs", "4", "--evals_per_epoch", "1")
    result = run("--dataset_path", folder, *TRAIN, *flags, "--lr_schedule", "plateau", "--plateau_patience", "1")
    assert result.code == 0 and result.final["samples"] == 4 * GROUPED_ROWS["train"], result
    assert "training stops" not in result.out and "reduced" not in result.out
    assert "the valid split has no GAUC at step" in result.err and "no weights are the best, as no evaluation has the metric" in result.out
