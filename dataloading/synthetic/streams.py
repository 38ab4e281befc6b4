"""Streams of random numbers with random access: Philox, keyed by names and advanced to the row.

Any worker can draw any range of rows, in any order, with the same values.
"""

import hashlib

import numpy as np

_DRAWS_PER_COUNT = 4  # one step of Philox's counter yields four 64-bit numbers


def stream_key(*names: int | str) -> int:
    """Return the 128-bit key of the stream with these names."""
    text = "\0".join(str(name) for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream_generator(*names: int | str) -> np.random.Generator:
    """Return a generator at the start of the stream with these names."""
    return np.random.Generator(np.random.Philox(key=stream_key(*names)))


def uniforms(key: int, start: int, stop: int) -> np.ndarray:
    """Return numbers start to stop of the stream: `[stop - start]` float64, uniform on [0, 1)."""
    count, skip = divmod(start, _DRAWS_PER_COUNT)
    generator = np.random.Generator(np.random.Philox(key=key, counter=count))
    return generator.random(stop - start + skip)[skip:]
