"""Effects of the ids of synthetic data on the planted logit, which embeddings, pooled or not, can learn.

Each row of a table has one effect. Features that share a table share these effects, and each feature has its own weight. The effect of a sample's
ids is the sum of their effects, standardised to mean 0 and variance 1 under the distribution that the ids are drawn from. With lists of equal
length, the standardised mean of the effects is the same. Where ids have weights, it is the weighted sum, or the weighted mean.
"""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from dataloading.feature_spec import MEAN, Categorical, FeatureSpec
from dataloading.id_weights import ids_and_weights, joined
from dataloading.synthetic.lists import IDLE, MEAN_SQUARE, drawn_ids, drawn_weights
from dataloading.synthetic.power_law import cumulative

HEAD = 10  # ids with a nonzero effect; at alpha 1.45 they make up 66 percent of the draws
_FULL_REACH = 0.25  # a feature has its full weight if at least this share of rows has such an id
_ALWAYS = 0.9  # an id that a greater share of rows has carries little information
_MOST_ROWS, _LEAST_ROWS, _MOST_IDS = 4096, 64, 1 << 19  # bounds of the sample from which mean and variance are estimated


class Scaled(NamedTuple):
    """A feature's effect times its weight: `table` `[W + 1]` float32, for ids 0 to W − 1 and all others; `offset` is subtracted from sums.

    `weights` says whether ids have weights, and `mean` whether these make a weighted mean.
    """

    table: np.ndarray
    offset: np.float32
    weights: bool = False
    mean: bool = False

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Return the effects of rows' ids -> `[n]` float32; sums are in list order, so that they do not depend on other rows.

        Args:
            ids: `[n]`, `[n, h]`, or with weights `[n, 2h]` (`id_weights`).
        """
        if ids.ndim == 1:
            return np.take(self.table, ids, mode="clip")  # "clip" maps every greater id to the last entry
        if self.weights:
            return _pooled(self.table, *ids_and_weights(ids), self.mean) - self.offset
        total = np.full(len(ids), -self.offset, np.float32)
        for column in np.take(self.table, ids.T, mode="clip"):
            total += column
        return total


def _pooled(table: np.ndarray, ids: np.ndarray, weights: np.ndarray, mean: bool) -> np.ndarray:
    """Return the weighted sums of the effects of ids, or the weighted means: `[n]` in the type of `table`."""
    total, whole = np.zeros(len(ids), table.dtype), np.zeros(len(ids), table.dtype)
    for column, weight in zip(np.take(table, ids.T, mode="clip"), weights.T, strict=True):
        total += column * weight
        whole += weight
    return np.divide(total, whole, out=np.zeros_like(total), where=whole > 0) if mean else total


class Effect(NamedTuple):
    """A feature's unweighted effect: the table in float64, mean and standard deviation of the sum, and `reach`.

    `reach` is the share of its weight that a feature keeps: 1 if the ids with an effect are frequent, less if they are rare. Without it, a large
    table with uniform ids would put all its variance into ten ids that hardly ever occur. `feature` tells how a list's effects are pooled.
    """

    table: np.ndarray
    mean: float
    std: float
    reach: float
    feature: Categorical

    def scaled(self, weight: float) -> Scaled:
        """Return the standardised effect times a weight."""
        table, offset = (weight / self.std * self.table).astype(np.float32), np.float32(weight / self.std * self.mean)
        return Scaled(table, offset, self.feature.weights, self.feature.pooling == MEAN)


def id_effects(spec: FeatureSpec, seed: int, draw: np.random.Generator) -> list[Effect]:
    """Return the effect of each feature, in the model's order: a function of the specification and the seed.

    Args:
        spec: the features.
        seed: seed of the ids from which mean and variance are estimated.
        draw: generator of the effects. It draws the same count for every feature, so that a cardinality does not shift the effects of other features.
    """
    users = Counter(feature.table_name for feature in spec.categorical)
    alone = [feature.hotness == 1 and feature.pooling != MEAN and users[feature.table_name] == 1 for feature in spec.categorical]
    drawn = [None if one else _drawn(feature, seed) for feature, one in zip(spec.categorical, alone, strict=True)]
    values = [draw.standard_normal(HEAD) for _ in spec.categorical]
    tables: dict[str, dict[int, float]] = {}
    for feature, ids, some in zip(spec.categorical, drawn, values, strict=True):
        if ids is not None:
            ids = ids_and_weights(ids)[0] if feature.weights else ids
            first = _first_informative(feature, ids)
            new = dict(zip(range(first, min(first + HEAD, feature.cardinality)), some.tolist(), strict=False))
            tables[feature.table_name] = new | tables.get(feature.table_name, {})
    return [
        _of_one(feature, some) if ids is None else _of_several(feature, tables[feature.table_name], ids)
        for feature, ids, some in zip(spec.categorical, drawn, values, strict=True)
    ]


def _of_one(feature: Categorical, values: np.ndarray) -> Effect:
    """Return the effect of a feature with one id per sample and its own table, on ids 0 to 9; mean 0 and variance 1 are computed from the law."""
    cardinality, alpha = feature.cardinality, feature.alpha or 0.0
    std, there = (math.sqrt(MEAN_SQUARE), 1 - IDLE) if feature.weights else (1.0, 1.0)
    table = np.zeros(HEAD + 1)
    head = min(cardinality, HEAD)
    share = np.diff(cumulative(np.arange(-1, head), cardinality, alpha))
    centred = values[:head] - share @ values[:head] / share.sum()
    variance = share @ centred**2
    if head > 1:
        table[:head] = centred / math.sqrt(variance)
    if cardinality == 1:
        return Effect(table, 0.0, 1.0, 0.0, feature)  # carries no information
    reach = there * float(cumulative(np.array([head - 1]), cardinality, alpha)[0]) / _FULL_REACH
    return Effect(table, 0.0, std, min(1.0, reach), feature)


def _of_several(feature: Categorical, effects: dict[int, float], ids: np.ndarray) -> Effect:
    """Return a feature's effect from its table's effects by id; mean, deviation and reach are estimated from the drawn `ids`, see `_drawn`."""
    table = np.zeros(max(effects) + 2)
    table[list(effects)] = list(effects.values())
    weights = None
    if feature.weights:
        ids, weights = ids_and_weights(ids)
    each = table[np.minimum(ids, len(table) - 1)]
    total = each.sum(axis=1) if weights is None else _pooled(table, ids, weights, feature.pooling == MEAN)
    mean, std = float(total.mean()), float(total.std())
    if std < 1e-9:  # all samples are alike
        return Effect(np.zeros_like(table), 0.0, 1.0, 0.0, feature)
    reach = min(1.0, float(((each != 0) & (True if weights is None else weights > 0)).any(axis=1).mean()) / _FULL_REACH)
    return Effect(table, mean, std, reach, feature) if feature.is_list else Effect(table - mean, 0.0, std, reach, feature)


def _drawn(feature: Categorical, seed: int) -> np.ndarray:
    """Draw the ids of a sample of rows: `[n, h]`, or with weights `[n, 2h]`."""
    rows, stream = max(_LEAST_ROWS, min(_MOST_ROWS, _MOST_IDS // feature.hotness)), (seed, "planted signal")
    ids = drawn_ids(feature, (*stream, "ids", feature.name), 0, rows).reshape(rows, -1)
    return joined(ids, drawn_weights(feature, (*stream, "weights of ids", feature.name), 0, rows)) if feature.weights else ids


def _first_informative(feature: Categorical, ids: np.ndarray) -> int:
    """Return the first id that is not in nearly all rows: ids that long lists always hold carry no information. It is 0 for one id per sample."""
    if feature.hotness == 1:
        return 0
    shares = np.bincount(ids.reshape(-1), minlength=1) / len(ids)
    informative = np.flatnonzero(shares <= _ALWAYS)
    first = int(informative[0]) if len(informative) else len(shares)
    return max(0, min(first, feature.cardinality - HEAD))
