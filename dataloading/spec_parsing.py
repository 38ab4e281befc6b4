"""Parsing of a feature specification's YAML content, key by key; unknown keys are refused."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from dataloading.features import MEAN, NUMERICAL_DTYPES, POOLINGS, SPLITS, SUM, Categorical, Chunk, FeatureSpecError
from utils.config.per_feature import MAX_HOTNESS, MULTI_HOT, ONE_HOT

GROUP, WEIGHT = "group", "weight"
TRAINING_ONLY, SERVE = "training_only", "serve"
_FOLDER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}").fullmatch
_SECTIONS = ("feature_spec", "channel_spec", "source_spec", "metadata")
_CHANNELS = ("categorical", "numerical", "label")
_OF_CATEGORICAL = ("cardinality", "hotness", "alpha", "dtype", "pooling", "table", "embedding_dim", "weights", TRAINING_ONLY)


def parse_fields(content: Any, where: str) -> dict[str, Any]:
    """Return the fields of a `FeatureSpec` by name, except its path.

    Args:
        content: the content of the YAML file.
        where: prefix of error messages: the file and a colon, or nothing.

    Raises:
        FeatureSpecError: a required section is missing, the content contradicts itself, or a key is unknown.
    """
    content = mapping(content, f"{where}the file")
    refuse_unknown(content, _SECTIONS, f"{where}section")
    for section in ("feature_spec", "channel_spec"):
        if section not in content:
            raise FeatureSpecError(f"{where}section {section} is missing")
    entries = mapping(content["feature_spec"], f"{where}feature_spec")
    channels = _channels(content["channel_spec"], where)
    names = tuple(name for channel in channels.values() for name in channel)
    _check_listed(names, entries, where)
    dtypes = {}
    for name in names:
        place = f"{where}feature_spec.{name}"
        entry = mapping(entries[name], place)
        known = _OF_CATEGORICAL if name in channels["categorical"] else ("dtype", TRAINING_ONLY) if name in channels["numerical"] else ("dtype",)
        refuse_unknown(entry, known, f"{place}: key")
        dtypes[name] = _dtype(entry.get("dtype"), place)
    categorical = tuple(_categorical(name, entries[name], dtypes[name], f"{where}feature_spec.{name}: ") for name in channels["categorical"])
    check_tables(categorical, where)
    return {
        "categorical": categorical,
        "numerical": channels["numerical"],
        "label": channels["label"][0],
        "dtypes": dtypes,
        "sources": _sources(content.get("source_spec"), channels["label"][0], where),
        "metadata": mapping(content.get("metadata") or {}, f"{where}metadata"),
        "serve": _served_numbers(entries, dtypes, channels["numerical"], where),
        "group": next(iter(channels[GROUP]), None),
        "weight": next(iter(channels[WEIGHT]), None),
    }


def check_tables(categorical: Iterable[Categorical], where: str = "") -> None:
    """Check the tables of the features.

    Raises:
        FeatureSpecError: features that share a table disagree on its rows or width, or a table has the name of a feature whose table is another.
    """
    features = {feature.name: feature for feature in categorical}
    first: dict[str, Categorical] = {}
    widths: dict[str, Categorical] = {}  # for each table, the first feature that states a width
    for feature in features.values():
        table = feature.table_name
        named = features.get(table)
        if named is not None and named.table_name != table:
            raise FeatureSpecError(
                f"{where}feature {feature.name}: table {table} has the name of a feature whose table is {named.table_name}; give it another name"
            )
        other = first.setdefault(table, feature)
        if other.cardinality != feature.cardinality:
            raise FeatureSpecError(
                f"{where}feature {feature.name}: cardinality {feature.cardinality}, and feature {other.name} of the same table {table} has "
                f"{other.cardinality}; features that share a table need the same cardinality"
            )
        if feature.embedding_dim is not None:
            other = widths.setdefault(table, feature)
            if other.embedding_dim != feature.embedding_dim:
                raise FeatureSpecError(
                    f"{where}feature {feature.name}: embedding_dim {feature.embedding_dim}, and feature {other.name} of the same table {table} has "
                    f"{other.embedding_dim}; features that share a table need the same embedding_dim"
                )


def _channels(value: Any, where: str) -> dict[str, tuple[str, ...]]:
    """Return the features of each channel; those of the group and of the weight are empty if there is none."""
    channels = mapping(value, f"{where}channel_spec")
    if ONE_HOT in channels or MULTI_HOT in channels:
        raise FeatureSpecError(
            f"{where}has the channels of NVIDIA's Wide & Deep, whose rows are Parquet files; --dataset_type parquet reads them, and "
            "python -m dataloading.transcribe --src_dataset_type parquet turns them into tf_raw"
        )
    refuse_unknown(channels, (*_CHANNELS, GROUP, WEIGHT), f"{where}channel_spec: channel")
    for channel in _CHANNELS:
        if channel not in channels:
            raise FeatureSpecError(f"{where}channel_spec lacks the channel {channel}")
    found = {channel: _names(channels[channel], f"{where}channel_spec.{channel}") for channel in _CHANNELS}
    if len(found["label"]) != 1:
        raise FeatureSpecError(f"{where}channel_spec.label lists {len(found['label'])} features, expected exactly one")
    if not found["categorical"]:
        raise FeatureSpecError(f"{where}channel_spec.categorical is empty; the model needs at least one categorical feature")
    for channel in (GROUP, WEIGHT):
        found[channel] = _names(channels.get(channel, []), f"{where}channel_spec.{channel}")
        if len(found[channel]) > 1:
            raise FeatureSpecError(f"{where}channel_spec.{channel} lists {len(found[channel])} features, expected at most one")
    return found


def _check_listed(names: tuple[str, ...], entries: Mapping[str, Any], where: str) -> None:
    """Check that each listed feature is in one channel only and has an entry, and that no other entries exist. Raises FeatureSpecError."""
    for name, count in Counter(names).items():
        if count > 1:
            raise FeatureSpecError(f"{where}channel_spec lists feature {name} more than once")
        if name not in entries:
            raise FeatureSpecError(f"{where}feature {name} is in channel_spec but not in feature_spec; add its entry")
        if _leads_outside(name):  # feature names become file names, of vocabularies for example
            raise FeatureSpecError(f"{where}feature {name[:80]!r}: as a path, this name leads outside the dataset; choose another name")
    listed = set(names)
    unread = [name for name in entries if name not in listed]
    if unread:
        more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
        name = str(unread[0])[:60]
        raise FeatureSpecError(f"{where}feature {name!r}{more} is in feature_spec but in no channel; remove it or list it in channel_spec")


def refuse_unknown(content: Mapping, known: Iterable[str], what: str) -> None:
    """Raise FeatureSpecError for an unknown key, which would otherwise be ignored silently."""
    unknown = [key for key in content if key not in known]
    if unknown:
        raise FeatureSpecError(f"{what} {str(unknown[0])[:60]!r} is not known, expected one of {', '.join(known)}; remove it")


def mapping(value: Any, where: str) -> dict:
    """Return a value that must be a mapping; `where` begins the message. Raises FeatureSpecError."""
    if not isinstance(value, dict):
        raise FeatureSpecError(f"{where}: expected a mapping of names to values, found {kind_of(value)}")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise FeatureSpecError(f"{where}: expected a list of names, found {kind_of(value)}")
    for name in value:
        if "\n" in name or "\r" in name:
            raise FeatureSpecError(f"{where}: {name[:60]!r} contains a line break, expected names of one line")
    return tuple(value)


def kind_of(value: Any) -> str:
    """Return a value's type and text, for messages."""
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"


def _dtype(value: Any, where: str) -> str:
    if not isinstance(value, str) or value not in np.sctypeDict:
        raise FeatureSpecError(f"{where}: dtype: expected the name of a NumPy type, found {kind_of(value)}")
    return np.dtype(value).name


def _categorical(name: str, entries: dict, dtype: str, where: str) -> Categorical:
    def number(key: str, default: Any, kinds: type | tuple[type, ...], least: float) -> Any:
        value = entries.get(key, default)
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < float("inf"):
            raise FeatureSpecError(f"{where}{key}: expected a number of at least {least}, found {kind_of(value)}")
        return value

    alpha = entries.get("alpha")
    if alpha is not None:
        alpha = number("alpha", None, (int, float), 0)
        if alpha > 100:  # steeper than any real data; and (V + 1)^(1 - alpha) leaves the range of float64
            raise FeatureSpecError(f"{where}alpha: expected a number from 0 to 100, found {kind_of(alpha)}")
        alpha = float(alpha)
    hotness = number("hotness", 1, int, 1)
    if hotness > MAX_HOTNESS:
        raise FeatureSpecError(f"{where}hotness: expected a number from 1 to {MAX_HOTNESS}, found {kind_of(hotness)}")
    pooling = entries.get("pooling", SUM)
    if pooling not in POOLINGS:
        raise FeatureSpecError(f"{where}pooling: expected {' or '.join(POOLINGS)}, found {kind_of(pooling)}")
    if pooling == MEAN and hotness == 1:
        raise FeatureSpecError(f"{where}pooling: {MEAN} has no effect with one id per sample; remove it, or set hotness")
    dim = number("embedding_dim", None, int, 1) if entries.get("embedding_dim") is not None else None
    weights = entries.get("weights", False)
    if not isinstance(weights, bool):
        raise FeatureSpecError(f"{where}weights: expected true or false, found {kind_of(weights)}")
    rows, serve = number("cardinality", None, int, 1), _served(entries, where)
    if serve is not None and (hotness > 1 or weights):
        raise FeatureSpecError(f"{where}{TRAINING_ONLY}: expected a feature of one id per sample, this one has lists")
    if serve is not None and not (isinstance(serve, int) and 0 <= serve < rows):
        raise FeatureSpecError(f"{where}{TRAINING_ONLY}.{SERVE}: expected an id from 0 to {rows - 1}, found {kind_of(serve)}")
    return Categorical(name, rows, dtype, hotness, alpha, pooling, _table(entries.get("table"), where), dim, weights, serve)


def _served(entries: Mapping[str, Any], where: str) -> int | float | None:
    """Return the value that scores take for a feature that is for training only; None for another feature."""
    if TRAINING_ONLY not in entries:
        return None
    only = mapping(entries[TRAINING_ONLY], f"{where}{TRAINING_ONLY}")
    refuse_unknown(only, (SERVE,), f"{where}{TRAINING_ONLY}: key")
    value = only.get(SERVE)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FeatureSpecError(f"{where}{TRAINING_ONLY}.{SERVE}: expected the value that scores take, found {kind_of(value)}")
    return value


def _served_numbers(entries: Mapping[str, Any], dtypes: Mapping[str, str], names: Iterable[str], where: str) -> dict[str, float]:
    """Return the values that scores take for numerical features that are for training only. Raises FeatureSpecError."""
    found = {}
    for name in names:
        place = f"{where}feature_spec.{name}: "
        value = _served(entries[name], place)
        if value is not None:
            with np.errstate(over="ignore"):
                finite = value if abs(value) < 1e308 else np.inf  # a whole number may be beyond float64
                held = np.array(finite, np.float64).astype(dtypes[name] if dtypes[name] in NUMERICAL_DTYPES else np.float32)
            if not np.isfinite(held):
                raise FeatureSpecError(f"{place}{TRAINING_ONLY}.{SERVE}: expected a finite {dtypes[name]}, found {kind_of(value)}")
            found[name] = float(held)
    return found


def _table(value: Any, where: str) -> str | None:
    """Return a table's name, checked; it becomes part of paths in checkpoints."""
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\n" in value or "\r" in value:
        raise FeatureSpecError(f"{where}table: expected a name of one line, found {kind_of(value)}")
    return value


def _sources(value: Any, label: str, where: str) -> dict[str, tuple[Chunk, ...]] | None:
    if value is None:
        return None
    sources = {}
    for split, chunks in mapping(value, f"{where}source_spec").items():
        place = f"{where}source_spec.{split}"
        if not isinstance(split, str) or not _FOLDER_NAME(split):
            raise FeatureSpecError(f"{where}source_spec: split {str(split)[:60]!r} is not known, expected one of {', '.join(SPLITS)}; remove it")
        if not isinstance(chunks, list):
            raise FeatureSpecError(f"{place}: expected a list of chunks, found {kind_of(chunks)}")
        parsed = []
        for i, chunk in enumerate(chunks):
            chunk = mapping(chunk, f"{place}[{i}]")
            if not isinstance(chunk.get("type"), str):
                raise FeatureSpecError(f"{place}[{i}]: type: expected a name, found {kind_of(chunk.get('type'))}")
            refuse_unknown(chunk, ("type", "features", "files"), f"{place}[{i}]: key")
            features, files = (_names(chunk.get(key), f"{place}[{i}].{key}") for key in ("features", "files"))
            for file in files:
                _check_file_name(file, f"{place}[{i}].files")
            parsed.append(Chunk(chunk["type"], features, files))
        if split not in SPLITS and (not parsed or any(label in chunk.features for chunk in parsed)):
            raise FeatureSpecError(
                f"{where}source_spec: split {split!r} is not known, expected one of {', '.join(SPLITS)}; remove it, or its label: a split for "
                "prediction only may have any name"
            )
        sources[split] = tuple(parsed)
    return sources


def _check_file_name(file: str, where: str) -> None:
    try:
        possible = bool(file) and b"\0" not in os.fsencode(file)
    except UnicodeEncodeError:  # a lone surrogate, which YAML can contain
        possible = False
    if not possible:
        raise FeatureSpecError(f"{where}: {file[:60]!r} is not a file name")
    if _leads_outside(file):
        raise FeatureSpecError(
            f"{where}: {file[:80]!r} is outside the dataset, expected a path below the specification's folder, or a symbolic link there"
        )


def _leads_outside(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts
