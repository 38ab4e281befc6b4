"""The generators of load against what they should do, by a server that answers when it is told to."""

import threading
import time

import numpy as np
import pytest

from serving.generators import arrivals, closed_loop, open_loop
from serving.load import OPEN, Point, largest, point_of, within
from serving.picture import picture


class Slow:
    """Answers one request after another, each after `seconds`."""

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


def test_a_closed_loop_keeps_so_many_outstanding():
    server = Slow(0.02)
    measured = closed_loop(server, {}, 4, 0.5)
    assert server.most == 4 and measured.failed == 0
    assert np.median(measured.latencies_s[8:]) >= 0.06  # of 4 * 0.02; a busy machine takes longer


def test_an_open_loop_sees_the_queue_that_a_closed_one_hides():
    """A server of 50 requests/s that is sent 100: the last of half a second waits nearly as long again."""
    queued = open_loop(Slow(0.02), {}, 100, 0.5, np.random.default_rng(0)).latencies_s
    alone = np.median(closed_loop(Slow(0.02), {}, 1, 0.3).latencies_s)
    assert queued.max() > 3 * alone and alone < 0.25


def test_arrivals_are_a_poisson_process():
    times = arrivals(1000.0, 20.0, np.random.default_rng(1))
    gaps = np.diff(times)
    assert (gaps >= 0).all() and len(times) == pytest.approx(20_000, rel=0.03)
    assert gaps.mean() == pytest.approx(1e-3, rel=0.03) and gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # exponential


def a_point(rate, p95, failed=0, size=64):
    return Point(OPEN, size, 0, rate, 100, failed, rate * size, p95, p95, p95, p95)


def test_the_largest_rate_within_the_limit():
    points = [a_point(10, 2), a_point(20, 9), a_point(30, 11), a_point(40, 3, failed=1), a_point(5, 50, size=1024)]
    assert largest(points, 10) == [points[1]]
    assert not within(points[3], 10)


def test_a_picture_has_every_point():
    from serving.generators import Measured

    points = [a_point(10, 2), a_point(20, 9), a_point(5, 50, size=1024), point_of("static", 1, 1, np.nan, Measured(np.empty(0), 3, 1.0))]
    text = picture(points)
    assert text.count("<circle") == 9 and "open, 1,024 a request" in text and text.endswith("</svg>\n")
