"""A split of rows that are held in memory."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from dataloading.feature_spec import LABEL_DTYPE, NUMERICAL_DTYPE, Categorical, FeatureSpec

_LABEL = "label"


class MemorySplit:
    """Samples without labels, read by ranges of rows like those of a file.

    Args:
        categorical: the features in the model's order; or, if each has one id per sample and a table of its own, the table rows by feature name.
        numerical_names: names of the numerical features.
        numerical: `[n, M]`.
        ids: `[F, n]` int32, or F arrays `[n]` or `[n, h]` int32.
        numerical_dtype: float16 or float32; the numericals are rounded to it.
    """

    name, first_row, labelled = "samples", 0, False

    def __init__(
        self,
        categorical: Mapping[str, int] | Sequence[Categorical],
        numerical_names: Sequence[str],
        numerical: np.ndarray,
        ids: np.ndarray | Sequence[np.ndarray],
        numerical_dtype: str = NUMERICAL_DTYPE,
    ):
        if isinstance(categorical, Mapping):
            categorical = [Categorical(name, rows, "int32") for name, rows in categorical.items()]
        dtypes = {feature.name: feature.dtype for feature in categorical}
        dtypes |= dict.fromkeys(numerical_names, numerical_dtype) | {_LABEL: LABEL_DTYPE}
        self.spec = FeatureSpec(tuple(categorical), tuple(numerical_names), _LABEL, dtypes)
        self.num_samples, self._numerical, self._ids = len(numerical), np.asarray(numerical, numerical_dtype), ids

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature: `[n]` int32, `[n, h]` for a feature with several ids per sample."""
        return self._ids[feature][start:stop]

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features: `[n, M]`, float16 or float32."""
        return self._numerical[start:stop]

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return `[n]` uint8, all 0, because there are no labels."""
        return np.zeros(stop - start, np.uint8)

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Raise ValueError: there is no group."""
        raise ValueError("samples in memory have no group")

    def read_weights(self, start: int, stop: int) -> np.ndarray:
        """Raise ValueError: there are no weights."""
        raise ValueError("samples in memory have no weights")

    def file(self, feature: str, row: int = 0) -> str:
        """Return an empty text: there is no file."""
        return ""

    def fingerprint(self) -> str:
        """Return a fingerprint: equal for the same rows."""
        found = hashlib.blake2b(self._numerical.tobytes(), digest_size=16)
        for column in self._ids:
            found.update(column.tobytes())
        return found.hexdigest()

    def close(self) -> None:
        """Do nothing: no file is open."""
