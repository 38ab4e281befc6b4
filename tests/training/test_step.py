"""Tests of the training step against a slow reference; and that padding, precision and compilation do not change its results."""

import functools
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from dataloading.batches import Batch
from model.compilation import Compiled, compiled
from model.native import native_operations
from tests.model.tiny_model import TABLES, assert_close, batch, model_and_trainer, no_ids, report_of, sample, slow_gradients, weights
from training.device_batch import to_device
from training.evaluator import Evaluator
from training.groups import Groups
from training.report import WorkerReport
from training.step import Trainer

RATE = 0.03


@pytest.mark.parametrize(
    "flags", [(), ("--xla",), ("--xla", "all"), ("--gradient_slices", "4"), ("--gradient_slices", "4", "--xla", "all")], ids=" ".join
)
def test_steps_of_sgd_equal_the_slow_reference(flags):
    model, trainer = model_and_trainer(*flags)
    expected = weights(model)
    for step in range(4):
        tensors = batch(32, seed=step)
        loss, gradients = slow_gradients(expected, *sample(tensors))
        expected = {name: value - RATE * gradients[name] for name, value in expected.items()}
        assert float(trainer.step(tensors, step, RATE)) == pytest.approx(loss, rel=1e-5)
    assert_close(weights(model), expected)


@pytest.mark.parametrize(("dtype", "slices"), [("bfloat16", "4"), ("float16", "4")])
def test_steps_in_16_bits_compiled_whole_are_near_those_that_are_not(dtype, slices):
    ended = {}
    for xla in ("off", "all"):
        flags = ("--amp", "--amp_dtype", dtype, "--gradient_slices", slices, *(() if xla == "off" else ("--xla", "all")))
        model, trainer = model_and_trainer(*flags, dtype=dtype)
        for step in range(2):
            trainer.step(batch(32, seed=step), step, RATE)
        ended[xla] = weights(model)
    assert_close(ended["all"], ended["off"], rtol=0.02, atol=2e-3)


def test_one_step_of_adagrad_equals_the_slow_reference():
    model, trainer = model_and_trainer("--optimizer", "adagrad")
    expected, tensors = weights(model), batch(32)
    _, gradients = slow_gradients(expected, *sample(tensors))
    expected = {name: value - RATE * gradients[name] / np.sqrt(0.1 + gradients[name] ** 2 + 1e-7) for name, value in expected.items()}
    trainer.step(tensors, 0, RATE)
    assert_close(weights(model), expected)


def test_one_step_of_adam_equals_the_slow_reference():
    model, trainer = model_and_trainer("--optimizer", "adam")
    before, tensors = weights(model), batch(32)
    _, gradients = slow_gradients(before, *sample(tensors))
    epsilon = 1e-7 / np.sqrt(1 - 0.999)  # Keras adds it before the bias correction
    expected = {name: value - RATE * gradients[name] / (np.abs(gradients[name]) + epsilon) for name, value in before.items()}
    trainer.step(tensors, 0, RATE)
    assert_close(weights(model), expected, rtol=1e-4, atol=1e-3 * RATE)


@pytest.mark.parametrize(("optimizer", "real"), [("sgd", 9), ("adam", 1), ("adagrad", 9)])
def test_a_padded_batch_trains_like_its_real_rows(optimizer, real):
    padded, plain = (model_and_trainer("--optimizer", optimizer) for _ in range(2))
    start = weights(plain[0])
    for step in range(3):
        tensors = batch(16, real, seed=step)
        numerical, ids, labels = sample(tensors, real)
        only = to_device(Batch(numerical, ids, no_ids(real), labels, np.ones(real, np.float32), real))
        loss = float(padded[1].step(tensors, step, RATE))
        assert loss == pytest.approx(float(plain[1].step(only, step, RATE)), rel=1e-4)
        if step == 0:
            assert loss == pytest.approx(slow_gradients(start, numerical, ids, labels)[0], rel=1e-5)
    assert_close(weights(padded[0]), weights(plain[0]), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "ftrl"])  # every rule leaves them: optimizers/test_rules.py
def test_untouched_rows_do_not_change(optimizer):
    model, trainer = model_and_trainer("--optimizer", optimizer)
    before = weights(model)
    named = [set() for _ in TABLES]
    for step in range(3):
        tensors = batch(8, 2, seed=step)
        for names, ids in zip(named, tensors.inputs.ids.numpy()[:, :2], strict=True):
            names.update(ids.tolist())
        trainer.step(tensors, step, RATE)
    after = weights(model)
    for table, names in zip(TABLES, named, strict=True):
        name = f"tables/{table.name}/weights"
        changed = set(np.flatnonzero((before[name] != after[name]).any(axis=1)).tolist())
        assert changed == names


@functools.cache
def moved_once(*flags, dtype="float32"):
    """Return the loss of one step, and by how much it moved all weights."""
    model, trainer = model_and_trainer(*flags, dtype=dtype)
    start = weights(model)
    loss = float(trainer.step(batch(64), 0, RATE))
    return loss, np.concatenate([(weights(model)[name] - start[name]).ravel() for name in start])


@pytest.mark.parametrize(("dtype", "flags"), [("float16", ()), ("float16", ("--amp", "--loss_scale", "128")), ("bfloat16", ())])
def test_mixed_precision_trains_nearly_like_float32(dtype, flags):
    (exact, by_exact), (mixed, by_mixed) = moved_once(), moved_once(*flags, dtype=dtype)
    assert mixed == pytest.approx(exact, rel=2e-2)
    moved = by_exact, by_mixed
    assert np.linalg.norm(moved[1] - moved[0]) < 0.03 * np.linalg.norm(moved[0])


@pytest.mark.parametrize(("optimizer", "xla", "slices"), [("adam", "true", "1"), ("adagrad", "all", "4"), ("ftrl", "all", "1")])
def test_xla_changes_no_more_than_rounding(optimizer, xla, slices):
    flags = ("--optimizer", optimizer, "--gradient_slices", slices)
    plain, fast = model_and_trainer(*flags), model_and_trainer(*flags, "--xla", xla)
    for step in range(3):
        tensors = batch(16, seed=step)
        losses = [float(trainer.step(tensors, step, 0.01)) for _, trainer in (plain, fast)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert_close(weights(plain[0]), weights(fast[0]), rtol=1e-5, atol=1e-5)
    scores = [Evaluator(model, kind).logits(tensors) for (model, _), kind in ((plain, False), (fast, xla))]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-5, atol=1e-5)


def test_xla_all_compiles_the_forward_and_backward_pass_and_the_optimizer():
    assert compiled("all") == Compiled(dense=True, optimizer=True)
    _, trainer = model_and_trainer()  # built with C++ operations, which XLA does not know
    with pytest.raises(tf.errors.InvalidArgumentError, match="XLA"):
        Trainer(trainer.model, Groups(trainer.groups.dense, ()), compiled=compiled("all")).step(batch(8), 0, 0.1)


@functools.cache
def sliced(slices, dtype):
    """Return the losses and weights of three steps with a batch in slices."""
    model, trainer = model_and_trainer("--gradient_slices", str(slices), dtype=dtype)
    return [float(trainer.step(batch(48, 41, seed=step), step, 0.1)) for step in range(3)], weights(model)


@pytest.mark.parametrize(("slices", "dtype"), [(2, "float32"), (4, "float32"), (8, "float32"), (8, "bfloat16")])
def test_slices_change_no_more_than_rounding(slices, dtype):
    (whole, expected), (cut, found) = sliced(1, dtype), sliced(slices, dtype)
    assert cut == pytest.approx(whole, rel=1e-5 if dtype == "float32" else 1e-2)
    assert_close(expected, found, rtol=0, atol=1e-6 if dtype == "float32" else 1e-3)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.5), ("adam", 0.02), ("adagrad", 0.1)])
def test_loss_falls_on_learnable_data(optimizer, rate):
    _, trainer = model_and_trainer("--optimizer", optimizer)
    tensors = batch(256)
    tensors = tensors._replace(inputs=tensors.inputs._replace(labels=(tensors.inputs.ids.numpy()[0] % 2).astype(np.float32)))
    losses = [float(trainer.step(tensors, step, rate)) for step in range(120)]
    assert losses[-1] < 0.2 * losses[0]


@pytest.fixture(params=[True, False], ids=["C++ operations", "TensorFlow's"])
def native(request, monkeypatch):
    """Run the test with the C++ operations and without them."""
    if not request.param:
        monkeypatch.setattr("model.build.native_operations", lambda: None)
    elif native_operations() is None:
        pytest.fail("the C++ operations are not built: ops/build builds them")


@pytest.mark.parametrize(
    ("dtype", "slices", "native"),
    [(dtype, ("1", "4")[(i + native) % 2], native) for i, dtype in enumerate(("float32", "bfloat16", "float16")) for native in (True, False)],
    indirect=["native"],
)
def test_nonfinite_hidden_weight_is_detected(dtype, slices, native):
    flags = () if dtype == "float32" else ("--amp",)
    model, trainer = model_and_trainer(*flags, "--gradient_slices", slices, dtype=dtype)
    start = weights(model)
    report = report_of(trainer, batch(16), 0, 0.0)
    assert math.isfinite(report.loss) and report.finite
    # The first layer is left out: with minus infinity there, the ReLU makes the unit dead and hides the value for good.
    for name, value, place in itertools.product(("bottom_mlp/1", "top_mlp/0"), (math.nan, math.inf, -math.inf), ((0, 0), (1, 2))):
        spoilt = start[f"dense/{name}/kernel"].copy()
        spoilt[place] = value
        model.dense_weights()[f"{name}/kernel"].value.assign(spoilt)
        report = report_of(trainer, batch(16), 0, 0.0, WorkerReport(stop=True, out_of_range=5))
        assert not (math.isfinite(report.loss) and report.finite), (name, value, place)
        assert report[2:6] == (True, 5, False, False)
        for array, variable in model.dense_weights().items():
            variable.assign(start[f"dense/{array}"])


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("dtype", "flags"), [("float32", ()), ("bfloat16", ("--amp",))])
def test_nan_in_any_kernel_reaches_the_loss(dtype, flags):
    model, trainer = model_and_trainer(*flags, dtype=dtype)
    start = weights(model)
    for name in ("bottom_mlp/0", "bottom_mlp/1", "top_mlp/0", "top_mlp/1"):
        spoilt = start[f"dense/{name}/kernel"].copy()
        spoilt[1, 0] = math.nan
        model.dense_weights()[f"{name}/kernel"].value.assign(spoilt)
        assert math.isnan(trainer.step(batch(16), 0, 0.0)), name
        for array, variable in model.dense_weights().items():
            variable.assign(start[f"dense/{array}"])


def test_float16_overflow_of_a_gradient_is_detected():
    _, trainer = model_and_trainer("--amp", "--loss_scale", str(2.0**24), dtype="float16")
    report = report_of(trainer, batch(16), 0, 0.1)
    assert math.isfinite(report.loss) and not report.finite


def test_a_learning_rate_of_zero_changes_nothing():
    model, trainer = model_and_trainer()
    before = weights(model)
    trainer.step(batch(8), 0, 0.0)
    assert_close(weights(model), before, rtol=0, atol=0)
