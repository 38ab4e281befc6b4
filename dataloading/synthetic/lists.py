"""The ids of synthetic rows, and the weights of ids, by feature."""

import numpy as np

from dataloading.feature_spec import Categorical
from dataloading.synthetic.distinct_ids import distinct_ids
from dataloading.synthetic.power_law import ids_from_uniforms
from dataloading.synthetic.streams import stream_key, uniforms

IDLE = 0.05  # share of weights that are exactly 0
MEAN_SQUARE = 4 / 3 * (1 - IDLE**3)  # of the weights; their mean is 1 - IDLE², nearly 1


def drawn_ids(feature: Categorical, stream: tuple[int | str, ...], start: int, stop: int) -> np.ndarray:
    """Return the ids of rows start to stop: `[n]` int32, or full lists `[n, h]` of distinct ids.

    Args:
        feature: a feature whose hotness is at most its cardinality; without an alpha, its ids are uniform.
        stream: names of the stream of random numbers.
        start: first row.
        stop: end of the rows.
    """
    if feature.hotness > 1:
        return distinct_ids(feature, stream, start, stop)
    ids = ids_from_uniforms(uniforms(stream_key(*stream), start, stop), feature.cardinality, feature.alpha or 0.0)
    return ids[:, np.newaxis] if feature.is_list else ids


def drawn_weights(feature: Categorical, stream: tuple[int | str, ...], start: int, stop: int) -> np.ndarray:
    """Return the weights of the ids of rows start to stop: `[n, h]` float32, 0 for one id in twenty, else evenly between 0.1 and 2."""
    u = uniforms(stream_key(*stream), start * feature.hotness, stop * feature.hotness)
    return np.where(u < IDLE, 0, 2 * u).astype(np.float32).reshape(-1, feature.hotness)
