"""Rows of pre-batched TFRecords (NVIDIA's Wide & Deep), read by ranges: batches are those of a tf_raw dataset, whatever the number of workers.

An index (`index.py`) gives the records that hold a range of rows. They are read by position, their checksums are compared, and TensorFlow's threads
parse the requested columns only. So batches can be read in any order and from any start; a `tf.data` pipeline cannot do that, because it reads
files from their beginning.
"""

import threading
from collections import defaultdict

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.fingerprint import digest
from dataloading.tfrecord.index import RecordIndex
from dataloading.tfrecord.parsing import RecordParser, columns_of
from dataloading.tfrecord.spec import kinds_of, split_records


class TfRecordSplit:
    """One split of pre-batched TFRecords, read by ranges of rows. A `batches.Split`; may be read from several threads."""

    def __init__(self, spec: FeatureSpec, split: str):
        """Read the index of the records; their content is read later.

        Args:
            spec: the result of `spec.tfrecord_spec`, whose sources name the files.
            split: the name of the split.

        Raises:
            DatasetError: a file is missing, empty, truncated or damaged, or records lack a feature.
        """
        self.spec, self.name, self.first_row = spec, split, 0
        self.labelled = spec.labelled(split)
        files = split_records(spec, split)
        self._columns = columns_of(spec, self.labelled, kinds_of(files[0]), f"{files[0]}, record 0")
        self._index = RecordIndex(files, {name for column in self._columns.values() for name in column.names})
        self._parser = RecordParser(spec, self._columns, self._index)
        self.num_samples = self._index.num_rows
        self._asked: dict[str, list[str]] = defaultdict(list)  # the columns requested so far, by the columns that they are parsed with
        self._held: dict[int, dict[str, np.ndarray]] = defaultdict(dict)  # the parsed columns of each record
        self._lock = threading.Lock()

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature (by its index in the model's order), rows start to stop.

        Returns:
            `[n]`, int8, int16 or int32; int64 if an id is out of range.
        """
        return self._read(f"ids {feature}", start, stop, self.spec.categorical[feature].dtype)

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features of rows start to stop: `[n, M]`, float16 or float32."""
        if not self.spec.numerical:
            return np.empty((stop - start, 0), self.spec.numerical_dtype)
        return self._read("numerical", start, stop, self.spec.numerical_dtype).reshape(stop - start, -1)

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return labels of rows start to stop: `[n]` uint8, 0 or 1; all 0 if the split has none (`labelled`)."""
        return self._read("label", start, stop, "uint8") if self.labelled else np.zeros(stop - start, np.uint8)

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Return groups of rows start to stop: `[n]`, int32 or int64. The specification must have a group."""
        return self._read("group", start, stop, self.spec.group_dtype)

    def read_weights(self, start: int, stop: int) -> np.ndarray:
        """Return weights of rows start to stop: `[n]` float32. The specification must have weights, and the split labels."""
        return self._read("weight", start, stop, self.spec.weight_dtype)

    def file(self, feature: str, row: int = 0) -> str:
        """Return the file and the record that a row is read from."""
        return self._index.place_of_row(min(row, self.num_samples - 1))

    def fingerprint(self) -> str:
        """Return a hash of the features, the file sizes and a sample of the files' bytes."""
        return digest(self.spec, (self.name, self.num_samples), self._index.files)

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            self._parser.close()
            self._held.clear()

    def _read(self, key: str, start: int, stop: int, dtype: str) -> np.ndarray:
        """Return rows start to stop of a column."""
        if start == stop:
            return np.empty(0, dtype)
        with self._lock:
            column, records = self._columns[key], self._index.holding(start, stop)
            if key not in self._asked[column.alike]:
                self._asked[column.alike].append(key)
            if missing := [record for record in records if key not in self._held[record]]:
                keys = [other for other in self._asked[column.alike] if any(other not in self._held[record] for record in missing)]
                for record, found in self._parser.columns(missing, keys).items():
                    self._held[record] |= found
                for record in set(self._held) - set(records):
                    del self._held[record]
            parts = [self._held[record][key] for record in records]
        parts[-1] = parts[-1][: stop - int(self._index.first_row[records[-1]])]
        parts[0] = parts[0][start - int(self._index.first_row[records[0]]) :]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
