"""Rows from NVIDIA's pre-batched TFRecords (`split_tfrecords`): a folder for each feature, a record for each batch.

    feature_spec.yaml                                     names, cardinalities and hotness; its source_spec names none of these files
    train/length.json                                     number of batches, -1 if unknown to its writer
    train/numerical/format.json, data_0.tfrecords, …      float16 [B, M]
    train/label/…                                         int8 [B, 1]
    train/categorical_0/…                                 int32 [B, 1]; for hotness > 1 lists, as values and row splits

A record is a `tf.train.Example` with one byte string, a serialized tensor. Lists are a tensor of two strings, which are serialized tensors
themselves: the values `[K]` and the row splits `[B + 1]`. Files are not compressed.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.contract import TFRECORDS
from dataloading.feature_spec import FeatureSpec
from dataloading.features import Categorical, DatasetError
from dataloading.ranges import check_ids, check_numerical
from utils.runtime import prepare_tensorflow

_FILE = re.compile(r"data_(\d+)\.tfrecords")
_ID_DTYPES = ("int8", "int16", "int32", "int64")
_EXPECTED = "expected NVIDIA's pre-batched TFRecords (split_tfrecords)"


@dataclass(frozen=True)
class _Column:
    """The folder of a feature, or of all numerical features together.

    `key` names the byte string in an Example. `feature` is set for categorical features, and `lists` if their records hold lists of ids.
    """

    folder: Path
    files: tuple[Path, ...]
    dtype: str
    key: str
    feature: Categorical | None
    lists: bool


def tfrecord_folders(spec: FeatureSpec, split: str) -> list[Path]:
    """Return the folders of a split: of the numerical features, if there are any, of the label, and of each categorical feature."""
    names = ["numerical"] * bool(spec.numerical) + ["label"] + [f"categorical_{i}" for i in range(len(spec.categorical))]
    return [spec.base_directory / split / name for name in names]


def check_tfrecords(spec: FeatureSpec, splits: Sequence[str]) -> None:
    """Check folders, files and formats before anything is written. Raises DatasetError."""
    for split in splits:
        _columns(spec, split)
        _length(spec, split)


def read_tfrecords(spec: FeatureSpec, split: str, rows: int | None = None) -> Iterator[tuple[np.ndarray, list[np.ndarray], np.ndarray]]:
    """Yield all rows of a split in the order written, one batch of the source at a time.

    Args:
        spec: the specification; the folders are beside its file.
        split: train or test.
        rows: maximum number of rows; None for all.

    Yields:
        numericals `[n, M]` in the specification's dtype, F arrays of int32 ids, `[n]` for a hotness of 1, otherwise `[n, hotness]` padded with -1,
        and labels `[n]` uint8.

    Raises:
        DatasetError: a file is missing, truncated or damaged, features have different numbers of samples, a sample has more ids than the hotness, or
            a value is out of range (the message names file, record, feature, row and value).
    """
    prepare_tensorflow()
    columns = _columns(spec, split)
    label = len(columns) - len(spec.categorical) - 1  # the index of the label in `columns`
    row = batches = 0
    for records in itertools.zip_longest(*map(_records, columns)):
        if lost := [column for column, record in zip(columns, records, strict=True) if record is None]:
            other = next(column for column, record in zip(columns, records, strict=True) if record)
            raise DatasetError(f"{lost[0].folder}: ends after {batches} batches, {other.folder} has more; a file is truncated or missing")
        blocks = []
        for i, (column, (place, arrays)) in enumerate(zip(columns, records, strict=True)):
            if column.lists:
                blocks.append(_lists(*arrays, column.feature, place, row, f"{spec.path}"))
            elif column.feature:
                blocks.append(_single_ids(arrays[0], column.feature, place, row))
            else:
                blocks.append(_labels(arrays[0], spec.label, place, row) if i == label else _numerical(arrays[0], spec.numerical, place, row))
        count = len(blocks[label])
        for block, (place, _) in zip(blocks, records, strict=True):
            if len(block) != count:
                raise DatasetError(f"{place}: {len(block)} samples, {records[label][0]} has {count}; expected the same")
        kept = count if rows is None else min(count, rows - row)
        numerical = blocks[0] if label else np.empty((count, 0), np.float16)
        yield numerical[:kept], [block[:kept] for block in blocks[label + 1 :]], blocks[label][:kept]
        row, batches = row + kept, batches + 1
        if row == rows:
            return
    if (length := _length(spec, split)) not in (None, batches):
        raise DatasetError(f"{spec.base_directory / split}: {batches} batches, its length.json says {length}; a file is truncated or missing")


def _columns(spec: FeatureSpec, split: str) -> list[_Column]:
    """Return the columns of a split, in the order of `tfrecord_folders`, with formats and files checked. Raises DatasetError."""
    if spec.group is not None:
        raise DatasetError(f"{spec.path}: has the group {spec.group}, which {TFRECORDS} cannot hold; remove it from channel_spec and feature_spec")
    *shared, label = tfrecord_folders(spec, split)[: -len(spec.categorical)]
    # Other types of numericals are refused, so that values are not rounded.
    columns = [_column(folder, (spec.numerical_dtype,), len(spec.numerical)) for folder in shared]
    columns.append(_column(label, ("int8",), 1))
    for folder, feature in zip(tfrecord_folders(spec, split)[-len(spec.categorical) :], spec.categorical, strict=True):
        columns.append(_column(folder, _ID_DTYPES, 1, feature))
    return columns


def _column(folder: Path, dtypes: Sequence[str], width: int, feature: Categorical | None = None) -> _Column:
    path = folder / "format.json"
    content = _json(path)
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: found {str(content)[:60]}; {_EXPECTED}")
    lists = content.get("multihot")
    accepted = {"format": ("tfrecords",), "dtype": dtypes, "num_features": (width,), "multihot": (False, True) if feature else (False,)}
    for key, values in accepted.items():
        if key not in content or content[key] not in values or type(content[key]) is not type(values[0]):
            expected = " or ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
            found = json.dumps(content[key])[:60] if key in content else "missing"
            raise DatasetError(f"{path}: {key} is {found}, expected {expected}")
    if not isinstance(content.get("feature_name"), str):
        raise DatasetError(f"{path}: feature_name is not a name; {_EXPECTED}")
    if feature and feature.hotness > 1 and not lists:
        raise DatasetError(f"{path}: multihot is false: one id per sample, but feature {feature.name} has hotness {feature.hotness}; set it to 1")
    return _Column(folder, _files(folder), content["dtype"], content["feature_name"], feature, lists)


def _files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder in the order of their numbers, which NVIDIA counts from 0."""
    found: dict[int, Path] = {}
    for path in folder.glob("data_*.tfrecords"):
        if not (match := _FILE.fullmatch(path.name)) or not path.is_file():
            raise DatasetError(f"{path}: expected files named data_0.tfrecords, data_1.tfrecords, …")
        found[int(match[1])] = path
    lost = next(number for number in itertools.count() if number not in found)
    if lost < max(len(found), 1):
        raise DatasetError(f"{folder / f'data_{lost}.tfrecords'}: no such file; {_EXPECTED}")
    for path in found.values():
        with path.open("rb"):  # a file that cannot be read is an error before anything is written
            pass
    return tuple(found[number] for number in range(len(found)))


def _length(spec: FeatureSpec, split: str) -> int | None:
    """Return the number of batches of a split, or None if its writer did not know it."""
    path = spec.base_directory / split / "length.json"
    length = _json(path)
    if type(length) is not int or length < -1:
        raise DatasetError(f"{path}: {str(length)[:60]}, expected the number of batches")
    return None if length == -1 else length


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}; {_EXPECTED}") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: {' '.join(str(error).split())[:80]}; expected JSON") from None


def _records(column: _Column) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yield the place of each record, for messages, with its tensor, or with the values and row splits of its lists."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    def tensor(content: bytes) -> np.ndarray:
        return tf.make_ndarray(TensorProto.FromString(content))

    for path in column.files:
        records = _file_records(str(path))
        for number in itertools.count():
            place = f"{path}, record {number}"
            try:
                if (record := next(records, None)) is None:
                    break
                parts = [tensor(part) for part in tf.train.Example.FromString(record).features.feature[column.key].bytes_list.value]
                if column.lists:
                    parts = [tensor(content) for part in parts for content in np.ravel(part)]
            except tf.errors.OpError as error:
                raise DatasetError(f"{place}: {_reason(error)}; the file is truncated, damaged, compressed or not a TFRecord file") from None
            except (DecodeError, ValueError, TypeError) as error:
                raise DatasetError(f"{place}: not a tensor: {' '.join(str(error).split())[:80]}; {_EXPECTED}") from None
            if len(parts) != 1 + column.lists:
                raise DatasetError(f"{place}: {len(parts)} tensors named {column.key!r}, expected {1 + column.lists}; {_EXPECTED}")
            if parts[0].dtype != column.dtype:
                raise DatasetError(f"{place}: holds {parts[0].dtype}, format.json says {column.dtype}")
            yield place, parts


def _file_records(path: str) -> Iterator[bytes]:
    """Iterate over the records of a file, with checksums compared.

    TensorFlow advises `tf.data.TFRecordDataset` instead, but that takes 25 to 170 ms to open a file, and all memory of a GPU if there is one.
    """
    import tensorflow as tf

    log = tf.get_logger()
    level = log.level
    log.setLevel("ERROR")  # silences the deprecation warning of five lines
    try:
        return tf.compat.v1.io.tf_record_iterator(path)
    finally:
        log.setLevel(level)


def _reason(error: Exception) -> str:
    """Return TensorFlow's message without the names of its operations: `truncated record at 116`."""
    return re.sub(r"\{\{.*?\}\} |' failed with.*| \[Op:.*", "", " ".join(str(error).split()))[:80]


def _samples(tensor: np.ndarray, width: int, place: str) -> np.ndarray:
    """Return a tensor as `[n, width]`; for a width of 1, `[n]` is accepted, too."""
    if tensor.shape[1:] == (width,) or (width == 1 and tensor.ndim == 1):
        return tensor.reshape(-1, width)
    raise DatasetError(f"{place}: shape {list(tensor.shape)}, expected [samples, {width}]")


def _numerical(tensor: np.ndarray, features: Sequence[str], place: str, first_row: int) -> np.ndarray:
    numerical = _samples(tensor, len(features), place)
    check_numerical(numerical, features, first_row, place)
    return numerical


def _labels(tensor: np.ndarray, label: str, place: str, first_row: int) -> np.ndarray:
    labels = _samples(tensor, 1, place)[:, 0]
    bad = (labels != 0) & (labels != 1)
    if bad.any():
        first = int(np.argmax(bad))
        raise DatasetError(f"{place}: feature {label}, row {first_row + first}: label {labels[first]} is not 0 or 1")
    return labels.astype(np.uint8)


def _single_ids(tensor: np.ndarray, feature: Categorical, place: str, first_row: int) -> np.ndarray:
    """Return the ids of a record without lists, `[n]`."""
    ids = _samples(tensor, 1, place)[:, 0]
    check_ids(ids, feature.cardinality, feature.name, first_row, place)
    return ids.astype(np.int32)


def _lists(values: np.ndarray, splits: np.ndarray, feature: Categorical, place: str, first_row: int, spec: str) -> np.ndarray:
    """Return the ids of a record of lists: `[n, hotness]`, padded with -1; `[n]` for a hotness of 1."""
    sound = values.ndim == splits.ndim == 1 and splits.dtype.kind == "i" and len(splits) and splits[0] == 0 and splits[-1] == len(values)
    if not sound or (np.diff(splits) < 0).any():
        raise DatasetError(f"{place}: feature {feature.name}: row splits {list(splits.shape)} do not divide values {list(values.shape)}")
    lengths = np.diff(splits)
    bad = lengths != 1 if feature.hotness == 1 else lengths > feature.hotness
    if bad.any():
        first, most = int(np.argmax(bad)), "exactly" if feature.hotness == 1 else "at most"
        found = f"{lengths[first]} ids, expected {most} {feature.hotness}"
        raise DatasetError(f"{place}: feature {feature.name}, row {first_row + first}: {found}, its hotness in {spec}")
    bad = (values < 0) | (values >= feature.cardinality)
    if bad.any():
        first = int(np.argmax(bad))
        row = first_row + int(np.searchsorted(splits, first, "right")) - 1
        raise DatasetError(f"{place}: feature {feature.name}, row {row}: id {values[first]} is not in [0, {feature.cardinality})")
    ids = np.full((len(lengths), feature.hotness), -1, np.int32)
    ids[np.arange(feature.hotness) < lengths[:, None]] = values
    return ids[:, 0] if feature.hotness == 1 else ids
