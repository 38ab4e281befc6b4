"""Tests of clipping by the norm of all gradients: against a slow reference, and that the norm has the same bits however gradients are cut."""

import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.tiny_model import assert_close, batch, model_and_trainer, report_of, sample, slow_gradients, weights
from training.clipping import Clipping
from utils.distributed import World

RATE = 0.3
TERMS = {"embedding_l2": 0.3, "mlp_l2": 0.2}
WHOLE = ("--dense_update_rows", "1000", "--table_l2", "0.1")


def divisor_of(trainer, tensors, step=0):
    return report_of(trainer, tensors, step, RATE).divisor


def norm_of(gradients):
    return math.sqrt(sum(float(np.sum(np.square(value))) for value in gradients.values()))


KINDS = {
    "plain": ((), {}),
    "regularised": (("--gradient_slices", "4", *(word for name, value in TERMS.items() for word in (f"--{name}", str(value)))), TERMS),
    "whole": (WHOLE, {}),
    "compiled": (("--xla", "all", "--data_parallel_threshold", "100", *WHOLE), {}),
}


# Each kind with the C++ operations and without, and with limits far below the norm and next to it; where nothing is clipped, two kinds.
@pytest.mark.parametrize(
    ("kind", "limit", "native"),
    [*((kind, *how) for kind in KINDS for how in ((0.05, "1"), (0.4, "0"))), ("regularised", 100.0, "1"), ("whole", 100.0, "0")],
)
def test_clipped_steps_equal_the_slow_reference(monkeypatch, native, limit, kind):
    monkeypatch.setenv("DLRM_NATIVE_OPS", native)
    flags, terms = KINDS[kind]
    model, trainer = model_and_trainer(*flags, "--clip_norm", str(limit))
    for step in range(3):
        before, tensors = weights(model), batch(32, real=32 - step, seed=step)
        gradients = slow_gradients(before, *sample(tensors, 32 - step), **terms)[1]
        if WHOLE[0] in flags:
            gradients = {name: value + (0.1 * before[name] if name.startswith("tables/") else 0) for name, value in gradients.items()}
        expected = max(1.0, norm_of(gradients) / limit)
        assert divisor_of(trainer, tensors, step) == pytest.approx(expected, rel=1e-5)
        assert_close(weights(model), {name: value - RATE * gradients[name] / expected for name, value in before.items()})


@pytest.mark.parametrize("flags", [(), ("--optimizer", "adam", *WHOLE)], ids=["sgd", "adam"])
def test_a_limit_that_no_norm_reaches_changes_no_bit(flags):
    found = []
    for clip in ((), ("--clip_norm", "1000")):
        model, trainer = model_and_trainer(*flags, *clip)
        found.append([*(trainer.step(batch(32, seed=step), step, RATE).numpy() for step in range(3)), *weights(model).values()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_frozen_tables_have_no_part_in_the_norm():
    model, trainer = model_and_trainer("--embedding_trainable", "false", "--clip_norm", "0.05")
    before, tensors = weights(model), batch(32)
    gradients = slow_gradients(before, *sample(tensors))[1]
    of_dense = {name: value for name, value in gradients.items() if name.startswith("dense/")}
    assert divisor_of(trainer, tensors) == pytest.approx(norm_of(of_dense) / 0.05, rel=1e-5)
    for name, value in weights(model).items():
        assert np.array_equal(value, before[name]) == name.startswith("tables/"), name


def test_the_norm_is_that_of_the_unscaled_gradients():
    flags = ("--amp", "--amp_dtype", "float16", "--clip_norm", "0.05")
    scales = ("1", "8", "1024")
    one, *divisors = [divisor_of(model_and_trainer(*flags, "--loss_scale", scale, dtype="float16")[1], batch(32)) for scale in scales]
    assert divisors == pytest.approx([one, one], rel=1e-2) and one > 2


def test_a_step_that_overflows_is_not_counted_as_clipped():
    flags = ("--amp", "--amp_dtype", "float16", "--clip_norm", "0.05", "--loss_scale", str(2.0**24))
    _, trainer = model_and_trainer(*flags, dtype="float16")
    report = report_of(trainer, batch(16), 0, RATE)
    assert not report.finite and report.divisor == 1


def test_a_norm_with_gradients_that_are_not_finite_is_not_finite_or_clips_nothing():
    for bad in (math.nan, math.inf):
        divisor = float(Clipping(1.0, World()).divisor([], [tf.constant([bad, 1.0])], tf.constant(1.0)))
        assert divisor >= 1 and not math.isnan(divisor)


VALUES = st.lists(st.floats(-300, 300, width=32) | st.floats(-(2.0**-10), 2.0**-10, width=32), min_size=1, max_size=40)


@given(values=VALUES, limit=st.sampled_from([0.3, 1.0, 10.0, 4000.0]), draw=st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_norm_does_not_depend_on_the_order_or_on_the_parts(values, limit, draw):
    clipping = Clipping(limit, World())
    whole = float(clipping.squares([tf.constant(values)]))
    exact = sum(Fraction(value) ** 2 for value in np.float32(values).tolist())
    units = exact * 2**36 / Fraction(limit) ** 2
    assert abs(Fraction(whole) - units) <= Fraction(len(values)) * (1 + units / 2**50)
    if units < 2**52:
        shuffled = draw.sample(values, len(values))
        cut = draw.randint(0, len(values))
        assert float(clipping.squares([tf.constant(shuffled[:cut], tf.float32), tf.constant(shuffled[cut:], tf.float32)])) == whole
    divisor = float(clipping.divisor([tf.constant(values[1:], tf.float32)], [tf.constant(values[:1])], tf.constant(3.0)))
    assert divisor == pytest.approx(max(1.0, math.sqrt(exact) / limit), rel=1e-4)
