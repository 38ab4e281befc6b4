"""The feature specification of NVIDIA's Wide & Deep for TensorFlow 2, in its current release: Parquet files in place of TFRecords.

    feature_spec:
      ad_id: {cardinality: 250000}
      topic_id_list: {cardinality: 350, max_hotness: 3}
      ad_id_ctr: {}
      clicked: {}
      display_id: {}
    channel_spec:
      onehot_categorical: [ad_id]             integers
      multihot_categorical: [topic_id_list]   lists of at most max_hotness integers
      numerical: [ad_id_ctr]                  floating-point numbers
      label: [clicked]                        0 or 1
      map: [display_id]                       the group of the MAP; may be empty
    source_spec:
      train:
      - {type: parquet, features: [ad_id, …], files: [train/part_0.parquet, …]}
      test: …

The rows of a split are those of its files, sorted by their names as text. `embedding_dim`, the width of a feature's table, is allowed here.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataloading.contract import PARQUET
from dataloading.feature_spec import FeatureSpec, FeatureSpecError, smallest_dtype
from dataloading.features import GROUP_DTYPES, LABEL_DTYPE
from dataloading.spec_parsing import kind_of, mapping, refuse_unknown
from utils.config.per_feature import MAX_HOTNESS, MULTI_HOT, ONE_HOT
from utils.yaml_file import YamlError, load_yaml

_NUMERICAL, _LABEL, _MAP = "numerical", "label", "map"
_CHANNELS = (ONE_HOT, MULTI_HOT, _NUMERICAL, _LABEL, _MAP)
_SECTIONS = ("feature_spec", "channel_spec", "source_spec", "metadata")
_ID_DTYPES, _NUMBER_DTYPES = ("int8", "int16", "int32", "int64"), ("float16", "float32", "float64")
_OUTBRAIN_WIDTHS = Path(__file__).with_name("outbrain_widths.json")


def parquet_spec(folder: Path, name: str, flags: str = "--dataset_path and --feature_spec") -> FeatureSpec:
    """Return the specification of a folder of Parquet files; its `sources` name the files, sorted as text.

    The features of `onehot_categorical` come first, then those of `multihot_categorical`. Numericals become float32. A feature that no channel lists
    is left out.

    Args:
        folder: the folder that the files' paths are relative to.
        name: path of the specification in it.
        flags: the flags that set both, for the error message if the file is missing.

    Raises:
        FeatureSpecError: the specification cannot be read, contradicts itself, or describes no Parquet files.
    """
    path = folder / name
    if "\0" in str(path) or not path.exists():
        return FeatureSpec.from_yaml(path, flags)  # raises the error of a missing specification
    try:
        content = load_yaml(path)
    except YamlError as error:
        raise FeatureSpecError(str(error)) from None
    spec = FeatureSpec.from_dict(_in_our_form(content, f"{path}: "), path)
    _check_sources(spec)
    files = {
        split: tuple(replace(chunk, files=tuple(str((folder / file).absolute()) for file in sorted(chunk.files))) for chunk in chunks)
        for split, chunks in spec.sources.items()
    }
    return replace(spec, sources=files)


def with_usual_widths(spec: FeatureSpec) -> FeatureSpec:
    """Return the specification with NVIDIA's widths of tables, where it states none and all features are those of NVIDIA's Outbrain data."""
    usual = json.loads(_OUTBRAIN_WIDTHS.read_text())
    if any(feature.embedding_dim is not None or feature.name not in usual for feature in spec.categorical):
        return spec
    return replace(spec, categorical=tuple(replace(feature, embedding_dim=usual[feature.name]) for feature in spec.categorical))


def _in_our_form(content: Any, where: str) -> dict[str, Any]:
    """Return the content of the YAML file with the keys of `FeatureSpec.from_dict`, which checks the rest. Raises FeatureSpecError."""
    content = mapping(content, f"{where}the file")
    refuse_unknown(content, _SECTIONS, f"{where}section")
    for section in _SECTIONS[:3]:
        if section not in content:
            raise FeatureSpecError(f"{where}section {section} is missing")
    channels, entries = _channels(content["channel_spec"], where), mapping(content["feature_spec"], f"{where}feature_spec")
    features = {}
    for channel, names in channels.items():
        for name in names:
            if name not in entries:
                raise FeatureSpecError(f"{where}feature {name} is in channel_spec.{channel} but not in feature_spec; add its entry")
            features[name] = _entry(channel, entries[name], f"{where}feature_spec.{name}")
    return {
        "feature_spec": features,
        "channel_spec": {
            "categorical": [*channels[ONE_HOT], *channels[MULTI_HOT]],
            "numerical": channels[_NUMERICAL],
            "label": channels[_LABEL],
            "group": channels[_MAP],
        },
        "source_spec": content["source_spec"],
        "metadata": content.get("metadata"),
    }


def _channels(value: Any, where: str) -> dict[str, list[str]]:
    channels = mapping(value, f"{where}channel_spec")
    if "categorical" in channels:
        raise FeatureSpecError(
            f"{where}has the channel categorical, so this is no specification of Parquet files; drop --dataset_type or --src_dataset_type {PARQUET}"
        )
    refuse_unknown(channels, _CHANNELS, f"{where}channel_spec: channel")
    for channel in _CHANNELS:
        if channel not in channels:
            raise FeatureSpecError(f"{where}channel_spec lacks the channel {channel}")
        names = channels[channel]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FeatureSpecError(f"{where}channel_spec.{channel}: expected a list of names, found {kind_of(names)}")
    if not channels[ONE_HOT] and not channels[MULTI_HOT]:
        raise FeatureSpecError(f"{where}channel_spec.{ONE_HOT} and {MULTI_HOT} are empty; the model needs at least one categorical feature")
    if len(channels[_MAP]) > 1:
        raise FeatureSpecError(f"{where}channel_spec.{_MAP} lists {len(channels[_MAP])} features, expected at most one")
    return channels


def _entry(channel: str, value: Any, where: str) -> dict[str, Any]:
    """Return the entry of a feature in this application's form."""
    entry = mapping({} if value is None else value, where)
    if channel in (ONE_HOT, MULTI_HOT):
        return _categorical(entry, channel == MULTI_HOT, where)
    refuse_unknown(entry, ("dtype",), f"{where}: key")
    dtype = entry.get("dtype")
    if channel == _NUMERICAL:
        _check_dtype(dtype, _NUMBER_DTYPES, where)
        return {"dtype": "float32"}
    if channel == _MAP:
        _check_dtype(dtype, GROUP_DTYPES, where)
        return {"dtype": dtype or "int64"}
    return {"dtype": LABEL_DTYPE}


def _categorical(entry: dict, lists: bool, where: str) -> dict[str, Any]:
    refuse_unknown(entry, ("cardinality", "dtype", "embedding_dim", *(("max_hotness",) if lists else ())), f"{where}: key")
    for key in ("cardinality", *(("max_hotness",) if lists else ())):
        value, most = entry.get(key), 2**31 if key == "cardinality" else MAX_HOTNESS
        if type(value) is not int or not 1 <= value <= most:
            raise FeatureSpecError(f"{where}: {key}: expected a whole number from 1 to {most}, found {kind_of(value)}")
    _check_dtype(entry.get("dtype"), _ID_DTYPES, where)
    try:
        found = {"cardinality": entry["cardinality"], "dtype": smallest_dtype(entry["cardinality"])}
    except FeatureSpecError as error:
        raise FeatureSpecError(f"{where}: {error}") from None
    return found | {here: entry[key] for key, here in (("max_hotness", "hotness"), ("embedding_dim", "embedding_dim")) if key in entry}


def _check_sources(spec: FeatureSpec) -> None:
    """Check that each split has one chunk of Parquet files with every feature; the group is needed in no training split, and labels may lack."""
    where = f"{spec.path}: source_spec"
    if not spec.sources:
        raise FeatureSpecError(f"{where} is empty; expected the mappings train and test, each with one chunk of type {PARQUET}")
    for split, chunks in spec.sources.items():
        if len(chunks) != 1:
            raise FeatureSpecError(f"{where}.{split}: {len(chunks)} chunks, expected one of type {PARQUET} with all features")
        (chunk,) = chunks
        if chunk.type != PARQUET:
            raise FeatureSpecError(f"{where}.{split}: type is {chunk.type}, expected {PARQUET}")
        if not chunk.files:
            raise FeatureSpecError(f"{where}.{split} lists no file")
        grouping = () if spec.group is None or split == "train" else (spec.group,)
        for name in (*(feature.name for feature in spec.categorical), *spec.numerical, *grouping):
            if name not in chunk.features:
                raise FeatureSpecError(f"{where}.{split}: feature {name} of channel_spec is not in the chunk's features; add it")


def _check_dtype(value: Any, known: tuple[str, ...], where: str) -> None:
    if value is not None and value not in known:
        raise FeatureSpecError(f"{where}: dtype: expected {' or '.join(known)}, found {kind_of(value)}")
