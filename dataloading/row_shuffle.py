"""A split whose rows change places within windows: a shuffle that reads its files once, in order, and keeps one window in memory.

Which rows make a batch is random; inside it they stand in file order, for the order of a sum's terms teaches nothing, and reading memory upwards is
twice as fast.
"""

from collections.abc import Callable

import numpy as np

from dataloading.feature_spec import FeatureSpec


class ShuffledRows:
    """The rows of a split, those of each window of consecutive batches dealt out anew: a function of the seed, the epoch and the window.

    Args:
        split: a `batches.Split`.
        batch_size: rows that stay together, B.
        window: batches of a window; what is read at once must lie in one.
        seed: of the dealing.
    """

    def __init__(self, split, batch_size: int, window: int, seed: int):
        self.spec: FeatureSpec = split.spec
        self.name, self.num_samples, self.first_row, self.labelled = split.name, split.num_samples, split.first_row, split.labelled
        self._split, self._batch_size, self._window, self._seed = split, batch_size, window * batch_size, seed
        self._epoch = 0
        self._held: tuple[int, int] | None = None  # epoch and window of what follows
        self._order = np.empty(0, np.intp)
        self._columns: dict[str, np.ndarray] = {}

    def start(self, epoch: int) -> None:
        """From now on the order is that of this epoch."""
        self._epoch = epoch

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """`[n]` integer, `[n, h]` of a feature with several ids a sample."""
        return self._read(f"ids {feature}", lambda *rows: self._split.read_ids(feature, *rows), start, stop)

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """`[n, M]`, float16 or float32."""
        return self._read("numerical", self._split.read_numerical, start, stop)

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """`[n]` uint8."""
        return self._read("labels", self._split.read_labels, start, stop)

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """`[n]`, int32 or int64."""
        return self._read("group", self._split.read_group, start, stop)

    def file(self, feature: str, row: int = 0) -> str:
        """Where a feature is read from: that of the split, whose rows `row` counts."""
        return self._split.file(feature, row)

    def fingerprint(self) -> str:
        """That of the split: they are the same rows."""
        return self._split.fingerprint()

    def close(self) -> None:
        """Close what is open."""
        self._split.close()

    def _read(self, key: str, read: Callable[[int, int], np.ndarray], start: int, stop: int) -> np.ndarray:
        window = start // self._window
        first = window * self._window
        last = min(first + self._window, self.num_samples)
        if stop > last:
            raise ValueError(f"rows {start} to {stop} are not in one window of {self._window}")
        if self._held != (self._epoch, window):
            self._held, self._columns = (self._epoch, window), {}
            self._order = np.random.default_rng([self._seed, self._epoch, window]).permutation(last - first)
            for batch in range(0, last - first, self._batch_size):
                self._order[batch : batch + self._batch_size].sort()
        if key not in self._columns:
            self._columns[key] = read(first, last)
        return self._columns[key].take(self._order[start - first : stop - first], axis=0)
