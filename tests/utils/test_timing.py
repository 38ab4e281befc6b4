"""Throughput and latency, measured by a clock that the test sets."""

import math

import numpy as np
import pytest

from utils import timing
from utils.timing import Spent, Throughput, latency_summary


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def wait(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    return clock


def run(meter, clock, *seconds, samples=10):
    for wait in seconds:
        clock.wait(wait)
        meter.step(samples)


def test_throughput_excludes_the_warmup(clock):
    meter = Throughput(skip=2)
    run(meter, clock, 5.0, 5.0, 0.5, 0.25, 0.25)
    assert meter.summary() == {"throughput": 30.0, "mean_step_time_ms": pytest.approx(1000 / 3)}


def test_a_short_last_batch_counts_with_its_samples(clock):
    meter = Throughput(skip=0)
    run(meter, clock, 1.0)
    run(meter, clock, 1.0, samples=4)
    assert meter.summary()["throughput"] == 7.0


def test_time_before_resume_does_not_count(clock):
    meter = Throughput(skip=0)
    run(meter, clock, 1.0)
    clock.wait(60)  # an evaluation
    meter.resume()
    run(meter, clock, 1.0)
    assert meter.summary() == {"throughput": 10.0, "mean_step_time_ms": 1000.0}


def test_a_run_no_longer_than_the_warmup_reports_its_last_step(clock):
    meter = Throughput(skip=10)
    run(meter, clock, 9.0, 2.0)
    assert meter.summary() == {"throughput": 5.0, "mean_step_time_ms": 2000.0}


def test_summary_before_the_first_step_is_nan():
    assert all(math.isnan(value) for value in Throughput(skip=0).summary().values())


def test_latency_summary():
    seconds = [i / 1000 for i in range(1, 101)]
    summary = latency_summary(64, seconds)
    assert summary["mean_inference_latency"] == pytest.approx(0.0505)
    assert summary["mean_inference_throughput"] == pytest.approx(64 / 0.0505)
    for q in (90, 95, 99):
        assert summary[f"p{q}_inference_latency"] == pytest.approx(np.percentile(seconds, q))
    assert summary["p90_inference_latency"] < summary["p95_inference_latency"] < summary["p99_inference_latency"]


def test_paused_time_does_not_count(clock):
    meter = Throughput(0)
    clock.wait(1)
    with meter.paused():
        clock.wait(100)
    clock.wait(3)
    assert meter.step(8) == 4
    assert meter.summary() == {"throughput": 2, "mean_step_time_ms": 4000}


def test_time_is_counted_by_purpose_and_begins_again(clock):
    spent = Spent()

    def items():
        for number in range(3):
            clock.wait(0.25)
            yield number
        clock.wait(1.0)

    for number in spent.waiting("input", items()):
        clock.wait(5.0)
        with spent.on("saving"):
            clock.wait(0.5 * number)
    spent.add("exchange", 0.125)
    assert spent.means(2, ["input", "saving", "exchange"]) == {"input_ms": 875.0, "saving_ms": 750.0, "exchange_ms": 62.5}
    assert spent.means(2, ["input"]) == {"input_ms": 0.0}
    assert math.isnan(spent.means(0, ["input"])["input_ms"])


def test_an_error_of_the_items_is_raised_and_the_items_are_closed():
    closed = []

    def items():
        try:
            yield 1
            raise KeyError("second")
        finally:
            closed.append(True)

    waiting = Spent().waiting("input", items())
    assert next(waiting) == 1
    with pytest.raises(KeyError, match="second"):
        next(waiting)
    for _ in Spent().waiting("input", items()):
        break
    assert closed == [True, True]
