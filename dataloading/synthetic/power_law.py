"""Ids drawn from a power law: the continuous density y^-alpha on [1, V + 1), truncated to whole numbers. Id 0 is the most frequent."""

import math

import numpy as np

_NEARLY_ONE = 1e-7  # a smaller |1 - alpha| is treated as the logarithmic case, because the power loses precision there


def ids_from_uniforms(u: np.ndarray, cardinality: int, alpha: float) -> np.ndarray:
    """Return ids by inverting the cumulative distribution.

    With γ = 1 − alpha: y = (1 + u((V+1)^γ − 1))^(1/γ), id = ⌊y⌋ − 1. alpha 0 is the uniform distribution.

    Args:
        u: `[n]` float64 in [0, 1); overwritten.
        cardinality: V.
        alpha: the exponent, at least 0.

    Returns:
        `[n]` int32, in [0, V).
    """
    gamma = 1.0 - alpha
    if alpha == 0.0:
        u *= cardinality
    elif abs(gamma) < _NEARLY_ONE:
        u *= math.log(cardinality + 1)
        np.exp(u, out=u)
        u -= 1.0
    else:
        u *= math.expm1(gamma * math.log(cardinality + 1))  # (V+1)^γ − 1
        u += 1.0
        np.log(u, out=u)  # log, scale and exp are a third faster than np.power
        u *= 1.0 / gamma
        np.exp(u, out=u)
        u -= 1.0
    np.minimum(u, cardinality - 1, out=u)  # rounding may reach V itself
    np.maximum(u, 0.0, out=u)
    return u.astype(np.int32)


def cumulative(ids: np.ndarray, cardinality: int, alpha: float) -> np.ndarray:
    """Return P(id ≤ k) for each k in `ids` (−1 to V − 1): `[n]` float64."""
    y = np.asarray(ids, np.float64) + 2.0
    gamma = 1.0 - alpha
    if abs(gamma) < _NEARLY_ONE:
        return np.log(y) / math.log(cardinality + 1)
    return np.expm1(gamma * np.log(y)) / math.expm1(gamma * math.log(cardinality + 1))


def ids_of_the_rest(taken: np.ndarray, u: np.ndarray, cardinality: int, alpha: float) -> np.ndarray:
    """Draw from the distribution without the ids taken, by inversion; the result is distributed like a draw repeated until it gives another id.

    The ids taken cut [1, V + 1) into gaps. A gap is chosen by the masses of the gaps. They are sums, never differences of numbers near 1, so that a
    steep law loses no precision. The place in the gap is found as in `ids_from_uniforms`.

    Args:
        taken: `[n, k]`, k different ids for each draw, fewer than V.
        u: `[n]` float64 in [0, 1).
        cardinality: V.
        alpha: the exponent.

    Returns:
        `[n]` int64, in [0, V), none of them taken.
    """
    gamma = 1.0 - alpha
    taken = np.sort(taken, axis=1).astype(np.float64)
    border = np.ones((len(taken), 1))
    first, last = np.hstack([border, taken + 2]), np.hstack([taken + 1, border * (cardinality + 1)])
    there = last > first
    nearest = np.where(there, first, np.inf).min(axis=1, keepdims=True)  # masses are relative to the density here, so that none overflows
    first = np.maximum(first, nearest)
    scale = np.exp(gamma * np.log(first / nearest))
    steps = np.log(np.where(there, last / first, 1.0))
    masses = scale * (steps if abs(gamma) < _NEARLY_ONE else np.expm1(gamma * steps) / gamma)
    ends = np.cumsum(masses, axis=1)
    target = (u * ends[:, -1])[:, np.newaxis]
    gap = np.count_nonzero(ends <= target, axis=1)[:, np.newaxis]
    before = np.where(gap > 0, np.take_along_axis(ends, np.maximum(gap - 1, 0), axis=1), 0.0)
    first, last, scale = (np.take_along_axis(values, gap, axis=1)[:, 0] for values in (first, last, scale))
    rest = (target - before)[:, 0] / scale
    if abs(gamma) >= _NEARLY_ONE:
        rest = np.log1p(np.maximum(gamma * rest, -1 + 1e-16)) / gamma
    y = np.floor(first * np.exp(np.minimum(rest, 50.0)))  # e^50 is beyond any table
    return np.clip(y - 1, first - 1, last - 2).astype(np.int64)  # rounding may reach a border
