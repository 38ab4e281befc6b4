"""Several distinct ids per sample, drawn from a power law without replacement: an id that the sample already has is rejected and drawn again.

All rows are drawn together. Each row gets some candidates, and those that repeat an earlier id are left out; rows with too few ids get more
candidates. After a few turns, the missing ids are drawn from the law restricted to the ids that a row lacks. The distribution is the same, and the
loop ends even if nearly all mass lies on ids that a row already has: with a steep law, or with nearly as many ids per sample as the table has rows.
The candidates of a row depend on the row alone.
"""

import numpy as np

from dataloading.feature_spec import Categorical
from dataloading.synthetic.power_law import ids_from_uniforms, ids_of_the_rest
from dataloading.synthetic.streams import stream_key, uniforms

_CANDIDATES = 2  # candidates per turn and wanted id


def distinct_ids(
    feature: Categorical, stream: tuple[int | str, ...], start: int, stop: int, turns: int = 4, block_values: int = 1 << 17
) -> np.ndarray:
    """Return the ids of rows start to stop, `[n, h]` int32, in the order drawn.

    Args:
        feature: a feature with at most as many ids per sample as its table has rows; without an alpha, its ids are uniform.
        stream: names of the stream of random numbers.
        start: first row.
        stop: end of the rows.
        turns: turns in which candidates are drawn; another number gives other ids of the same distribution.
        block_values: values per block; the default is 1 MiB of them, which fits in caches.
    """
    size = max(1, block_values // ((1 + _CANDIDATES) * feature.hotness))
    out = np.empty((stop - start, feature.hotness), np.int32)
    for first in range(start, stop, size):
        last = min(first + size, stop)
        out[first - start : last - start] = _block(feature, stream, first, last, turns)
    return out


def _block(feature: Categorical, stream: tuple[int | str, ...], start: int, stop: int, turns: int) -> np.ndarray:
    hotness, alpha = feature.hotness, feature.alpha or 0.0
    width = _CANDIDATES * hotness
    ids, short = np.full((stop - start, hotness), -1, np.int64), np.arange(stop - start)
    for turn in range(turns):
        u = uniforms(stream_key(*stream, turn), start * width, stop * width).reshape(-1, width)[short]
        candidates = ids_from_uniforms(u.reshape(-1), feature.cardinality, alpha).astype(np.int64).reshape(-1, width)
        ids[short] = _first_different(candidates if turn == 0 else np.hstack([ids[short], candidates]), hotness)
        short = short[ids[short, -1] < 0]
        if not len(short):
            return ids
    u = uniforms(stream_key(*stream, "rest"), start * hotness, stop * hotness).reshape(-1, hotness)
    for place in range(hotness):
        empty = short[ids[short, place] < 0]
        if len(empty):
            ids[empty, place] = ids_of_the_rest(ids[empty, :place], u[empty, place], feature.cardinality, alpha)
    return ids


def _first_different(candidates: np.ndarray, count: int) -> np.ndarray:
    """Return the first `count` distinct ids of each row: `[n, c]` -> `[n, count]`, padded with -1 at the end."""
    bits = candidates.shape[1].bit_length()
    ordered = np.sort(candidates << bits | np.arange(candidates.shape[1]), axis=1)  # sorted by id, then by the order drawn
    ids, times = ordered >> bits, ordered & ((1 << bits) - 1)
    first = np.ones(ids.shape, np.bool_)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=first[:, 1:])
    first &= ids >= 0
    new = np.empty_like(first)
    np.put_along_axis(new, times, first, axis=1)
    place = np.cumsum(new, axis=1, dtype=np.int32) - 1
    new &= place < count
    found = np.full((len(candidates), count), -1, np.int64)
    found[np.nonzero(new)[0], place[new]] = candidates[new]
    return found
