"""Scoring of arrays by a trained model, for a server: `score(numerical, ids) -> probabilities`, for any number of samples."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dataloading.ranges import ERROR, NO_ID, into_range, outside_range
from training.features import ModelFeatures
from utils.forks import POLARS, check_threads
from utils.metrics.binary import sigmoid

_AT_ONCE = 65_536  # samples in one call of the engine


class Engine(Protocol):
    """An engine that computes logits: the C++ scorer or TensorFlow. Thread-safe."""

    def logits_of(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return logits `[b]` float32 for numericals `[b, M]` float32 and ids `[b, K]` int32."""


class ArrayScorer:
    """A scorer of arrays for a model whose tables are memory-mapped. Thread-safe.

    Args:
        features: features of the model.
        engine: engine of the model.
        out_of_range: treatment of ids beyond a table, as in `--out_of_range`.

    Attributes:
        num_numerical: M.
        num_ids: K, the ids of a sample over all features.
    """

    def __init__(self, features: ModelFeatures, engine: Engine, out_of_range: str):
        self._features, self.engine, self._out_of_range = features, engine, out_of_range
        self._hotness = [features.hotness(name) for name in features.categorical]
        self.num_numerical, self.num_ids = len(features.numerical), sum(self._hotness)
        self._rows = np.repeat(np.array(list(features.categorical.values()), np.int64), self._hotness)
        self._lowest = np.repeat(np.array([NO_ID if hotness > 1 else 0 for hotness in self._hotness], np.int64), self._hotness)

    def checked(self, numerical: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Validate the values of a request and convert them for `score`.

        Args:
            numerical: `[B, M]` float32; rounded to the dtype of the dataset.
            ids: `[B, K]` whole numbers, the h ids of each feature side by side; −1 marks an empty place in a list.

        Returns:
            `[B, M]` float32 and `[B, K]` int32.

        Raises:
            ValueError: a numerical is not finite, or an id is out of range; the message names the feature, the sample and the value.
        """
        with np.errstate(over="ignore"):
            held = numerical.astype(self._features.numerical_dtype).astype(np.float32)
        if not np.isfinite(held).all():
            sample, column = np.unravel_index(int(np.argmin(np.isfinite(held))), held.shape)
            raise ValueError(
                f"feature {self._features.numerical[column]}: value {numerical[sample, column]} of sample {sample} is not a finite "
                f"{self._features.numerical_dtype}, the dtype that the model was trained on"
            )
        return held, self._checked_ids(ids)

    def _checked_ids(self, ids: np.ndarray) -> np.ndarray:
        if ((ids >= self._lowest) & (ids < self._rows)).all():
            return ids.astype(np.int32)
        fitting, first = np.empty(ids.shape, np.int32), 0
        for (name, rows), hotness in zip(self._features.categorical.items(), self._hotness, strict=True):
            columns = slice(first, first + hotness)
            some = ids[:, columns] if hotness > 1 else np.ascontiguousarray(ids[:, first])
            if self._out_of_range != ERROR:
                some = into_range(some, rows, self._out_of_range)[0]
            elif (outside := outside_range(some, rows)) is not None and outside.any():
                place = np.unravel_index(int(np.argmax(outside)), some.shape)
                raise ValueError(f"feature {name}: id {some[place]} of sample {place[0]} is not in [0, {rows})")
            fitting[:, columns] = some if hotness > 1 else some[:, np.newaxis]
            first += hotness
        return fitting

    def score(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the probabilities `[B]` float32 for the arrays that `checked` returned."""
        parts = [self.engine.logits_of(numerical[start : start + _AT_ONCE], ids[start : start + _AT_ONCE]) for start in range(0, len(ids), _AT_ONCE)]
        return sigmoid(np.concatenate(parts)) if parts else np.empty(0, np.float32)


class RawScorer:
    """A scorer of raw values, as they stand in the log.

    Args:
        scorer: scorer of the model.
        inputs: encoder of raw values, see `raw_inputs`.

    Attributes:
        numbers: for each column of the log in its order, whether it holds numbers; the others hold texts.
        num_numerical: M.
        num_ids: K.
        looked_up: the features that have a vocabulary.
        unknown: counts of the values that the vocabularies lack, see `raw_inputs.UnknownValues`.
    """

    def __init__(self, scorer: ArrayScorer, inputs: Any):
        self.scorer, self._inputs = scorer, inputs
        self.numbers = {name: name in inputs.numbers for name in inputs.columns}
        self.looked_up, self.unknown = tuple(inputs.vocabularies), inputs.unknown
        self.num_numerical, self.num_ids = scorer.num_numerical, scorer.num_ids

    def checked(self, columns: Mapping[str, Sequence]) -> tuple[np.ndarray, np.ndarray]:
        """Validate raw values and encode them for `score`: for each column one value a sample, float32 with NaN where it is missing, or texts.

        Raises:
            ValueError: a value is invalid; the message names the feature, the sample and the value.
        """
        check_threads(POLARS)
        numerical, ids = self._inputs.encoded(columns)
        side_by_side = [column[:, np.newaxis] if column.ndim == 1 else column for column in ids]
        return numerical.astype(np.float32), np.concatenate(side_by_side, axis=1)

    def score(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return probabilities, see `ArrayScorer.score`."""
        return self.scorer.score(numerical, ids)
