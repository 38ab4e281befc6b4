"""Rows of Criteo's form: a label, 13 numerical values and 26 ids, checked and converted to the columns of a tf_raw dataset."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from dataloading.blocks import RowBlock
from dataloading.feature_spec import FeatureSpec, generator_spec
from dataloading.features import DatasetError
from dataloading.ranges import check_numerical

NUM_NUMERICAL, NUM_CATEGORICAL = 13, 26
MAX_ROWS = 2**31 - 2  # largest table that int32 ids address


class RawRows(NamedTuple):
    """Consecutive rows as they stand in a file."""

    labels: np.ndarray  # [n], any number
    numerical: np.ndarray  # [n, 13], int32 or float32
    ids: np.ndarray  # [n, 26], int32, int64, or whole numbers in float64


class RowsFile(Protocol):
    """A file of rows, read in order."""

    path: Path
    num_rows: int

    def blocks(self, start: int, stop: int, size: int) -> Iterator[RawRows]:
        """Yield rows start to stop in blocks of `size` rows, the last one shorter. Raises DatasetError for a damaged file."""


@dataclass(frozen=True)
class Part:
    """The rows of a split: rows start to stop of a file."""

    file: RowsFile
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class CriteoRows:
    """A dataset of such rows.

    Attributes:
        spec: the features, with the number of rows of each table.
        parts: the rows of each split.
        transformed: turns numerical values as stored into those of the dataset, float32 `[n, 13]`; raises DatasetError for a value that cannot be.
        modulo: ids are taken modulo this number first; None for ids as they stand.
    """

    spec: FeatureSpec
    parts: dict[str, Part]
    transformed: Callable[[np.ndarray, str, int], np.ndarray]
    modulo: int | None = None

    def paths(self, split: str) -> list[Path]:
        """Return the files of a split."""
        return [self.parts[split].file.path]

    def blocks(self, split: str, rows: int, size: int) -> Iterator[RowBlock]:
        """Yield the first rows of a split in blocks of `size` rows, every value checked.

        Raises:
            DatasetError: the file is damaged, or a value is out of range; the message names file, row, feature and value.
        """
        part = self.parts[split]
        place, row, dtype = str(part.file.path), part.start, self.spec.numerical_dtype
        for raw in part.file.blocks(part.start, part.start + rows, size):
            labels = _labels(raw.labels, self.spec.label, place, row)
            with np.errstate(over="ignore"):  # an overflow gives infinity, which the check finds
                numerical = self.transformed(raw.numerical, place, row).astype(dtype)
            check_numerical(numerical, self.spec.numerical, row, place)
            ids = self._ids(raw.ids, place, row)
            yield RowBlock(numerical, list(ids.T), labels)
            row += len(labels)

    def _ids(self, ids: np.ndarray, place: str, first_row: int) -> np.ndarray:
        """Return the ids `[n, 26]` int32."""
        if ids.dtype.kind == "f":
            self._refuse(~(np.floor(ids) == ids), ids, place, first_row, "a whole number")
            self._refuse(np.abs(ids) > 2**53, ids, place, first_row, "an id")
        ids = ids.astype(np.int64)
        if self.modulo is not None:
            ids %= self.modulo
        tables = np.array(self.spec.cardinalities, np.int64)
        self._refuse((ids < 0) | (ids >= tables), ids, place, first_row, "an id below the {rows} rows of its table")
        return ids.astype(np.int32)

    def _refuse(self, bad: np.ndarray, ids: np.ndarray, place: str, first_row: int, expected: str) -> None:
        if bad.any():
            row, column = divmod(int(np.argmax(bad)), bad.shape[1])
            feature = self.spec.categorical[column]
            expected = expected.format(rows=f"{feature.cardinality:,}")
            raise DatasetError(f"{place}: feature {feature.name}, row {first_row + row}: found {ids[row, column]}, expected {expected}, from 0 on")


def criteo_spec(tables: list[int], splits: list[str], path: Path, source: str, numerical_dtype: str) -> FeatureSpec:
    """Return the specification of a dataset of such rows.

    Args:
        tables: rows of each of the 26 tables.
        splits: the splits.
        path: the place of the specification, for messages.
        source: what the rows were read from, for the metadata.
        numerical_dtype: float16 or float32.
    """
    spec = generator_spec(tables, NUM_NUMERICAL, alpha=0.0)
    dtypes = {**spec.dtypes, **dict.fromkeys(spec.numerical, numerical_dtype)}
    return replace(replace(spec, dtypes=dtypes).as_tf_raw(splits, metadata={"source": source}), path=path)


def _labels(labels: np.ndarray, name: str, place: str, first_row: int) -> np.ndarray:
    bad = (labels != 0) & (labels != 1)
    if bad.any():
        row = int(np.argmax(bad))
        raise DatasetError(f"{place}: feature {name}, row {first_row + row}: label {labels[row]} is not 0 or 1")
    return labels.astype(np.uint8)
