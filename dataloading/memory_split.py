"""Rows in memory as a split."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from dataloading.feature_spec import LABEL_DTYPE, NUMERICAL_DTYPE, Categorical, FeatureSpec

_LABEL = "label"


class MemorySplit:
    """Samples without labels, read by ranges of rows as those of a file are.

    Args:
        categorical: rows of each feature's table, in the model's order.
        numerical_names: of the numerical features.
        numerical: `[n, M]` float16.
        ids: `[F, n]` int32.
    """

    name, first_row = "samples", 0

    def __init__(self, categorical: Mapping[str, int], numerical_names: Sequence[str], numerical: np.ndarray, ids: np.ndarray):
        features = tuple(Categorical(name, rows, "int32") for name, rows in categorical.items())
        dtypes = dict.fromkeys(categorical, "int32") | dict.fromkeys(numerical_names, NUMERICAL_DTYPE) | {_LABEL: LABEL_DTYPE}
        self.spec = FeatureSpec(features, tuple(numerical_names), _LABEL, dtypes)
        self.num_samples, self._numerical, self._ids = len(numerical), numerical, ids

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """`[n]` int32."""
        return self._ids[feature, start:stop]

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """`[n, M]` float16."""
        return self._numerical[start:stop]

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """`[n]` uint8, all 0: nobody asks."""
        return np.zeros(stop - start, np.uint8)

    def file(self, feature: str) -> str:
        """Empty: there is none."""
        return ""

    def fingerprint(self) -> str:
        """The same for the same rows."""
        return hashlib.blake2b(self._numerical.tobytes() + self._ids.tobytes(), digest_size=16).hexdigest()

    def close(self) -> None:
        """Nothing is open."""
