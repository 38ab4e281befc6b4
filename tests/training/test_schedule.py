"""Tests of the learning-rate schedule, value by value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.schedule import LearningRateSchedule, Plateau

DEFAULT = LearningRateSchedule(24.0, 8000, 48000, 24000, 2)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (1, 0.003),
        (4000, 12.0),
        (7999, 23.997),
        (8000, 24.0),
        (47999, 24.0),
        (48000, 24.0),
        (60000, 6.0),  # 24 · (12000 / 24000)²
        (66000, 1.5),  # 24 · (6000 / 24000)²
        (71999, 24 / 24000**2),
        (72000, 0.0),
        (72001, 0.0),
        (96001, 0.0),  # an even power must not rise again
        (10**6, 0.0),
    ],
)
def test_default_schedule(step, rate):
    assert DEFAULT(step) == pytest.approx(rate, rel=1e-12, abs=1e-15)


def test_without_warmup_the_first_step_has_the_full_rate():
    assert LearningRateSchedule(0.5, 0, 10, 10)(0) == 0.5


def test_decay_of_no_steps_leaves_the_rate_as_it_is():
    schedule = LearningRateSchedule(3.0, 4, 10, 0)
    assert [schedule(step) for step in (2, 4, 10, 10**6)] == [1.5, 3.0, 3.0, 3.0]


def test_a_decay_that_ends_above_zero_stays_there():
    schedule = LearningRateSchedule(2.0, 0, 0, 10, 1, end_factor=0.25)
    assert [schedule(step) for step in (0, 5, 7, 8, 10, 99)] == pytest.approx([2.0, 1.0, 0.6, 0.5, 0.5, 0.5])


@pytest.mark.parametrize(("factor", "first"), [(0, 0.0), (1, 0.5), (2, 0.75)])
def test_a_warmup_that_does_not_begin_at_zero(factor, first):
    schedule = LearningRateSchedule(1.0, 4, 10, 10, warmup_factor=factor)
    assert [schedule(step) for step in range(5)] == pytest.approx([first + (1 - first) * step / 4 for step in range(5)])


def test_decay_may_start_where_warmup_ends():
    assert [LearningRateSchedule(1.0, 2, 2, 2, 1)(step) for step in range(6)] == [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]


@given(
    base=st.floats(1e-6, 1e3),
    warmup=st.integers(0, 100),
    plateau=st.integers(0, 100),
    decay=st.integers(1, 100),
    power=st.floats(0.1, 4),
    step=st.integers(0, 400),
)
def test_it_rises_then_falls_and_stays_within_zero_and_base(base, warmup, plateau, decay, power, step):
    schedule = LearningRateSchedule(base, warmup, warmup + plateau, decay, power)
    rate, following = schedule(step), schedule(step + 1)
    assert 0 <= rate <= base
    assert following >= rate if step < warmup else following <= rate
    if step >= warmup + plateau + decay:
        assert rate == 0.0


def test_reductions_on_a_plateau_end_at_the_least_rate_and_leave_a_smaller_one():
    plateau = Plateau(0.1, 1e-3)
    assert [plateau.reduced(1.0, count) for count in range(5)] == pytest.approx([1, 0.1, 0.01, 1e-3, 1e-3])
    assert plateau.reduced(1e-4, 0) == plateau.reduced(1e-4, 3) == 1e-4  # in a warm-up
