"""Small batches that follow each other, read as one: each read and each check of a column costs some microseconds, however few rows it has."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dataloading.features import DatasetError
from dataloading.id_columns import Ids, id_column
from dataloading.ranges import check_labels, check_numerical

_ROWS = 2048  # rows that are read at a time


class Columns(NamedTuple):
    """The columns of a full batch without weights, as in `batches.Batch`."""

    numerical: np.ndarray  # [b, M]
    ids: np.ndarray  # [K_r, B] int32
    local_ids: np.ndarray  # [K_l, b] int32
    labels: np.ndarray  # [b] uint8
    weights: np.ndarray  # [b] float32, 1
    groups: np.ndarray | None  # [b]


class Rows(Ids, Protocol):
    """Rows that are read by ranges; a part of `batches.Split`."""

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features."""

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return labels."""

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Return groups."""


class SmallBatches:
    """Reads batches together.

    Args:
        batch_size: B.
        share: this worker's number, and the number of workers.
        features, local_features: see `batches.Share`.
        num_rows, policy: see `batches.Ids`.
    """

    def __init__(
        self, batch_size: int, share: tuple[int, int], features: Sequence[int], local_features: Sequence[int], num_rows: Sequence[int], policy: str
    ):
        rank, local = share[0], batch_size // share[1]
        self._size, self._mine, self._ones = batch_size, slice(rank * local, (rank + 1) * local), np.ones(local, np.float32)
        self._features, self._local_features, self._num_rows, self._policy = features, local_features, num_rows, policy

    def batches(self, order: Iterable[int], whole: int, window: int | None, rows: Callable[[], Rows]) -> Iterator[Columns | int]:
        """Yield the columns of each batch, or its number where it must be read by itself: a value is not in its range, or nothing is gained.

        Args:
            order: the numbers of the batches.
            whole: the number of full batches, which come before all others.
            window: batches of a shuffle window; those of two windows are not read together. None for no window.
            rows: returns the rows.
        """
        for numbers in self._runs(order, whole, window):
            yield from (self._read(rows(), numbers[0], len(numbers)) if len(numbers) > 1 else None) or numbers

    def _runs(self, order: Iterable[int], whole: int, window: int | None) -> Iterator[list[int]]:
        most, run = max(_ROWS // self._size, 1), []
        for number in order:
            follows = run and number == run[-1] + 1 and number < whole and (window is None or number % window)
            if run and not (follows and len(run) < most):
                yield run
                run = []
            run.append(number)
        if run:
            yield run

    def _read(self, rows: Rows, first: int, count: int) -> list[Columns] | None:
        """Return `count` full batches from number `first` on; None where a value is not in its range."""
        start, stop, spec = first * self._size, (first + count) * self._size, rows.spec
        try:
            numerical, labels = rows.read_numerical(start, stop), rows.read_labels(start, stop)
            check_numerical(numerical, spec.numerical, start)
            check_labels(labels, spec.label, start)
            groups = None if spec.group is None else rows.read_group(start, stop)
            ids, local_ids = (self._ids(rows, features, start, stop) for features in (self._features, self._local_features))
        except DatasetError:
            return None
        if ids is None or local_ids is None:
            return None

        def own(column: np.ndarray) -> np.ndarray:
            """Return this worker's rows of each batch: a copy where there are other workers, because evaluations keep labels and groups."""
            return np.ascontiguousarray(column.reshape(count, self._size, *column.shape[1:])[:, self._mine])

        local_ids = np.ascontiguousarray(local_ids[:, :, self._mine])
        ones, groups = [self._ones] * count, [None] * count if groups is None else own(groups)
        return list(map(Columns, own(numerical), ids, local_ids, own(labels), ones, groups))

    def _ids(self, rows: Rows, features: Sequence[int], start: int, stop: int) -> np.ndarray | None:
        """Return the ids of the batches, `[batches, K, B]` int32; None where an id was out of range."""
        described, read = [rows.spec.categorical[feature] for feature in features], (start, stop)
        ids, place = np.empty(((stop - start) // self._size, sum(one.columns for one in described), self._size), np.int32), 0
        for feature, one in zip(features, described, strict=True):
            column, mapped = id_column(rows, feature, self._num_rows[feature], self._policy, read, read)
            if mapped:
                return None
            ids[:, place : place + one.columns] = column.reshape(len(ids), self._size, one.columns).swapaxes(1, 2)
            place += one.columns
        return ids
