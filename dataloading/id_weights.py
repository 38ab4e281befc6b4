"""Weights of the ids in a list, kept beside the ids in one array, so that whatever passes ids on passes their weights, too.

A feature with weights has int32 arrays `[n, 2h]`: h ids, -1 for no id, then the bits of the h float32 weights. Where there is no id, the weight is 0.
"""

import numpy as np

from dataloading.features import MEAN, Categorical, DatasetError
from dataloading.ranges import NO_ID, Place, beginning, position


def joined(ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Join ids `[n, h]` of any integer dtype and their weights `[n, h]` to one array `[n, 2h]` int32."""
    if ids.dtype.itemsize > 4:  # an id out of range must not wrap around into the table
        ids = np.clip(ids, np.iinfo(np.int32).min, np.iinfo(np.int32).max)
    weights = np.where(ids == NO_ID, np.float32(0), np.asarray(weights, np.float32))
    return np.concatenate([ids.astype(np.int32, copy=False), weights.view(np.int32)], axis=1)


def ids_and_weights(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids `[n, h]` int32 and the weights `[n, h]` float32 of an array that `joined` made."""
    hotness = values.shape[1] // 2
    return values[:, :hotness], np.ascontiguousarray(values[:, hotness:]).view(np.float32)


def without_idle(values: np.ndarray) -> np.ndarray:
    """Return the same with no id where the weight is 0: such an id has no part in the vector, so its row is not touched either.

    Numbers below 1.2e-38 count as 0, because TensorFlow's and the C++ operations flush them.
    """
    ids, weights = ids_and_weights(values)
    idle = (np.abs(weights) < np.finfo(np.float32).tiny) & (ids != NO_ID)
    return np.concatenate([np.where(idle, NO_ID, ids), values[:, ids.shape[1] :]], axis=1) if idle.any() else values


def check_id_weights(values: np.ndarray, feature: Categorical, first_row: int, path: Place = "") -> None:
    """Check the weights of ids: finite numbers and, for a mean, at least 0.

    Args:
        values: `[n, 2h]`, as `joined` makes them.
        feature: the feature.
        first_row: the dataset's row of `values[0]`.
        path: the file of the weights, or a function that returns the file of a row, for the message.

    Raises:
        DatasetError: a weight is another value; the message names the file, the feature, the first bad row, its place in the list, and the weight.
    """
    _, weights = ids_and_weights(values)
    good = np.isfinite(weights) if feature.pooling != MEAN else (weights >= 0) & (weights < np.inf)
    if good.all():
        return
    row, place = (int(one) for one in np.unravel_index(int(np.argmin(good)), good.shape))
    where = f"{beginning(path, first_row + row)}feature {feature.name}, {position(first_row + row, place)}"
    raise DatasetError(f"{where}: weight {float(weights[row, place]):g} is not {expected_weights(feature.pooling)}")


def expected_weights(pooling: str) -> str:
    """Return what the weights of a feature must be, for messages."""
    return "a finite number of at least 0, as a weighted mean needs" if pooling == MEAN else "a finite number"
