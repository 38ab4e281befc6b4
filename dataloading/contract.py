"""The tf_raw contract: the requirements on a dataset's feature specification and files before training.

The quick check covers the specification and the file sizes and runs at every start; `dataloading.validate` scans the rows. NVIDIA's
TensorFlow 2 DLRM can also read a dataset that passes here and has one id per sample for every feature, float16 numericals, no group and no weight;
it refuses weights of ids, because their feature has two files.
"""

import os
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dataloading.feature_spec import CATEGORICAL_DTYPES, LABEL_DTYPE, SPLIT_BINARY, SPLITS, FeatureSpec, FeatureSpecError
from dataloading.features import VOCABULARY, DatasetError, weights_file

CSV = "csv"  # chunk type, read by `csv_files.source`
SPLIT = "split"  # dataset type of NVIDIA's DLRM for PyTorch, read by `split_dataset`
TFRECORDS = "split_tfrecords"  # dataset type, read by `tfrecord.source`
TFRECORD = "tfrecord"  # dataset type and chunk type, read by `tfrecord.split`
PARQUET = "parquet"  # dataset type and chunk type, read by `parquet.split`


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split's columns: paths, absolute or relative to the working directory; categorical ones in the model's order.

    `numerical` is None if there are no numerical features, `group` if there is no group, `label` if the split has no labels, `weight`
    if there are no weights or no labels. `id_weights` has the files of the features whose ids have weights, by feature.
    """

    label: Path | None
    numerical: Path | None
    categorical: tuple[Path, ...]
    group: Path | None = None
    weight: Path | None = None
    id_weights: Mapping[str, Path] = field(default_factory=dict)

    def all(self) -> tuple[Path, ...]:
        """Return every file of the split."""
        every = (self.label, self.numerical, *self.categorical, self.group, self.weight, *self.id_weights.values())
        return tuple(path for path in every if path is not None)


def stored_vocabulary(spec: FeatureSpec, feature: str) -> Path | None:
    """Return the file with the values of a feature's ids (value, id, count; in the order of the ids); None if the dataset has none."""
    path = spec.base_directory / VOCABULARY / f"{feature}.parquet"
    return path if os.path.isfile(path) else None  # unlike Path.is_file, returns False for a name that is too long


def split_files(spec: FeatureSpec, split: str) -> SplitFiles:
    """Return the files of a split; the specification must have no faults."""
    chunks = {chunk.features[0]: [spec.base_directory / file for file in chunk.files] for chunk in spec.sources[split]}
    paths = {name: files[0] for name, files in chunks.items()}
    numerical = paths[spec.numerical[0]] if spec.numerical else None
    categorical = tuple(paths[feature.name] for feature in spec.categorical)
    weights = {feature.name: chunks[feature.name][1] for feature in spec.categorical if feature.weights}
    return SplitFiles(paths.get(spec.label), numerical, categorical, paths.get(spec.group), paths.get(spec.weight), weights)


def bytes_per_sample(spec: FeatureSpec, labelled: bool = True) -> dict[str, int]:
    """Return the bytes per sample in each file, in the order of `SplitFiles.all`.

    The key is the file's feature, or its first numerical feature; for weights of ids, `weights_file` of the feature.
    """
    widths = {spec.label: 1} if labelled else {}
    if spec.numerical:
        widths[spec.numerical[0]] = np.dtype(spec.numerical_dtype).itemsize * len(spec.numerical)
    widths |= {feature.name: np.dtype(feature.dtype).itemsize * feature.hotness for feature in spec.categorical}
    widths |= {name: np.dtype(spec.dtypes[name]).itemsize for name in spec.beside(labelled)}
    return widths | {weights_file(feature.name): 4 * feature.hotness for feature in spec.categorical if feature.weights}


def spec_faults(spec: FeatureSpec, splits: tuple[str, ...] = ("train", "test")) -> list[str]:
    """Return everything in the specification that the contract forbids, one line each; reads no file."""
    if fault := _to_transcribe(spec):
        return [fault]
    if spec.sources is None:  # other rules apply to a generator specification; further faults would only distract
        return ["source_spec is empty: the specification describes synthetic data; write the data with python -m dataloading.transcribe"]
    faults = []
    for feature in spec.categorical:
        if feature.dtype not in CATEGORICAL_DTYPES:
            faults.append(f"feature {feature.name}: dtype is {feature.dtype}, expected one of {', '.join(CATEGORICAL_DTYPES)}")
        elif feature.cardinality - 1 > np.iinfo(feature.dtype).max:
            faults.append(f"feature {feature.name}: cardinality {feature.cardinality} does not fit dtype {feature.dtype}")
    faults += _dtype_faults(spec)
    if spec.dtypes[spec.label] != LABEL_DTYPE:
        faults.append(f"feature {spec.label}: dtype is {spec.dtypes[spec.label]}, the label must be {LABEL_DTYPE}")
    for split in splits:
        if split not in spec.sources:
            faults.append(f"source_spec: split {split} is missing; splits found: {', '.join(spec.sources) or 'none'}")
    for split, chunks in spec.sources.items():
        faults += [f"source_spec.{split}: {fault}" for fault in _chunk_faults(spec, chunks)]
    return faults


def _dtype_faults(spec: FeatureSpec) -> list[str]:
    """Return faults in the dtypes of the numerical features, of the group and of the weight, and in the rate of the negatives."""
    faults = []
    checked = (
        lambda: spec.numerical_dtype,
        lambda: spec.group is None or spec.group_dtype,
        lambda: spec.weight is None or spec.weight_dtype,
        lambda: spec.negative_rate,
    )
    for dtype in checked:
        try:
            dtype()
        except FeatureSpecError as error:
            faults.append(str(error))
    return faults


def _to_transcribe(spec: FeatureSpec) -> str | None:
    """Return advice for CSV files and TFRecords, which must be transcribed to tf_raw first; None if there are none."""
    folder, kind, what = spec.base_directory, CSV, "the CSV files"
    chunks = [(split, chunk) for split, listed in (spec.sources or {}).items() for chunk in listed]
    if records := next((path for split in SPLITS if (path := folder / split / "label" / "format.json").is_file()), None):
        stored = any((folder / file).is_file() for _, chunk in chunks for file in chunk.files)
        found, kind, what = None if stored else f"{records} exists, so these are pre-batched TFRecords", TFRECORDS, "them"
    elif spec.sources is None:
        named = next((f"{split}.csv" for split in SPLITS if (folder / f"{split}.csv").is_file()), None)
        found = named and f"source_spec is empty and {named} exists"
    else:
        found = next((f"source_spec.{split}: type is {CSV}, expected {SPLIT_BINARY}" for split, chunk in chunks if chunk.type == CSV), None)
    if other := next(((split, chunk.type) for split, chunk in chunks if chunk.type in (TFRECORD, PARQUET)), None):
        split, kind = other
        what = "records" if kind == TFRECORD else "files"
        return f"source_spec.{split}: type is {kind}, expected {SPLIT_BINARY}; --dataset_type {kind} reads such {what} as they are"
    command = f"python -m dataloading.transcribe --src_dataset_type {kind} --src_dataset_path {folder} --dst_dataset_path NEW_FOLDER"
    return found and f"{found}; transcribe {what} to tf_raw first: {command}"


def _chunk_faults(spec: FeatureSpec, chunks: tuple) -> list[str]:
    faults = []
    seen: list[str] = []
    categorical = {feature.name: feature for feature in spec.categorical}
    for chunk in chunks:
        name = ", ".join(chunk.features[:3]) + (", …" if len(chunk.features) > 3 else "")
        if chunk.type != SPLIT_BINARY:
            faults.append(f"chunk [{name}]: type is {chunk.type}, expected {SPLIT_BINARY}")
        weighted = len(chunk.features) == 1 and chunk.features[0] in categorical and categorical[chunk.features[0]].weights
        if len(chunk.files) != 1 + weighted:
            expected = "two: of the ids and of their weights, since feature_spec says `weights: true`" if weighted else "exactly one"
            faults.append(f"chunk [{name}]: {len(chunk.files)} file{'s' if len(chunk.files) != 1 else ''}, expected {expected}")
        if not chunk.features:
            faults.append("a chunk lists no features")
            continue
        seen += chunk.features
        first = chunk.features[0]
        if first in spec.numerical:
            if chunk.features != spec.numerical:
                faults.append(f"chunk [{name}]: must list all numerical features, in the order of channel_spec.numerical")
        elif first in categorical or first in (spec.label, spec.group, spec.weight):
            if len(chunk.features) > 1:
                faults.append(f"chunk [{name}]: {len(chunk.features)} features in one file; the label and categorical features need a file each")
        else:
            faults.append(f"chunk [{name}]: feature {first} is in no channel")
    counts = Counter(seen)
    labelled = counts[spec.label] > 0
    if not labelled and counts[spec.weight]:
        faults.append(f"feature {spec.weight} weighs rows without labels, which nothing reads; remove its chunk")
    for name in (*categorical, *spec.numerical, spec.label, *spec.beside(labelled)):
        if counts[name] != 1 and not (name == spec.label and counts[name] == 0):  # a split without labels is valid: it is for prediction
            faults.append(f"feature {name} is in {counts[name]} chunks, expected exactly one")
    return faults


def file_faults(spec: FeatureSpec, split: str) -> tuple[list[str], int]:
    """Find missing, truncated, empty or inconsistent files of a split; the specification must have no faults.

    Returns:
        the faults, one line each, and the number of samples (0 if there are faults).
    """
    faults = []
    samples: dict[Path, int] = {}
    files = split_files(spec, split)
    for path, width in zip(files.all(), bytes_per_sample(spec, spec.labelled(split)).values(), strict=True):
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # opening a named pipe would block forever
                faults.append(f"{path}: not a regular file")
                continue
            size = status.st_size
            with path.open("rb") as file:
                file.read(1)
        except OSError as error:
            faults.append(f"{path}: {error.strerror}")
            continue
        if size % width:
            faults.append(f"{path}: {size} bytes, not a whole number of samples of {width} bytes; the file is truncated or has another type")
        else:
            samples[path] = size // width
    counts = list(samples.values())
    if counts and len(set(counts)) > 1:
        usual = max(set(counts), key=lambda count: (counts.count(count), count))
        faults += [f"{path}: {count} samples, the other files of {split} hold {usual}" for path, count in samples.items() if count != usual]
    elif counts and counts[0] == 0:
        faults.append(f"split {split} is empty")
    return faults, counts[0] if counts and not faults else 0


def check_quick(spec: FeatureSpec, splits: tuple[str, ...]) -> dict[str, int]:
    """Check the specification and the files of `splits`; return the number of samples of each split.

    Raises:
        DatasetError: there is a fault; the message has the first one and the number of others.
    """
    faults = spec_faults(spec, splits)
    samples = {}
    if not faults:
        for split in splits:
            found, samples[split] = file_faults(spec, split)
            faults += found
    if faults:
        more = f" (and {len(faults) - 1} more fault{'s' if len(faults) > 2 else ''})" if len(faults) > 1 else ""
        where = f"{spec.path}: " if spec.path else ""
        hint = "" if _to_transcribe(spec) else f"; python -m dataloading.validate --dataset_path {spec.base_directory} lists all faults"
        raise DatasetError(f"{where}{faults[0]}{more}{hint}")
    return samples
