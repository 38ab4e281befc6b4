"""A table's memory, for what reads rows by itself."""

from typing import NamedTuple

import numpy as np


class Chunks(NamedTuple):
    """A table `[V, D]` as it lies in memory.

    Attributes:
        arrays: chunks `[height, width]` of one shape, from left to right, then downwards; the last ones may be longer than the table.
        precision: of its elements, one of `PRECISIONS`; bfloat16 as its 16 bits.
        scales: `[V, 2]` float32 of int8, a row's scale and bias.
    """

    arrays: list[np.ndarray]
    precision: str
    scales: np.ndarray | None = None
