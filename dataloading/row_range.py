"""A range of consecutive rows of a split as a split of its own, for example the rows of `train` that are held out for validation."""

import hashlib

import numpy as np

from dataloading.batches import Split
from dataloading.features import DatasetError


class RowRange:
    """Rows first to last of a split, with the files and features of the split."""

    def __init__(self, split: Split, name: str, first: int, last: int):
        self._split, self.first_row = split, split.first_row + first
        self._first, self.num_samples = first, last - first
        self.spec, self.name, self.labelled = split.spec, name, split.labelled

    @property
    def whole(self) -> Split:
        """The split whose rows these are."""
        return self._split

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature: `[n]` integer, `[n, h]` for a feature with several ids per sample."""
        return self._split.read_ids(feature, self._first + start, self._first + stop)

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features: `[n, M]`, float16 or float32."""
        return self._split.read_numerical(self._first + start, self._first + stop)

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return labels: `[n]` uint8."""
        return self._split.read_labels(self._first + start, self._first + stop)

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Return groups: `[n]`, int32 or int64."""
        return self._split.read_group(self._first + start, self._first + stop)

    def read_weights(self, start: int, stop: int) -> np.ndarray:
        """Return weights: `[n]` float32."""
        return self._split.read_weights(self._first + start, self._first + stop)

    def file(self, feature: str, row: int = 0) -> str:
        """Return the file that a feature is read from; `row` counts the rows of the underlying split."""
        return self._split.file(feature, row)

    def fingerprint(self) -> str:
        """Return a fingerprint: equal for the same rows of the same split."""
        return hashlib.blake2b(f"{self._split.fingerprint()} {self._first} {self.num_samples}".encode(), digest_size=16).hexdigest()

    def close(self) -> None:
        """Close the underlying split."""
        self._split.close()


def whole_split(split: Split) -> Split:
    """Return the split that a range of rows is of; any other split is returned as it is."""
    return whole_split(split._split) if isinstance(split, RowRange) else split


def hold_out(split: Split, fraction: float) -> tuple[RowRange, RowRange]:
    """Divide a split into its first rows, for training, and its last rows, for validation: the given fraction of all.

    Raises:
        DatasetError: one of the two parts would be empty.
    """
    held = round(split.num_samples * fraction)
    if not 0 < held < split.num_samples:
        raise DatasetError(
            f"--valid_fraction {fraction}: {held} of the {split.num_samples} rows of {split.name} would be held out; expected at least 1, and not all"
        )
    kept = split.num_samples - held
    return RowRange(split, split.name, 0, kept), RowRange(split, "valid", kept, split.num_samples)


def first_rows(split: Split, share: float) -> RowRange:
    """Return the first rows of a split, the given share of all. Raises DatasetError where the share holds no row."""
    count = round(split.num_samples * share)
    if not count:
        raise DatasetError(f"--dataset_subset {share}: none of the {split.num_samples} rows of {split.name} would be left; expected at least 1")
    return RowRange(split, split.name, 0, count)
