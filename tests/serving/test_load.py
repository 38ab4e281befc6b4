"""Tests of the load generators against a fake server with a known time per answer."""

import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from serving.generators import Measured, arrivals, closed_loop, open_loop
from serving.load import OPEN, Experiments, LoadConfig, Point, largest, point_of, within
from serving.perf_analyzer import PerfAnalyzer
from serving.picture import picture
from utils.errors import UserError


class Slow:
    """A connection that answers one request after another, each after `seconds`."""

    def __init__(self, seconds):
        self._seconds, self._free = seconds, time.perf_counter()
        self._lock, self._outstanding, self.most = threading.Lock(), 0, 0

    def infer(self, inputs):
        return np.zeros(1)

    def begin(self, inputs, done):
        with self._lock:
            self._outstanding += 1
            self.most = max(self.most, self._outstanding)
            self._free = max(self._free, time.perf_counter()) + self._seconds
            wait = self._free - time.perf_counter()

        def answer():
            with self._lock:
                self._outstanding -= 1
            done(np.zeros(1), None)

        threading.Timer(wait, answer).start()


def test_closed_loop_keeps_requests_in_flight():
    server = Slow(0.02)
    measured = closed_loop(server, {}, 4, 0.5)
    assert server.most == 4 and measured.failed == 0
    assert np.median(measured.latencies_s[8:]) >= 0.06  # 4 * 0.02 less a margin; a busy machine takes longer


def test_open_loop_measures_the_queueing_time():
    """A server of 50 requests/s gets 100 requests/s for half a second, so the last request waits nearly another half second."""
    queued = open_loop(Slow(0.02), {}, 100, 0.5, np.random.default_rng(0)).latencies_s
    alone = np.median(closed_loop(Slow(0.02), {}, 1, 0.3).latencies_s)
    assert queued.max() > 3 * alone and alone < 0.25


def test_arrivals_are_a_poisson_process():
    times = arrivals(1000.0, 20.0, np.random.default_rng(1))
    gaps = np.diff(times)
    assert (gaps >= 0).all() and len(times) == pytest.approx(20_000, rel=0.03)
    assert gaps.mean() == pytest.approx(1e-3, rel=0.03) and gaps.std() == pytest.approx(
        gaps.mean(), rel=0.05
    )  # exponential gaps: the standard deviation equals the mean


def a_point(rate, p95, failed=0, size=64):
    return Point(OPEN, size, 0, rate, 100, failed, rate * size, p95, p95, p95, p95)


def test_the_largest_rate_within_the_limit():
    points = [a_point(10, 2), a_point(20, 9), a_point(30, 11), a_point(40, 3, failed=1), a_point(5, 50, size=1024)]
    assert largest(points, 10) == [points[1]]
    assert not within(points[3], 10)


def test_rates_rise_until_the_limit_is_exceeded(monkeypatch):
    """Rates rise until the latency limit is exceeded, for a server whose 95th percentile is 0.1 ms for each request/s."""
    tried = []

    def at(connection, samples, rate, seconds, draw):
        tried.append(rate)
        return Measured(np.full(50, rate / 1e4), 0, seconds)

    monkeypatch.setattr("serving.load.closed_loop", lambda *_: Measured(np.full(100, 1e-3), 0, 1.0))
    monkeypatch.setattr("serving.load.open_loop", at)
    inputs = [SimpleNamespace(name="numerical", kind="FP32", width=2), SimpleNamespace(name="categorical", kind="INT64", width=3)]
    connection = SimpleNamespace(inputs=inputs, rows=[5, 6, 7], max_batch_size=64)
    config = LoadConfig(experiments=("open",), dynamic_batch_sizes=(1, 128), latency_limit_ms=10.0)
    points = list(Experiments(config, connection).points())
    assert tried[0] == 25 and tried == pytest.approx([25 * 1.25**i for i in range(len(tried))])
    assert tried[-2] <= 100 < tried[-1] and [point.rate for point in points] == tried
    assert [within(point, 10.0) for point in points] == [True] * (len(points) - 1) + [False]
    assert [point.rate for point in largest(points, 10.0)] == [tried[-2]]


def test_picture_has_every_point():
    none = point_of("static", 1, 1, np.nan, Measured(np.empty(0), 3, 1.0))
    points = [a_point(10, 2), a_point(20, 9), a_point(5, 50, size=1024), none, a_point(0, 2), a_point(10, 0), a_point(10, np.inf)]
    text = picture(points)
    assert text.count("<circle") == 9 and "open, 1,024 a request" in text and text.endswith("</svg>\n")


def test_a_point_has_milliseconds_and_samples():
    point = point_of("dynamic", 64, 4, np.nan, Measured(np.array([1, 2, 3, 4, 40]) * 1e-3, 2, 0.5))
    assert (point.experiment, point.batch_size, point.concurrency, point.requests, point.failed) == ("dynamic", 64, 4, 5, 2)
    assert point.samples_per_s == pytest.approx(640) and point.mean_ms == pytest.approx(10) and point.p50_ms == pytest.approx(3)
    assert point.p95_ms == pytest.approx(4 + 0.8 * 36) and point.p99_ms == pytest.approx(4 + 0.96 * 36)


ANALYZER = """#!{python}
import json, sys
place = sys.argv.index
flag = lambda name: sys.argv[place(name) + 1]
assert (flag("-m"), flag("-u"), flag("-b"), flag("--concurrency-range")) == ("model", "host:1", "3", "4")
entries = json.load(open(flag("--input-data")))["data"]
assert len(entries) == 3 and set(entries[0]) == {{"x"}}
open(flag("-f"), "w").write("Inferences/Second,p50 latency,p90 latency,p95 latency,p99 latency\\n300,1000,2000,3000,4000\\n")
"""


def test_perf_analyzer_figures_are_read(tmp_path):
    program = tmp_path / "perf_analyzer"
    program.write_text(ANALYZER.format(python=sys.executable))
    program.chmod(0o755)
    found = PerfAnalyzer(str(program), "grpc://host:1", "model").measured({"x": np.ones((3, 2), np.float32)}, 4, 2.0)
    assert found.failed == 0 and len(found.latencies_s) == 200  # 100 requests/s of 3 samples each, for 2 seconds
    assert found.seconds == pytest.approx(2) and np.percentile(found.latencies_s, 50) == pytest.approx(1e-3, rel=0.02)
    assert found.latencies_s.min() == pytest.approx(1e-3) and found.latencies_s.max() == pytest.approx(4e-3)


def test_perf_analyzer_gives_one_latency_per_request(tmp_path):
    program = tmp_path / "perf_analyzer"
    program.write_text(ANALYZER.format(python=sys.executable))
    program.chmod(0o755)
    found = PerfAnalyzer(str(program), "grpc://host:1", "model").measured({"x": np.ones((3, 2), np.float32)}, 4, 0.5)
    assert len(found.latencies_s) == 50 and np.percentile(found.latencies_s, 90) == pytest.approx(2e-3, rel=0.05)
    assert found.latencies_s.min() == pytest.approx(1e-3) and found.latencies_s.max() == pytest.approx(4e-3)


def test_failing_or_missing_perf_analyzer_is_an_error(tmp_path):
    with pytest.raises(UserError, match="--perf_analyzer nowhere: no such program"):
        PerfAnalyzer("nowhere", "grpc://host:1", "model")
    program = tmp_path / "perf_analyzer"
    program.write_text("#!/bin/sh\necho first >&2; echo no such server >&2; exit 3\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match="perf_analyzer: no such server"):
        PerfAnalyzer(str(program), "grpc://host:1", "model").measured({"x": np.ones((1, 2))}, 1, 1.0)
