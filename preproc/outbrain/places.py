"""Numbers of the raw files to their places among those that are known: displays to events, ads and documents to theirs."""

import numpy as np

_SPARSE, _ROOM = 8, 1 << 20  # a table of all numbers up to the greatest has at most so many entries for each that is there


class Places:
    """Places of known ids.

    Args:
        ids: `[n]` int64, rising, each once, none negative.
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
        """The places `[m]` of ids `[m]` int64; -1 for one that is not known, and for a negative one, which stands for none."""
        if not len(self.ids):
            return np.full(len(ids), -1, np.int32)
        if self._table is not None:
            beyond = len(self._table) - 1  # where -1 stands
            return self._table[np.where((ids < 0) | (ids >= beyond), beyond, ids)]
        found = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[found] == ids, found, -1).astype(np.int32)


def first_rows(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids in rising order, each once, and the first row of each."""
    if len(ids) < 2 or (np.diff(ids) > 0).all():
        return ids, np.arange(len(ids))
    return np.unique(ids, return_index=True)


def with_none(values: np.ndarray, none: float) -> np.ndarray:
    """Values with one more behind them, that of the place -1."""
    return np.append(values, np.asarray(none, values.dtype))
