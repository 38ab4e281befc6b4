"""Features for training only, such as the position at which an item was shown: wherever a model scores, they have one stated value.

A feature's entry in feature_spec.yaml says `training_only: {serve: VALUE}`: an id, or a number of a numerical feature.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dataloading.batches import Split
from dataloading.feature_spec import FeatureSpec


def served_values(spec: FeatureSpec) -> dict[str, int | float]:
    """Return the value that each feature for training only has wherever a model scores, by the feature's name."""
    return {one.name: one.serve for one in spec.categorical if one.serve is not None} | dict(spec.serve)


def as_served(split: Split) -> Split:
    """Return the rows of a split as a model scores them: every feature for training only has the value that is served."""
    return AsServed(split) if served_values(split.spec) else split


class AsServed:
    """The rows of a split, in which features for training only have the value that is served; their columns are not read.

    Args:
        split: the rows, see `batches.Split`.
    """

    def __init__(self, split: Split):
        self._split, self.spec, self.name, self.labelled = split, split.spec, split.name, split.labelled
        self.num_samples, self.first_row = split.num_samples, split.first_row
        self._numerical = [(place, self.spec.serve[name]) for place, name in enumerate(self.spec.numerical) if name in self.spec.serve]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._split, name)  # labels, groups, weights, files and all else

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature, as the split does."""
        served = self.spec.categorical[feature].serve
        return self._split.read_ids(feature, start, stop) if served is None else np.full(stop - start, served, np.int32)

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features, `[n, M]`."""
        return with_served(self._split.read_numerical(start, stop), self._numerical)


def with_served(values: np.ndarray, served: list[tuple[int, float]]) -> np.ndarray:
    """Return an array `[n, K]` in which some columns, given by their places, have one value each."""
    if not served:
        return values
    found = values.copy()
    for place, value in served:
        found[:, place] = value
    return found


def shown_served(served: Mapping[str, int | float]) -> str:
    """Return the features for training only with the values that are served, for messages."""
    return ", ".join(f"{name} = {value}" for name, value in served.items())
