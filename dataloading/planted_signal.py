"""The relation between features and clicks that synthetic data carries, so that a model has something to learn.

    logit(row) = bias + signal · ( √0.54 · Σ_f w_f e_f(id_f)                      each feature's id
                                 + √0.42 · Σ_m (v_m x_m + q_m (x_m − ½)²)         numerical features, standardised
                                 + √0.04 · Σ_k c_k e_i(k)(id_i(k)) e_j(k)(id_j(k)) )   products for the interaction layer

e_f is a table of the feature's 10 most frequent ids with mean 0 and variance 1 under the power law; all rarer ids have
effect 0, so a model needs to see only frequent ids to approach the best score there is. Everything in the parentheses
has variance 1, therefore `signal` is the standard deviation of the logit, whatever the number of features.

The shares are set by what a DLRM learns from 400,000 rows: with 64 ids a table and equal weights it stayed 0.046 AUC
below the best score, with these it comes within 0.01 in one pass (docs/data.md).
"""

import math
from collections.abc import Sequence

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.power_law import cumulative
from dataloading.streams import stream_generator

DEFAULT_SIGNAL = 1.6
CLICK_RATE = 0.25

_HEAD = 10  # ids with an effect of their own; at alpha 1.45 they make up 66 percent of what is drawn
_ADDITIVE, _NUMERICAL, _PAIRWISE = 0.54, 0.42, 0.04  # shares of the logit's variance
_QUADRATIC = 0.08  # of the numerical share
_MAX_PAIRS = 2
_DECAY = 0.86  # weight of a feature relative to the next stronger one: some are plain to see, the last of 26 is nearly mute
_FULL_REACH = 0.25  # share of rows with a frequent id from which a feature has its full weight
_LINEAR_STD = math.sqrt(1 / 12)  # of x, uniform on [0, 1)
_SQUARE_MEAN, _SQUARE_STD = 1 / 12, math.sqrt(1 / 180)  # of (x − ½)²


class PlantedSignal:
    """The weights of the planted relation: a function of the specification and the seed, shared by all splits."""

    def __init__(self, spec: FeatureSpec, seed: int, signal: float = DEFAULT_SIGNAL):
        self.signal = signal
        draw = stream_generator(seed, "planted signal")
        num_numerical = len(spec.numerical)
        tables = [_effects(draw, feature.cardinality, feature.alpha or 0.0) for feature in spec.categorical]
        reach = np.array([_reach(feature.cardinality, feature.alpha or 0.0) for feature in spec.categorical])
        order = draw.permutation(len(tables))
        strongest = [f for f in order if reach[f] == 1]
        pairs = np.array(strongest[: 2 * min(_MAX_PAIRS, len(strongest) // 2)], np.int64).reshape(-1, 2)

        shares = np.array([_ADDITIVE * reach.max(), _NUMERICAL, _PAIRWISE * (len(pairs) > 0)])
        additive, numerical, pairwise = np.sqrt(shares / shares.sum()) * signal
        feature_weights = additive * _unit(_DECAY ** np.argsort(order) * np.sqrt(reach))
        linear = numerical * math.sqrt(1 - _QUADRATIC) * _unit(_signed(draw, num_numerical))
        square = numerical * math.sqrt(_QUADRATIC) * _unit(_signed(draw, num_numerical))

        self._tables = [(weight * table).astype(np.float32) for weight, table in zip(feature_weights, tables, strict=True)]
        # The second table of a pair absorbs the pair's weight.
        pair_weights = pairwise * _unit(_signed(draw, len(pairs)))
        self._pairs = [
            (int(i), int(j), tables[i].astype(np.float32), (weight * tables[j]).astype(np.float32))
            for (i, j), weight in zip(pairs, pair_weights, strict=True)
        ]
        # v (x − ½) / std + q ((x − ½)² − mean) / std, as slopes of x − ½ and one constant.
        self._slopes = (linear / _LINEAR_STD).astype(np.float32)
        self._curves = (square / _SQUARE_STD).astype(np.float32)
        self._bias = np.float32(_bias(signal) - float(np.sum(square)) * _SQUARE_MEAN / _SQUARE_STD)

    def probabilities(self, ids: Sequence[np.ndarray], numerical: np.ndarray) -> np.ndarray:
        """P(click) of rows.

        Only element-wise operations, in a fixed order: a row's value does not depend on the rows read with it, which
        a matrix product would not promise.

        Args:
            ids: F arrays `[n]`, in the model's order.
            numerical: `[n, M]` float16.

        Returns:
            `[n]` float32.
        """
        logits = np.full(len(numerical), self._bias, np.float32)
        for table, column in zip(self._tables, ids, strict=True):
            logits += np.take(table, column, mode="clip")  # "clip" sends every rare id to the last entry, which is 0
        for i, j, first, second in self._pairs:
            logits += np.take(first, ids[i], mode="clip") * np.take(second, ids[j], mode="clip")
        columns = np.ascontiguousarray(numerical.T).astype(np.float32) - np.float32(0.5)
        for x, slope, curve in zip(columns, self._slopes, self._curves, strict=True):
            logits += x * (slope + curve * x)
        np.negative(logits, out=logits)
        np.minimum(logits, np.float32(80), out=logits)  # where exp stays finite; a probability of 1e-35 is 0 to any label
        np.exp(logits, out=logits)
        logits += np.float32(1)
        return np.reciprocal(logits, out=logits)


def _reach(cardinality: int, alpha: float) -> float:
    """How much of its weight a feature keeps: 1 for power laws, less where the frequent ids are not frequent.

    A large table with uniform ids would otherwise put all its variance into ten ids that hardly ever occur.
    """
    if cardinality == 1:
        return 0.0  # carries no information
    return min(1.0, float(cumulative(np.array([min(cardinality, _HEAD) - 1]), cardinality, alpha)[0]) / _FULL_REACH)


def _effects(draw: np.random.Generator, cardinality: int, alpha: float) -> np.ndarray:
    """Effects of ids 0 to 9 and, last, of all others: `[11]`, mean 0 and variance 1 under the ids' distribution."""
    table = np.zeros(_HEAD + 1)
    values = draw.standard_normal(_HEAD)  # always as many draws, so that a feature's cardinality does not shift its neighbours' effects
    head = min(cardinality, _HEAD)
    share = np.diff(cumulative(np.arange(-1, head), cardinality, alpha))
    centred = values[:head] - share @ values[:head] / share.sum()
    variance = share @ centred**2
    if head > 1:
        table[:head] = centred / math.sqrt(variance)
    return table


def _signed(draw: np.random.Generator, count: int) -> np.ndarray:
    return draw.uniform(0.5, 1.5, count) * draw.choice([-1.0, 1.0], count)


def _unit(values: np.ndarray) -> np.ndarray:
    length = float(np.sqrt(np.sum(values**2)))
    return values / length if length else values


def _bias(std: float) -> float:
    """The mean of a normal logit of this standard deviation for which the click rate is CLICK_RATE."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    low, high = -50.0 - 10 * abs(std), 50.0
    for _ in range(100):
        middle = (low + high) / 2
        rate = float(weights @ (1 / (1 + np.exp(-np.clip(middle + std * nodes, -500, 500)))))
        low, high = (middle, high) if rate < CLICK_RATE else (low, middle)
    return (low + high) / 2
