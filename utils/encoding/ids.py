"""Conversion of texts to ids, by a hash or by a vocabulary in memory, and padding of lists of ids to rows of a dataset."""

from bisect import bisect_left
from functools import lru_cache

import numpy as np
import polars as pl

from utils.encoding.columns import FEW, hashed

NO_ID = -1  # fills short lists
_KEPT = 1 << 14  # texts whose ids a lookup keeps: 3 MB for each feature


def hashed_ids(texts: pl.Series, buckets: int) -> np.ndarray:
    """Return ids `[n]` int32 from 1 to `buckets`, by a hash that never changes; 0 where a text is missing."""
    return (hashed(texts) % buckets + 1).fill_null(0).cast(pl.Int32).to_numpy()


def padded(ids: np.ndarray, lengths: np.ndarray, hotness: int, weighted: bool = False) -> np.ndarray:
    """Pad concatenated lists of ids to `[n, hotness]` with -1; where the hotness is 1, return `[n]` with 0 for an empty list.

    Args:
        ids: the ids of all lists.
        lengths: the lengths of the n lists.
        hotness: the length of the longest list.
        weighted: whether the ids have weights: then the result is `[n, hotness]` and filled with -1, whatever the hotness.
    """
    is_list = hotness > 1 or weighted
    found = np.full((len(lengths), hotness), NO_ID if is_list else 0, np.int32)
    found[places_in_rows(lengths)] = ids
    return found if is_list else found[:, 0]


def places_in_rows(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row, and the place in it, of each item of concatenated lists, given the lengths of the n lists."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


class TextLookup:
    """Lookup of texts' ids in a vocabulary.

    Args:
        vocabulary: columns `value` String and `id`; values are unique and not empty.
    """

    def __init__(self, vocabulary: pl.DataFrame):
        ordered = vocabulary.sort("value")
        self._values, self._ids = ordered["value"], ordered["id"].to_numpy()
        self._known = lru_cache(_KEPT)(self._found)  # requests bring the same values again and again

    def ids(self, texts: pl.Series) -> np.ndarray:
        """Return ids `[n]` int32; 0 where a text is missing or not in the vocabulary. Thread-safe."""
        if self._values.is_empty() or texts.is_empty():
            return np.zeros(len(texts), np.int32)
        if len(texts) <= FEW:
            return np.array([0 if text is None else self._id(text) for text in texts.to_list()], np.int32)
        given = texts.fill_null("") if texts.null_count() else texts  # no vocabulary has the empty text
        places = np.minimum(self._values.search_sorted(given).to_numpy(), len(self._values) - 1)
        return np.where((self._values[places] == given).to_numpy(), self._ids[places], 0).astype(np.int32)

    def _id(self, text: str) -> int:
        try:
            return self._known(text)
        except KeyError:  # not kept: what a client sends may be long, and new each time
            return 0

    def _found(self, text: str) -> int:
        """Return the id of a text. Polars orders texts by their UTF-8 bytes, which is Python's order, too. Raises KeyError where it is unknown."""
        place = bisect_left(self._values, text)
        if place == len(self._values) or self._values[place] != text:
            raise KeyError(text)
        return int(self._ids[place])
