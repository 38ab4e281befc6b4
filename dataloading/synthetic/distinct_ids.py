"""Several different ids a sample by a power law: drawn one after another, an id that the sample has already drawn again.

Rows are drawn together: some candidates for each, of which those that repeat an earlier one are left out, and more for the rows that are short. After
a few turns the rest is drawn from the law without the ids that a row has. That is the same distribution, and ends where nearly all mass lies on the
ids that are there: a steep law, or nearly as many ids a sample as rows. Which candidates a row gets depends on the row alone.
"""

import numpy as np

from dataloading.feature_spec import Categorical
from dataloading.synthetic.power_law import ids_from_uniforms, ids_of_the_rest
from dataloading.synthetic.streams import stream_key, uniforms

_CANDIDATES = 2  # a turn, for each id that is wanted


def distinct_ids(
    feature: Categorical, stream: tuple[int | str, ...], start: int, stop: int, turns: int = 4, block_values: int = 1 << 17
) -> np.ndarray:
    """Ids of rows start to stop, `[n, h]` int32, in the order drawn.

    Args:
        feature: with at most as many ids a sample as rows; without an alpha its ids are uniform.
        stream: names of the random numbers.
        start: first row.
        stop: end of the rows.
        turns: in which candidates are drawn; with another number other ids come, of the same distribution.
        block_values: candidates worked on at a time: a MiB, which caches hold.
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
    """The first `count` different ids of each row: `[n, c]` -> `[n, count]`, -1 for none, which comes last."""
    bits = candidates.shape[1].bit_length()
    ordered = np.sort(candidates << bits | np.arange(candidates.shape[1]), axis=1)  # by id, then by time
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
