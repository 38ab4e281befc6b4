"""Throughput and latency, measured by a clock that the test sets."""

import math

import numpy as np
import pytest

from utils import timing
from utils.timing import Throughput, latency_summary


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
