"""Batches of one epoch: every row exactly once, the last batch padded to full size."""

import itertools
import math
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from dataloading.id_columns import id_column
from dataloading.ranges import ERROR, check_labels, check_numerical, check_weights
from dataloading.row_shuffle import ShuffledRows
from dataloading.small_batches import SmallBatches

T = TypeVar("T")

_GREATEST_MEAN = 2.0**20


class Split(Protocol):
    """Rows that are read by ranges: `TfRawSplit`, `TfRecordSplit` from files, `SyntheticSplit` from a formula, `RowRange` from another split."""

    spec: FeatureSpec
    name: str
    num_samples: int
    first_row: int  # row number, in the underlying files, of this split's first row; for messages
    labelled: bool  # whether it has labels; a split without labels is for prediction, and `read_labels` returns zeros

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature: `[n]` integer; for lists `[n, h]`, -1 for no id, or with weights `[n, 2h]` (`id_weights`)."""

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features: `[n, M]`, float16 or float32."""

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return labels: `[n]` uint8."""

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Return groups: `[n]`, int32 or int64. Called only if the specification has a group."""

    def read_weights(self, start: int, stop: int) -> np.ndarray:
        """Return weights: `[n]` float32. Called only if the specification has weights and the split labels."""

    def file(self, feature: str, row: int = 0) -> str:
        """Return the file that a feature is read from, with the record if rows are stored in records, for messages; empty if there is no file.

        `row` counts from the first row of the files, as messages do."""

    def fingerprint(self) -> str:
        """Return a fingerprint: equal for the same rows, different for others."""

    def close(self) -> None:
        """Close open files."""


class Batch(NamedTuple):
    """One worker's part of a global batch: the global ids of its features, and its slice of all other columns.

    Padding repeats the batch's last real row with weight 0, so that padding touches no further row of a table. For training, a sample whose weight
    is 0 has the ids of another one for the same reason, see `BatchReader`.
    """

    numerical: np.ndarray  # [b, M], float16 or float32 as in the dataset
    ids: np.ndarray  # [K_r, B] int32 for the whole global batch: h rows per feature, row j holds the j-th id of every sample, -1 for no id
    local_ids: np.ndarray  # [K_l, b] int32, same layout, for the features whose ids are needed for this worker's slice only
    labels: np.ndarray  # [b] uint8
    weights: np.ndarray  # [b] float32, 0 for padding, else the sample's weight: 1 in a dataset without weights, scaled for training
    num_samples: int  # real samples in the global batch
    out_of_range: int = 0  # ids out of range that were mapped into the table, over the features that this worker counts
    groups: np.ndarray | None = None  # [b], int32 or int64; None if the dataset has no group
    total_weight: float | None = None  # sum of these weights over the global batch; None in a dataset without weights, where it is `num_samples`


@dataclass(frozen=True)
class Share:
    """A worker's part of every batch; features are given by their positions in the model's order."""

    features: Sequence[int] | None = None  # features whose ids it reads for the whole batch; None for all
    local_features: Sequence[int] = ()  # features whose ids it reads for its own samples only
    uncounted: Collection[int] = frozenset()  # features whose ids out of range another worker counts
    uncounted_local: Collection[int] = frozenset()  # further ones among `local_features`
    rank: int = 0
    num_workers: int = 1


@dataclass(frozen=True)
class Order:
    """The order in which rows are visited."""

    shuffle_seed: int | None = None  # seed of the order of batches, which differs in each epoch; None for file order
    window: int | None = None  # batches per shuffle window: rows are shuffled within a window, and `shuffle_seed` then orders whole windows
    window_seed: int = 0  # seed of the order of rows


@dataclass(frozen=True)
class Ids:
    """The valid ids of each feature, and the treatment of other ids."""

    num_rows: Sequence[int] | None = None  # rows of each feature's table; None for the cardinality
    out_of_range: str = ERROR  # policy for ids out of range: `error`, `clip` or `hash`, see `ranges.into_range`


class _Rows(NamedTuple):
    """Rows to read, rows to return and rows whose ids out of range count: of each, the first one and the one after the last."""

    read: tuple[int, int]
    returned: tuple[int, int]  # those beyond the rows that are read repeat the last one
    counted: tuple[int, int]


class BatchReader:
    """A reader that cuts a split into global batches of B rows and reads one worker's part of each.

    Args:
        split: the rows.
        batch_size: B.
        share: this worker's part of a batch: b = B / N samples, and the ids of some features for all B.
        order: the order of the rows.
        ids: the valid ids.
        short_last: pad the last batch to `padded_rows` instead of B rows.
        weight_of_negatives: factor of the weights of samples with label 0.
        for_training: scale weights as `_scaled` says, and give samples of weight 0 the ids of others, so that they touch no row of a table.

    Raises:
        ValueError: B is not a positive multiple of the number of workers.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        share: Share = Share(),
        order: Order = Order(),
        ids: Ids = Ids(),
        short_last: bool = False,
        for_training: bool = False,
        weight_of_negatives: float = 1.0,
    ):
        self._of_negatives = weight_of_negatives
        self.split, self.batch_size, self._short_last, self._for_training = split, batch_size, short_last, for_training
        self._window, self._shuffle_seed = order.window or 1, order.shuffle_seed
        self._shuffled = ShuffledRows(split, batch_size, order.window, order.window_seed) if order.window else None
        if batch_size < 1 or batch_size % share.num_workers:
            raise ValueError(f"batch_size {batch_size}: expected a positive multiple of the {share.num_workers} workers")
        self._features = tuple(range(len(split.spec.categorical)) if share.features is None else share.features)
        self._local_features, self._uncounted = tuple(share.local_features), frozenset(share.uncounted)
        self._uncounted_local = self._uncounted | frozenset(share.uncounted_local)
        self._rank, self._num_workers = share.rank, share.num_workers
        self.out_of_range = 0  # ids mapped into range so far, over the features that this worker counts
        self._num_rows = [feature.cardinality for feature in split.spec.categorical] if ids.num_rows is None else list(ids.num_rows)
        self._out_of_range = ids.out_of_range
        own, valid = (share.rank, share.num_workers), (self._num_rows, self._out_of_range)
        unweighted = split.spec.weight is None and weight_of_negatives == 1
        self._small = SmallBatches(batch_size, own, self._features, self._local_features, *valid) if unweighted else None

    def __len__(self) -> int:
        return math.ceil(self.split.num_samples / self.batch_size)

    def order(self, epoch: int, first: int = 0) -> Iterator[int]:
        """Return the batch numbers of an epoch in visiting order, starting at position `first`."""
        if self._shuffle_seed is None:
            return iter(range(first, len(self)))
        windows = np.random.default_rng([self._shuffle_seed, epoch]).permutation(math.ceil(len(self) / self._window))
        ordered = (range(window * self._window, min((window + 1) * self._window, len(self))) for window in map(int, windows))
        return itertools.islice(itertools.chain.from_iterable(ordered), first, None)

    def epoch(self, epoch: int = 0, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, starting at position `first`. Raises DatasetError for a value out of range or a truncated file."""
        order, window = self.order(epoch, first), None if self._shuffled is None else self._window
        whole = self.split.num_samples // self.batch_size
        for found in order if self._small is None else self._small.batches(order, whole, window, partial(self._rows, epoch)):
            yield self.read(found, epoch) if isinstance(found, int) else Batch(*found[:5], self.batch_size, groups=found.groups)

    def read(self, number: int, epoch: int = 0) -> Batch:
        """Read batch `number`: B rows from row number·B on; with a shuffle window, B rows drawn from the batch's window."""
        try:
            return self._read(self._rows(epoch), number)
        except DatasetError:
            if self._shuffled is not None:
                self._read_in_file_order(number // self._window)  # raises the error with the row number of the file, not that of the shuffled order
            raise

    def _rows(self, epoch: int) -> Split:
        return self.split if self._shuffled is None else self._shuffled.of(epoch)

    def _read_in_file_order(self, window: int) -> None:
        features = (*self._features, *self._local_features)
        whole = BatchReader(self.split, self.batch_size, Share(features), ids=Ids(self._num_rows, self._out_of_range))
        for number in range(window * self._window, min((window + 1) * self._window, len(self))):
            whole.read(number)

    def _read(self, split: Split, number: int) -> Batch:
        start = number * self.batch_size
        stop = min(start + self.batch_size, split.num_samples)
        size = padded_rows(stop - start, self.batch_size, self._num_workers) if self._short_last else self.batch_size
        local = size // self._num_workers
        offset = self._rank * local
        mine = min(start + offset, stop - 1), min(start + offset + local, stop)
        real = max(stop - start - offset, 0)
        numerical, labels = split.read_numerical(*mine), split.read_labels(*mine)
        spec, first_row = split.spec, split.first_row + mine[0]
        # Checked here because ReLU turns NaN into 0: a NaN would not show in the loss.
        if spec.numerical:
            check_numerical(numerical, spec.numerical, first_row, partial(split.file, spec.numerical[0]))
        check_labels(labels, spec.label, first_row, partial(split.file, spec.label))
        weights = _weights(split, start, stop, self._of_negatives)
        total = instead = None
        if weights is not None:
            weights, total = _scaled(weights) if self._for_training else (weights, math.fsum(weights))
            own = weights[mine[0] - start : mine[1] - start]
        if weights is not None and self._for_training:
            instead, numerical = _instead(weights), np.where(own[:, np.newaxis] > 0, numerical, 0)
        ids, counted = self._ids(split, self._features, _Rows((start, stop), (start, start + size), (start, stop)), self._uncounted, instead)
        rows = _Rows(mine if instead is None else (start, stop), (mine[0], mine[0] + local), mine)
        local_ids, counted_here = self._ids(split, self._local_features, rows, self._uncounted_local if real else self._local_features, instead)
        self.out_of_range += counted + counted_here
        present = (np.arange(local) < real).astype(np.float32)
        return Batch(
            _padded(numerical, local),
            ids,
            local_ids,
            _padded(labels, local),
            present if weights is None else present * _padded(own, local),
            stop - start,
            counted + counted_here,
            None if spec.group is None else _padded(split.read_group(*mine), local),
            total,
        )

    def _ids(
        self, split: Split, features: Sequence[int], rows: _Rows, uncounted: Collection[int], instead: np.ndarray | None
    ) -> tuple[np.ndarray, int]:
        """Return ids as `[K, n]`, and the number of counted ids out of range.

        Args:
            split: the rows.
            features: the features to read.
            rows: see `_Rows`.
            uncounted: the features whose ids out of range another worker counts.
            instead: for each row that is read, the one that is returned in its place; None for itself.
        """
        described = [split.spec.categorical[feature] for feature in features]
        (start, stop), (first_row, last_row) = rows.read, rows.returned
        places = None if instead is None else instead[np.minimum(np.arange(first_row, last_row), stop - 1) - start]
        ids, counted = np.empty((sum(one.columns for one in described), last_row - first_row), np.int32), 0
        first = 0
        for feature, one in zip(features, described, strict=True):
            column, count = id_column(split, feature, self._num_rows[feature], self._out_of_range, rows.read, rows.counted)
            counted += count if feature not in uncounted else 0
            target = ids[first : first + one.columns]
            if places is None:
                target[:, : stop - start] = column.T
                target[:, stop - start :] = target[:, stop - start - 1 : stop - start]
            else:
                target[:] = column[places].T
            first += one.columns
        return ids, counted


def _weights(split: Split, start: int, stop: int, of_negatives: float) -> np.ndarray | None:
    """Return the weights of a global batch, checked, those of negatives times `of_negatives`; None where there are none."""
    if not split.labelled or (split.spec.weight is None and of_negatives == 1):
        return None
    weights = np.ones(stop - start, np.float32)
    if split.spec.weight is not None:
        weights = split.read_weights(start, stop)
        check_weights(weights, split.spec.weight, split.first_row + start, partial(split.file, split.spec.weight))
    if of_negatives == 1:
        return weights
    scaled = np.minimum(weights.astype(np.float64) * of_negatives, np.finfo(np.float32).max)
    return np.where(split.read_labels(start, stop), weights, scaled).astype(np.float32)


def _scaled(weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the weights of a global batch as training uses them, and their sum.

    The loss divides by the sum, so a common factor of the weights has no effect, but float32 holds neither sums of huge weights nor quotients of tiny
    ones. Where the mean of those above 0 is at least 1, weights stay: 2 counts as the sample twice. Else, or beyond 2^20, it becomes 1.
    """
    count, total = int(np.count_nonzero(weights)), math.fsum(weights)
    if not count or count <= total <= count * _GREATEST_MEAN:
        return weights, total
    return (weights.astype(np.float64) * (count / total)).astype(np.float32), float(count)


def _instead(weights: np.ndarray) -> np.ndarray | None:
    """Return, for each row of a batch, the row whose ids it has: itself, or where its weight is 0 the nearest one before it that has a weight.

    Such ids touch no further row of a table, as those of padding, and the gradients of such a sample are 0. Rows before the first one with a weight
    have its ids. Returns None where all have weights, or none.
    """
    weighs = weights > 0
    if weighs.all() or not weighs.any():
        return None
    last = np.maximum.accumulate(np.where(weighs, np.arange(len(weights)), -1))
    return np.where(last < 0, int(np.argmax(weighs)), last)


def padded_rows(count: int, batch_size: int, workers: int = 1) -> int:
    """Return the number of rows that `count` rows are padded to: a power of two per worker, but at most one batch in total.

    This gives few different shapes and at most twice the work.
    """
    each = -(-count // workers)
    return min(workers << (each - 1).bit_length(), batch_size)


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    """Return `values` with its last row repeated up to `size` rows."""
    if len(values) == size:
        return values
    return np.concatenate([values, np.repeat(values[-1:], size - len(values), axis=0)])


def prefetched(items: Iterable[T], transform: Callable[[T], object] = lambda item: item, depth: int = 3) -> Iterator:
    """Yield `transform(item)` for each item, computed ahead in a thread: reading a batch overlaps with training on the previous one.

    An error of the thread is raised here, at its place in the order.
    """
    ready: queue.Queue = queue.Queue(depth)
    stop = threading.Event()

    def put(value: tuple) -> bool:
        while not stop.is_set():
            try:
                ready.put(value, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(("item", transform(item))):
                    return
            put(("end", None))
        except BaseException as error:  # passed to the consumer, which raises it
            put(("error", error))
        finally:
            if hasattr(items, "close"):  # another thread may read for this one
                items.close()

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stop.set()
        thread.join()
