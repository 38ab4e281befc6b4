"""Blocks of rows of a split, read by threads and checked, for commands that write the rows to another dataset."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from dataloading.batches import Split
from dataloading.id_weights import check_id_weights, ids_and_weights
from dataloading.ranges import check_ids, check_labels, check_numerical, check_weights
from dataloading.synthetic.split import SyntheticSplit


class RowBlock(NamedTuple):
    """Consecutive rows of a split."""

    numerical: np.ndarray  # [n, M]
    ids: Sequence[np.ndarray]  # for each feature [n]; for lists [n, h] with -1 for no id, or [n, 2h] with weights (`id_weights`)
    labels: np.ndarray | None  # [n]; None for a split without labels
    probabilities: np.ndarray | None = None  # [n], the true P(click) if it is known
    groups: np.ndarray | None = None  # [n], if the specification has a group
    weights: np.ndarray | None = None  # [n] float32, if the specification has weights and the split labels


def in_order(read: Callable[[int, int], RowBlock], num_samples: int, batch_size: int, workers: int) -> Iterator[RowBlock]:
    """Yield blocks of rows in order; threads read ahead while earlier blocks are written. NumPy releases the GIL in its long loops."""
    starts = iter(range(0, num_samples, batch_size))

    def submit(start: int) -> Future[RowBlock]:
        return pool.submit(read, start, min(start + batch_size, num_samples))

    with ThreadPoolExecutor(workers) as pool:
        waiting = deque(submit(start) for start in islice(starts, workers + 1))
        try:
            while waiting:
                rows = waiting.popleft().result()
                waiting.extend(submit(start) for start in islice(starts, 1))
                yield rows
        finally:
            for future in waiting:
                future.cancel()


def stored_rows(split: Split) -> Callable[[int, int], RowBlock]:
    """Return a function that reads rows of a stored split and checks every value."""
    spec = split.spec

    def read(start: int, stop: int) -> RowBlock:
        numerical, labels = split.read_numerical(start, stop), split.read_labels(start, stop) if split.labelled else None
        if spec.numerical:
            check_numerical(numerical, spec.numerical, start, partial(split.file, spec.numerical[0]))
        if labels is not None:
            check_labels(labels, spec.label, start, partial(split.file, spec.label))
        ids = []
        for i, feature in enumerate(spec.categorical):
            ids.append(split.read_ids(i, start, stop))
            only, place = ids[-1], partial(split.file, feature.name)
            if feature.weights:
                check_id_weights(only, feature, start, place)
                only, _ = ids_and_weights(only)
            check_ids(only, feature.cardinality, feature.name, start, place)
        weights = None if spec.weight is None or labels is None else split.read_weights(start, stop)
        if weights is not None:
            check_weights(weights, spec.weight, start, partial(split.file, spec.weight))
        return RowBlock(numerical, ids, labels, groups=None if spec.group is None else split.read_group(start, stop), weights=weights)

    return read


def stored_blocks(split: Split, num_samples: int, batch_size: int) -> Iterator[RowBlock]:
    """Yield the first rows of a stored split, every value checked; close the split at the end."""
    with closing(split):
        yield from in_order(stored_rows(split), num_samples, batch_size, workers=1)


def drawn_rows(split: SyntheticSplit) -> Callable[[int, int], RowBlock]:
    """Return a function that draws rows of synthetic data."""

    def read(start: int, stop: int) -> RowBlock:
        groups = None if split.spec.group is None else split.read_group(start, stop)
        return RowBlock(*split.read_rows(start, stop), groups=groups, weights=None if split.spec.weight is None else split.read_weights(start, stop))

    return read


def drawn_blocks(split: SyntheticSplit, batch_size: int) -> Iterator[RowBlock]:
    """Yield all rows of synthetic data."""
    return in_order(drawn_rows(split), split.num_samples, batch_size, workers=min(os.cpu_count() or 1, 8))
