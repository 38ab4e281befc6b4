"""Lookup of ids of the raw files in a sorted list of known ids: of displays, ads and documents."""

import numpy as np

_SPARSE, _ROOM = 8, 1 << 20  # a direct table has at most `_SPARSE` entries for each known id, and `_ROOM` more


class Places:
    """The indices of known ids, found in a direct table if the ids are dense enough, else by binary search.

    Args:
        ids: `[n]` int64, rising, unique, not negative.
    """

    def __init__(self, ids: np.ndarray):
        self.ids = ids
        self._table: np.ndarray | None = None
        if len(ids) and ids[-1] < _SPARSE * len(ids) + _ROOM:
            self._table = np.full(int(ids[-1]) + 2, -1, np.int32)
            self._table[ids] = np.arange(len(ids), dtype=np.int32)

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Return the indices `[m]` int32 of ids `[m]` int64; -1 for an unknown id, and for a negative one, which stands for a missing id."""
        if not len(self.ids):
            return np.full(len(ids), -1, np.int32)
        if self._table is not None:
            beyond = len(self._table) - 1  # the last entry, which is -1
            return self._table[np.where((ids < 0) | (ids >= beyond), beyond, ids)]
        found = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[found] == ids, found, -1).astype(np.int32)


def first_rows(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ids in rising order, and the first row of each."""
    if len(ids) < 2 or (np.diff(ids) > 0).all():
        return ids, np.arange(len(ids))
    return np.unique(ids, return_index=True)


def with_none(values: np.ndarray, none: float) -> np.ndarray:
    """Append the value for a missing entry, which index -1 then selects."""
    return np.append(values, np.asarray(none, values.dtype))
