"""log(x + 3) of integers by a table of the small ones, bit for bit what `numerical.log_plus_3` gives."""

import functools

import numpy as np
import polars as pl

from utils.encoding import numerical

_BELOW, _LARGEST = -3, 1 << 16  # what lies below -2 gives 0, as what is missing does


@functools.cache
def _table() -> np.ndarray:
    return numerical.log_plus_3(pl.DataFrame({"x": np.arange(_BELOW, _LARGEST + 1)}))[:, 0]


def log_plus_3(numbers: pl.DataFrame) -> np.ndarray:
    """log(x + 3), and 0 where x is missing or below -2: `[n, M]` float16."""
    found = np.empty(numbers.shape, np.float16)
    for place, column in enumerate(numbers):
        whole = column.fill_null(_BELOW).to_numpy()
        found[:, place] = _table()[np.clip(whole, _BELOW, _LARGEST) - _BELOW]
        large = np.flatnonzero(whole > _LARGEST)
        if len(large):
            found[large, place] = numerical.log_plus_3(pl.DataFrame({"x": whole[large]}))[:, 0]
    return found
