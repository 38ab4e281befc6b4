"""The layout of NVIDIA's pre-batched TFRecords (`split_tfrecords`): a folder for each feature, a record for each batch.

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.contract import TFRECORDS
from dataloading.feature_spec import SPLITS, FeatureSpec
from dataloading.features import Categorical, Chunk, DatasetError

_FILE = re.compile(r"data_(\d+)\.tfrecords")
_ID_DTYPES = ("int8", "int16", "int32", "int64")
_EXPECTED = "expected NVIDIA's pre-batched TFRecords (split_tfrecords)"


@dataclass(frozen=True)
class Column:
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


def batch_spec(spec: FeatureSpec) -> FeatureSpec:
    """Return the specification with the folders of the records as its sources: those that it names itself are of the dataset it was made from.

    Raises:
        DatasetError: there is no folder of a split.
    """
    folder, splits = spec.base_directory, [split for split in SPLITS if (spec.base_directory / split).is_dir()]
    if not splits:
        raise DatasetError(f"{folder}: no folder train or test; {_EXPECTED}")
    names = (*spec.numerical, spec.label, *(feature.name for feature in spec.categorical))
    folders = {split: tuple(str(path.relative_to(folder)) for path in tfrecord_folders(spec, split)) for split in splits}
    return replace(spec, sources={split: (Chunk(TFRECORDS, names, found),) for split, found in folders.items()})


def batch_columns(spec: FeatureSpec, split: str) -> list[Column]:
    """Return the columns of a split, in the order of `tfrecord_folders`, with formats and files checked. Raises DatasetError."""
    for name, channel in spec.beside().items():
        raise DatasetError(f"{spec.path}: has the {channel} {name}, which {TFRECORDS} cannot hold; remove it from channel_spec and feature_spec")
    *shared, label = tfrecord_folders(spec, split)[: -len(spec.categorical)]
    # Other types of numericals are refused, so that values are not rounded.
    columns = [_column(folder, (spec.numerical_dtype,), len(spec.numerical)) for folder in shared]
    columns.append(_column(label, ("int8",), 1))
    for folder, feature in zip(tfrecord_folders(spec, split)[-len(spec.categorical) :], spec.categorical, strict=True):
        columns.append(_column(folder, _ID_DTYPES, 1, feature))
    return columns


def _column(folder: Path, dtypes: Sequence[str], width: int, feature: Categorical | None = None) -> Column:
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
    return Column(folder, _files(folder), content["dtype"], content["feature_name"], feature, lists)


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


def num_batches(spec: FeatureSpec, split: str) -> int | None:
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


def tensors(content: bytes, column: Column, place: str) -> list[np.ndarray]:
    """Return the tensor of a record, or the values and the row splits of its lists. Raises DatasetError."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    def tensor(serialized: bytes) -> np.ndarray:
        return tf.make_ndarray(TensorProto.FromString(serialized))

    try:
        parts = [tensor(part) for part in tf.train.Example.FromString(content).features.feature[column.key].bytes_list.value]
        if column.lists:
            parts = [tensor(content) for part in parts for content in np.ravel(part)]
    except (DecodeError, ValueError, TypeError) as error:
        raise DatasetError(f"{place}: not a tensor: {' '.join(str(error).split())[:80]}; {_EXPECTED}") from None
    if len(parts) != 1 + column.lists:
        raise DatasetError(f"{place}: {len(parts)} tensors named {column.key!r}, expected {1 + column.lists}; {_EXPECTED}")
    if parts[0].dtype != column.dtype:
        raise DatasetError(f"{place}: holds {parts[0].dtype}, format.json says {column.dtype}")
    return parts
