"""Initial values of embedding rows from a counter-based generator: they depend only on (seed, feature, row)."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from model.embedding.table import GLOROT_NORMAL, KERAS_UNIFORM, NORMAL, ZEROS, Table

_ROWS_AT_ONCE = 2048  # 1 MiB at D = 128: the three passes over it stay in the cache
_FLOATS_PER_COUNT = 8  # a Philox4x64 counter gives 256 bits, and a float32 takes 32
_KERAS_BOUND = 0.05  # the bound of Keras's RandomUniform, the default initializer of its Embedding
_CUT = 0.02275013194817921  # share of a normal distribution below -2 standard deviations
_CUT_STDDEV = 0.87962566103423978  # standard deviation of a standard normal distribution truncated at 2 standard deviations
# The normal distribution's quantile function as ratios of polynomials (Acklam 2003): its central part, and its tails.
_ABOVE = (-39.69683028665376, 220.9460984245205, -275.9285104469687, 138.3577518672690, -30.66479806614716, 2.506628277459239)
_TAIL = 0.02425  # share of the distribution in each tail
_TAIL_ABOVE = (-0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968, 2.938163982698783)
_TAIL_BELOW = (0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1.0)
_BELOW = (-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1.0)


class UniformRows:
    """Rows drawn uniformly from ±1/sqrt(V), V the rows of the table, or from ±`bound`.

    Row r of a feature takes its numbers from a Philox generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), from counter
    r·ceil(D/8) on; the generator's key is a hash of (seed, feature). So values depend neither on the number of workers nor on the division of tables
    into chunks or columns, and any row can be drawn alone.

    Args:
        seed: the seed of the run.
        feature: the name that seeds the rows.
        num_rows: V.
        dim: D, the width of the whole table.
        columns: first and last+1 column to keep, where this worker holds a slice of the columns.
        bound: the bound that replaces 1/sqrt(V).
    """

    def __init__(self, seed: int, feature: str, num_rows: int, dim: int, columns: tuple[int, int] | None = None, bound: float | None = None):
        digest = hashlib.sha256(f"{seed}/{feature}".encode()).digest()
        self._key = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
        self._bound = bound or 1 / math.sqrt(num_rows)
        self._dim, self._columns = dim, columns or (0, dim)
        self._counts_per_row = -(-dim // _FLOATS_PER_COUNT)

    def __call__(self, out: np.ndarray, start: int) -> None:
        """Write rows start..start+n into `out`, `[n, columns]` float32."""
        philox = np.random.Philox(key=self._key)
        philox.advance(start * self._counts_per_row)
        generator = np.random.Generator(philox)
        # Rows are drawn in whole counts of 8 numbers; columns beyond D, or of other workers, are dropped.
        drawn_width = self._counts_per_row * _FLOATS_PER_COUNT
        whole = self._columns == (0, drawn_width) and out.flags.c_contiguous
        for i in range(0, len(out), _ROWS_AT_ONCE):
            target = out[i : i + _ROWS_AT_ONCE]
            drawn = target if whole else np.empty((len(target), drawn_width), np.float32)
            generator.random(out=drawn, dtype=np.float32)
            self._distribute(drawn)
            if not whole:
                target[:] = drawn[:, self._columns[0] : self._columns[1]]

    def _distribute(self, drawn: np.ndarray) -> None:
        """Transform numbers uniform in [0, 1) to the rows' distribution, in place."""
        drawn *= np.float32(2 * self._bound)
        drawn -= np.float32(self._bound)


class GlorotNormalRows(UniformRows):
    """Rows like those of Keras's GlorotNormal (Glorot & Bengio, AISTATS 2010): truncated normal, standard deviation sqrt(2/(V+D)).

    Each number is the quantile at the number that `UniformRows` draws; arguments as there.
    """

    def __init__(self, seed: int, feature: str, num_rows: int, dim: int, columns: tuple[int, int] | None = None):
        super().__init__(seed, feature, num_rows, dim, columns)
        self._stddev = math.sqrt(2 / (num_rows + dim)) / _CUT_STDDEV

    def _distribute(self, drawn: np.ndarray) -> None:
        """Transform numbers uniform in [0, 1) to their quantiles of the truncated normal distribution, in place."""
        drawn -= np.float32(0.5)
        drawn *= np.float32(1 - 2 * _CUT)
        square = drawn * drawn
        above, below = (_polynomial(coefficients, square) for coefficients in (_ABOVE, _BELOW))
        drawn *= above
        drawn /= below
        drawn *= np.float32(self._stddev)


class NormalRows(UniformRows):
    """Normal rows of mean 0; arguments as in `UniformRows`.

    Each number is the quantile at the number that `UniformRows` draws, which lies on a grid of 2^-24: no number is more than 5.4 deviations from 0.

    Args:
        stddev: the standard deviation.
    """

    def __init__(self, seed: int, feature: str, num_rows: int, dim: int, columns: tuple[int, int] | None = None, *, stddev: float):
        super().__init__(seed, feature, num_rows, dim, columns)
        self._stddev = stddev

    def _distribute(self, drawn: np.ndarray) -> None:
        """Transform numbers uniform in [0, 1) to their quantiles of the normal distribution, in place."""
        middle = 2**-25  # each number stands for the middle of its step of 2^-24, so that neither 0 nor 1 occurs
        below, above = drawn < np.float32(_TAIL), drawn >= np.float32(1 - _TAIL)
        tails = [(below, drawn[below].astype(np.float64) + middle, 1), (above, 1 - drawn[above].astype(np.float64) - middle, -1)]
        drawn -= np.float32(0.5 - middle)
        square = drawn * drawn
        numerator, denominator = (_polynomial(coefficients, square) for coefficients in (_ABOVE, _BELOW))
        drawn *= numerator
        drawn /= denominator
        for places, shares, sign in tails:
            root = np.sqrt(-2 * np.log(shares))
            drawn[places] = sign * np.polyval(_TAIL_ABOVE, root) / np.polyval(_TAIL_BELOW, root)
        drawn *= np.float32(self._stddev)


def _polynomial(coefficients: Sequence[float], values: np.ndarray) -> np.ndarray:
    total = np.full_like(values, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= values
        total += np.float32(coefficient)
    return total


class ConstantRows:
    """Rows of one value: zeros, or the initial value of an optimizer's slot."""

    def __init__(self, value: float):
        self.value = value

    def __call__(self, out: np.ndarray, start: int) -> None:
        """Fill `out`, `[n, columns]` float32, with the value."""
        out[:] = self.value


class StackedRows:
    """Rows of several tables, one after another in one variable.

    Args:
        fillers: the fillers of the tables.
        first: the row of the variable where each table begins; ascending.
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


def rows_of(table: Table, seed: int, columns: tuple[int, int]):
    """Return the filler of columns first to last of a table: uniform in ±1/sqrt(V), ±scale or, like Keras's Embedding, ±0.05; normal; zeros."""
    if table.initializer == ZEROS:
        return ConstantRows(0.0)
    if table.initializer == GLOROT_NORMAL:
        return GlorotNormalRows(seed, table.name, table.rows, table.dim, columns)
    if table.initializer == NORMAL:
        return NormalRows(seed, table.name, table.rows, table.dim, columns, stddev=table.scale)
    return UniformRows(seed, table.name, table.rows, table.dim, columns, _KERAS_BOUND if table.initializer == KERAS_UNIFORM else table.scale)
