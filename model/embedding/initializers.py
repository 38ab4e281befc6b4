"""Initial values of embedding rows, from a counter-based generator: they depend on (seed, feature, row) and nothing else."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np

_ROWS_AT_ONCE = 2048  # 1 MiB at D = 128: the three passes over it stay in the cache
_FLOATS_PER_COUNT = 8  # a Philox4x64 counter gives 256 bits, and a float32 takes 32


class UniformRows:
    """Rows uniform in ±1/sqrt(V), V the rows of the table.

    Row r of a feature takes its numbers from counters r·ceil(D/8) on of a Philox generator (Salmon et al., "Parallel random
    numbers: as easy as 1, 2, 3", 2011) whose key is a hash of (seed, feature). So values depend neither on the number of workers nor on
    how tables are cut into chunks or columns, and any row can be drawn alone.

    Args:
        seed: of the run.
        feature: name of the feature.
        num_rows: V.
        dim: D, the width of the whole table.
        columns: first and last+1 column to keep, where this worker holds a slice of the columns.
    """

    def __init__(self, seed: int, feature: str, num_rows: int, dim: int, columns: tuple[int, int] | None = None):
        digest = hashlib.sha256(f"{seed}/{feature}".encode()).digest()
        self._key = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
        self._bound = 1 / math.sqrt(num_rows)
        self._dim, self._columns = dim, columns or (0, dim)
        self._counts_per_row = -(-dim // _FLOATS_PER_COUNT)

    def __call__(self, out: np.ndarray, start: int) -> None:
        """Write rows start..start+n into `out`, `[n, columns]` float32."""
        philox = np.random.Philox(key=self._key)
        philox.advance(start * self._counts_per_row)
        generator = np.random.Generator(philox)
        drawn_width = self._counts_per_row * _FLOATS_PER_COUNT
        whole = self._columns == (0, drawn_width) and out.flags.c_contiguous
        for i in range(0, len(out), _ROWS_AT_ONCE):
            target = out[i : i + _ROWS_AT_ONCE]
            drawn = target if whole else np.empty((len(target), drawn_width), np.float32)
            generator.random(out=drawn, dtype=np.float32)
            drawn *= np.float32(2 * self._bound)
            drawn -= np.float32(self._bound)
            if not whole:
                target[:] = drawn[:, self._columns[0] : self._columns[1]]


class ConstantRows:
    """Rows of one value: zeros, or the start of an optimizer's slot."""

    def __init__(self, value: float):
        self.value = value

    def __call__(self, out: np.ndarray, start: int) -> None:
        """Write `out`, `[n, columns]` float32."""
        out[:] = self.value


class StackedRows:
    """Rows of several tables, one after another in one variable.

    Args:
        fillers: of the tables.
        first: the row of the variable where each begins; ascending.
    """

    def __init__(self, fillers: Sequence, first: Sequence[int]):
        self._fillers, self._first = list(fillers), list(first)

    def __call__(self, out: np.ndarray, start: int) -> None:
        """Write rows start..start+n into `out`, `[n, columns]` float32."""
        stop = start + len(out)
        for fill, first, end in zip(self._fillers, self._first, [*self._first[1:], stop], strict=True):
            begin, end = max(first, start), min(end, stop)
            if begin < end:
                fill(out[begin - start : end - start], begin - first)
