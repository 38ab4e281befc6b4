"""A split whose rows are shuffled within windows. The shuffle reads its files once, in order, and keeps one window in memory.

The choice of rows for a batch is random. Within a batch the rows stay in file order: their order does not matter for training, and reading memory
in ascending order is twice as fast.
"""

from collections.abc import Callable

import numpy as np

from dataloading.feature_spec import FeatureSpec


class ShuffledRows:
    """The rows of a split, shuffled among the batches of each window. The order is a function of the seed, the epoch and the window.

    Args:
        split: a `batches.Split`.
        batch_size: rows of a batch, B.
        window: consecutive batches of a window; one read must not cross a window's end.
        seed: seed of the shuffle.
    """

    def __init__(self, split, batch_size: int, window: int, seed: int):
        self.spec: FeatureSpec = split.spec
        self.name, self.num_samples, self.first_row, self.labelled = split.name, split.num_samples, split.first_row, split.labelled
        self._split, self._batch_size, self._window, self._seed = split, batch_size, window * batch_size, seed
        self._epoch = 0
        self._held: tuple[int, int] | None = None  # epoch and window of the order and the columns held below
        self._order = np.empty(0, np.intp)
        self._columns: dict[str, np.ndarray] = {}

    def of(self, epoch: int) -> "ShuffledRows":
        """Return itself, in the row order of this epoch from now on."""
        self._epoch = epoch
        return self

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature: `[n]` integer, `[n, h]` for a feature with several ids per sample."""
        return self._read(f"ids {feature}", lambda *rows: self._split.read_ids(feature, *rows), start, stop)

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features: `[n, M]`, float16 or float32."""
        return self._read("numerical", self._split.read_numerical, start, stop)

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return labels: `[n]` uint8."""
        return self._read("labels", self._split.read_labels, start, stop)

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Return groups: `[n]`, int32 or int64."""
        return self._read("group", self._split.read_group, start, stop)

    def read_weights(self, start: int, stop: int) -> np.ndarray:
        """Return weights: `[n]` float32."""
        return self._read("weights", self._split.read_weights, start, stop)

    def file(self, feature: str, row: int = 0) -> str:
        """Return the file that a feature is read from; `row` counts the rows of the underlying split."""
        return self._split.file(feature, row)

    def fingerprint(self) -> str:
        """Return the fingerprint of the underlying split, because the rows are the same."""
        return self._split.fingerprint()

    def close(self) -> None:
        """Close the underlying split."""
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
