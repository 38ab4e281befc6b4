"""Groups of predicted rows by the value of a feature, read from the dataset in blocks."""

import difflib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.id_weights import check_id_weights, ids_and_weights, without_idle
from dataloading.ranges import check_labels
from dataloading.tf_raw import TfRawSplit
from report.rows.dataset import (
    Meaning,
    add_counts,
    block_rows,
    in_own_unit,
    known_ids,
    meaning_of,
    most_frequent,
    open_dataset,
    open_split,
    splits_of,
    value_names,
)
from utils.console import Console
from utils.errors import UserError

VALUES = 20  # of a categorical feature that stand alone
RANGES = 10  # of a numerical feature
CATEGORICAL, NUMERICAL = "categorical", "numerical"
_ZERO, _REST, _NO_ID, _OUTSIDE = range(VALUES, VALUES + 4)  # bits of rows beside those of the values
_CHECKED = 1 << 20  # labels compared at a time


@dataclass(frozen=True)
class Grouping:
    """Rows by the value of a feature. Bit k of a row's `bits` is set where the row belongs to group k."""

    split: str
    kind: str
    overlap: bool
    note: str
    names: dict[int, str]  # group: name, in the order to show them
    bits: np.ndarray  # [n] uint32

    def groups(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and the rows, `[n]` bool, of each group that has any."""
        for number, name in self.names.items():
            rows = (self.bits & np.uint32(1 << number)) != 0
            if rows.any():
                yield name, rows


class _Rows:
    """The predicted rows of a split. `numbers` are their rows in it, None for all of them in order."""

    def __init__(self, split: TfRawSplit, numbers: np.ndarray | None):
        self.split = split
        self._order = None if numbers is None else np.argsort(numbers, kind="stable")
        self._sorted = None if numbers is None else numbers[self._order]
        self.count = split.num_samples if numbers is None else len(numbers)

    def blocks(self, read: Callable[[int, int], np.ndarray], width: int) -> Iterator[tuple[slice | np.ndarray, np.ndarray]]:
        """Yield blocks of values, of `width` bytes a row, with their places among the predicted rows."""
        step = block_rows(width)
        with Console("report").progress(self.split.num_samples, f"{self.split.name} rows", "rows") as progress:
            for start in range(0, self.split.num_samples, step):
                stop = min(start + step, self.split.num_samples)
                progress.advance(stop - start)
                if self._sorted is None:
                    yield slice(start, stop), read(start, stop)
                    continue
                first, last = np.searchsorted(self._sorted, (start, stop))
                if first < last:
                    yield self._order[first:last], read(start, stop)[self._sorted[first:last] - start]


def grouping(dataset: Path, feature: str, positive: np.ndarray, numbers: np.ndarray | None, predictions: Path) -> Grouping:
    """Group the rows of predictions by the value of a feature.

    Args:
        dataset: folder of a tf_raw dataset.
        feature: name of a categorical or a numerical feature.
        positive: `[n]` bool, the labels of the predicted rows.
        numbers: `[n]` their rows in the split; None for all of them in order.
        predictions: the file of the predictions, for messages.

    Raises:
        UserError: the dataset has no such feature, or no split with these rows and labels.
    """
    spec = open_dataset(dataset)
    names = {one.name: i for i, one in enumerate(spec.categorical)}
    if feature not in names and feature not in spec.numerical:
        raise UserError(f"--by {feature}: {dataset} has no such feature; {_nearest(feature, [*names, *spec.numerical])}")
    with closing(_split_of(spec, positive, numbers, dataset, predictions)) as split:
        rows, meaning = _Rows(split, numbers), meaning_of(spec, feature)
        if feature in names:
            return _by_id(rows, spec.categorical[names[feature]], names[feature], meaning)
        return _by_range(rows, spec.numerical.index(feature), meaning)


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 3) or names[:10]
    return f"features: {', '.join(near)}{', …' if len(near) < len(names) else ''}"


def _split_of(spec: FeatureSpec, positive: np.ndarray, numbers: np.ndarray | None, dataset: Path, predictions: Path) -> TfRawSplit:
    """Return the split that the predictions are of: the one with their rows and labels."""
    found = []
    for name in sorted(splits_of(spec), key=lambda name: name != "test"):
        split = open_split(spec, name)
        if split is None or not split.labelled:
            continue
        fits = split.num_samples == len(positive) if numbers is None else numbers.min() >= 0 and numbers.max() < split.num_samples
        if fits and _same_labels(split, positive, numbers):
            return split
        found.append(f"{name} {split.num_samples:,} rows{' (other labels)' if fits else ''}")
        split.close()
    raise UserError(
        f"--dataset_path {dataset}: no split has the {len(positive):,} rows and labels of --predictions {predictions}; "
        f"found: {', '.join(found) or 'no split with labels'}; expected the dataset that was predicted"
    )


def _same_labels(split: TfRawSplit, positive: np.ndarray, numbers: np.ndarray | None) -> bool:
    rows = _Rows(split, numbers)
    for start in range(0, split.num_samples, _CHECKED):
        check_labels(split.read_labels(start, min(start + _CHECKED, split.num_samples)), split.spec.label, start, split.file(split.spec.label))
    return all(np.array_equal(labels.astype(bool), positive[places]) for places, labels in rows.blocks(split.read_labels, 1))


def _by_id(rows: _Rows, feature: Categorical, index: int, meaning: Meaning) -> Grouping:
    width = 4 * feature.columns if feature.weights else np.dtype(feature.dtype).itemsize * feature.hotness

    def read(start: int, stop: int) -> np.ndarray:
        values = rows.split.read_ids(index, start, stop)
        if not feature.weights:
            return values
        check_id_weights(values, feature, start, rows.split.file(feature.name))
        return ids_and_weights(without_idle(values))[0]

    def blocks() -> Iterator[tuple[slice | np.ndarray, np.ndarray]]:
        return rows.blocks(read, width)

    counts = np.zeros(feature.cardinality, np.uint32)
    for _, ids in blocks():
        add_counts(counts, ids[known_ids(ids, feature).inside])
    if meaning.zero:
        counts[0] = 0  # a group of its own
    distinct = int(np.count_nonzero(counts))
    top = most_frequent(counts, VALUES)
    number = {int(one): k for k, one in enumerate(top)} | ({0: _ZERO} if meaning.zero else {})
    lookup = np.array(sorted(number), np.int64)
    bit = np.array([1 << number[int(one)] for one in lookup], np.uint32)
    del counts
    bits = np.zeros(rows.count, np.uint32)
    for places, ids in blocks():
        known = known_ids(ids, feature)
        at = np.minimum(np.searchsorted(lookup, ids), max(len(lookup) - 1, 0))
        found = np.where(lookup[at] == ids, bit[at], np.uint32(1 << _REST)) if len(lookup) else np.full(ids.shape, 1 << _REST, np.uint32)
        found = np.where(known.inside, found, np.where(known.outside, np.uint32(1 << _OUTSIDE), np.uint32(0)))
        if feature.is_list:
            found = np.bitwise_or.reduce(found, axis=1)
            found[found == 0] = 1 << _NO_ID
        bits[places] = found
    values = value_names(feature, meaning, [int(one) for one in top])
    rest = f"({distinct - len(top):,} other value{'s' if distinct - len(top) > 1 else ''})"
    names = {number[one]: name for one, name in values.items()}
    names |= {_REST: rest, _ZERO: f"({meaning.zero})", _NO_ID: "(no id)", _OUTSIDE: "(out of range)"}
    several = feature.hotness > 1  # one id with a weight, or none, is a list without overlap
    note = f"the {len(top)} most frequent of {distinct:,} values" if distinct > len(top) else "all values, the most frequent first"
    return Grouping(rows.split.name, CATEGORICAL, several, note + ("; a row counts for each value in its list" if several else ""), names, bits)


def _by_range(rows: _Rows, column: int, meaning: Meaning) -> Grouping:
    spec = rows.split.spec
    values = np.empty(rows.count, np.float32)
    for places, block in rows.blocks(rows.split.read_numerical, np.dtype(spec.numerical_dtype).itemsize * len(spec.numerical)):
        values[places] = block[:, column]
    finite = np.isfinite(values)
    ordered = np.sort(values[finite])
    ends = ordered[(len(ordered) * np.arange(1, RANGES + 1) + RANGES - 1) // RANGES - 1] if len(ordered) else ordered
    ends = np.unique(ends)  # the highest value of each range; a frequent value can fill several, which are then one
    bits = np.left_shift(np.uint32(1), np.searchsorted(ends, values, "left").astype(np.uint32), dtype=np.uint32)
    bits[~finite] = 1 << _NO_ID
    own, names = in_own_unit(meaning), {}
    for number, end in enumerate(ends):
        after = 0 if number == 0 else int(np.searchsorted(ordered, ends[number - 1], "right"))
        low, high = (f"{own(float(value)):.4g}" for value in (ordered[after], end))
        names[number] = low if low == high else f"{low} to {high}"
    names[_NO_ID] = "(not finite)"
    return Grouping(rows.split.name, NUMERICAL, False, f"{len(ends)} ranges of about as many rows each", names, bits)
