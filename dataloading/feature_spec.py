"""The feature specification: which features a dataset has, which files hold them and which part of the model reads them.

The YAML form is the one contract between preprocessing, datasets and the model; it is the format of NVIDIA's recommender
examples (their "Dataset Feature Specification"), so that their datasets load here and ours load there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from utils.errors import UserError

CATEGORICAL_DTYPES = ("int8", "int16", "int32")
NUMERICAL_DTYPE = "float16"
LABEL_DTYPE = "bool"
SPLIT_BINARY = "split_binary"
DEFAULT_FILE_NAME = "feature_spec.yaml"


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
    def from_yaml(cls, path: str | Path) -> "FeatureSpec":
        """Read a specification.

        Raises:
            FeatureSpecError: the file is missing, is not YAML, or lacks what every specification needs. Whether the
                dataset behind it keeps the tf_raw contract is `contract.check_quick`'s question.
        """
        path = Path(path)
        try:
            content = yaml.safe_load(path.read_bytes())
        except FileNotFoundError:
            raise FeatureSpecError(f"{path}: no such file; expected a feature specification (--dataset_path and --feature_spec say where)") from None
        except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:  # PyYAML lets all of these out
            raise FeatureSpecError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
        except RecursionError:
            raise FeatureSpecError(f"{path}: not valid YAML: nested too deeply") from None
        return cls.from_dict(content, path)

    @classmethod
    def from_dict(cls, content: Any, path: Path | None = None) -> "FeatureSpec":
        """Build a specification from the YAML file's content. Raises FeatureSpecError; see `from_yaml`."""
        where = f"{path}: " if path else ""
        content = _mapping(content, f"{where}the file")
        for section in ("feature_spec", "channel_spec"):
            if section not in content:
                raise FeatureSpecError(f"{where}section {section} is missing")
        channels = _mapping(content["channel_spec"], f"{where}channel_spec")
        facts = _mapping(content["feature_spec"], f"{where}feature_spec")
        for channel in ("categorical", "numerical", "label"):
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
        for name in names:
            if names.count(name) > 1:
                raise FeatureSpecError(f"{where}channel_spec lists feature {name} more than once")
            if name not in facts:
                raise FeatureSpecError(f"{where}feature {name} stands in channel_spec and is missing in feature_spec")
        dtypes = {}
        for name in names:
            fact = _mapping(facts[name], f"{where}feature_spec.{name}")
            dtypes[name] = _dtype(fact.get("dtype"), f"{where}feature_spec.{name}")
        return cls(
            categorical=tuple(_categorical(name, facts[name], dtypes[name], where) for name in categorical),
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
            facts: dict[str, Any] = {"cardinality": feature.cardinality}
            if feature.alpha is not None:
                facts |= {"hotness": feature.hotness, "alpha": feature.alpha}
            features[feature.name] = facts | {"dtype": feature.dtype}
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
            FeatureSpecError: two features would share a file name, or a name cannot be one.
        """
        categorical = tuple(replace(feature, dtype=smallest_dtype(feature.cardinality), alpha=None, hotness=1) for feature in self.categorical)
        files = {feature.name: file_name(feature.name) for feature in categorical}
        taken = ["numerical.bin", "label.bin", *files.values()]
        for name, file in files.items():
            if taken.count(file) > 1:
                raise FeatureSpecError(f"feature {name} would be written to {file}, which another feature needs; rename it")
        dtypes = {feature.name: feature.dtype for feature in categorical}
        dtypes |= dict.fromkeys(self.numerical, NUMERICAL_DTYPE) | {self.label: LABEL_DTYPE}
        sources = {}
        for split in splits:
            chunks = [Chunk(SPLIT_BINARY, self.numerical, (f"{split}/numerical.bin",))]
            chunks += [Chunk(SPLIT_BINARY, (name,), (f"{split}/{file}",)) for name, file in files.items()]
            sources[split] = (*chunks, Chunk(SPLIT_BINARY, (self.label,), (f"{split}/label.bin",)))
        return FeatureSpec(categorical, self.numerical, self.label, dtypes, sources, self.metadata if metadata is None else metadata)


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


def _mapping(value: Any, where: str) -> dict:
    if not isinstance(value, dict):
        raise FeatureSpecError(f"{where}: expected a mapping of names to values, found {_kind(value)}")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise FeatureSpecError(f"{where}: expected a list of names, found {_kind(value)}")
    return tuple(value)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"


def _dtype(value: Any, where: str) -> str:
    if not isinstance(value, str) or value not in np.sctypeDict:
        raise FeatureSpecError(f"{where}: dtype: expected the name of a NumPy type, found {_kind(value)}")
    return np.dtype(value).name


def _categorical(name: str, facts: dict, dtype: str, where: str) -> Categorical:
    def number(key: str, default: Any, kinds: type | tuple[type, ...], least: float) -> Any:
        value = facts.get(key, default)
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < float("inf"):
            raise FeatureSpecError(f"{where}feature_spec.{name}: {key}: expected a number of at least {least}, found {_kind(value)}")
        return value

    alpha = facts.get("alpha")
    if alpha is not None:
        alpha = number("alpha", None, (int, float), 0)
        if alpha > 100:  # steeper than any data, and (V + 1)^(1 - alpha) leaves the range of float64
            raise FeatureSpecError(f"{where}feature_spec.{name}: alpha: expected a number from 0 to 100, found {_kind(alpha)}")
        alpha = float(alpha)
    return Categorical(name, number("cardinality", None, int, 1), dtype, number("hotness", 1, int, 1), alpha)


def _sources(value: Any, where: str) -> dict[str, tuple[Chunk, ...]] | None:
    if value is None:
        return None
    sources = {}
    for split, chunks in _mapping(value, f"{where}source_spec").items():
        place = f"{where}source_spec.{split}"
        if not isinstance(split, str) or not isinstance(chunks, list):
            raise FeatureSpecError(f"{place}: expected a list of chunks, found {_kind(chunks)}")
        parsed = []
        for i, chunk in enumerate(chunks):
            chunk = _mapping(chunk, f"{place}[{i}]")
            if not isinstance(chunk.get("type"), str):
                raise FeatureSpecError(f"{place}[{i}]: type: expected a name, found {_kind(chunk.get('type'))}")
            features = _names(chunk.get("features"), f"{place}[{i}].features")
            parsed.append(Chunk(chunk["type"], features, _names(chunk.get("files"), f"{place}[{i}].files")))
        sources[split] = tuple(parsed)
    return sources
