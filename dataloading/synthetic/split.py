"""Synthetic click logs, drawn instead of stored: ids from a power law, labels from a planted relation.

Every value is a pure function of (seed, split, feature, row), and a group is a function of the row. So a worker draws only the rows and features
that it needs, and gets the same values as any other worker, or `dataloading.transcribe`.
"""

import numpy as np

from dataloading.feature_spec import FeatureSpec, check_drawable, smallest_dtype
from dataloading.fingerprint import digest
from dataloading.id_weights import joined
from dataloading.synthetic.lists import drawn_ids, drawn_weights
from dataloading.synthetic.planted_signal import DEFAULT_SIGNAL, PlantedSignal
from dataloading.synthetic.streams import stream_key, uniforms

__all__ = ["DEFAULT_SIGNAL", "GROUP_ROWS", "SyntheticSplit"]

GROUP_ROWS = 10  # consecutive rows of a group


class SyntheticSplit:
    """One split of synthetic data, read by ranges of rows like a stored one (`tf_raw.TfRawSplit`)."""

    labelled = True

    def __init__(self, spec: FeatureSpec, split: str, num_samples: int, seed: int, signal: float = DEFAULT_SIGNAL):
        """Prepare to draw.

        Args:
            spec: the features; alpha is the exponent of a feature's power law, and a feature without one is uniform.
            split: part of the random numbers' key, so that train and test differ; they share the planted relation.
            num_samples: number of rows.
            seed: any whole number.
            signal: standard deviation of the planted logit; 0 makes the labels independent of the features.

        Raises:
            FeatureSpecError: a feature has more ids per sample than rows, or more rows than 32-bit ids can name; or a column has another type.
        """
        for feature in spec.categorical:
            check_drawable(feature)
        self._numerical_dtype = spec.numerical_dtype
        self._group_dtype = None if spec.group is None else spec.group_dtype
        _ = spec.weight is None or spec.weight_dtype  # raises for another type
        self.spec, self.name, self.num_samples, self.first_row = spec, split, num_samples, 0
        self._drawn_by = (seed, signal)
        self._dtypes = [np.dtype(smallest_dtype(feature.cardinality)) for feature in spec.categorical]
        self._id_streams = [(seed, split, "ids", feature.name) for feature in spec.categorical]
        self._id_weight_streams = [(seed, split, "weights of ids", feature.name) for feature in spec.categorical]
        self._numerical_key = stream_key(seed, split, "numerical")
        self._label_key, self._weight_key = stream_key(seed, split, "label"), stream_key(seed, split, "weight")
        self.planted = PlantedSignal(spec, seed, signal)

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature (by its index in the model's order), rows start to stop.

        Returns:
            `[n]`, int8, int16 or int32; for lists `[n, h]`, distinct within a row, or with weights `[n, 2h]` int32 (`id_weights`).
        """
        described = self.spec.categorical[feature]
        ids = drawn_ids(described, self._id_streams[feature], start, stop)
        if described.weights:
            return joined(ids, drawn_weights(described, self._id_weight_streams[feature], start, stop))
        return ids.astype(self._dtypes[feature], copy=False)

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features of rows start to stop: `[n, M]`, float16 or float32, uniform on [0, 1]."""
        width = len(self.spec.numerical)
        return uniforms(self._numerical_key, start * width, stop * width).astype(self._numerical_dtype).reshape(stop - start, width)

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Return groups of rows start to stop: `[n]`, int32 or int64; GROUP_ROWS consecutive rows are a group. The specification must have one."""
        return (np.arange(start, stop) // GROUP_ROWS).astype(self._group_dtype)

    def read_weights(self, start: int, stop: int) -> np.ndarray:
        """Return weights of rows start to stop: `[n]` float32: 0 for one row in ten, else between 0 and 2. The specification must have weights."""
        u = uniforms(self._weight_key, start, stop)
        return np.where(u < 0.1, 0, 2 * u).astype(np.float32)

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return labels of rows start to stop: `[n]` uint8, 0 or 1. It draws every feature of the rows, because labels depend on all."""
        return self._labels(self.probabilities(start, stop), start, stop)

    def probabilities(self, start: int, stop: int) -> np.ndarray:
        """Return the true P(click) of rows start to stop: `[n]` float32. No model can score better than these probabilities."""
        return self.planted.probabilities(self._all_ids(start, stop), self.read_numerical(start, stop))

    def read_rows(self, start: int, stop: int) -> tuple[np.ndarray, list[np.ndarray], np.ndarray, np.ndarray]:
        """Return numericals, F id columns, labels and P(click) of rows start to stop; each feature is drawn once."""
        numerical, ids = self.read_numerical(start, stop), self._all_ids(start, stop)
        probabilities = self.planted.probabilities(ids, numerical)
        return numerical, ids, self._labels(probabilities, start, stop), probabilities

    def file(self, feature: str, row: int = 0) -> str:
        """Return an empty text, because nothing is stored."""
        return ""

    def fingerprint(self) -> str:
        """Return a hash that is equal if the same rows are drawn."""
        return digest(self.spec, (self.name, self.num_samples, *self._drawn_by))

    def close(self) -> None:
        """Do nothing: no file is open. The protocol of a split needs the method."""

    def _all_ids(self, start: int, stop: int) -> list[np.ndarray]:
        return [self.read_ids(feature, start, stop) for feature in range(len(self.spec.categorical))]

    def _labels(self, probabilities: np.ndarray, start: int, stop: int) -> np.ndarray:
        return (uniforms(self._label_key, start, stop) < probabilities).view(np.uint8)
