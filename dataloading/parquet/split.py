"""Rows of Parquet files, read by ranges: batches are those of a tf_raw dataset with the same rows, whatever the number of workers and of files.

A range is read by blocks: whole row groups, or parts of a large one. The last blocks of each column are kept, up to a fixed number of bytes, so that
rows in file order are decoded once.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import polars as pl

from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from dataloading.fingerprint import digest
from dataloading.parquet.files import BadValueError, ParquetFile, groups_of, ids_of, labels_of, numbers_of, opened_files

_MOST_ROWS, _FEWEST_ROWS = 1 << 20, 1 << 16  # of a block: larger row groups are divided, smaller ones of a file joined
_HELD_BYTES = 256 << 20


class ParquetSplit:
    """One split of Parquet files, read by ranges of rows. A `batches.Split`; may be read from several threads."""

    def __init__(self, spec: FeatureSpec, split: str):
        """Check the files and their columns; the rows are read later.

        Args:
            spec: the result of `spec.parquet_spec`, whose sources name the files.
            split: the name of the split.

        Raises:
            DatasetError: a file is missing or damaged, lacks a feature, or holds it in a wrong type.
        """
        self.spec, self.name, self.first_row = spec, split, 0
        self.labelled = spec.labelled(split)
        self.files = opened_files(spec, split)
        self._blocks = [(file, *rows) for file in self.files for rows in _blocks(file)]
        self._first = np.concatenate([[0], np.cumsum([stop - start for _, start, stop in self._blocks], dtype=np.int64)])
        self.num_samples = int(self._first[-1])
        self._held: OrderedDict[tuple[str, int], np.ndarray] = OrderedDict()  # columns of blocks, the last used ones last
        self._held_bytes = 0
        self._lock = threading.Lock()

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature (by its index in the model's order), rows start to stop.

        Returns:
            `[n]`, int8, int16 or int32; for a feature with several ids per sample `[n, h]`, padded with -1; int64 if an id does not fit.
        """
        form = self.spec.categorical[feature]
        return self._read(form.name, start, stop, (form.name,), lambda frame: ids_of(frame[form.name], form))

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features of rows start to stop: `[n, M]` float32."""
        names, dtype = self.spec.numerical, self.spec.numerical_dtype
        if not names:
            return np.empty((stop - start, 0), dtype)
        return self._read("", start, stop, names, lambda frame: numbers_of(frame, names, dtype))  # no feature has an empty name

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return labels of rows start to stop: `[n]` uint8, 0 or 1; all 0 if the split has none (`labelled`)."""
        name = self.spec.label
        if not self.labelled:
            return np.zeros(stop - start, np.uint8)
        return self._read(name, start, stop, (name,), lambda frame: labels_of(frame[name]))

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Return groups of rows start to stop: `[n]`, int32 or int64. All 0 where training files lack the column, as they may (`grouped`)."""
        name, dtype = self.spec.group, self.spec.group_dtype
        if not self.grouped:
            return np.zeros(stop - start, dtype)
        return self._read(name, start, stop, (name,), lambda frame: groups_of(frame[name], dtype))

    def read_weights(self, start: int, stop: int) -> np.ndarray:
        """Raise DatasetError: these files have no weights (their specification has no such channel)."""
        raise DatasetError(f"{self.spec.path}: such Parquet files have no weights")

    @property
    def grouped(self) -> bool:
        """True where all files have the column of the group."""
        return all(self.spec.group in file.schema for file in self.files)

    def check_grouped(self, need: str) -> None:
        """Raise DatasetError where the specification has a group that a file lacks; `need` is the flag that needs it."""
        for file in self.files if self.spec.group is not None else ():
            if self.spec.group not in file.schema:
                raise DatasetError(f"{need} needs the groups of the held out rows: {file.path} has no column {self.spec.group}; drop the flag")

    def file(self, feature: str, row: int = 0) -> str:
        """Return the file that a row is read from, and the row's number in it."""
        place = min(row, self.num_samples - 1)
        block = self._block_of(place)
        file, start, _ = self._blocks[block]
        return f"{file.path}, row {start + place - int(self._first[block])} of the file"

    def fingerprint(self) -> str:
        """Return a hash of the features, the file sizes and a sample of the files' bytes."""
        return digest(self.spec, (self.name, self.num_samples), [file.path for file in self.files])

    def close(self) -> None:
        """Release the rows that are kept; no file stays open between reads."""
        with self._lock:
            self._held.clear()
            self._held_bytes = 0

    def _block_of(self, row: int) -> int:
        return int(np.searchsorted(self._first, row, "right")) - 1

    def _read(self, key: str, start: int, stop: int, columns: tuple[str, ...], convert: Callable[[pl.DataFrame], np.ndarray]) -> np.ndarray:
        """Return rows start to stop of what `convert` makes of some columns; `key` names it."""
        first_row = min(start, self.num_samples - 1)  # an empty range may begin behind the last row
        with self._lock:
            parts = []
            for block in range(self._block_of(first_row), self._block_of(max(stop - 1, first_row)) + 1):
                first = int(self._first[block])
                parts.append(self._block(key, block, columns, convert)[max(start - first, 0) : stop - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block(self, key: str, block: int, columns: tuple[str, ...], convert: Callable[[pl.DataFrame], np.ndarray]) -> np.ndarray:
        if (held := self._held.get((key, block))) is not None:
            self._held.move_to_end((key, block))
            return held
        file, start, stop = self._blocks[block]
        try:
            found = convert(file.read(columns, start, stop))
        except BadValueError as error:
            feature = error.feature or columns[0]
            row = int(self._first[block]) + error.row
            raise DatasetError(f"{self.file(feature, row)}: feature {feature}, row {row}: {error}") from None
        self._held[key, block] = found
        self._held_bytes += found.nbytes
        while self._held_bytes > _HELD_BYTES and len(self._held) > 1:
            self._held_bytes -= self._held.popitem(last=False)[1].nbytes
        return found


def _blocks(file: ParquetFile) -> list[tuple[int, int]]:
    """Return the blocks of a file as (start, stop) of its rows."""
    cuts, end = [0], 0
    for rows in file.groups:
        parts = -(-rows // _MOST_ROWS)
        if end - cuts[-1] >= _FEWEST_ROWS or (end > cuts[-1] and end - cuts[-1] + rows > _MOST_ROWS):
            cuts.append(end)
        cuts += [end + rows * part // parts for part in range(1, parts)]
        end += rows
    return [(start, stop) for start, stop in pairwise([*cuts, end]) if stop > start]
