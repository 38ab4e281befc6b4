"""Scalars of the log's lines: tags, values and steps, by hand."""

import pytest

from report.tensorboard.scalars import is_final, scalars_of

TRAINING = {
    "loss": 0.5,
    "samples_per_s": 1000.0,
    "step_time_ms": 8.0,
    "learning_rate": 0.1,
    "embedding_learning_rate": 0.2,
    "learning_rate/wide": 0.3,
    "samples": 800,
    "input_ms": 1.0,
    "exchange_ms": 2.0,
    "saving_ms": 0.0,
    "memory_gib": 1.5,
    "gradient_norm/dense": 0.25,
    "weight_norm/tables": 7.0,
    "skipped_steps": 0,
    "ids_out_of_range": 3,
}
TAGS = {
    "train/loss": 0.5,
    "speed/samples_per_s": 1000.0,
    "speed/step_ms": 8.0,
    "learning_rate/dense": 0.1,
    "learning_rate/tables": 0.2,
    "learning_rate/wide": 0.3,
    "train/samples": 800.0,
    "speed/input_ms": 1.0,
    "speed/exchange_ms": 2.0,
    "speed/saving_ms": 0.0,
    "memory/first_worker_gib": 1.5,
    "gradient_norm/dense": 0.25,
    "weight_norm/tables": 7.0,
    "skipped_steps": 0.0,
    "ids_out_of_range": 3.0,
}
EVALUATION = {
    "split": "valid",
    "epoch": 1,
    "step": 40,
    "final": False,
    "samples": 100,
    "positives": 20,
    "auc": 0.75,
    "auc_variance": 0.001,
    "log_loss": 0.4,
    "log_loss_variance": 0.002,
    "normalized_entropy": 0.9,
    "calibration": None,
    "deciles": None,
    "histogram": None,
}


def of(step, data, form="epoch,step", training=True):
    return tuple(scalars_of(step, data, form, training))


@pytest.mark.parametrize(
    ("step", "form", "found"), [([1, 40], "epoch,step", 40), ([40, 60], "step,steps", 40), ([1, 40], "1,step", 40), ([40], "step,steps", 40)]
)
def test_a_training_line_has_a_tag_for_every_figure(step, form, found):
    assert of(step, TRAINING, form) == (found, TAGS)


def test_speed_of_single_steps_has_another_form_of_step():
    """Lines of --log_steps are (1, step), in runs whose other lines are (step, steps of the run), too."""
    for form in ("epoch,step", "step,steps", "1,step"):
        assert of([1, 7], {"batch_samplesps": 250.0}, form) == (7, {"speed/samples_per_s_of_step": 250.0})


@pytest.mark.parametrize(
    ("data", "tags"),
    [
        ({"auc": 0.7, "test_loss": 0.5, "samples": 9, "map_at_12": 0.2}, {"auc": 0.7, "log_loss": 0.5, "samples": 9, "map_at_12": 0.2}),
        # Wide & Deep's names stand beside this application's, and alone in NVIDIA's own logs, where some figures are texts
        ({"auc": 0.7, "test_loss": 0.5, "auc_val": 0.7, "loss_val": 0.5}, {"auc": 0.7, "log_loss": 0.5}),
        ({"auc_val": 0.7, "loss_val": "0.5", "streaming_map_val": 0.2}, {"auc": 0.7, "log_loss": 0.5, "map_at_12": 0.2}),
        ({"auc_roc": 0.7, "loss_val": 0.5}, {"auc": 0.7, "log_loss": 0.5}),
        ({"auc": None, "test_loss": 0.5}, {"log_loss": 0.5}),
    ],
)
def test_an_evaluation_line(data, tags):
    assert of([2, 40], data) == (40, {f"test/{name}": value for name, value in tags.items()})
    renamed = {name if name.endswith(("_val", "auc_roc")) else f"valid_{name}".replace("valid_test", "valid"): value for name, value in data.items()}
    if "valid_loss" in renamed:
        assert of([2, 40], renamed) == (40, {f"valid/{name}": value for name, value in tags.items()})


def test_summary_of_an_evaluation():
    figures = {"samples": 100.0, "positives": 20.0, "auc": 0.75, "log_loss": 0.4, "normalized_entropy": 0.9}
    assert of("EVALUATION", EVALUATION) == (40, {f"valid/{name}": value for name, value in figures.items()})
    step, tags = of("EVALUATION", EVALUATION | {"final": True, "split": "test", "calibration": 1.25})
    assert step == 40
    assert tags == {
        "final/auc": 0.75,
        "final/log_loss": 0.4,
        "final/normalized_entropy": 0.9,
        "final/calibration": 1.25,
        "final_run/test_samples": 100.0,
        "final_run/test_positives": 20.0,
    }


def test_final_figures_have_the_step_of_the_tested_weights():
    data = {"throughput": 10.0, "auc": 0.7, "validation_loss": 0.5, "train_loss": 0.4, "map_at_12": 0.1, "best_auc": 0.8, "steps": 60}
    tags = {"final/samples_per_s": 10.0, "final/auc": 0.7, "final/log_loss": 0.5, "final/train_loss": 0.4, "final/map_at_12": 0.1}
    beside = {"final_run/best_auc": 0.8, "final_run/steps": 60.0}
    assert of([], data) == (None, tags | beside)
    assert of([], data | {"tested_step": 40}) == (40, tags | beside | {"final_run/tested_step": 40.0})
    assert all(map(is_final, tags)) and not any(map(is_final, beside))


def test_tables_and_checkpoints():
    tables = {"epoch": 0, "step": 9, "touched": {"a b": 0.5, "<script>": 0.25}, "norms": {"a b": 2.0}, "memory_gib": [1.0, 2.0]}
    found = {"touched/a b": 0.5, "touched/<script>": 0.25, "table_norm/a b": 2.0}
    assert of("TABLES", tables) == (9, found | {"memory/peak_gib_of_worker_0": 1.0, "memory/peak_gib_of_worker_1": 2.0})
    saved = {"epoch": 0, "step": 9, "folder": "/x", "seconds": 2.5, "waited_seconds": 0.5, "best": True}
    assert of("CHECKPOINT", saved) == (9, {"saving/seconds": 2.5, "saving/waited_seconds": 0.5})


@pytest.mark.parametrize("step", ["PARAMETER", "RUN", "IMPORTANCE", "of a later version"])
def test_other_lines_have_no_scalars(step):
    assert of(step, {"loss": 1.0, "step": 5, "nested": {"a": 1}}) == (None, {})


def test_loss_of_wide_and_deep_is_the_mean():
    """There `loss` is the last batch's, as a text."""
    data = {"samples_per_s": 1.0, "loss": "0.5000", "mean_loss": 0.625}
    assert of([10, 60], data, "step,steps") == (10, {"speed/samples_per_s": 1.0, "train/loss": 0.625, "train/loss_of_batch": 0.5})
    final = {"auc": 0.7, "auc_val": 0.7, "train_throughput": 5.0}
    assert of([], final) == (None, {"final/auc": 0.7, "final_run/auc_val": 0.7, "final_run/train_throughput": 5.0})


def test_figures_that_are_no_numbers_are_left_out():
    data = {"samples_per_s": 1.0, "loss": None, "note": "fine", "flag": True, "list": [1], "map": {}, "also": "2.5"}
    assert of([0, 1], data) == (1, {"speed/samples_per_s": 1.0, "train/also": 2.5})


def test_parts_of_an_evaluation_alone_are_no_training():
    """`--mode eval` of Wide & Deep logs figures of the rows so far, by batches."""
    assert of([100], {"loss": "0.5", "auc": "0.7"}, training=False) == (None, {})
