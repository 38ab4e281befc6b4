"""The feature specification: which features a dataset has, which files hold them and which part of the model reads them.

The YAML form is the one contract between preprocessing, datasets and the model; it is the format of NVIDIA's recommender
examples (their "Dataset Feature Specification"), so that their datasets load here and ours load there.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from utils.errors import UserError
from utils.yaml_file import YamlError, load_yaml

CATEGORICAL_DTYPES = ("int8", "int16", "int32")
NUMERICAL_DTYPE = "float16"
LABEL_DTYPE = "bool"
SPLIT_BINARY = "split_binary"
DEFAULT_FILE_NAME = "feature_spec.yaml"
SPLITS = ("train", "valid", "test")
_SECTIONS = ("feature_spec", "channel_spec", "source_spec", "metadata")
_CHANNELS = ("categorical", "numerical", "label")


class FeatureSpecError(UserError):
    """A feature specification that cannot be read or does not keep the contract."""


def smallest_dtype(cardinality: int) -> str:
    """The dtype of a categorical file: the first of int8, int16, int32 with `cardinality < iinfo(dtype).max`.

    Raises:
        FeatureSpecError: the cardinality does not fit 32 bits.
    """
    for dtype in CATEGORICAL_DTYPES:
        if cardinality < np.iinfo(dtype).max:
            return dtype
    raise FeatureSpecError(f"cardinality {cardinality} does not fit int32, the widest type of a categorical file; hash the ids to fewer rows")


@dataclass(frozen=True)
class Categorical:
    """One categorical feature: ids in [0, cardinality), `hotness` of them a sample."""

    name: str
    cardinality: int
    dtype: str
    hotness: int = 1
    alpha: float | None = None  # exponent of the power law that synthetic ids are drawn from; None where data is real


@dataclass(frozen=True)
class Chunk:
    """Some features of one split and the files that hold them."""

    type: str
    features: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class FeatureSpec:
    """A parsed feature specification; `categorical` and `numerical` stand in the model's order.

    `dtypes` holds every feature's stated dtype. `sources` is None in a generator specification, which describes data
    that is yet to be drawn. `path` is the YAML file it came from; the files of the chunks are relative to its folder.
    """

    categorical: tuple[Categorical, ...]
    numerical: tuple[str, ...]
    label: str
    dtypes: Mapping[str, str]
    sources: Mapping[str, tuple[Chunk, ...]] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Rows of each categorical feature's table, in the model's order."""
        return tuple(feature.cardinality for feature in self.categorical)

    @property
    def base_directory(self) -> Path:
        """The folder that the chunks' files are relative to."""
        return self.path.parent if self.path else Path(".")

    @classmethod
    def from_yaml(cls, path: str | Path, flags: str = "--dataset_path and --feature_spec") -> "FeatureSpec":
        """Read a specification.

        Args:
            path: the YAML file.
            flags: the flags that say where it is, for the error where it is missing.

        Raises:
            FeatureSpecError: the file is missing, is not YAML, lacks what every specification needs, or holds what
                nothing here reads. Whether the dataset behind it keeps the tf_raw contract is `contract.check_quick`'s
                question.
        """
        path = Path(path)
        if "\0" not in str(path) and not path.exists():
            raise FeatureSpecError(f"{path}: no such file; expected a feature specification ({flags} say where){_csv_hint(path.parent)}")
        try:
            return cls.from_dict(load_yaml(path), path)
        except YamlError as error:
            raise FeatureSpecError(str(error)) from None

    @classmethod
    def from_dict(cls, content: Any, path: Path | None = None) -> "FeatureSpec":
        """Build a specification from the YAML file's content. Raises FeatureSpecError; see `from_yaml`."""
        where = f"{path}: " if path else ""
        content = _mapping(content, f"{where}the file")
        _refuse_unknown(content, _SECTIONS, f"{where}section")
        for section in ("feature_spec", "channel_spec"):
            if section not in content:
                raise FeatureSpecError(f"{where}section {section} is missing")
        channels = _mapping(content["channel_spec"], f"{where}channel_spec")
        entries = _mapping(content["feature_spec"], f"{where}feature_spec")
        _refuse_unknown(channels, _CHANNELS, f"{where}channel_spec: channel")
        for channel in _CHANNELS:
            if channel not in channels:
                raise FeatureSpecError(f"{where}channel_spec lacks the channel {channel}")
        categorical = _names(channels["categorical"], f"{where}channel_spec.categorical")
        numerical = _names(channels["numerical"], f"{where}channel_spec.numerical")
        label = _names(channels["label"], f"{where}channel_spec.label")
        if len(label) != 1:
            raise FeatureSpecError(f"{where}channel_spec.label lists {len(label)} features, expected exactly one")
        if not categorical:
            raise FeatureSpecError(f"{where}channel_spec.categorical is empty; the model needs at least one categorical feature")
        if not numerical:
            raise FeatureSpecError(f"{where}channel_spec.numerical is empty; the model's bottom MLP needs at least one numerical feature")
        names = categorical + numerical + label
        _check_listed(names, entries, where)
        dtypes, known = {}, set(categorical)
        for name in names:
            place = f"{where}feature_spec.{name}"
            entry = _mapping(entries[name], place)
            _refuse_unknown(entry, ("cardinality", "hotness", "alpha", "dtype") if name in known else ("dtype",), f"{place}: key")
            dtypes[name] = _dtype(entry.get("dtype"), place)
        return cls(
            categorical=tuple(_categorical(name, entries[name], dtypes[name], where) for name in categorical),
            numerical=numerical,
            label=label[0],
            dtypes=dtypes,
            sources=_sources(content.get("source_spec"), where),
            metadata=_mapping(content.get("metadata") or {}, f"{where}metadata"),
            path=path,
        )

    def to_dict(self) -> dict[str, Any]:
        """The content of the YAML file."""
        features: dict[str, dict[str, Any]] = {}
        for feature in self.categorical:
            entries: dict[str, Any] = {"cardinality": feature.cardinality}
            if feature.alpha is not None or feature.hotness != 1:
                entries["hotness"] = feature.hotness
            if feature.alpha is not None:
                entries["alpha"] = feature.alpha
            features[feature.name] = entries | {"dtype": feature.dtype}
        for name in (*self.numerical, self.label):
            features[name] = {"dtype": self.dtypes[name]}
        sources = None
        if self.sources is not None:
            sources = {
                split: [{"type": chunk.type, "features": list(chunk.features), "files": list(chunk.files)} for chunk in chunks]
                for split, chunks in self.sources.items()
            }
        return {
            "feature_spec": features,
            "channel_spec": {
                "categorical": [feature.name for feature in self.categorical],
                "numerical": list(self.numerical),
                "label": [self.label],
            },
            "source_spec": sources,
            "metadata": dict(self.metadata),
        }

    def to_yaml(self) -> str:
        """The YAML text, features in the model's order."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, width=120)

    def as_tf_raw(self, splits: Iterable[str], metadata: Mapping[str, Any] | None = None) -> "FeatureSpec":
        """The specification of a tf_raw dataset that holds these features in these splits: one file per chunk, the smallest dtypes.

        Raises:
            FeatureSpecError: two features would share a file name, a name cannot be one, or a feature has several ids.
        """
        for feature in self.categorical:
            refuse_hotness(feature.name, feature.hotness)
        categorical = tuple(replace(feature, dtype=smallest_dtype(feature.cardinality), alpha=None) for feature in self.categorical)
        files = {feature.name: file_name(feature.name) for feature in categorical}
        taken = Counter(["numerical.bin", "label.bin", *files.values()])
        for name, file in files.items():
            if taken[file] > 1:
                raise FeatureSpecError(f"feature {name} would be written to {file}, which another feature needs; rename it")
        dtypes = {feature.name: feature.dtype for feature in categorical}
        dtypes |= dict.fromkeys(self.numerical, NUMERICAL_DTYPE) | {self.label: LABEL_DTYPE}
        sources = {}
        for split in splits:
            chunks = [Chunk(SPLIT_BINARY, self.numerical, (f"{split}/numerical.bin",))]
            chunks += [Chunk(SPLIT_BINARY, (name,), (f"{split}/{file}",)) for name, file in files.items()]
            sources[split] = (*chunks, Chunk(SPLIT_BINARY, (self.label,), (f"{split}/label.bin",)))
        return FeatureSpec(categorical, self.numerical, self.label, dtypes, sources, self.metadata if metadata is None else metadata)


def _check_listed(names: tuple[str, ...], entries: Mapping[str, Any], where: str) -> None:
    """Check that each feature of a channel stands in one, and has an entry, and that no other has. Raises FeatureSpecError."""
    for name, count in Counter(names).items():
        if count > 1:
            raise FeatureSpecError(f"{where}channel_spec lists feature {name} more than once")
        if name not in entries:
            raise FeatureSpecError(f"{where}feature {name} stands in channel_spec and is missing in feature_spec")
    listed = set(names)
    unread = [name for name in entries if name not in listed]
    if unread:
        more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
        name = str(unread[0])[:60]
        raise FeatureSpecError(f"{where}feature {name!r}{more} stands in feature_spec and in no channel; remove it or list it in channel_spec")


def file_name(feature: str) -> str:
    """The file of a categorical feature in its split's folder: `cat_0` and `cat_0.bin` both live in `cat_0.bin`."""
    if not feature or "/" in feature or "\0" in feature or feature.startswith("."):
        raise FeatureSpecError(f"feature name {feature!r} cannot be a file name; expected no '/', and no '.' at the start")
    return feature if feature.endswith(".bin") else f"{feature}.bin"


def generator_spec(cardinalities: Iterable[int], num_numerical: int, alpha: float, metadata: Mapping[str, Any] | None = None) -> FeatureSpec:
    """A generator specification: what synthetic data is to look like, before there is any.

    Args:
        cardinalities: rows of each table, `[F]`.
        num_numerical: M.
        alpha: exponent of the power law that ids are drawn from.
    """
    categorical = tuple(Categorical(f"cat_{i}", int(cardinality), "int32", hotness=1, alpha=alpha) for i, cardinality in enumerate(cardinalities))
    numerical = tuple(f"num_{i}" for i in range(num_numerical))
    dtypes = {feature.name: feature.dtype for feature in categorical} | dict.fromkeys(numerical, NUMERICAL_DTYPE) | {"label": "int8"}
    return FeatureSpec(categorical, numerical, "label", dtypes, None, metadata or {})


def refuse_hotness(feature: str, hotness: int, where: str = "") -> None:
    """Raise FeatureSpecError for a feature with several ids a sample: not supported yet, and reading one of them would be wrong."""
    if hotness != 1:
        raise FeatureSpecError(f"{where}feature {feature}: hotness is {hotness}, expected 1; several ids a sample are not supported yet")


def _csv_hint(folder: Path) -> str:
    try:
        tables = sorted(path.name for path in folder.glob("*.csv"))
    except (OSError, ValueError):
        tables = []
    return f"; {tables[0]} there needs one too, see CSV in docs/data.md" if tables else ""


def _refuse_unknown(content: Mapping, known: Iterable[str], what: str) -> None:
    """Raise FeatureSpecError for a key that nothing here reads: what it asks for would be ignored in silence."""
    unknown = [key for key in content if key not in known]
    if unknown:
        raise FeatureSpecError(f"{what} {str(unknown[0])[:60]!r} is not known, expected one of {', '.join(known)}; remove it")


def _mapping(value: Any, where: str) -> dict:
    if not isinstance(value, dict):
        raise FeatureSpecError(f"{where}: expected a mapping of names to values, found {_kind(value)}")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise FeatureSpecError(f"{where}: expected a list of names, found {_kind(value)}")
    for name in value:
        if "\n" in name or "\r" in name:
            raise FeatureSpecError(f"{where}: {name[:60]!r} holds an end of line, expected names of one line")
    return tuple(value)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"


def _dtype(value: Any, where: str) -> str:
    if not isinstance(value, str) or value not in np.sctypeDict:
        raise FeatureSpecError(f"{where}: dtype: expected the name of a NumPy type, found {_kind(value)}")
    return np.dtype(value).name


def _categorical(name: str, entries: dict, dtype: str, where: str) -> Categorical:
    def number(key: str, default: Any, kinds: type | tuple[type, ...], least: float) -> Any:
        value = entries.get(key, default)
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < float("inf"):
            raise FeatureSpecError(f"{where}feature_spec.{name}: {key}: expected a number of at least {least}, found {_kind(value)}")
        return value

    alpha = entries.get("alpha")
    if alpha is not None:
        alpha = number("alpha", None, (int, float), 0)
        if alpha > 100:  # steeper than any data, and (V + 1)^(1 - alpha) leaves the range of float64
            raise FeatureSpecError(f"{where}feature_spec.{name}: alpha: expected a number from 0 to 100, found {_kind(alpha)}")
        alpha = float(alpha)
    hotness = number("hotness", 1, int, 1)
    refuse_hotness(name, hotness, where)
    return Categorical(name, number("cardinality", None, int, 1), dtype, hotness, alpha)


def _sources(value: Any, where: str) -> dict[str, tuple[Chunk, ...]] | None:
    if value is None:
        return None
    sources = {}
    for split, chunks in _mapping(value, f"{where}source_spec").items():
        place = f"{where}source_spec.{split}"
        if split not in SPLITS:
            raise FeatureSpecError(f"{where}source_spec: split {str(split)[:60]!r} is not known, expected one of {', '.join(SPLITS)}; remove it")
        if not isinstance(chunks, list):
            raise FeatureSpecError(f"{place}: expected a list of chunks, found {_kind(chunks)}")
        parsed = []
        for i, chunk in enumerate(chunks):
            chunk = _mapping(chunk, f"{place}[{i}]")
            if not isinstance(chunk.get("type"), str):
                raise FeatureSpecError(f"{place}[{i}]: type: expected a name, found {_kind(chunk.get('type'))}")
            _refuse_unknown(chunk, ("type", "features", "files"), f"{place}[{i}]: key")
            features, files = (_names(chunk.get(key), f"{place}[{i}].{key}") for key in ("features", "files"))
            for file in files:
                _check_file_name(file, f"{place}[{i}].files")
            parsed.append(Chunk(chunk["type"], features, files))
        sources[split] = tuple(parsed)
    return sources


def _check_file_name(file: str, where: str) -> None:
    try:
        possible = bool(file) and b"\0" not in os.fsencode(file)
    except UnicodeEncodeError:  # half of a surrogate pair, which YAML can write
        possible = False
    if not possible:
        raise FeatureSpecError(f"{where}: {file[:60]!r} is not a file name")
