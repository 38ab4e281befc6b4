"""The planted relation between features and clicks in synthetic data, which a model can learn.

    logit(row) = bias + signal · ( √0.54 · Σ_f w_f e_f(ids_f)                     each feature's ids
                                 + √0.42 · Σ_m (v_m x_m + q_m (x_m − ½)²)         numerical features, standardised
                                 + √0.04 · Σ_k c_k e_i(k)(ids_i(k)) e_j(k)(ids_j(k)) )   products for the interaction layer

e_f has mean 0 and variance 1 under the power law (`id_effects`). With one id per sample, it is a table of the feature's 10 most frequent ids; with
several, it is the standardised sum over the sample's ids; where ids have weights, the weighted sum or mean. All rarer ids have effect 0, so a model
needs to see only frequent ids to approach the best possible score. The sum in parentheses has variance 1, so `signal` is the standard deviation of
the logit, whatever the number of features. The share of a missing part, such as the numerical features, goes to the other parts.

The shares are chosen such that a DLRM can learn from 400,000 rows: with 64 ids per table and equal weights it stayed 0.046 AUC below the best
score; with these shares it comes within 0.01 in one pass (docs/data.md).
"""

import math
from collections.abc import Sequence

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.synthetic.id_effects import id_effects
from dataloading.synthetic.streams import stream_generator

DEFAULT_SIGNAL = 1.6
CLICK_RATE = 0.25

_ADDITIVE, _NUMERICAL, _PAIRWISE = 0.54, 0.42, 0.04  # shares of the logit's variance
_QUADRATIC = 0.08  # of the numerical share
_MAX_PAIRS = 2
_DECAY = 0.86  # weight of a feature relative to the next stronger one: a few are strong, the last of 26 is nearly 0
_LINEAR_STD = math.sqrt(1 / 12)  # of x, uniform on [0, 1)
_SQUARE_MEAN, _SQUARE_STD = 1 / 12, math.sqrt(1 / 180)  # of (x − ½)²


class PlantedSignal:
    """The weights of the planted relation: a function of the specification and the seed, shared by all splits."""

    def __init__(self, spec: FeatureSpec, seed: int, signal: float = DEFAULT_SIGNAL):
        self.signal = signal
        draw = stream_generator(seed, "planted signal")
        num_numerical = len(spec.numerical)
        effects = id_effects(spec, seed, draw)
        reach = np.array([effect.reach for effect in effects])
        order = draw.permutation(len(effects))
        strongest = [f for f in order if reach[f] == 1]
        pairs = np.array(strongest[: 2 * min(_MAX_PAIRS, len(strongest) // 2)], np.int64).reshape(-1, 2)

        shares = np.array([_ADDITIVE * reach.max(), _NUMERICAL * (num_numerical > 0), _PAIRWISE * (len(pairs) > 0)])
        signal = signal if shares.any() else 0.0  # no feature carries information
        additive, numerical, pairwise = np.sqrt(shares / (shares.sum() or 1.0)) * signal
        feature_weights = additive * _unit(_DECAY ** np.argsort(order) * np.sqrt(reach))
        linear = numerical * math.sqrt(1 - _QUADRATIC) * _unit(_signed(draw, num_numerical))
        square = numerical * math.sqrt(_QUADRATIC) * _unit(_signed(draw, num_numerical))

        self._effects = [effect.scaled(weight) for weight, effect in zip(feature_weights, effects, strict=True)]
        # The second effect of a pair absorbs the pair's weight.
        pair_weights = pairwise * _unit(_signed(draw, len(pairs)))
        self._pairs = [
            (int(i), int(j), effects[i].scaled(1.0), effects[j].scaled(weight)) for (i, j), weight in zip(pairs, pair_weights, strict=True)
        ]
        # v (x − ½) / std + q ((x − ½)² − mean) / std, as slopes of x − ½ and one constant.
        self._slopes = (linear / _LINEAR_STD).astype(np.float32)
        self._curves = (square / _SQUARE_STD).astype(np.float32)
        self._bias = np.float32(_bias(signal) - float(np.sum(square)) * _SQUARE_MEAN / _SQUARE_STD)

    def probabilities(self, ids: Sequence[np.ndarray], numerical: np.ndarray) -> np.ndarray:
        """Return P(click) of rows.

        It uses element-wise operations only, in a fixed order, so that a row's value does not depend on the rows read with it. A matrix product
        would not guarantee that.

        Args:
            ids: F arrays `[n]`, `[n, h]` full lists, or with weights `[n, 2h]`, in the model's order.
            numerical: `[n, M]`, float16 or float32.

        Returns:
            `[n]` float32.
        """
        logits = np.full(len(numerical), self._bias, np.float32)
        for effect, column in zip(self._effects, ids, strict=True):
            logits += effect.of(column)
        for i, j, first, second in self._pairs:
            logits += first.of(ids[i]) * second.of(ids[j])
        columns = np.ascontiguousarray(numerical.T).astype(np.float32) - np.float32(0.5)
        for x, slope, curve in zip(columns, self._slopes, self._curves, strict=True):
            logits += x * (slope + curve * x)
        np.negative(logits, out=logits)
        np.minimum(logits, np.float32(80), out=logits)  # keeps exp finite; at a probability of 1e-35 no label is 1
        np.exp(logits, out=logits)
        logits += np.float32(1)
        return np.reciprocal(logits, out=logits)


def _signed(draw: np.random.Generator, count: int) -> np.ndarray:
    return draw.uniform(0.5, 1.5, count) * draw.choice([-1.0, 1.0], count)


def _unit(values: np.ndarray) -> np.ndarray:
    length = float(np.sqrt(np.sum(values**2)))
    return values / length if length else values


def _bias(std: float) -> float:
    """Return the mean of a normal logit with this standard deviation for which the click rate is CLICK_RATE."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    low, high = -50.0 - 10 * abs(std), 50.0
    for _ in range(100):
        middle = (low + high) / 2
        rate = float(weights @ (1 / (1 + np.exp(-np.clip(middle + std * nodes, -500, 500)))))
        low, high = (middle, high) if rate < CLICK_RATE else (low, middle)
    return (low + high) / 2
