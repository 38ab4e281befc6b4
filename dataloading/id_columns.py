"""The ids of a feature as batches have them: checked or mapped into the table, with the bits of their weights."""

from functools import partial
from typing import Protocol

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.id_weights import check_id_weights, ids_and_weights, joined, without_idle
from dataloading.ranges import ERROR, check_ids, into_range

_HINT = "; correct the dataset, or map such ids into the table with --out_of_range clip or hash"


class Ids(Protocol):
    """Rows whose ids are read; a part of `batches.Split`."""

    spec: FeatureSpec
    first_row: int

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature, rows start to stop."""

    def file(self, feature: str, row: int = 0) -> str:
        """Return the file of a row's ids, for messages."""


def id_column(split: Ids, feature: int, num_rows: int, policy: str, read: tuple[int, int], counted: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Return a feature's ids, `[n]`, `[n, h]` or `[n, 2h]`, and the number of ids that were mapped into range.

    Args:
        split: the rows.
        feature: the feature's index in the model's order.
        num_rows: V of its table.
        policy: the policy for ids out of range, see `batches.Ids`.
        read: the rows to read: the first one, and the one after the last.
        counted: of these, the rows whose ids out of range count.

    Raises:
        DatasetError: an id is out of range and the policy is `error`, or a weight is not what it must be.
    """
    start, stop = read
    described, place = split.spec.categorical[feature], partial(split.file, split.spec.categorical[feature].name)
    column, weights, count = split.read_ids(feature, start, stop), None, 0
    if described.weights:
        check_id_weights(column, described, split.first_row + start, place)
        column, weights = ids_and_weights(column)
    if policy == ERROR:
        check_ids(column, num_rows, described.name, split.first_row + start, place, _HINT)
    else:
        mapped, count = into_range(column, num_rows, policy)
        if count and counted != read:
            _, count = into_range(column[counted[0] - start : counted[1] - start], num_rows, policy)
        column = mapped
    return (column if weights is None else without_idle(joined(column, weights))), count
