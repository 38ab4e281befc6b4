"""Scoring of arrays by a trained model, for a server: `score(*checked(numerical, ids)) -> probabilities`, for any number of samples."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dataloading.ranges import ERROR, NO_ID, into_range, outside_range
from run.served_columns import ServedColumns
from run.weighted_ids import with_weights
from training.features import ModelFeatures
from utils.forks import POLARS, check_threads
from utils.metrics.binary import sigmoid

_AT_ONCE = 65_536  # samples in one call of the engine


class Engine(Protocol):
    """An engine that computes logits: the C++ scorer or TensorFlow. Thread-safe."""

    def logits_of(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return logits `[b]` float32 for numericals `[b, M]` float32 and ids int32 as `ArrayScorer.checked` returns them."""


class ArrayScorer:
    """A scorer of arrays for a model whose tables are memory-mapped. Thread-safe.

    Args:
        features: features of the model.
        engine: engine of the model.
        out_of_range: treatment of ids beyond a table, as in `--out_of_range`.

    Attributes:
        num_numerical: M.
        num_ids: K, the ids of a sample over all features.
        num_weights: W, the weights of a sample over all features whose ids have weights.
        served: columns of the features for training only.
    """

    def __init__(self, features: ModelFeatures, engine: Engine, out_of_range: str):
        self._features, self.engine, self._out_of_range = features, engine, out_of_range
        self.served = ServedColumns(features)
        self._hotness = {name: features.hotness(name) for name in features.categorical}
        hotness = list(self._hotness.values())
        self.num_numerical, self.num_ids = len(features.numerical), sum(hotness)
        self.num_weights = sum(count for name, count in self._hotness.items() if features.weights(name))
        self._rows = np.repeat(np.array(list(features.categorical.values()), np.int64), hotness)
        self._lowest = np.repeat(np.array([NO_ID if features.is_list(name) else 0 for name in self._hotness], np.int64), hotness)
        self._any_list, self._unsigned_rows = bool(self._lowest.any()), self._rows.astype(np.uint64)

    def checked(self, numerical: np.ndarray, ids: np.ndarray, id_weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Validate the values of a request and convert them for `score`. Those of features for training only may be anything: they are replaced.

        Args:
            numerical: `[B, M]` float32; rounded to the dtype of the dataset.
            ids: `[B, K]` whole numbers, the h ids of each feature side by side; −1 marks an empty place in a list.
            id_weights: `[B, W]` float32, the h weights of each feature whose ids have weights side by side, in the order of their ids; None for a
                model without weights.

        Returns:
            `[B, M]` float32 and `[B, K + W]` int32: the ids of each feature, followed by the bits of their weights.

        Raises:
            ValueError: a numerical or a weight is not finite, a weight of a mean is negative, or an id is out of range; the message names the
                feature, the sample and the value. Or the weights are missing or of another shape.
        """
        numerical, ids = self.served.in_arrays(numerical, ids)
        with np.errstate(over="ignore"):
            held = numerical.astype(self._features.numerical_dtype).astype(np.float32)
        if np.count_nonzero(np.isfinite(held)) < held.size:
            sample, column = np.unravel_index(int(np.argmin(np.isfinite(held))), held.shape)
            raise ValueError(
                f"feature {self._features.numerical[column]}: value {numerical[sample, column]} of sample {sample} is not a finite "
                f"{self._features.numerical_dtype}, the dtype that the model was trained on"
            )
        found = self._checked_ids(ids)
        if not self.num_weights and id_weights is None:
            return held, found
        return held, self._weighted(found, id_weights)

    def _weighted(self, ids: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """Return ids `[B, K]` int32 with their weights as `[B, K + W]`."""
        if weights is None:
            raise ValueError(f"id_weights: is missing, expected [{len(ids)}, {self.num_weights}]: the weights of the ids")
        if weights.shape != (len(ids), self.num_weights):
            raise ValueError(f"id_weights: has shape {list(weights.shape)}, expected [{len(ids)}, {self.num_weights}]")
        found, first, begin = [], 0, 0
        for name, hotness in self._hotness.items():
            some = ids[:, first : first + hotness]
            if self._features.weights(name):
                some = with_weights(name, self._features.pooling(name), some, weights[:, begin : begin + hotness])
                begin += hotness
            found.append(some)
            first += hotness
        return np.concatenate(found, axis=1)

    def _checked_ids(self, ids: np.ndarray) -> np.ndarray:
        if self._any_list or ids.dtype.kind not in "iu":
            fitting = (ids >= self._lowest) & (ids < self._rows)
        else:
            fitting = ids.astype(np.uint64) < self._unsigned_rows  # one comparison: a negative id becomes a large one
        if np.count_nonzero(fitting) == ids.size:
            return ids.astype(np.int32)
        found, first = np.empty(ids.shape, np.int32), 0
        for name, rows in self._features.categorical.items():
            is_list, hotness = self._features.is_list(name), self._hotness[name]
            columns = slice(first, first + hotness)
            some = ids[:, columns] if is_list else np.ascontiguousarray(ids[:, first])
            if self._out_of_range != ERROR:
                some = into_range(some, rows, self._out_of_range)[0]
            elif (outside := outside_range(some, rows)) is not None and outside.any():
                place = np.unravel_index(int(np.argmax(outside)), some.shape)
                raise ValueError(f"feature {name}: id {some[place]} of sample {place[0]} is not in [0, {rows})")
            found[:, columns] = some if is_list else some[:, np.newaxis]
            first += hotness
        return found

    def score(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the probabilities `[B]` float32 for the arrays that `checked` returned."""
        if 0 < len(ids) <= _AT_ONCE:
            return sigmoid(self.engine.logits_of(numerical, ids))
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
        numerical, ids = self.scorer.served.by_feature(*self._inputs.encoded(columns))
        side_by_side = [column[:, np.newaxis] if column.ndim == 1 else column for column in ids]
        return numerical.astype(np.float32), np.concatenate(side_by_side, axis=1)

    def score(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return probabilities, see `ArrayScorer.score`."""
        return self.scorer.score(numerical, ids)
