"""Throughput of training and latency of inference."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Throughput:
    """A meter of samples per second over the steps after a warm-up; time before `resume` and inside `paused` does not count.

    Args:
        skip: number of first steps to leave out. In a run with no more steps, the last one counts.
    """

    def __init__(self, skip: int):
        self._skip, self.steps, self._samples, self._seconds = skip, 0, 0, 0.0
        self._last = (0, 0.0)
        self.resume()

    def resume(self) -> None:
        """Start the clock, or start it again."""
        self._mark = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock inside the block."""
        start = time.perf_counter()
        yield
        self._mark += time.perf_counter() - start

    def step(self, samples: int) -> float:
        """Count a finished step; return its duration in seconds."""
        now = time.perf_counter()
        self._last = samples, now - self._mark
        self._mark = now
        self.steps += 1
        if self.steps > self._skip:
            self._samples += samples
            self._seconds += self._last[1]
        return self._last[1]

    def summary(self) -> Mapping[str, float]:
        """Return `throughput` in samples/s and `mean_step_time_ms`; NaN before the first step."""
        steps, samples, seconds = self.steps - self._skip, self._samples, self._seconds
        if steps <= 0:
            steps, (samples, seconds) = 1, self._last
        if not seconds:
            return {"throughput": float("nan"), "mean_step_time_ms": float("nan")}
        return {"throughput": samples / seconds, "mean_step_time_ms": 1000 * seconds / steps}


class Spent:
    """The time that steps spend on some purposes, `input` for instance."""

    def __init__(self):
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def on(self, purpose: str) -> Iterator[None]:
        """Count the time inside the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(purpose, time.perf_counter() - start)

    def add(self, purpose: str, seconds: float) -> None:
        """Count some time."""
        self._seconds[purpose] = self._seconds.get(purpose, 0.0) + seconds

    def waiting(self, purpose: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; count the time waited for each."""
        iterator = iter(items)
        while True:
            start = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.add(purpose, time.perf_counter() - start)
            yield item

    def means(self, steps: int, purposes: Iterable[str]) -> dict[str, float]:
        """Return the mean milliseconds a step as `PURPOSE_ms`, and begin again; NaN where there were no steps."""
        seconds, self._seconds = self._seconds, {}
        return {f"{purpose}_ms": 1000 * seconds.get(purpose, 0.0) / steps if steps else float("nan") for purpose in purposes}


def latency_summary(batch_size: int, seconds: Sequence[float]) -> Mapping[str, float]:
    """Compute the throughput (samples/s) and the mean, 90th, 95th and 99th percentile latency (s) of batches of `batch_size` samples."""
    mean = float(np.mean(seconds))
    summary = {"mean_inference_throughput": batch_size / mean, "mean_inference_latency": mean, "avg_inference_latency": mean}
    return summary | {f"p{q}_inference_latency": float(np.percentile(seconds, q)) for q in (90, 95, 99)}
