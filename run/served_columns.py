"""Features for training only in the arrays that a model scores: their columns hold the value that is served, whatever was given."""

from collections.abc import Sequence

import numpy as np

from training.features import ModelFeatures

Columns = list[tuple[int, int | float]]  # a column and its value


class ServedColumns:
    """The columns of the features for training only.

    Args:
        features: features of the model.
    """

    def __init__(self, features: ModelFeatures):
        served, dtype = features.served, np.dtype(features.numerical_dtype)
        held = {name: float(dtype.type(served[name])) for name in features.numerical if name in served}  # rounded once, to the dataset's dtype
        self._numerical: Columns = [(place, held[name]) for place, name in enumerate(features.numerical) if name in held]
        self._features: Columns = [(place, served[name]) for place, name in enumerate(features.categorical) if name in served]
        firsts = np.cumsum([0, *(features.hotness(name) for name in features.categorical)])
        self._ids: Columns = [(int(firsts[place]), value) for place, value in self._features]
        self._shape = len(features.numerical), int(firsts[-1])

    def in_arrays(self, numerical: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return numericals `[B, M]` and ids `[B, K]`, the h ids of each feature side by side, with the values that are served.

        Raises:
            ValueError: the arrays have another number of columns.
        """
        if (self._numerical or self._ids) and (numerical.shape[1], ids.shape[1]) != self._shape:
            found = f"{list(numerical.shape)} and {list(ids.shape)}"
            raise ValueError(f"numericals and ids have the shapes {found}, expected {self._shape[0]} and {self._shape[1]} columns")
        return _with_values(numerical, self._numerical), _with_values(ids, self._ids)

    def by_feature(self, numerical: np.ndarray, ids: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return numericals `[B, M]`, and the ids of each feature, with the values that are served."""
        found = list(ids)
        for place, value in self._features:
            found[place] = np.full(len(numerical), value, np.int32)
        return _with_values(numerical, self._numerical), found


def _with_values(values: np.ndarray, columns: Columns) -> np.ndarray:
    if not columns:
        return values
    found = values.copy()
    for column, value in columns:
        found[:, column] = value
    return found
