"""Values of embedding rows before training, from a counter-based generator: they depend only on (seed, feature, row). Imports no TensorFlow.

A row that no batch has named is what its generator says, so it need not be stored: a `Untouched` gives it again, and an `Origin` records how.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

import numpy as np

UNIFORM, NORMAL, ZEROS, GLOROT_NORMAL, KERAS_UNIFORM, CONSTANT = GENERATORS = (
    "uniform",
    "normal",
    "zeros",
    "glorot_normal",
    "keras_uniform",
    "constant",
)

_ROWS_AT_ONCE = 2048  # 1 MiB at D = 128: the three passes over it stay in the cache
_COUNTS_AT_ONCE = 1 << 13  # 64 KiB for each of the words of NumPy's Philox
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
# Philox4x64 (Salmon et al. 2011): its multipliers, and what is added to the key after each of its ten rounds.
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS, _HALF, _WORD = 10, 32, (1 << 64) - 1

# A function (key, counts, rows) that returns the uniform numbers of some rows, see `numbers_of_rows`.
Draw = Callable[[Sequence[int], int, np.ndarray], np.ndarray]


class Rows(Protocol):
    """The rows of a table, given by a rule."""

    def __call__(self, out: np.ndarray, start: int) -> None:
        """Write rows start..start+n into `out`, `[n, columns]` float32."""

    def at(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """Write rows by their numbers, `[n]` int64 in any order, into `out`, `[n, columns]` float32: the bits that `__call__` writes."""


def numbers_of_rows(key: Sequence[int], counts: int, rows: np.ndarray) -> np.ndarray:
    """Return the numbers that `np.random.Generator(Philox(key))` draws for some rows, each alone: `[n] -> [n, 8·counts]` float32 in [0, 1).

    Args:
        key: the two words of the generator's key.
        counts: the counter values of a row; row r begins at counter r·counts.
        rows: the rows' numbers, in any order.
    """
    found = np.empty((len(rows), counts * _FLOATS_PER_COUNT), np.float32)
    step = max(_COUNTS_AT_ONCE // counts, 1)
    for i in range(0, len(rows), step):
        some = np.asarray(rows[i : i + step]).astype(np.uint64)
        # NumPy counts before it draws, so the numbers after n counts come from counter n + 1.
        counters = (some * np.uint64(counts))[:, np.newaxis] + np.arange(1, counts + 1, dtype=np.uint64)
        bits = _philox(key, counters.reshape(-1)).view("<u4").reshape(len(some), -1)
        np.multiply(bits >> np.uint32(8), np.float32(2**-24), out=found[i : i + step], casting="unsafe", dtype=np.float32)
    return found


def _philox(key: Sequence[int], counters: np.ndarray) -> np.ndarray:
    """Return the four words of each counter below 2^64, `[n] -> [n, 4]` uint64."""
    words = [counters, *(np.zeros_like(counters) for _ in range(3))]
    keys = [int(word) for word in key]
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = (_product(words[2 * i], _MULTIPLIERS[i]) for i in range(2))
        words = [high1 ^ words[1] ^ np.uint64(keys[0]), low1, high0 ^ words[3] ^ np.uint64(keys[1]), low0]
        keys = [(word + step) & _WORD for word, step in zip(keys, _WEYL, strict=True)]
    return np.stack(words, axis=1)


def _product(words: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the high and the low 64 bits of the products of words `[n]` uint64 and a number."""
    mask, half = np.uint64((1 << _HALF) - 1), np.uint64(_HALF)
    above, below = np.uint64(number >> _HALF), np.uint64(number) & mask
    high, low = words >> half, words & mask
    crossed = above * low
    middle = ((below * low) >> half) + (crossed & mask) + below * high  # at most 2^64 - 1
    return above * high + (crossed >> half) + (middle >> half), words * np.uint64(number)


def _key(seed: int, feature: str) -> list[int]:
    """Return the key of a feature's generator.

    NumPy reads a list of two words as float64 where one of them needs all 64 bits and the other does not, and every table so far was drawn with such
    rounded keys.
    """
    digest = hashlib.sha256(f"{seed}/{feature}".encode()).digest()
    words = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
    mixed = len({word >> 63 for word in words}) == 2
    return [int(float(word)) & _WORD for word in words] if mixed else words


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
        draw: draws the numbers of single rows.
    """

    def __init__(
        self,
        seed: int,
        feature: str,
        num_rows: int,
        dim: int,
        columns: tuple[int, int] | None = None,
        bound: float | None = None,
        draw: Draw = numbers_of_rows,
    ):
        self._key = _key(seed, feature)
        self._bound = bound or 1 / math.sqrt(num_rows)
        self._dim, self._columns, self._draw = dim, columns or (0, dim), draw
        self._counts_per_row = -(-dim // _FLOATS_PER_COUNT)

    def __call__(self, out: np.ndarray, start: int) -> None:
        """Write rows start..start+n into `out`, `[n, columns]` float32."""
        philox = np.random.Philox(key=np.array(self._key, np.uint64))
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

    def at(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """Write rows by their numbers, see `Rows.at`."""
        for i in range(0, len(numbers), _ROWS_AT_ONCE):
            drawn = self._draw(self._key, self._counts_per_row, numbers[i : i + _ROWS_AT_ONCE])
            self._distribute(drawn)
            out[i : i + _ROWS_AT_ONCE] = drawn[:, self._columns[0] : self._columns[1]]

    def _distribute(self, drawn: np.ndarray) -> None:
        """Transform numbers uniform in [0, 1) to the rows' distribution, in place."""
        drawn *= np.float32(2 * self._bound)
        drawn -= np.float32(self._bound)


class GlorotNormalRows(UniformRows):
    """Rows like those of Keras's GlorotNormal (Glorot & Bengio, AISTATS 2010): truncated normal, standard deviation sqrt(2/(V+D)).

    Each number is the quantile at the number that `UniformRows` draws; arguments as there.
    """

    def __init__(self, seed: int, feature: str, num_rows: int, dim: int, columns: tuple[int, int] | None = None, *, draw: Draw = numbers_of_rows):
        super().__init__(seed, feature, num_rows, dim, columns, draw=draw)
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

    def __init__(
        self,
        seed: int,
        feature: str,
        num_rows: int,
        dim: int,
        columns: tuple[int, int] | None = None,
        *,
        stddev: float,
        draw: Draw = numbers_of_rows,
    ):
        super().__init__(seed, feature, num_rows, dim, columns, draw=draw)
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

    def at(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, `[n, columns]` float32, with the value."""
        out[:] = self.value


class StackedRows:
    """Rows of several tables, one after another in one variable.

    Args:
        fillers: the fillers of the tables.
        first: the row of the variable where each table begins; ascending.
    """

    def __init__(self, fillers: Sequence[Rows], first: Sequence[int]):
        self._fillers, self._first = list(fillers), list(first)

    def __call__(self, out: np.ndarray, start: int) -> None:
        """Write rows start..start+n into `out`, `[n, columns]` float32."""
        stop = start + len(out)
        for fill, first, end in zip(self._fillers, self._first, [*self._first[1:], stop], strict=True):
            begin, end = max(first, start), min(end, stop)
            if begin < end:
                fill(out[begin - start : end - start], begin - first)

    def at(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """Write rows of the variable by their numbers, see `Rows.at`."""
        members = np.searchsorted(self._first, numbers, side="right") - 1
        for member in np.unique(members):
            chosen = members == member
            rows = np.empty((np.count_nonzero(chosen), *out.shape[1:]), np.float32)
            self._fillers[member].at(numbers[chosen] - self._first[member], rows)
            out[chosen] = rows


@dataclass(frozen=True)
class Origin:
    """The rows `first` to `last` (exclusive) of a table, drawn by a generator: that of a table `name` `[rows, dim]` with this seed and initializer.

    `first` and `last` number the rows of the table and of the generator alike. A table that has grown has several: the rows that it was grown by were
    drawn by the generator of the larger table.

    `initializer` is one of `GENERATORS`; `scale` as in `model.embedding.table.Table`, or the value of "constant".
    """

    first: int
    last: int
    name: str
    rows: int
    dim: int
    seed: int
    initializer: str
    scale: float | None = None

    def __post_init__(self):
        if not 0 <= self.first < self.last <= self.rows or self.dim < 1:
            raise ValueError(f"rows {self.first} to {self.last} of a table [{self.rows}, {self.dim}]: expected rows within the table")
        if self.initializer not in GENERATORS:
            raise ValueError(f"initializer {self.initializer!r}, expected one of {', '.join(GENERATORS)}")
        if self.scale is None and self.initializer in (NORMAL, CONSTANT):
            raise ValueError(f"initializer {self.initializer} needs a scale")

    def described(self) -> dict[str, Any]:
        """Return the origin as JSON values, for a manifest."""
        return asdict(self)

    @classmethod
    def parsed(cls, described: Any) -> "Origin":
        """Return the origin that `described` gave. Raises ValueError where a value is missing, unknown, or not what it can be."""
        names = [field.name for field in fields(cls)]
        if not isinstance(described, Mapping) or set(described) != set(names):
            raise ValueError(f"origin {str(described)[:60]}, expected {', '.join(names)}")
        kinds = {"name": (str,), "initializer": (str,), "scale": (float, int, type(None))}
        for name, value in described.items():
            if type(value) not in kinds.get(name, (int,)) or (isinstance(value, float) and not math.isfinite(value)):
                raise ValueError(f"{name} of an origin is {str(value)[:60]!r}")
        return cls(**described)

    def generator(self, columns: tuple[int, int], draw: Draw = numbers_of_rows) -> Rows:
        """Return the generator of these rows, kept to columns first to last+1."""
        if self.initializer in (ZEROS, CONSTANT):
            return ConstantRows(0.0 if self.initializer == ZEROS else self.scale)
        of_table = self.seed, self.name, self.rows, self.dim, columns
        if self.initializer == GLOROT_NORMAL:
            return GlorotNormalRows(*of_table, draw=draw)
        if self.initializer == NORMAL:
            return NormalRows(*of_table, stddev=self.scale, draw=draw)
        return UniformRows(*of_table, _KERAS_BOUND if self.initializer == KERAS_UNIFORM else self.scale, draw)


class Untouched:
    """Rows of a table as they are before any batch has named them.

    Args:
        origins: where the rows come from: all rows of the table, in order.
        columns: first and last+1 column to keep; None for all.
        draw: draws the numbers of single rows.

    Attributes:
        origins: as given.
        rows: V.
        value: the value of all rows, only where they are constant.

    Raises:
        ValueError: the origins leave a gap, overlap, or differ in their columns.
    """

    def __init__(self, origins: Sequence[Origin], columns: tuple[int, int] | None = None, draw: Draw = numbers_of_rows):
        self.origins = tuple(origins)
        if not self.origins:
            raise ValueError("origins of no rows, expected those of all rows of a table")
        at = 0
        for origin in self.origins:
            if origin.first != at or origin.dim != self.origins[0].dim:
                raise ValueError(
                    f"origins of rows {origin.first} to {origin.last}, {origin.dim} columns: expected rows from {at} on, "
                    f"{self.origins[0].dim} columns"
                )
            at = origin.last
        self.rows = at
        kept = columns or (0, self.origins[0].dim)
        self._generators = [origin.generator(kept, draw) for origin in self.origins]
        self._first = np.array([origin.first for origin in self.origins], np.int64)
        values = {getattr(generator, "value", None) for generator in self._generators}
        if len(values) == 1 and None not in values:
            (self.value,) = values

    def __call__(self, out: np.ndarray, start: int) -> None:
        """Write rows start..start+n into `out`, `[n, columns]` float32."""
        stop = start + len(out)
        for origin, generator in zip(self.origins, self._generators, strict=True):
            begin, end = max(origin.first, start), min(origin.last, stop)
            if begin < end:
                generator(out[begin - start : end - start], begin)

    def at(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """Write rows by their numbers, see `Rows.at`."""
        if len(self._generators) == 1:
            self._generators[0].at(numbers, out)
            return
        members = np.searchsorted(self._first, numbers, side="right") - 1
        for member in np.unique(members):
            chosen = members == member
            rows = np.empty((np.count_nonzero(chosen), *out.shape[1:]), np.float32)
            self._generators[member].at(numbers[chosen], rows)
            out[chosen] = rows
