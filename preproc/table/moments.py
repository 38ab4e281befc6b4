"""Exact means and standard deviations of numbers that come in blocks, in any order."""

import math
from fractions import Fraction

import numpy as np

from dataloading.features import DatasetError

_DIGITS = 12  # significant digits of means and deviations, where more would show in no value
_NARROW = 1e-4  # of the mean: with a smaller deviation, they have all digits
_AT_ONCE = 1 << 15  # values of which the sums of products below are exact in float64
_LIMB = 18  # bits
_LEAST = -1130  # no float64 has a bit below this power of two
_WHOLE = 2.0**31  # whole numbers below it have squares that int64 holds


class Moments:
    """Count, sum and sum of squares of values, without rounding, so that no result depends on their order or on blocks; NaN is left out."""

    def __init__(self):
        self._count, self._sum, self._squares = 0, 0, 0  # the sums in units of 2**_LEAST and its square

    def add(self, block: np.ndarray) -> None:
        """Add finite values `[n]` float64, or NaN."""
        values = block[~np.isnan(block)]
        self._count += len(values)
        for start in range(0, len(values), _AT_ONCE):
            part = values[start : start + _AT_ONCE]
            total, squares = _of_whole(part) if (np.abs(part) < _WHOLE).all() and (part == np.rint(part)).all() else _of_any(part)
            self._sum += total
            self._squares += squares

    def join(self, other: "Moments") -> None:
        """Add the values of other moments."""
        self._count += other._count
        self._sum += other._sum
        self._squares += other._squares

    @property
    def constant(self) -> float | None:
        """The value that all values are; None where they differ, or where there are none."""
        return float(self._mean) if self._count and not self._spread else None

    @property
    def _mean(self) -> Fraction:
        return Fraction(self._sum, self._count) * Fraction(2) ** _LEAST

    @property
    def _spread(self) -> int:
        """The sum of squared deviations, times the count, in units of 2**(2 * _LEAST)."""
        return self._squares * self._count - self._sum**2

    def mean_and_std(self, name: str) -> tuple[float, float]:
        """Return the population's mean and standard deviation.

        They are 0 and 1 where there are no values, and the deviation is 1 where all values are equal.

        Raises:
            DatasetError: a value is so far from the mean, in deviations, that float64 cannot hold the difference.
        """
        if not self._count:
            return 0.0, 1.0
        mean, std = float(self._mean), _root(self._spread, self._count)
        if not std:
            return mean, 1.0
        if not math.isfinite(2 * (abs(mean) + std * math.sqrt(self._count))):
            raise DatasetError(f"feature {name}: its values are too large for a standard deviation in 64 bits; clip it, or use another transform")
        return (mean, std) if std < _NARROW * abs(mean) else (_rounded(mean), _rounded(std))


def _root(spread: int, count: int) -> float:
    """Return sqrt(spread) / count, times 2**_LEAST; 0 only for a spread of 0."""
    if not spread:
        return 0.0
    places = 2 * max(0, 64 + count.bit_length() - spread.bit_length() // 2)  # an even number of bits that leaves 64 bits of the result
    root = Fraction(math.isqrt(spread << places), count << (places // 2))
    return float(root * Fraction(2) ** _LEAST) or 5e-324


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _of_whole(values: np.ndarray) -> tuple[int, int]:
    """Return the sum and the sum of squares of whole numbers, in the units of `Moments`."""
    whole = values.astype(np.int64)
    squares = whole * whole
    high, low = int((squares >> 31).sum()), int((squares & (2**31 - 1)).sum())
    return int(whole.sum()) << -_LEAST, ((high << 31) + low) << (-2 * _LEAST)


def _of_any(values: np.ndarray) -> tuple[int, int]:
    """Return the sum and the sum of squares of float64, in the units of `Moments`.

    A value is a whole number of 53 bits times a power of two. The number is cut into limbs of 18 bits. For each power, the sums of the limbs and of
    their products are less than 2**53, so that float64 holds them.
    """
    mantissas, powers = np.frexp(values)
    numbers, powers = np.ldexp(mantissas, 53).astype(np.int64), powers.astype(np.int64) - 53 - _LEAST
    least = int(powers.min())
    powers -= least
    mask = (1 << _LIMB) - 1
    c, b, a = (limb.astype(np.float64) for limb in (numbers & mask, (numbers >> _LIMB) & mask, numbers >> 2 * _LIMB))
    total, squares = 0, 0
    for weights, bits in ((a, 2), (b, 1), (c, 0)):
        total += _of_powers(powers, weights, bits * _LIMB + least, 1)
    for weights, bits, times in ((a * a, 4, 1), (a * b, 3, 2), (a * c, 2, 2), (b * b, 2, 1), (b * c, 1, 2), (c * c, 0, 1)):
        squares += times * _of_powers(powers, weights, bits * _LIMB + 2 * least, 2)
    return total, squares


def _of_powers(powers: np.ndarray, weights: np.ndarray, shift: int, step: int) -> int:
    """Return the sum of weights × 2**(step × power + shift)."""
    sums = np.bincount(powers, weights)
    return sum(int(sums[power]) << (step * int(power) + shift) for power in np.flatnonzero(sums))
