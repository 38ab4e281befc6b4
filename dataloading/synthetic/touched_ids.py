"""The number of different ids among many draws from a power law, without drawing them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dataloading.synthetic.lists import IDLE

_NEARLY_ONE = 1e-7  # a smaller |1 - alpha| is treated as the logarithmic case, as in `power_law`
_EXACT = 1 << 14  # ids with a bin of their own
_RATIO = 1.005  # of a bin's borders above: the probabilities in a bin differ by less than a hundredth, and the error is of its square
_MOST_DRAWS, _BELOW_ONE = 1e18, 1 - 1e-16


class Draws(NamedTuple):
    """Samples with ids from one power law, in a table's rows.

    Attributes:
        samples: the number of samples.
        cardinality: V; ids are in [0, V).
        alpha: the exponent; 0 is the uniform distribution.
        hotness: h, different ids a sample, drawn without repetition.
        weights: whether the ids have weights; one in twenty is 0, and such an id names no row.
    """

    samples: int
    cardinality: int
    alpha: float
    hotness: int = 1
    weights: bool = False


def expected_distinct(features: Sequence[Draws]) -> float:
    """Return the expected number of different ids that samples name, over features that share a table.

    Ids above the first ones are taken together in bins whose borders grow by a factor, so no array has V elements.
    """
    edges = _edges(max(one.cardinality for one in features))
    left = np.zeros(len(edges) - 1)  # the logarithm of the probability that no sample names an id of the bin
    for one in features:
        if one.samples:
            left += one.samples * (1 - IDLE if one.weights else 1) * _logs_of_absence(edges, one)
    return float(-np.diff(edges) @ np.expm1(left))


def expected_hashed(distinct: float, rows: int) -> float:
    """Return the expected number of a table's rows that so many different ids name, hashed to fewer rows."""
    return -rows * math.expm1(distinct * math.log1p(-1 / rows)) if rows > 1 else float(min(rows, distinct))


def _edges(cardinality: int) -> np.ndarray:
    """Return the borders of the bins of ids, `[k + 1]` whole float64 numbers from 0 to V."""
    first = min(cardinality, _EXACT)
    count = max(math.ceil(math.log(cardinality / first) / math.log(_RATIO)), 0)
    above = np.floor(first * (cardinality / first) ** (np.arange(1, count + 1) / max(count, 1)))
    return np.unique(np.concatenate([np.arange(first + 1.0), above, [cardinality]]))


def _logs_of_absence(edges: np.ndarray, feature: Draws) -> np.ndarray:
    """Return the logarithm of the probability that a sample lacks an id, for one id of each bin, `[k]`."""
    if feature.hotness >= feature.cardinality:
        return np.where(edges[1:] <= feature.cardinality, -np.inf, 0.0)
    gamma, size = 1.0 - feature.alpha, feature.cardinality
    low, high = (np.minimum(border, size) + 1 for border in (edges[:-1], edges[1:]))  # the density y^-alpha on [1, V + 1)
    steps = np.log(high / low)
    if abs(gamma) < _NEARLY_ONE:
        masses = steps / math.log(size + 1)
    else:
        masses = np.exp(gamma * np.log(low)) * np.expm1(gamma * steps) / math.expm1(gamma * math.log(size + 1))
    logs = np.log1p(-np.minimum(masses / np.diff(edges), _BELOW_ONE))
    return logs if feature.hotness == 1 else logs * _draws_a_sample(np.diff(edges), logs, feature.hotness)


def _draws_a_sample(counts: np.ndarray, logs: np.ndarray, hotness: int) -> float:
    """Return the number of draws with repetition that name as many different ids as a sample has.

    A sample draws until it has h different ids, so rare ids are named more often than in h draws.

    Args:
        counts: the ids of each bin, `[k]`.
        logs: the logarithm of the probability that a draw is not a certain one of them, `[k]`.
        hotness: h, less than V.
    """

    def distinct(draws: float) -> float:
        return float(-counts @ np.expm1(draws * logs))

    low, high = 1.0, 2.0
    while distinct(high) < hotness and high < _MOST_DRAWS:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if distinct(middle) < hotness else (low, middle)
    return high
