"""Rows of NVIDIA's pre-batched TFRecords with a folder for each feature (`split_tfrecords`), read by ranges.

Batches are those of a tf_raw dataset with the same rows, whatever the batch size of the records. A record is decoded at once, and kept until another
record of its folder is needed: where batches have the size of the records, each record is decoded once (twice
where one of several small batches has a value out of its range).
"""

import threading
from collections.abc import Callable

import numpy as np

from dataloading.contract import TFRECORDS
from dataloading.feature_spec import FeatureSpec
from dataloading.features import Categorical, DatasetError
from dataloading.fingerprint import digest
from dataloading.id_weights import joined
from dataloading.ranges import NO_ID, outside_range
from dataloading.tfrecord.batch_folders import Column, batch_columns, ids_folder, num_batches, tensors, weights_folder
from dataloading.tfrecord.example_bytes import first_dimension
from dataloading.tfrecord.index import Read, measured_records
from dataloading.tfrecord.record_reader import RecordReader
from utils.runtime import prepare_tensorflow

_EMPTY = "expected samples in every record"


class _Records:
    """The records of one folder: their positions, and the content of the last one that was read."""

    def __init__(self, column: Column, measure: Callable[[Read, int, str], int] | None = None):
        self.column, self.kept, self.lock = column, (-1, np.empty(0)), threading.Lock()
        found = [(i, *place) for i, path in enumerate(column.files) for place in measured_records(path, measure)]
        self._file, self._number, self._offset, self._size, self.rows = np.array(found, np.int64).reshape(-1, 5).T
        self._reader = RecordReader(column.files)

    def __len__(self) -> int:
        return len(self._offset)

    def place(self, record: int) -> str:
        return f"{self.column.files[self._file[record]]}, record {self._number[record]}"

    def read(self, record: int) -> list[np.ndarray]:
        place = self.place(record)
        content = self._reader.read(int(self._file[record]), int(self._offset[record]), int(self._size[record]), place)
        return tensors(content, self.column, place)

    def close(self) -> None:
        self._reader.close()
        self.kept = (-1, np.empty(0))


class BatchRecordSplit:
    """One split of pre-batched TFRecords with a folder for each feature. A `batches.Split`; may be read from several threads.

    Attributes:
        batch_sizes: rows of each record, `[R]`.
        num_unread: the number of records of the largest folder beyond those that `length.json` states; NVIDIA's writer repeats rows in them.
    """

    def __init__(self, spec: FeatureSpec, split: str):
        """Read the positions of all records; their content is read later.

        Raises:
            DatasetError: a file or folder is missing, truncated or damaged, or folders have different numbers of records.
        """
        prepare_tensorflow()
        self.spec, self.name, self.first_row, self.labelled = spec, split, 0, True
        columns = batch_columns(spec, split)
        label = columns["label"]
        self._records = {name: _Records(column, _measure_of(label) if name == "label" else None) for name, column in columns.items()}
        labels = self._records["label"]
        stated, found = num_batches(spec, split), len(labels)
        if stated is not None and stated > found:
            raise DatasetError(f"{label.folder.parent}: {found} batches, its length.json says {stated}; a file is truncated or missing")
        batches = stated or found
        for records in self._records.values():
            if len(records) < batches:
                folder, other = records.column.folder, label.folder
                raise DatasetError(f"{folder}: ends after {len(records)} batches, {other} has more; a file is truncated or missing")
        self.batch_sizes, self.num_unread = labels.rows[:batches], max(map(len, self._records.values())) - batches
        self._first = np.concatenate([[0], self.batch_sizes.cumsum()])
        self.num_samples = int(self._first[-1])
        self._names = {spec.label: "label"} | dict.fromkeys(spec.numerical, "numerical")
        self._names |= {feature.name: ids_folder(i) for i, feature in enumerate(spec.categorical)}

    def notes(self, batch_size: int | None = None) -> list[str]:
        """Return lines about records that are not read and, for batches of another size than the records', about records that are decoded again."""
        lines, sizes = [], sorted({int(size) for size in self.batch_sizes[:-1]} or {int(self.batch_sizes[0])})
        folder = self.spec.base_directory / self.name
        if self.num_unread:
            stated = f"{folder / 'length.json'} says {len(self.batch_sizes)}"
            lines.append(f"{folder}: {self.num_unread} further records are not read: {stated}, and NVIDIA's writer repeats rows in further ones")
        if batch_size is not None and sizes != [batch_size]:
            found = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
            lines.append(f"{folder}: records have {found} rows, and batches {batch_size:,}; batches of the records' size are read faster")
        return lines

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature (by its index in the model's order), rows start to stop.

        Returns:
            `[n]` in the type of the specification, or the type of the records if an id is out of range; for lists `[n, h]`, padded with -1, or
            with weights `[n, 2h]` (`id_weights`).
        """
        form, key = self.spec.categorical[feature], ids_folder(feature)

        def converted(parts: list[np.ndarray], rows: int, place: str, first_row: int) -> np.ndarray:
            if self._records[key].column.lists:
                return _lists(*parts, form, place, first_row, str(self.spec.path))
            ids = _samples(parts[0], rows, 1, place)[:, 0]
            return ids if outside_range(ids, form.cardinality) is not None else ids.astype(form.dtype)

        ids = self._read(key, start, stop, converted)
        return joined(ids, self._id_weights(feature, ids, start, stop)) if form.weights else ids

    def _id_weights(self, feature: int, ids: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return the weights of a feature's `ids` `[n, h]`, rows start to stop: `[n, h]` float32, 0 where there is no id."""
        form, key = self.spec.categorical[feature], weights_folder(feature)

        def converted(parts: list[np.ndarray], rows: int, place: str, first_row: int) -> np.ndarray:
            values, splits = parts
            lengths = _lengths(values, splits, form, place, first_row, str(self.spec.path), "weights")
            weights = np.zeros((len(lengths), form.hotness), np.float32)
            weights[np.arange(form.hotness) < lengths[:, np.newaxis]] = values
            return np.concatenate([weights, lengths[:, np.newaxis].astype(np.int32).view(np.float32)], axis=1)

        found = self._read(key, start, stop, converted)
        numbers, lengths = (ids != NO_ID).sum(axis=1), np.ascontiguousarray(found[:, -1]).view(np.int32)
        if (differ := numbers != lengths).any():
            row = int(np.argmax(differ))
            place = self._records[key].place(self._record_of(start + row))
            raise DatasetError(f"{place}: feature {form.name}, row {start + row}: {lengths[row]} weights of {numbers[row]} ids; expected as many")
        return found[:, :-1]

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features of rows start to stop: `[n, M]`, float16 or float32."""
        width = len(self.spec.numerical)
        if not width:
            return np.empty((stop - start, 0), self.spec.numerical_dtype)
        return self._read("numerical", start, stop, lambda parts, rows, place, first_row: _samples(parts[0], rows, width, place))

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return labels of rows start to stop: `[n]` uint8, 0 or 1."""

        def converted(parts: list[np.ndarray], rows: int, place: str, first_row: int) -> np.ndarray:
            labels = _samples(parts[0], rows, 1, place)[:, 0]
            if (bad := (labels != 0) & (labels != 1)).any():
                first = int(np.argmax(bad))
                raise DatasetError(f"{place}: feature {self.spec.label}, row {first_row + first}: label {labels[first]} is not 0 or 1")
            return labels.astype(np.uint8)

        return self._read("label", start, stop, converted)

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Raise DatasetError: these records have no groups (a specification with one is refused)."""
        raise DatasetError(f"{self.spec.path}: {TFRECORDS} cannot hold groups")

    def read_weights(self, start: int, stop: int) -> np.ndarray:
        """Raise DatasetError: these records have no weights (a specification with them is refused)."""
        raise DatasetError(f"{self.spec.path}: {TFRECORDS} cannot hold weights")

    def file(self, feature: str, row: int = 0) -> str:
        """Return the file and the record that a row is read from."""
        return self._records[self._names[feature]].place(self._record_of(min(row, self.num_samples - 1)))

    def fingerprint(self) -> str:
        """Return a hash of the features, the file sizes and a sample of the files' bytes."""
        return digest(self.spec, (self.name, self.num_samples), [file for records in self._records.values() for file in records.column.files])

    def close(self) -> None:
        """Close every file."""
        for records in self._records.values():
            with records.lock:
                records.close()

    def _record_of(self, row: int) -> int:
        return int(np.searchsorted(self._first, row, "right")) - 1

    def _read(self, key: str, start: int, stop: int, convert: Callable[[list[np.ndarray], int, str, int], np.ndarray]) -> np.ndarray:
        """Return rows start to stop of a column; `convert` gets the tensors of a record, its number of rows, its place and its first row."""
        records, parts = self._records[key], []
        first_row = min(start, self.num_samples - 1)  # an empty range may begin behind the last row
        with records.lock:
            for record in range(self._record_of(first_row), self._record_of(max(stop - 1, first_row)) + 1):
                if records.kept[0] != record:
                    rows, place = int(self.batch_sizes[record]), records.place(record)
                    column = convert(records.read(record), rows, place, int(self._first[record]))
                    if len(column) != rows:
                        raise DatasetError(f"{place}: {len(column)} samples, {self._records['label'].place(record)} has {rows}; expected the same")
                    records.kept = record, column
                first = int(self._first[record])
                parts.append(records.kept[1][max(start - first, 0) : stop - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _measure_of(label: Column) -> Callable[[Read, int, str], int]:
    """Return a function that returns the rows of a record of labels, from the shape of its tensor."""

    def measure(read: Read, size: int, place: str) -> int:
        try:
            rows = first_dimension(read, size, label.key)
        except ValueError as error:
            raise DatasetError(f"{place}: not a tensor: {error}; the record is damaged or has another format") from None
        if rows < 1:
            raise DatasetError(f"{place}: holds no samples; {_EMPTY}")
        return rows

    return measure


def _samples(tensor: np.ndarray, rows: int, width: int, place: str) -> np.ndarray:
    """Return a tensor as `[n, width]`; any shape with `rows` times `width` values is accepted, as NVIDIA's reader does."""
    if tensor.size == rows * width:
        return tensor.reshape(rows, width)
    if tensor.shape[1:] == (width,) or (width == 1 and tensor.ndim == 1):
        return tensor.reshape(-1, width)
    raise DatasetError(f"{place}: shape {list(tensor.shape)}, expected [{rows}, {width}]")


def _lists(values: np.ndarray, splits: np.ndarray, feature: Categorical, place: str, first_row: int, spec: str) -> np.ndarray:
    """Return the ids of a record of lists: `[n, hotness]`, padded with -1; `[n]` for a feature without lists."""
    lengths = _lengths(values, splits, feature, place, first_row, spec)
    if (values < 0).any():  # -1 would be taken for padding
        first = int(np.argmax(values < 0))
        row = first_row + int(np.searchsorted(splits, first, "right")) - 1
        raise DatasetError(f"{place}: feature {feature.name}, row {row}: id {values[first]} is not in [0, {feature.cardinality})")
    ids = np.full((len(lengths), feature.hotness), NO_ID, values.dtype if values.dtype.itemsize > 4 else np.int32)
    ids[np.arange(feature.hotness) < lengths[:, np.newaxis]] = values
    return ids if feature.is_list else ids[:, 0]


def _lengths(values: np.ndarray, splits: np.ndarray, feature: Categorical, place: str, first_row: int, spec: str, what: str = "ids") -> np.ndarray:
    """Return the lengths of the lists of a record, `[n]`. Raises DatasetError where they are none that the feature can have."""
    sound = values.ndim == splits.ndim == 1 and splits.dtype.kind == "i" and len(splits) and splits[0] == 0 and splits[-1] == len(values)
    if not sound or (np.diff(splits) < 0).any():
        raise DatasetError(f"{place}: feature {feature.name}: row splits {list(splits.shape)} do not divide values {list(values.shape)}")
    lengths = np.diff(splits)
    bad = lengths > feature.hotness if feature.is_list else lengths != 1
    if bad.any():
        first, most = int(np.argmax(bad)), "at most" if feature.is_list else "exactly"
        found = f"{lengths[first]} {what}, expected {most} {feature.hotness}"
        raise DatasetError(f"{place}: feature {feature.name}, row {first_row + first}: {found}, its hotness in {spec}")
    return lengths
