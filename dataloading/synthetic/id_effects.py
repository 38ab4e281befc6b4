"""What the ids of synthetic data add to the planted logit, so that an embedding, pooled or not, can learn it.

An id has one effect, whatever the feature: features that share a table share the effects of its rows, each with a weight of its own. The effect of
a sample's ids is their sum, brought to mean 0 and variance 1 under the distribution that they are drawn from; with lists of equal length the mean
of the effects is the same after that.
"""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.synthetic.distinct_ids import distinct_ids
from dataloading.synthetic.power_law import cumulative, ids_from_uniforms
from dataloading.synthetic.streams import stream_key, uniforms

HEAD = 10  # ids with an effect of their own; at alpha 1.45 they make up 66 percent of what is drawn
_FULL_REACH = 0.25  # share of rows with such an id from which a feature has its full weight
_ALWAYS = 0.9  # an id that more rows than this have tells little
_MOST_ROWS, _LEAST_ROWS, _MOST_IDS = 4096, 64, 1 << 19  # of the draw that mean and variance are estimated from


class Scaled(NamedTuple):
    """A feature's effect with its weight: `table` `[W + 1]` float32, of ids 0 to W − 1 and of all others, and what is taken off a sum."""

    table: np.ndarray
    offset: np.float32

    def of(self, ids: np.ndarray) -> np.ndarray:
        """The effect of rows' ids, `[n]` or `[n, h]` -> `[n]` float32. The sum is taken in the order of the list: no other row changes it."""
        if ids.ndim == 1:
            return np.take(self.table, ids, mode="clip")  # "clip" sends every id beyond to the last entry
        total = np.full(len(ids), -self.offset, np.float32)
        for column in np.take(self.table, ids.T, mode="clip"):
            total += column
        return total


class Effect(NamedTuple):
    """A feature's effect before it has a weight: the table in float64, mean and standard deviation of the sum, and `reach`.

    `reach` is how much of its weight a feature keeps: 1 where the ids with an effect are frequent, less where they are not. A large table with
    uniform ids would otherwise put all its variance into ten ids that hardly ever occur.
    """

    table: np.ndarray
    mean: float
    std: float
    reach: float

    def scaled(self, weight: float) -> Scaled:
        """With its weight."""
        return Scaled((weight / self.std * self.table).astype(np.float32), np.float32(weight / self.std * self.mean))


def id_effects(spec: FeatureSpec, seed: int, draw: np.random.Generator) -> list[Effect]:
    """The effect of each feature, in the model's order: a function of the specification and the seed.

    Args:
        spec: the features.
        seed: of the draws that mean and variance are estimated from.
        draw: of the effects. Always as many numbers a feature, so that a feature's cardinality does not shift its neighbours' effects.
    """
    users = Counter(feature.table_name for feature in spec.categorical)
    alone = [feature.hotness == 1 and users[feature.table_name] == 1 for feature in spec.categorical]
    drawn = [None if one else _drawn(feature, seed) for feature, one in zip(spec.categorical, alone, strict=True)]
    values = [draw.standard_normal(HEAD) for _ in spec.categorical]
    tables: dict[str, dict[int, float]] = {}
    for feature, ids, some in zip(spec.categorical, drawn, values, strict=True):
        if ids is not None:
            first = _first_telling(feature, ids)
            new = dict(zip(range(first, min(first + HEAD, feature.cardinality)), some.tolist(), strict=False))
            tables[feature.table_name] = new | tables.get(feature.table_name, {})
    return [
        _of_one(some, feature.cardinality, feature.alpha or 0.0) if ids is None else _of_several(tables[feature.table_name], ids)
        for feature, ids, some in zip(spec.categorical, drawn, values, strict=True)
    ]


def _of_one(values: np.ndarray, cardinality: int, alpha: float) -> Effect:
    """Of ids 0 to 9 of a feature with one id a sample and a table of its own: mean 0 and variance 1 by the law itself."""
    table = np.zeros(HEAD + 1)
    head = min(cardinality, HEAD)
    share = np.diff(cumulative(np.arange(-1, head), cardinality, alpha))
    centred = values[:head] - share @ values[:head] / share.sum()
    variance = share @ centred**2
    if head > 1:
        table[:head] = centred / math.sqrt(variance)
    if cardinality == 1:
        return Effect(table, 0.0, 1.0, 0.0)  # carries no information
    return Effect(table, 0.0, 1.0, min(1.0, float(cumulative(np.array([head - 1]), cardinality, alpha)[0]) / _FULL_REACH))


def _of_several(effects: dict[int, float], ids: np.ndarray) -> Effect:
    """Of a table's effects, by id, for a feature from which `ids` `[n, h]` are drawn."""
    table = np.zeros(max(effects) + 2)
    table[list(effects)] = list(effects.values())
    each = table[np.minimum(ids, len(table) - 1)]
    total = each.sum(axis=1)
    mean, std = float(total.mean()), float(total.std())
    if std < 1e-9:  # all samples are alike
        return Effect(np.zeros_like(table), 0.0, 1.0, 0.0)
    reach = min(1.0, float((each != 0).any(axis=1).mean()) / _FULL_REACH)
    return Effect(table, mean, std, reach) if ids.shape[1] > 1 else Effect(table - mean, 0.0, std, reach)


def _drawn(feature: Categorical, seed: int) -> np.ndarray:
    """Ids of rows that stand for all: `[n, h]`."""
    rows, stream = max(_LEAST_ROWS, min(_MOST_ROWS, _MOST_IDS // feature.hotness)), (seed, "planted signal", "ids", feature.name)
    if feature.hotness > 1:
        return distinct_ids(feature, stream, 0, rows)
    return ids_from_uniforms(uniforms(stream_key(*stream), 0, rows), feature.cardinality, feature.alpha or 0.0)[:, np.newaxis]


def _first_telling(feature: Categorical, ids: np.ndarray) -> int:
    """The first id that not nearly all rows have, 0 for one id a sample: long lists always hold the most frequent ids, and these tell nothing."""
    if feature.hotness == 1:
        return 0
    shares = np.bincount(ids.reshape(-1), minlength=1) / len(ids)
    telling = np.flatnonzero(shares <= _ALWAYS)
    first = int(telling[0]) if len(telling) else len(shares)
    return max(0, min(first, feature.cardinality - HEAD))
