"""Incomplete specifications of CSV files, as in NVIDIA's generic form: default dtypes, and cardinalities read from the files for `auto`."""

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.contract import CSV
from dataloading.csv_files.source import check_csv_files, read_csv_split
from dataloading.feature_spec import LABEL_DTYPE, NUMERICAL_DTYPE, SPLITS, FeatureSpec
from dataloading.features import WEIGHT_DTYPE, DatasetError
from dataloading.spec_parsing import WEIGHT
from utils.yaml_file import YamlError, load_yaml

AUTO = "auto"
_ANY = np.iinfo(np.int32).max  # the cardinality used while the files are read for the real one
_BATCH_ROWS = 1 << 16
_DTYPES = {"categorical": "int32", "numerical": NUMERICAL_DTYPE, "label": LABEL_DTYPE, WEIGHT: WEIGHT_DTYPE}


def read_csv_spec(path: Path, flags: str) -> FeatureSpec:
    """Read the specification of CSV files; if a cardinality is `auto`, every file is read for the greatest id.

    Args:
        path: the YAML file.
        flags: the flags that give its place, named in the error if the file is missing.

    Raises:
        FeatureSpecError: see `FeatureSpec.from_yaml`.
        DatasetError: a file cannot be read, or holds values that no dataset can hold.
    """
    content, missing = _loaded(path, flags, _ANY)
    spec = FeatureSpec.from_dict(content, path)
    if missing:
        for name, cardinality in _cardinalities(spec, missing).items():
            content["feature_spec"][name]["cardinality"] = cardinality
        spec = FeatureSpec.from_dict(content, path)
    return spec


def unwritten_csv_spec(path: Path, flags: str, auto: int) -> tuple[FeatureSpec, list[str]]:
    """Read the specification of CSV files that do not exist yet.

    Args:
        path: the YAML file.
        flags: the flags that give its place, named in the error if the file is missing.
        auto: the cardinality of features where the file says `auto`.

    Returns:
        the specification, and the features whose cardinality is `auto`.

    Raises:
        FeatureSpecError: see `FeatureSpec.from_yaml`.
    """
    content, missing = _loaded(path, flags, auto)
    return FeatureSpec.from_dict(content, path), missing


def _loaded(path: Path, flags: str, auto: int) -> tuple[Any, list[str]]:
    """Return the content of a specification's file, completed by `_complete`, and the features whose cardinality is `auto`."""
    try:
        content = load_yaml(path)
    except YamlError:
        FeatureSpec.from_yaml(path, flags)  # raises the error for the damaged file
        raise
    return content, _complete(content, auto)


def _complete(content: Any, auto: int) -> list[str]:
    """Fill in the missing entries of a specification; invalid entries are left for the parser to refuse.

    Returns:
        the features whose cardinality is `auto`.
    """
    missing: list[str] = []
    channels, features = (content.get(name) if isinstance(content, dict) else None for name in ("channel_spec", "feature_spec"))
    if not isinstance(channels, dict) or not isinstance(features, dict):
        return missing
    for channel, dtype in _DTYPES.items():
        names = channels.get(channel)
        for name in names if isinstance(names, list) else []:
            entry = features.get(name) if isinstance(name, str) else None
            if not isinstance(entry, dict):
                continue
            entry.setdefault("dtype", dtype)
            if channel == "categorical" and entry.get("cardinality") == AUTO:
                missing.append(name)
                entry["cardinality"] = auto
    return missing


def _cardinalities(spec: FeatureSpec, names: list[str]) -> dict[str, int]:
    """Return the cardinality of each feature: one more than the greatest id of its table in any split; features may share a table."""
    greatest = dict.fromkeys((feature.table_name for feature in spec.categorical), -1)
    splits = {"train": 0, "test": 0} if spec.sources is None else spec.sources
    for split in sorted(splits, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS)):
        check_csv_files(spec, split)
        with contextlib.redirect_stderr(io.StringIO()):  # the notes about the files are printed when they are read again
            for _, ids, *_ in read_csv_split(spec, split, _BATCH_ROWS):
                for feature, column in zip(spec.categorical, ids, strict=True):
                    column = column[:, : feature.hotness] if feature.weights else column
                    greatest[feature.table_name] = max(greatest[feature.table_name], int(column.max(initial=-1)))
    for feature in spec.categorical:
        if feature.name in names and greatest[feature.table_name] < 0:
            raise DatasetError(f"{spec.path}: feature {feature.name}: cardinality is {AUTO}, but no {CSV} file holds an id of the feature")
    return {feature.name: greatest[feature.table_name] + 1 for feature in spec.categorical if feature.name in names}
