"""Writing of NVIDIA's pre-batched TFRecords with a folder for each feature (`split_tfrecords`; see `batch_folders.py`).

Rows keep their order. Every record has the same number of rows, because NVIDIA's reader takes full records only. Each folder has one file, because
NVIDIA's reader takes several in the order of the file system, which may differ between the folders.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.contract import TFRECORDS
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import NUMERICAL_DTYPE, WEIGHT_DTYPE, DatasetError
from dataloading.id_weights import ids_and_weights
from dataloading.tf_raw import move_in_place, refuse_replacing
from dataloading.tfrecord.batch_folders import FORMAT, WEIGHTED_FORMAT, ids_folder, weights_folder
from dataloading.tfrecord.hidden_folder import InHiddenFolder
from utils.naming import naming
from utils.runtime import prepare_tensorflow
from utils.scratch import Scratch, exclusively
from utils.signals import uninterrupted

KEY = "data"  # the name of the tensor in a record
_FILE = "data_0.tfrecords"


class BatchRecordWriter(InHiddenFolder):
    """A writer that publishes complete records, or none: the counterpart of `tf_raw.TfRawWriter` for records of one batch each.

    Raises:
        DatasetError: records cannot hold the features or the rows, or the destination holds a dataset already and `overwrite` is not set.
    """

    def __init__(
        self,
        destination: str | Path,
        spec: FeatureSpec,
        rows: Mapping[str, int | None],
        batch_size: int,
        drop_remainder: bool = False,
        spec_name: str = DEFAULT_FILE_NAME,
        overwrite: bool = False,
    ):
        """Check the specification and create the hidden folder.

        Args:
            destination: folder of the records.
            spec: the features.
            rows: number of rows of each split; None where it is not known in advance.
            batch_size: rows of a record.
            drop_remainder: whether rows that do not fill a record are left out; otherwise they are an error.
            spec_name: file name of the specification that is written beside the records.
            overwrite: whether an existing dataset is replaced.
        """
        self._destination, self._spec_name, self._overwrite = Path(destination), spec_name, overwrite
        self._batch_size, self._drop = batch_size, drop_remainder
        self.spec = _described(spec, rows)
        self.dropped: dict[str, int] = {}  # rows of each split that did not fill a record, known once they have been appended
        for split, count in rows.items():
            if count is not None:
                self._check_rows(split, count)
        refuse_replacing(self._destination, spec_name, rows, overwrite)
        prepare_tensorflow()
        self._scratch = Scratch(self._destination, "writing")
        try:
            self._splits = {split: _SplitWriter(self.folder / split, self.spec, batch_size) for split in rows}
        except BaseException:
            self._scratch.remove()
            raise

    def append(
        self,
        split: str,
        numerical: np.ndarray,
        ids: Sequence[np.ndarray],
        labels: np.ndarray | None,
        groups: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        """Append rows; see `tf_raw.TfRawWriter.append`. Raises DatasetError for a value that float16 does not hold."""
        self._splits[split].append(numerical, ids, labels)

    def publish(self, metadata: Mapping[str, Any]) -> FeatureSpec:
        """Make the records visible, and return their specification.

        Raises:
            DatasetError: rows do not fill a record, a split is empty, or another run has written a dataset here meanwhile.
        """
        for split, writer in self._splits.items():
            self._check_rows(split, writer.rows)
            self.dropped[split] = writer.rows % self._batch_size
            writer.close()
        final = replace(self.spec, metadata=dict(metadata), path=self._destination / self._spec_name)
        partial = self.folder / self._spec_name
        with naming(partial):
            partial.write_text(final.to_yaml(), encoding="utf-8")
        with uninterrupted(), exclusively(self._destination):
            refuse_replacing(self._destination, self._spec_name, self._splits, self._overwrite)
            move_in_place(self._scratch.entries(), partial, self._destination / self._spec_name)
        return final

    def _check_rows(self, split: str, count: int) -> None:
        rest = count % self._batch_size
        if count < self._batch_size:
            raise DatasetError(f"split {split} has {count:,} rows, fewer than a record of {self._batch_size:,}; lower --dst_prebatch_size")
        if rest and not self._drop:
            raise DatasetError(
                f"split {split} has {count:,} rows: the last {rest:,} do not fill a record of {self._batch_size:,}, and NVIDIA's reader takes full "
                "records only; choose a --dst_prebatch_size that divides the rows, or leave them out with --drop_remainder"
            )


def _described(spec: FeatureSpec, splits: Collection[str]) -> FeatureSpec:
    """Return the specification of the records, which names no files. Raises DatasetError if records cannot hold the features."""
    for name, channel in spec.beside().items():
        raise DatasetError(f"{spec.path}: has the {channel} {name}, which {TFRECORDS} cannot hold; write tf_raw or tfrecord")
    raw = spec.as_tf_raw(splits, {})
    categorical = tuple(replace(feature, dtype="int32") for feature in raw.categorical)
    dtypes = {feature.name: feature.dtype for feature in categorical} | dict.fromkeys(raw.numerical, NUMERICAL_DTYPE) | {raw.label: "int8"}
    return replace(raw, categorical=categorical, dtypes=dtypes, sources=None)


class _SplitWriter:
    """A writer of one split, which cuts columns into records, a file for each feature."""

    def __init__(self, folder: Path, spec: FeatureSpec, batch_size: int):
        import tensorflow as tf

        self._folder, self._spec, self._batch_size, self.rows, self._batches = folder, spec, batch_size, 0, 0
        self._pending: list[np.ndarray] = []
        self._forms: dict[str, dict[str, Any]] = {"numerical": _form("float16", len(spec.numerical))} if spec.numerical else {}
        self._forms["label"] = _form("int8", 1)
        for i, feature in enumerate(spec.categorical):
            self._forms[ids_folder(i)] = _form("int32", 1, feature.is_list) | ({"format": WEIGHTED_FORMAT} if feature.weights else {})
        self._columns = tuple(self._forms)
        self._weights = {ids_folder(i): weights_folder(i) for i, feature in enumerate(spec.categorical) if feature.weights}
        self._forms |= dict.fromkeys(self._weights.values(), _form(WEIGHT_DTYPE, 1, True))
        for name in self._forms:
            (folder / name).mkdir(parents=True)
        self._files = {name: tf.io.TFRecordWriter(str(folder / name / _FILE)) for name in self._forms}

    def append(self, numerical: np.ndarray, ids: Sequence[np.ndarray], labels: np.ndarray) -> None:
        columns = [self._halves(numerical)] if self._spec.numerical else []
        columns += [np.asarray(labels).astype(np.int8), *(np.asarray(column, np.int32) for column in ids)]
        self.rows += len(columns[0])
        if self._pending:
            columns = [np.concatenate(pair) for pair in zip(self._pending, columns, strict=True)]
        start = 0
        while start + self._batch_size <= len(columns[0]):
            for name, column in zip(self._columns, columns, strict=True):
                self._write_column(name, column[start : start + self._batch_size])
            start, self._batches = start + self._batch_size, self._batches + 1
        self._pending = [column[start:].copy() for column in columns]

    def close(self) -> None:
        """Close all files, flushed to disk, and write the format of each feature and the number of batches."""
        import tensorflow as tf

        for name, writer in self._files.items():
            path = self._folder / name / _FILE
            try:
                writer.close()
            except tf.errors.OpError as error:
                raise _unwritten(path, error) from None
            with path.open("rb") as file, naming(path):
                os.fsync(file.fileno())
            self._json(self._folder / name / "format.json", self._forms[name] | {"batches_per_file": self._batches})
        self._json(self._folder / "length.json", self._batches)

    @staticmethod
    def _json(path: Path, content: Any) -> None:
        with naming(path):
            path.write_text(json.dumps(content))

    def _halves(self, numerical: np.ndarray) -> np.ndarray:
        """Return the numericals in float16. Raises DatasetError for a value that float16 does not hold exactly."""
        with np.errstate(over="ignore"):
            halves = np.asarray(numerical, np.float16)
        if halves.dtype != numerical.dtype and (differs := halves.astype(numerical.dtype) != numerical).any():
            row, column = divmod(int(np.argmax(differs)), numerical.shape[1])
            raise DatasetError(
                f"feature {self._spec.numerical[column]}, row {self.rows + row}: float16 does not hold {numerical[row, column]}, and {TFRECORDS} has "
                "float16 values only; write the dataset with float16 values first (--numerical_dtype float16 of preproc.table)"
            )
        return halves

    def _write_column(self, name: str, values: np.ndarray) -> None:
        """Write the record of a batch: values `[B]` or `[B, M]`, or lists of ids `[B, h]`, or `[B, 2h]` with weights."""
        if not self._forms[name]["multihot"]:
            self._write(name, values.reshape(len(values), -1))
            return
        ids, weights = ids_and_weights(values) if name in self._weights else (values, None)
        self._write(name, _lists(ids, ids >= 0))
        if weights is not None:
            self._write(self._weights[name], _lists(weights, ids >= 0))

    def _write(self, name: str, values: np.ndarray) -> None:
        """Write a record with one tensor."""
        import tensorflow as tf

        feature = {KEY: tf.train.Feature(bytes_list=tf.train.BytesList(value=[_serialized(values)]))}
        try:
            self._files[name].write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
        except tf.errors.OpError as error:
            raise _unwritten(self._folder / name / _FILE, error) from None


def _lists(values: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return lists `[B, h]`, of which some values are kept, as a tensor of two serialized tensors: the values and the row splits."""
    splits = np.concatenate([[0], kept.sum(axis=1).cumsum()]).astype(np.int32)
    return np.array([_serialized(part) for part in (values[kept], splits)], object)


def _form(dtype: str, num_features: int, multihot: bool = False) -> dict[str, Any]:
    return {"format": FORMAT, "dtype": dtype, "multihot": multihot, "feature_name": KEY, "num_features": num_features}


def _serialized(values: np.ndarray) -> bytes:
    """Return the bytes that `tf.io.serialize_tensor` makes, without its operation, which logs an error for float16 on some processors."""
    import tensorflow as tf

    return tf.make_tensor_proto(values).SerializeToString()


def _unwritten(path: Path, error: Exception) -> DatasetError:
    return DatasetError(f"{path}: cannot be written: {' '.join(str(error).split()).rsplit('; ', 1)[-1][:100]}")
