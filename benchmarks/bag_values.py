"""Tables and gradients that are equal in every process, so that results can be compared. This module imports only NumPy, nothing of the project."""

import time
from collections.abc import Callable

import numpy as np

LEARNING_RATE = 1.0  # with these gradients large enough to change the vectors visibly in one update, and small enough for many updates
LOOKUP, UPDATE, BOTH = "lookup", "update", "both"
_SIZE = 0.1  # standard deviation of the gradients
_PERIOD = 1009  # rows after which the values repeat: drawing all rows would take longer than the measurement


def table_values(number: int, rows: int, dim: int) -> np.ndarray:
    """Return the values `[rows, dim]` float32 of the table with a number."""
    block = np.random.default_rng(number).standard_normal((min(rows, _PERIOD), dim), np.float32)
    return np.resize(block, (rows, dim))


def gradient_values(batch_size: int, columns: int) -> np.ndarray:
    """Return the gradients `[batch_size, columns]` float32."""
    return np.float32(_SIZE) * np.random.default_rng(12345).standard_normal((batch_size, columns), np.float32)


def weight_values(batch: int, ids: int, batch_size: int) -> np.ndarray:
    """Return the weights of a batch's ids, `[ids, batch_size]` float32 from 0.5 to 1.5; `batch` is its number."""
    return np.float32(0.5) + np.random.default_rng([54321, batch]).random((ids, batch_size), np.float32)


def probe(vectors: np.ndarray) -> float:
    """Return a number by which vectors `[B, C]` can be compared: their product with the gradients, divided by their norm.

    Before an update it is about normally distributed, with standard deviation 1.
    """
    return float(np.vdot(vectors.astype(np.float64), gradient_values(*vectors.shape)) / np.linalg.norm(vectors) / _SIZE)


def repeated(action: Callable[[], object], seconds: float) -> float:
    """Return the mean seconds of an action, which is repeated until `seconds` have passed."""
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < seconds:
        action()
        count += 1
    return (time.perf_counter() - start) / count
