"""Tests that the model after k steps on N workers equals the model after k steps on one."""

import numpy as np
import pytest
from small_data import DIM, LISTS, ROWS
from trainings import CHOSEN, TRAININGS

from utils.metrics.binary import exact_auc

CASES = [(workers, name) for workers, names in CHOSEN.items() if workers > 1 for name in names]


def exact(workers, slices):
    """Return True if all bits must be equal.

    Sums over samples use one tree of additions over the slices of the global batch (`--gradient_slices`), which a power of two divides evenly
    among as many workers or fewer. With three workers, each sums its own third, an allreduce adds the thirds, and the result is equal up to rounding
    only. The same holds for one slice.
    """
    return slices > 1 and slices % workers == 0


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].replace(' ', '-')}")
def case(request, trained):
    """Return the outcome on N workers, the outcome on one worker, True if they must be equal bit by bit, and the Training."""
    workers, name = request.param
    return trained(workers)[name], trained(1)[name], exact(workers, TRAININGS[name].slices), TRAININGS[name]


def compare(found, expected, same_bits, tolerance, what):
    if same_bits:
        np.testing.assert_array_equal(found, expected, err_msg=what)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=what)


def tolerance(training):
    """Return the tolerance of weights: 1e-5, or 2e-3 with `--amp`, where gradients are sent in bfloat16, rounded by up to 2^-9 of their size."""
    return 2e-3 if "--amp" in training.flags else 1e-5


@pytest.mark.costly("the first of the file trains all small models on one number of workers, and tracing takes most of it")
def test_initial_values_are_equal_bit_by_bit(case):
    found, expected, _, _ = case
    assert found.before.keys() == expected.before.keys()
    for name, values in expected.before.items():
        np.testing.assert_array_equal(found.before[name], values, err_msg=name)


def test_losses_are_equal(case):
    found, expected, same_bits, training = case
    assert len(found.losses) == training.steps and len(set(expected.losses)) == training.steps
    compare(found.losses, expected.losses, same_bits, tolerance(training), "losses")


def test_weights_are_equal(case):
    found, expected, same_bits, training = case
    assert found.after.keys() == expected.after.keys()
    for name, values in expected.after.items():
        assert not np.array_equal(values, expected.before[name]), f"{name} was not trained"
        compare(found.after[name], values, same_bits, tolerance(training), name)


def test_evaluation_counts_every_row_once_and_scores_are_equal(case, dataset):
    found, expected, _, training = case
    if expected.scores is None:
        return
    labels = np.fromfile(dataset / "of" / training.rows / "test/label.bin", np.uint8)
    assert len(labels) == ROWS["test"]
    for logits, scored in (found.scores, expected.scores):
        assert len(logits) == ROWS["test"]
        np.testing.assert_array_equal(scored, labels)
    if "--amp" not in training.flags:
        compare(found.scores[0], expected.scores[0], False, 1e-5, "logits")
        assert auc(found) == pytest.approx(auc(expected), abs=1e-6)


def auc(outcome):
    logits, labels = outcome.scores
    return exact_auc(logits, labels.astype(bool))


def test_placement_changes_no_bit_of_initial_values(trained):
    for workers, names in CHOSEN.items():
        for name in names:
            values = trained(workers)[name].before
            for array, expected in (
                trained(1)["tables sgd"].before.items() if not {"wide_and_deep", "fm", "finalmlp"} & set(TRAININGS[name].flags) else ()
            ):
                flags = TRAININGS[name].flags
                if "--batch_norm" in flags and array.endswith("/bias"):  # beta may replace it
                    continue
                same_shape = array.startswith("dense/bottom_mlp") and TRAININGS[name].dim == DIM
                wider = array.startswith("dense/top_mlp/" if "parallel" in flags else "dense/top_mlp/0/kernel") and "--interaction" in flags
                if TRAININGS[name].rows not in LISTS and ((TRAININGS[name].features is None and not wider) or same_shape):
                    np.testing.assert_array_equal(values[array], expected, err_msg=f"{workers} workers, {name}, {array}")


@pytest.mark.parametrize("workers", [1, 2])
def test_lists_on_a_gpu_train_the_same_model(trained, workers):
    found, expected = trained(workers)["mixed lists on a GPU"], trained(1)["mixed lists one sum"]
    for name, values in expected.after.items():
        compare(found.after[name], values, False, 1e-6, name)


@pytest.mark.parametrize("workers", [1, 2])
def test_batch_norm_on_a_gpu_trains_the_same_model(trained, workers):
    found, expected = trained(workers)["mixed norm on a GPU"], trained(1)["mixed norm one sum"]
    compare(found.losses, expected.losses, False, 1e-6, "losses")
    for name, values in expected.after.items():
        compare(found.after[name], values, False, 1e-5, name)


@pytest.mark.parametrize("workers", [1, 2])
def test_model_built_for_a_gpu_trains_to_the_same_weights(trained, workers):
    found, expected = trained(workers)["mixed sgd on a GPU"], trained(1)["mixed sgd long"]
    compare(found.losses, expected.losses, False, 1e-6, "losses")
    for name, values in expected.after.items():
        compare(found.after[name], values, False, 1e-6, name)
