"""Tables and gradients that are the same in every process, so that what is measured can be compared. Imports NumPy and nothing of the project."""

import time
from collections.abc import Callable

import numpy as np

LEARNING_RATE = 1.0  # with the gradients below large enough to see an update in the vectors, and small enough to repeat it
LOOKUP, UPDATE, BOTH = "lookup", "update", "both"
_SIZE = 0.1  # standard deviation of the gradients
_PERIOD = 1009  # rows after which a table repeats itself: drawing all would take longer than measuring


def table_values(number: int, rows: int, dim: int) -> np.ndarray:
    """`[rows, dim]` float32 of the table of a number."""
    block = np.random.default_rng(number).standard_normal((min(rows, _PERIOD), dim), np.float32)
    return np.resize(block, (rows, dim))


def gradient_values(batch_size: int, columns: int) -> np.ndarray:
    """`[batch_size, columns]` float32."""
    return np.float32(_SIZE) * np.random.default_rng(12345).standard_normal((batch_size, columns), np.float32)


def probe(vectors: np.ndarray) -> float:
    """One number that tells whether vectors `[B, C]` are the same: their product with the gradients, over their norm.

    About normal before an update, of a standard deviation of 1.
    """
    return float(np.vdot(vectors.astype(np.float64), gradient_values(*vectors.shape)) / np.linalg.norm(vectors) / _SIZE)


def repeated(action: Callable[[], object], seconds: float) -> float:
    """Seconds that an action takes, done again and again until so many have passed."""
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < seconds:
        action()
        count += 1
    return (time.perf_counter() - start) / count
