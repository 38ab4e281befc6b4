"""The layout of NVIDIA's pre-batched TFRecords (`split_tfrecords`): a folder for each feature, a record for each batch.

    feature_spec.yaml                                     names, cardinalities and hotness; its source_spec names none of these files
    train/length.json                                     number of batches, -1 if unknown to its writer
    train/numerical/format.json, data_0.tfrecords, …      float16 [B, M]
    train/label/…                                         int8 [B, 1]
    train/categorical_0/…                                 int32 [B, 1]; for hotness > 1 lists, as values and row splits
    train/categorical_weights_0/…                         not in NVIDIA's layout: float32 lists, the weights of the ids, if they have any

A record is a `tf.train.Example` with one byte string, a serialized tensor. Lists are a tensor of two strings, which are serialized tensors
themselves: the values `[K]` and the row splits `[B + 1]`. Files are not compressed.

Where ids have weights, the `format` in their format.json is `weighted_tfrecords`: NVIDIA's reader would train without the weights, but refuses a
format that it does not know.
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
from dataloading.features import WEIGHT_DTYPE, Categorical, Chunk, DatasetError

_FILE = re.compile(r"data_(\d+)\.tfrecords")
_ID_DTYPES = ("int8", "int16", "int32", "int64")
FORMAT, WEIGHTED_FORMAT = "tfrecords", "weighted_tfrecords"
_EXPECTED = "expected NVIDIA's pre-batched TFRecords (split_tfrecords)"


@dataclass(frozen=True)
class Column:
    """The folder of a feature, of the weights of its ids, or of all numerical features together.

    `key` names the byte string in an Example. `feature` is set for categorical features, and `lists` if their records hold lists.
    """

    folder: Path
    files: tuple[Path, ...]
    dtype: str
    key: str
    feature: Categorical | None
    lists: bool


def ids_folder(feature: int) -> str:
    """Return the name of the folder of a categorical feature, by its index in the model's order."""
    return f"categorical_{feature}"


def weights_folder(feature: int) -> str:
    """Return the name of the folder of the weights of a feature's ids."""
    return f"categorical_weights_{feature}"


def folder_names(spec: FeatureSpec) -> list[str]:
    """Return the names of a split's folders: of numericals, if there are any, the label, each categorical feature, and weights of ids."""
    weights = [weights_folder(i) for i, feature in enumerate(spec.categorical) if feature.weights]
    return ["numerical"] * bool(spec.numerical) + ["label", *map(ids_folder, range(len(spec.categorical))), *weights]


def batch_spec(spec: FeatureSpec) -> FeatureSpec:
    """Return the specification with the folders of the records as its sources: those that it names itself are of the dataset it was made from.

    Raises:
        DatasetError: there is no folder of a split.
    """
    folder, splits = spec.base_directory, [split for split in SPLITS if (spec.base_directory / split).is_dir()]
    if not splits:
        raise DatasetError(f"{folder}: no folder train or test; {_EXPECTED}")
    names = (*spec.numerical, spec.label, *(feature.name for feature in spec.categorical))
    folders = {split: tuple(f"{split}/{name}" for name in folder_names(spec)) for split in splits}
    return replace(spec, sources={split: (Chunk(TFRECORDS, names, found),) for split, found in folders.items()})


def batch_columns(spec: FeatureSpec, split: str) -> dict[str, Column]:
    """Return the columns of a split by the name of their folder (`folder_names`), with formats and files checked. Raises DatasetError."""
    for name, channel in spec.beside().items():
        raise DatasetError(f"{spec.path}: has the {channel} {name}, which {TFRECORDS} cannot hold; remove it from channel_spec and feature_spec")
    folder = spec.base_directory / split
    # Other types of numericals are refused, so that values are not rounded.
    columns = {"numerical": _column(folder / "numerical", (spec.numerical_dtype,), len(spec.numerical))} if spec.numerical else {}
    columns["label"] = _column(folder / "label", ("int8",), 1)
    for i, feature in enumerate(spec.categorical):
        columns[ids_folder(i)] = _column(folder / ids_folder(i), _ID_DTYPES, 1, feature)
    for i, feature in enumerate(spec.categorical):
        if feature.weights:
            columns[weights_folder(i)] = _column(folder / weights_folder(i), (WEIGHT_DTYPE,), 1, feature)
    return columns


def _column(folder: Path, dtypes: Sequence[str], width: int, feature: Categorical | None = None) -> Column:
    path, of_weights = folder / "format.json", dtypes == (WEIGHT_DTYPE,)
    content = _json(
        path, f"expected the weights of the ids of {feature.name}, which the specification states" if of_weights and feature else _EXPECTED
    )
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: found {str(content)[:60]}; {_EXPECTED}")
    lists, weighted = content.get("multihot"), bool(feature and feature.weights)
    accepted = {"format": (WEIGHTED_FORMAT if weighted and not of_weights else FORMAT,), "dtype": dtypes, "num_features": (width,)}
    accepted["multihot"] = (True,) if weighted else (False, True) if feature else (False,)
    for key, values in accepted.items():
        if key not in content or content[key] not in values or type(content[key]) is not type(values[0]):
            expected = " or ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
            found = json.dumps(content[key])[:60] if key in content else "missing"
            raise DatasetError(f"{path}: {key} is {found}, expected {expected}{_about_weights(feature, content) if key == 'format' else ''}")
    if not isinstance(content.get("feature_name"), str):
        raise DatasetError(f"{path}: feature_name is not a name; {_EXPECTED}")
    if feature and feature.hotness > 1 and not lists:
        raise DatasetError(f"{path}: multihot is false: one id per sample, but feature {feature.name} has hotness {feature.hotness}; set it to 1")
    return Column(folder, _files(folder), content["dtype"], content["feature_name"], feature, lists)


def _about_weights(feature: Categorical | None, content: dict) -> str:
    """Return advice where a specification and records disagree on the weights of ids, for messages."""
    if feature and content["format"] == (FORMAT if feature.weights else WEIGHTED_FORMAT):
        said = "`weights: true`, but the records hold none" if feature.weights else "no `weights: true`, but the records hold them"
        return f": of feature {feature.name} the specification says {said}"
    return ""


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


def _json(path: Path, expected: str = _EXPECTED) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}; {expected}") from None
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
