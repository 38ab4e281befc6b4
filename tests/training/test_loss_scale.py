"""Tests of loss scales for float16: a step whose gradients overflow changes nothing, and a dynamic scale adapts."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model.tiny_model import assert_equal, batch, model_and_trainer, report_of, weights
from training import loss_scale
from training.loss_scale import DYNAMIC, LossScale
from training.report import WorkerReport

HALF = ("--amp", "--amp_dtype", "float16", "--optimizer", "adam")


def state(trainer):
    """Return all slots of the dense weights and the tables."""
    slots = [variable.numpy() for name, variable in trainer.groups.slots().items() if name != "loss_scale"]
    return slots + [variable.numpy() for local in trainer.model.embedding.shards for variable in local.slots.values()]


def trained(trainer, step, rate=0.01):
    return report_of(trainer, batch(16, seed=step), step, rate, WorkerReport(out_of_range=3))


def test_a_step_that_overflows_changes_nothing():
    model, trainer = model_and_trainer(*HALF, "--loss_scale", str(2.0**24), dtype="float16")
    before, slots = weights(model), state(trainer)
    report = trained(trainer, 0)
    assert not report.finite and report.out_of_range == 3
    assert_equal(weights(model), before)
    for old, new in zip(slots, state(trainer), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_dynamic_scale_falls_until_gradients_fit_and_the_model_trains():
    model, trainer = model_and_trainer(*HALF, "--loss_scale", "dynamic", dtype="float16")
    trainer.groups.slots()["loss_scale"].assign([2.0**24, 7.0])
    before, scales = weights(model), []
    for step in range(24):
        scales.append(trainer.groups.slots()["loss_scale"].numpy()[0])
        if trained(trainer, step).finite:
            break
    else:
        pytest.fail("no step was finite")
    assert scales == [2.0**24 / 2**i for i in range(len(scales))] and len(scales) > 2
    assert all((weights(model)[name] != values).any() for name, values in before.items())


def test_a_skipped_step_counts_for_adams_bias_correction():
    """A skipped step counts for the dense weights' bias correction, as it does for the tables', which uses the number of the step."""
    skipping, plain = (model_and_trainer(*HALF, "--loss_scale", "dynamic", dtype="float16") for _ in range(2))
    skipping[1].groups.slots()["loss_scale"].assign([2.0**24, 0.0])
    assert not trained(skipping[1], 0).finite
    for _, trainer in (skipping, plain):
        trainer.groups.slots()["loss_scale"].assign([1024.0, 0.0])
        assert trained(trainer, 1).finite
    assert_equal(weights(skipping[0]), weights(plain[0]))


def test_a_dynamic_scale_grows_after_many_good_steps(monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    scale, seen = LossScale(DYNAMIC), []
    for finite in (1, 1, 1, 1, 0, 1, 1, 1, 0, 0):
        scale.after_step(tf.constant(float(finite)))
        seen.append(float(scale.now()) / 65536)
    assert seen == [1, 1, 2, 2, 1, 1, 1, 2, 1, 0.5]


def test_dynamic_scale_stays_within_its_limits():
    scale = LossScale(DYNAMIC)
    scale.slots()["loss_scale"].assign([loss_scale.LARGEST, loss_scale.GROWTH_STEPS - 1.0])
    scale.after_step(tf.constant(1.0))
    assert float(scale.now()) == loss_scale.LARGEST
    for _ in range(40):
        scale.after_step(tf.constant(0.0))
    assert float(scale.now()) == 1


def test_a_static_scale_has_no_state():
    assert LossScale(1024.0).slots() == {} and LossScale(1024.0).scales and not LossScale().scales
