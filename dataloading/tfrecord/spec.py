"""The features of TFRecords in the layout of NVIDIA's Wide & Deep, and the files of each split.

RECORDS/train/part-r-00000 …                      a record is a `tf.train.Example`: for each feature a list of int64 or float32, one value per row
RECORDS/eval/part-r-00000 …                       the test split
RECORDS/transformed_metadata/schema.pbtxt         for NVIDIA's reader; not read here
RECORDS/feature_spec.yaml                         not in NVIDIA's layout: names and cardinalities; by default those of its Outbrain data
"""

import glob
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dataloading.contract import TFRECORD
from dataloading.feature_spec import Categorical, Chunk, FeatureSpec, smallest_dtype
from dataloading.features import DatasetError
from dataloading.tfrecord.example_bytes import INT64, features_of
from dataloading.tfrecord.index import first_record
from utils.paths import check_utf8

ROWS_PER_RECORD = 4096
FOLDERS = {"train": "train", "valid": "valid", "test": "eval"}  # by split
_FILES = "part*"
_OUTBRAIN = Path(__file__).with_name("outbrain_schema.json")
OUTBRAIN_TABLES = Path(__file__).with_name("outbrain_tables.json")


def tfrecord_spec(folder: Path, name: str) -> FeatureSpec:
    """Return the specification of a folder of records, by default that of NVIDIA's Outbrain data; its `sources` name the files.

    Args:
        folder: the folder that holds `train` and `eval`.
        name: name of the specification's file in it.

    Raises:
        FeatureSpecError, DatasetError: the specification cannot be read, or there are no files.
    """
    path = folder / name
    spec = FeatureSpec.from_yaml(path) if path.exists() else replace(outbrain_spec(), path=path)
    if spec.sources and all(chunk.type == TFRECORD for chunks in spec.sources.values() for chunk in chunks):
        return _checked(spec)
    patterns = {split: [f"{glob.escape(str(folder / sub))}/{_FILES}"] for split, sub in FOLDERS.items() if (folder / sub).is_dir()}
    if not patterns:
        raise DatasetError(f"{folder}: no folder train or eval; expected TFRecords in the layout of NVIDIA's Wide & Deep: train/part-r-00000, …")
    return with_files(spec, patterns)


def pattern_spec(patterns: Mapping[str, Sequence[str]], spec: Path | None = None) -> FeatureSpec:
    """Return the specification of the records that match patterns.

    Args:
        patterns: patterns of the files of each split: `{"train": ["RECORDS/train/part*"], "test": ["RECORDS/eval/part*"]}`.
        spec: a feature specification; None for the one two levels above the first file, by default that of NVIDIA's Outbrain data.

    Raises:
        FeatureSpecError, DatasetError: the specification cannot be read, or a pattern matches nothing.
    """
    first = matching(next(iter(patterns.values())))[0]
    _refuse_parquet(first)
    path = spec or first.parent.parent / "feature_spec.yaml"
    features = FeatureSpec.from_yaml(path) if spec or path.exists() else replace(outbrain_spec(), path=path)
    return with_files(features, patterns)


def _refuse_parquet(path: Path) -> None:
    """Raise DatasetError for a Parquet file, to which the patterns of NVIDIA's releases of November 2021 and May 2022 refer."""
    with suppress(OSError), path.open("rb") as file:  # the reader reports a file that cannot be opened
        if file.read(4) == b"PAR1":
            raise DatasetError(
                f"{path}: is Parquet, expected TFRecords; describe such files in a feature_spec.yaml as NVIDIA's current release does, and give its "
                "folder by --dataset_path"
            )


def with_files(spec: FeatureSpec, patterns: Mapping[str, Sequence[str]]) -> FeatureSpec:
    """Return the specification with the matching files as its sources. Raises DatasetError if a pattern matches nothing."""
    names = (*(feature.name for feature in spec.categorical), *spec.numerical, spec.label, *spec.beside())
    files = {split: tuple(str(path.absolute()) for path in matching(given)) for split, given in patterns.items()}
    return _checked(replace(spec, sources={split: (Chunk(TFRECORD, names, found),) for split, found in files.items()}))


def matching(patterns: Sequence[str]) -> list[Path]:
    """Return the files that match the patterns, each once, sorted by name within a pattern. Raises DatasetError if a pattern matches none."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        paths = sorted(path for path in glob.glob(pattern) if not Path(path).name.startswith("."))
        if not paths:
            raise DatasetError(f"{pattern}: matches no file; expected TFRecords (quote the pattern so that the shell does not expand it)")
        for path in paths:
            check_utf8(path)
        found |= dict.fromkeys(map(Path, paths))
    return list(found)


def split_records(spec: FeatureSpec, split: str) -> tuple[Path, ...]:
    """Return the files of a split, in the order of its rows. Raises DatasetError if the specification has no such split."""
    if split not in spec.sources:
        raise DatasetError(f"{spec.path}: no split {split}; splits found: {', '.join(spec.sources)}")
    return tuple(spec.base_directory / file for chunk in spec.sources[split] for file in chunk.files)


def unread_features(spec: FeatureSpec) -> tuple[str, ...]:
    """Return the features of the records that the specification lacks, taken from the first record of each split."""
    known = {feature.name for feature in spec.categorical} | {*spec.numerical, spec.label, *spec.beside()}
    found = {name for split in spec.sources for name in kinds_of(split_records(spec, split)[0]) if name not in known}
    return tuple(sorted(found))


def kinds_of(path: Path) -> dict[str, str]:
    """Return the features of a file's first record and their kinds. Raises DatasetError."""
    record = first_record(path)
    try:
        return {feature.name: feature.kind for feature in features_of(lambda start, stop: record[start:stop], len(record))}
    except ValueError as error:
        raise DatasetError(f"{path}, record 0: not a tf.train.Example: {error}; the record is damaged or has another format") from None


def outbrain_spec() -> FeatureSpec:
    """Return the specification of NVIDIA's Outbrain data, without files."""
    schema, tables = (json.loads(path.read_text()) for path in (_OUTBRAIN, OUTBRAIN_TABLES))
    categorical = tuple(
        Categorical(name, table["rows"], smallest_dtype(table["rows"]), embedding_dim=table["embedding_dim"]) for name, table in tables.items()
    )
    dtypes = {feature.name: feature.dtype for feature in categorical} | dict.fromkeys(schema["numerical"], "float32")
    dtypes |= {schema["label"]: "bool", schema["group"]: INT64}
    return FeatureSpec(categorical, tuple(schema["numerical"]), schema["label"], dtypes, group=schema["group"])


def _checked(spec: FeatureSpec) -> FeatureSpec:
    """Return the specification with the smallest type for the ids. Raises DatasetError if records cannot hold such features."""
    for feature in spec.categorical:
        if feature.is_list:
            has = "weights of its ids" if feature.weights else f"hotness {feature.hotness}"
            raise DatasetError(f"{spec.path}: feature {feature.name} has {has}; pre-batched TFRecords hold one id per sample")
    categorical = tuple(replace(feature, dtype=smallest_dtype(feature.cardinality)) for feature in spec.categorical)
    _ = (
        spec.numerical_dtype,
        spec.group is None or spec.group_dtype,
        spec.weight is None or spec.weight_dtype,
    )  # these properties raise for types that cannot be read
    for split, chunks in spec.sources.items():
        if not any(chunk.files for chunk in chunks):
            raise DatasetError(f"{spec.path}: source_spec.{split} lists no file")
    return replace(spec, categorical=categorical)
