"""Rows of a dataset's split as inputs of a model of ids."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.id_weights import ids_and_weights
from serving.description import CATEGORICAL, ID_WEIGHTS, NUMERICAL


def split_inputs(split: Any, start: int, stop: int) -> dict[str, np.ndarray]:
    """Return rows of a split (`dataloading.batches.Split`) as arrays by the names in `input_names`.

    These are `numerical` `[n, M]` float32, `categorical` `[n, K]` int64, and `id_weights` `[n, W]` float32.
    """
    numerical, ids, weights = [], [], []
    for place, feature in enumerate(split.spec.categorical):
        column = split.read_ids(place, start, stop).reshape(stop - start, -1)
        if feature.weights:
            column, theirs = ids_and_weights(column)
            weights.append(theirs)
        ids.append(column)
    if split.spec.numerical:
        numerical.append(split.read_numerical(start, stop).astype(np.float32))
    found = {NUMERICAL: numerical, CATEGORICAL: ids, ID_WEIGHTS: weights}
    joined = {name: np.concatenate(columns, axis=1) for name, columns in found.items() if columns}
    return joined | {CATEGORICAL: joined[CATEGORICAL].astype(np.int64)}


def input_names(spec: FeatureSpec) -> Sequence[str]:
    """Return the inputs of a model of a dataset: `numerical` where it has numericals, `categorical`, and `id_weights` where ids have weights."""
    weighted = any(feature.weights for feature in spec.categorical)
    return [*([NUMERICAL] if spec.numerical else []), CATEGORICAL, *([ID_WEIGHTS] if weighted else [])]
