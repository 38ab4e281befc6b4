"""The memory layout of a table, for code that reads its rows directly."""

from typing import NamedTuple

import numpy as np


class Chunks(NamedTuple):
    """A table `[V, D]` in memory, as chunks.

    Attributes:
        arrays: chunks `[height, width]` of equal shape, from left to right, then downwards; the last ones may extend beyond the table.
        precision: the precision of its elements, one of `PRECISIONS`; bfloat16 is stored as its 16 bits.
        scales: for int8, `[V, 2]` float32: the scale and the bias of each row.
    """

    arrays: list[np.ndarray]
    precision: str
    scales: np.ndarray | None = None
