"""Ids by a power law: the continuous density y^-alpha on [1, V + 1), cut to whole numbers. Id 0 is the most frequent."""

import math

import numpy as np

_NEARLY_ONE = 1e-7  # |1 - alpha| below this counts as the logarithmic case, where the power loses its digits


def ids_from_uniforms(u: np.ndarray, cardinality: int, alpha: float) -> np.ndarray:
    """Inverse of the cumulative distribution.

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
        np.log(u, out=u)  # log, scale, exp: a third faster than np.power
        u *= 1.0 / gamma
        np.exp(u, out=u)
        u -= 1.0
    np.minimum(u, cardinality - 1, out=u)  # rounding may reach V itself
    np.maximum(u, 0.0, out=u)
    return u.astype(np.int32)


def cumulative(ids: np.ndarray, cardinality: int, alpha: float) -> np.ndarray:
    """P(id ≤ k) for each k in `ids` (−1 to V − 1): `[n]` float64."""
    y = np.asarray(ids, np.float64) + 2.0
    gamma = 1.0 - alpha
    if abs(gamma) < _NEARLY_ONE:
        return np.log(y) / math.log(cardinality + 1)
    return np.expm1(gamma * np.log(y)) / math.expm1(gamma * math.log(cardinality + 1))
