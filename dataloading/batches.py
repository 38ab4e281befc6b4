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
from dataloading.ranges import ERROR, check_ids, check_labels, check_numerical, into_range
from dataloading.row_shuffle import ShuffledRows

T = TypeVar("T")

_HINT = "; mend the dataset, or say what is to become of such ids: --out_of_range clip or hash"


class Split(Protocol):
    """Rows that can be read by ranges: `TfRawSplit`, `TfRecordSplit` from files, `SyntheticSplit` from a formula, `RowRange` from another split."""

    spec: FeatureSpec
    name: str
    num_samples: int
    first_row: int  # of the rows that it is cut from, for messages
    labelled: bool  # whether it has labels; without them it is for prediction, and `read_labels` gives zeros

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """`[n]` integer; `[n, h]` of a feature with several ids a sample, -1 for no id."""

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """`[n, M]`, float16 or float32."""

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """`[n]` uint8."""

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """`[n]`, int32 or int64; asked for where the specification has a group."""

    def file(self, feature: str, row: int = 0) -> str:
        """The file that a feature is read from, and the record where rows stand in records, for messages; empty where there is none.

        `row` counts from the first row of the files, as messages do."""

    def fingerprint(self) -> str:
        """The same for the same rows, different for others."""

    def close(self) -> None:
        """Close what is open."""


class Batch(NamedTuple):
    """One worker's part of a global batch: the global ids of its features, its own slice of everything else.

    Padding repeats the batch's last real row with weight 0, so that it touches no row of a table that the batch does not touch anyway.
    """

    numerical: np.ndarray  # [b, M], float16 or float32 as the dataset's
    ids: np.ndarray  # [K_r, B] int32 of the whole global batch: each feature's h rows, row j the j-th id of every sample, -1 where there is none
    local_ids: np.ndarray  # [K_l, b] int32, alike, of the features whose ids are wanted for this worker's slice only
    labels: np.ndarray  # [b] uint8
    weights: np.ndarray  # [b] float32, 1 for a real sample, 0 for padding
    num_samples: int  # real samples in the global batch
    out_of_range: int = 0  # ids that were out of range and made to fit, of the features that this worker counts
    groups: np.ndarray | None = None  # [b], int32 or int64; None where the dataset has no group


@dataclass(frozen=True)
class Share:
    """A worker's part of every batch; features by their places in the model's order."""

    features: Sequence[int] | None = None  # of which it reads the ids of the whole batch; None for all
    local_features: Sequence[int] = ()  # of which it reads those of its own samples
    uncounted: Collection[int] = frozenset()  # of which another worker counts the ids out of range
    uncounted_local: Collection[int] = frozenset()  # the same of `local_features`, beyond those
    rank: int = 0
    num_workers: int = 1


@dataclass(frozen=True)
class Order:
    """In which order the rows are visited."""

    shuffle_seed: int | None = None  # of the batches' order, another one each epoch; None for file order
    window: int | None = None  # batches among whose rows each batch's are drawn; with a shuffled order it is the windows that change places
    window_seed: int = 0  # of the order of the rows


@dataclass(frozen=True)
class Ids:
    """What ids may be."""

    num_rows: Sequence[int] | None = None  # of each feature's table; None for its cardinality
    out_of_range: str = ERROR  # what becomes of ids beyond: `error`, `clip` or `hash`, see `ranges.into_range`


class BatchReader:
    """Cuts a split into global batches of B rows and reads one worker's part of each.

    Args:
        split: where the rows are.
        batch_size: B.
        share: which part of a batch is this worker's: b = B / N samples, and some features of all B.
        order: of the rows.
        ids: what they may be.
        short_last: pad the last batch not to B rows but to `padded_rows`.

    Raises:
        ValueError: the workers cannot share B evenly.
    """

    def __init__(self, split: Split, batch_size: int, share: Share = Share(), order: Order = Order(), ids: Ids = Ids(), short_last: bool = False):
        self.split, self.batch_size, self._short_last = split, batch_size, short_last
        self._window, self._shuffle_seed = order.window or 1, order.shuffle_seed
        self._shuffled = ShuffledRows(split, batch_size, order.window, order.window_seed) if order.window else None
        if batch_size < 1 or batch_size % share.num_workers:
            raise ValueError(f"batch_size {batch_size}: expected a positive multiple of the {share.num_workers} workers")
        self._features = tuple(range(len(split.spec.categorical)) if share.features is None else share.features)
        self._local_features, self._uncounted = tuple(share.local_features), frozenset(share.uncounted)
        self._uncounted_local = self._uncounted | frozenset(share.uncounted_local)
        self._rank, self._num_workers = share.rank, share.num_workers
        self.out_of_range = 0  # ids made to fit so far, of the features that this worker counts
        self._num_rows = [feature.cardinality for feature in split.spec.categorical] if ids.num_rows is None else list(ids.num_rows)
        self._out_of_range = ids.out_of_range

    def __len__(self) -> int:
        return math.ceil(self.split.num_samples / self.batch_size)

    def order(self, epoch: int, first: int = 0) -> Iterator[int]:
        """The batch numbers of an epoch in the order in which they are visited, from the `first`-th on."""
        if self._shuffle_seed is None:
            return iter(range(first, len(self)))
        windows = np.random.default_rng([self._shuffle_seed, epoch]).permutation(math.ceil(len(self) / self._window))
        ordered = (range(window * self._window, min((window + 1) * self._window, len(self))) for window in map(int, windows))
        return itertools.islice(itertools.chain.from_iterable(ordered), first, None)

    def epoch(self, epoch: int = 0, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from its `first`-th on. Raises DatasetError for a value out of range or a file cut short."""
        for number in self.order(epoch, first):
            yield self.read(number, epoch)

    def read(self, number: int, epoch: int = 0) -> Batch:
        """Batch `number`: rows number·B on, or as many of its window."""
        if self._shuffled is None:
            return self._read(self.split, number)
        self._shuffled.start(epoch)
        try:
            return self._read(self._shuffled, number)
        except DatasetError:
            self._read_in_file_order(number // self._window)  # raises it with the right row
            raise

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
        # ReLU turns NaN into 0, so no loss would show it
        if spec.numerical:
            check_numerical(numerical, spec.numerical, first_row, partial(split.file, spec.numerical[0]))
        check_labels(labels, spec.label, first_row, partial(split.file, spec.label))
        ids, counted = self._ids(split, self._features, start, stop, size, self._uncounted)
        local_ids, counted_here = self._ids(split, self._local_features, *mine, local, self._uncounted_local if real else self._local_features)
        self.out_of_range += counted + counted_here
        return Batch(
            _padded(numerical, local),
            ids,
            local_ids,
            _padded(labels, local),
            (np.arange(local) < real).astype(np.float32),
            stop - start,
            counted + counted_here,
            None if spec.group is None else _padded(split.read_group(*mine), local),
        )

    def _ids(self, split: Split, features: Sequence[int], start: int, stop: int, size: int, uncounted: Collection[int]) -> tuple[np.ndarray, int]:
        """`[K, size]`: ids of rows start to stop, the last one repeated up to `size`; and how many of those that it counts were out of range."""
        described = [split.spec.categorical[feature] for feature in features]
        ids, counted = np.empty((sum(one.hotness for one in described), size), np.int32), 0
        first = 0
        for feature, one in zip(features, described, strict=True):
            column = split.read_ids(feature, start, stop)
            if self._out_of_range == ERROR:
                check_ids(column, self._num_rows[feature], one.name, split.first_row + start, partial(split.file, one.name), _HINT)
            else:
                column, count = into_range(column, self._num_rows[feature], self._out_of_range)
                counted += count if feature not in uncounted else 0
            rows = ids[first : first + one.hotness]
            rows[:, : stop - start] = column.T
            rows[:, stop - start :] = rows[:, stop - start - 1 : stop - start]
            first += one.hotness
        return ids, counted


def padded_rows(count: int, batch_size: int, workers: int = 1) -> int:
    """Rows that so many are padded to: each worker's is a power of two, and all of them at most a batch. Few shapes, and at most twice the work."""
    each = -(-count // workers)
    return min(workers << (each - 1).bit_length(), batch_size)


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    """`values` with its last row repeated up to `size` rows."""
    if len(values) == size:
        return values
    return np.concatenate([values, np.repeat(values[-1:], size - len(values), axis=0)])


def prefetched(items: Iterable[T], transform: Callable[[T], object] = lambda item: item, depth: int = 3) -> Iterator:
    """`transform(item)` for each item, made ahead in a thread: reading a batch overlaps with training on the one before.

    What the thread raises is raised here, at its place in the order.
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
        except BaseException as error:  # handed to the consumer, who raises it
            put(("error", error))

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
