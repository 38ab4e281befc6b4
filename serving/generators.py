"""Load generators: a closed loop keeps a number of requests outstanding; an open loop sends requests whether others are answered or not."""

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from serving.connection import Connection

_WARM_UP = 3  # requests before the measurement
_PATIENCE_S = 60.0  # for outstanding answers


class Measured(NamedTuple):
    """A measurement: seconds of each answered request, number of failures, and seconds from the first request to the last answer."""

    latencies_s: np.ndarray
    failed: int
    seconds: float


class _Answers:
    """A collector of answers, filled by other threads."""

    def __init__(self):
        self._changed = threading.Condition()
        self._latencies: list[float] = []
        self.failed = self._sent = self._done = 0
        self._last = 0.0

    def expect(self, due: float):
        """Register a request that is due at a time; return the callback for its answer."""
        with self._changed:
            self._sent += 1

        def done(result: np.ndarray | None, error: Exception | None) -> None:
            now = time.perf_counter()
            with self._changed:
                self._done += 1
                self._last = now
                if error is None:
                    self._latencies.append(now - due)
                else:
                    self.failed += 1
                self._changed.notify_all()

        return done

    def wait(self, outstanding: int) -> None:
        """Wait until at most this many requests are outstanding."""
        with self._changed:
            self._changed.wait_for(lambda: self._sent - self._done <= outstanding, _PATIENCE_S)

    def measured(self, start: float) -> Measured:
        """Wait for all answers and return the measurement; requests without an answer count as failures."""
        self.wait(0)
        with self._changed:
            lost = self._sent - self._done
            return Measured(np.array(self._latencies), self.failed + lost, max(self._last, start + 1e-9) - start)


def closed_loop(connection: Connection, inputs: Mapping[str, np.ndarray], concurrency: int, seconds: float) -> Measured:
    """Keep `concurrency` equal requests outstanding for this time: each answer is followed by a new request."""
    for _ in range(_WARM_UP):
        connection.infer(inputs)
    answers, start = _Answers(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        answers.wait(concurrency - 1)
        connection.begin(inputs, answers.expect(time.perf_counter()))
    return answers.measured(start)


def open_loop(connection: Connection, inputs: Mapping[str, np.ndarray], rate: float, seconds: float, draw: np.random.Generator) -> Measured:
    """Send equal requests at the times of a Poisson process of `rate` a second. A latency counts from the time when the request was due."""
    for _ in range(_WARM_UP):
        connection.infer(inputs)
    due = arrivals(rate, seconds, draw)
    answers, start = _Answers(), time.perf_counter()
    for moment in due:
        while (left := start + moment - time.perf_counter()) > 0:
            time.sleep(left)
        connection.begin(inputs, answers.expect(start + moment))
    return answers.measured(start)


def arrivals(rate: float, seconds: float, draw: np.random.Generator) -> np.ndarray:
    """Draw the times `[n]` of a Poisson process between 0 and `seconds`, in ascending order."""
    return np.sort(draw.uniform(0, seconds, draw.poisson(rate * seconds)))
