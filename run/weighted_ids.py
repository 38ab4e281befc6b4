"""Weights of ids that come from a caller or a request: their check, and their place beside the ids."""

import numpy as np

from dataloading.features import MEAN
from dataloading.id_weights import expected_weights, joined, without_idle
from dataloading.ranges import NO_ID

_SMALLEST = np.finfo(np.float32).smallest_normal


def with_weights(name: str, pooling: str, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Join a feature's ids `[n, h]` int32 and their weights `[n, h]` of any numeric dtype to `[n, 2h]` int32, as `dataloading.id_weights` describes.

    An id of weight 0, or of a weight that float32 holds with less precision (below 1.2e-38), becomes no id. The weight of no id does not count.

    Args:
        name: the feature's name, for the message.
        pooling: its pooling.
        ids: its ids, in range; -1 for no id.
        weights: their weights.

    Raises:
        ValueError: a weight is not a finite float32, or for a mean negative; the message names the feature, the sample and the weight.
    """
    given = np.where(ids == NO_ID, 0, weights)
    with np.errstate(over="ignore"):
        held = given.astype(np.float32)
    good = np.isfinite(held) & (held >= 0) if pooling == MEAN else np.isfinite(held)
    if not good.all():
        place = np.unravel_index(int(np.argmin(good)), good.shape)
        value, beyond = float(given[place]), bool(np.isfinite(given[place]) and not np.isfinite(held[place]))
        expected = "within the range of float32" if beyond else expected_weights(pooling)
        raise ValueError(f"feature {name}: weight {value:g} of sample {place[0]} is not {expected}")
    held[np.abs(held) < _SMALLEST] = 0  # TensorFlow takes such numbers for 0, NumPy does not
    return without_idle(joined(ids, held))
