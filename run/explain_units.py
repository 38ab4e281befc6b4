"""Units of explanation: the features whose values are replaced together, and features that are copies of each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dataloading.id_weights import ids_and_weights
from training.features import ModelFeatures
from utils.encoding.recipe import recipe_of

COPIES = 0.99  # normalised mutual information above which two features are copies
_BINS = 32  # of a numerical feature with more values than that
_COMPARED = 50_000  # rows on which features are compared
_ABOVE_CHANCE, _TELLING = 0.9, 1e-3  # share of the information that chance does not explain; least such information, in nats, that tells anything


class Inputs(NamedTuple):
    """Inputs of n samples: numericals `[n, M]` float32, and ids `[n, K]` int32, the h ids of each feature, and their weights, side by side."""

    numerical: np.ndarray
    ids: np.ndarray

    def with_values(self, places: "Places", donors: "Inputs") -> "Inputs":
        """Return a copy in which the columns at `places` have the donors' values; the others are shared where none of their kind is replaced."""
        found = []
        for mine, theirs, columns in zip(self, donors, places, strict=True):
            if columns:
                mine = mine.copy()
                mine[:, columns] = theirs[:, columns]
            found.append(mine)
        return Inputs(*found)

    def by_feature(self, features: ModelFeatures) -> list[np.ndarray]:
        """Return the ids of each categorical feature: `[n]`, `[n, h]`, or with weights `[n, 2h]`."""
        columns = [self.ids[:, places_of(features, [name]).ids] for name in features.categorical]
        return [column[:, 0] if column.shape[1] == 1 else column for column in columns]

    def taken(self, rows: Any) -> "Inputs":
        """Return some rows, in the order of their numbers."""
        return Inputs(self.numerical[rows], self.ids[rows])


class Places(NamedTuple):
    """Columns of `Inputs`."""

    numerical: list[int]
    ids: list[int]


class Unit(NamedTuple):
    """Features that move together, and the name that they are shown under."""

    name: str
    features: tuple[str, ...]


def joined(numerical: np.ndarray, ids: Sequence[np.ndarray]) -> Inputs:
    """Return inputs from numericals `[n, M]` and the ids of each feature: `[n]`, `[n, h]`, or with weights `[n, 2h]`."""
    count = len(numerical)
    columns = [np.asarray(column, np.int32) if np.ndim(column) > 1 else np.asarray(column, np.int32)[:, np.newaxis] for column in ids]
    return Inputs(np.ascontiguousarray(numerical, np.float32), np.concatenate(columns, axis=1) if columns else np.empty((count, 0), np.int32))


def places_of(features: ModelFeatures, names: Sequence[str]) -> Places:
    """Return the columns of some features."""
    found, first = Places([features.numerical.index(name) for name in names if name in features.numerical], []), 0
    for name in features.categorical:
        columns = features.columns(name)
        found.ids.extend(range(first, first + columns) if name in names else ())
        first += columns
    return found


def units_of(features: ModelFeatures, transforms: Any) -> list[Unit]:
    """Return the units of a model, in the order of its features.

    Features that are made from one column of the raw table move together, under the name of the column. A feature made from several columns (a cross)
    moves with each of them, and by itself as well. Without records of the columns, each feature is a unit. Features for training only are in none: in
    scores they never move.

    Args:
        features: the features of the model.
        transforms: `metadata.transforms` of its dataset; see `utils.encoding.recipe`.
    """
    names = [name for name in (*features.numerical, *features.categorical) if name not in features.served]
    columns = {name: _columns(name, transforms) for name in names}
    found: dict[tuple[str, ...], str] = {}
    for name in names:
        if len(columns[name]) > 1:
            found[(name,)] = name
        for column in columns[name]:
            together = tuple(other for other in names if column in columns[other])
            found.setdefault(together, column if len(together) > 1 else name)
    units, taken = [], {name for together, name in found.items() if len(together) == 1}
    for together, name in found.items():
        units.append(Unit(" + ".join(together) if len(together) > 1 and name in taken else name, together))
    return units


def _columns(name: str, transforms: Any) -> tuple[str, ...]:
    """Return the raw columns that a feature is made of; itself where they are not recorded."""
    entry = transforms.get(name) if isinstance(transforms, Mapping) else None
    if not isinstance(entry, Mapping):
        return (f"feature {name}",)
    try:
        return recipe_of(name, entry, fitted=True).inputs
    except ValueError:
        return (f"feature {name}",)


class Copies(NamedTuple):
    """Two features that hold the same, and their normalised mutual information on a sample."""

    first: str
    second: str
    information: float


def copies_among(features: ModelFeatures, inputs: Inputs) -> list[Copies]:
    """Return the pairs of features that are copies of each other on a sample.

    The normalised mutual information of two features is their mutual information divided by the mean of their entropies. Features with nearly as many
    values as rows have a high one by chance; they are copies only where the information is also far above that of shuffled values, or where their
    values are equal.

    Args:
        features: the features of the model.
        inputs: the sample; of a large one, rows spread over it are compared.
    """
    rows = np.linspace(0, len(inputs.ids) - 1, min(len(inputs.ids), _COMPARED)).astype(np.int64)
    values = dict(_values(features, inputs.taken(rows)))
    codes = {name: _numbered(some) for name, some in values.items()}
    entropies = {name: _entropy(np.bincount(code)) for name, code in codes.items()}
    names = [name for name, entropy in entropies.items() if entropy > 0]
    shuffled = np.random.default_rng(0).permutation(len(rows))
    found = []
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            both = entropies[one] + entropies[other]
            if 2 * min(entropies[one], entropies[other]) <= COPIES * both:  # they cannot share more than the smaller entropy
                continue
            shared = _shared(codes[one], codes[other], both)
            if 2 * shared <= COPIES * both:
                continue
            chance = _shared(codes[one], codes[other][shuffled], both)
            if np.array_equal(values[one], values[other]) or shared - chance > _ABOVE_CHANCE * (both / 2 - chance) > _TELLING:
                found.append(Copies(one, other, min(2 * shared / both, 1.0)))
    return found


def joint_units(copies: Sequence[Copies], units: Sequence[Unit]) -> list[Unit]:
    """Return a unit for each set of features that are copies of each other, unless they are a unit already, or only one feature."""
    groups: list[set[str]] = []
    for copy in copies:
        touching = [group for group in groups if group & {copy.first, copy.second}]
        groups = [group for group in groups if group not in touching] + [{copy.first, copy.second}.union(*touching)]
    known = {frozenset(unit.features) for unit in units}
    return [Unit(" + ".join(sorted(group)), tuple(sorted(group))) for group in groups if not any(group <= features for features in known)]


def _values(features: ModelFeatures, inputs: Inputs) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each feature's values `[n, columns]`; a numerical one with many values as numbers of bins of equal counts."""
    for place, name in enumerate(features.numerical):
        values = inputs.numerical[:, place]
        if len(np.unique(values)) > _BINS:
            edges = np.quantile(values, np.arange(1, _BINS) / _BINS, method="lower")  # values that occur: a monotone copy has the same bins
            values = np.searchsorted(np.unique(edges), values, "left")
        yield name, values[:, np.newaxis]
    for name in features.categorical:
        values = inputs.ids[:, places_of(features, [name]).ids]  # the order within a list has no effect
        yield name, _sorted_pairs(values) if features.weights(name) else np.sort(values, axis=1)


def _sorted_pairs(values: np.ndarray) -> np.ndarray:
    """Return `[n, 2h]` with the ids of each row in ascending order, each with its weight."""
    ids, weights = ids_and_weights(values)
    order = np.lexsort((weights, ids), axis=1)
    return np.concatenate([np.take_along_axis(ids, order, 1), np.take_along_axis(weights, order, 1).view(np.int32)], axis=1)


def _numbered(values: np.ndarray) -> np.ndarray:
    """Return numbers `[n]` of the distinct rows of `[n, columns]`."""
    distinct = values[:, 0] if values.shape[1] == 1 else np.unique(values, axis=0, return_inverse=True)[1]
    return np.unique(distinct, return_inverse=True)[1].reshape(-1)


def _entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _shared(one: np.ndarray, other: np.ndarray, entropies: float) -> float:
    """Return the mutual information of two features in nats; `entropies` is the sum of theirs."""
    _, counts = np.unique(one * (int(other.max()) + 1) + other, return_counts=True)
    return entropies - _entropy(counts)
