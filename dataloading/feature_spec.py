"""The feature specification: the features of a dataset, the files that hold them, and the part of the model that reads them.

The YAML form is the single contract between preprocessing, datasets and the model. It is the format of NVIDIA's recommender
examples (their "Dataset Feature Specification"), so that their datasets load here and ours load there.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from dataloading.features import (
    CATEGORICAL_DTYPES,
    GROUP_DTYPES,
    LABEL_DTYPE,
    MEAN,
    NUMERICAL_DTYPE,
    NUMERICAL_DTYPES,
    SPLITS,
    SUM,
    WEIGHT_DTYPE,
    Categorical,
    Chunk,
    FeatureSpecError,
    check_drawable,
    file_name,
    smallest_dtype,
    weights_file,
)
from dataloading.spec_parsing import GROUP, SERVE, TRAINING_ONLY, WEIGHT, kind_of, parse_fields
from utils.urls import url_of, without_secrets
from utils.yaml_file import YamlError, load_yaml

__all__ = [
    "CATEGORICAL_DTYPES",
    "DEFAULT_FILE_NAME",
    "GROUP_DTYPES",
    "LABEL_DTYPE",
    "MEAN",
    "NUMERICAL_DTYPE",
    "NUMERICAL_DTYPES",
    "SPLITS",
    "SPLIT_BINARY",
    "SUM",
    "Categorical",
    "Chunk",
    "FeatureSpec",
    "FeatureSpecError",
    "check_drawable",
    "file_name",
    "generator_spec",
    "smallest_dtype",
]

SPLIT_BINARY = "split_binary"
NEGATIVE_RATE = "negative_rate"
DEFAULT_FILE_NAME = "feature_spec.yaml"


@dataclass(frozen=True)
class FeatureSpec:
    """A parsed feature specification; `categorical` and `numerical` are in the model's order.

    `dtypes` holds the stated dtype of every feature. `sources` is None in a generator specification, which describes synthetic data that is
    not drawn yet. `path` is the YAML file that was read; the files of the chunks are relative to its folder.
    """

    categorical: tuple[Categorical, ...]
    numerical: tuple[str, ...]
    label: str
    dtypes: Mapping[str, str]
    sources: Mapping[str, tuple[Chunk, ...]] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    group: str | None = None  # the feature that groups rows: rows with the same value belong together; None for no group
    serve: Mapping[str, float] = field(default_factory=dict)  # values that scores take for numerical features for training only, see `training_only`
    weight: str | None = None  # the feature that weighs rows, float32, in splits with labels; None where every row counts once
    as_stated: tuple[Categorical, ...] | None = None  # `categorical` of the file, where options overrule it; fingerprints of the rows are of these

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """The number of rows of each categorical feature's table, in the model's order."""
        return tuple(feature.cardinality for feature in self.categorical)

    @property
    def hotness(self) -> tuple[int, ...]:
        """The number of ids per sample of each categorical feature, in the model's order."""
        return tuple(feature.hotness for feature in self.categorical)

    @property
    def embedding_dims(self) -> dict[str, int | None]:
        """The number of columns of each embedding table, by table name, as stated by any feature that uses it; None if none states it."""
        dims: dict[str, int | None] = {}
        for feature in self.categorical:
            dims[feature.table_name] = dims.get(feature.table_name) or feature.embedding_dim
        return dims

    @property
    def numerical_dtype(self) -> str:
        """The dtype of the numerical features: float16 or float32, the same for all.

        Raises:
            FeatureSpecError: the dtype is another one, or differs between features.
        """
        first = self.dtypes[self.numerical[0]] if self.numerical else NUMERICAL_DTYPE
        for name in self.numerical:
            if self.dtypes[name] != first or first not in NUMERICAL_DTYPES:
                raise FeatureSpecError(
                    f"feature {name}: dtype is {self.dtypes[name]}, numerical features must be all {' or all '.join(NUMERICAL_DTYPES)}"
                )
        return first

    @property
    def group_dtype(self) -> str:
        """The dtype of the group column, which must exist. Raises FeatureSpecError where it is neither int32 nor int64."""
        return _checked_dtype(self, self.group, GROUP, GROUP_DTYPES)

    @property
    def weight_dtype(self) -> str:
        """The dtype of the weights, which must exist. Raises FeatureSpecError where it is not float32."""
        return _checked_dtype(self, self.weight, WEIGHT, (WEIGHT_DTYPE,))

    @property
    def negative_rate(self) -> float:
        """The share of the negatives that the training split has kept; 1 where it has all.

        Raises:
            FeatureSpecError: `metadata.negative_rate` is no number above 0 and up to 1.
        """
        rate = self.metadata.get(NEGATIVE_RATE, 1.0)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
            raise FeatureSpecError(f"metadata.{NEGATIVE_RATE}: expected a number above 0 and up to 1, found {kind_of(rate)}")
        return float(rate)

    def beside(self, labelled: bool = True) -> dict[str, str]:
        """Return the channel of each feature that describes rows without being an input: the group and, in a split with labels, the weight."""
        found = {} if self.group is None else {self.group: GROUP}
        return found if self.weight is None or not labelled else found | {self.weight: WEIGHT}

    def labelled(self, split: str) -> bool:
        """Return whether a split has labels. A split without a label chunk is for prediction only; a generator specification always has labels."""
        return self.sources is None or any(self.label in chunk.features for chunk in self.sources.get(split, ()))

    @property
    def base_directory(self) -> Path:
        """The folder that the files of the chunks are relative to."""
        return self.path.parent if self.path else Path(".")

    @classmethod
    def from_yaml(cls, path: str | Path, flags: str = "--dataset_path and --feature_spec") -> "FeatureSpec":
        """Read a specification.

        Args:
            path: the YAML file.
            flags: the flags that set the path, for the error message if the file is missing.

        Raises:
            FeatureSpecError: the file is missing, is not YAML, lacks a required entry, or holds an unknown entry. `contract.check_quick`
                checks whether the dataset itself meets the tf_raw contract.
        """
        path = Path(path)
        if "\0" not in str(path) and not path.exists():
            raise FeatureSpecError(_not_there(path, flags))
        try:
            return cls.from_dict(load_yaml(path), path)
        except YamlError as error:
            raise FeatureSpecError(str(error)) from None

    @classmethod
    def from_dict(cls, content: Any, path: Path | None = None) -> "FeatureSpec":
        """Build a specification from the content of the YAML file. Raises FeatureSpecError; see `from_yaml`."""
        return cls(**parse_fields(content, f"{path}: " if path else ""), path=path)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the YAML file."""
        return _content(self)

    def to_yaml(self) -> str:
        """Return the YAML text, features in the model's order."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, width=120)

    def as_tf_raw(self, splits: Iterable[str], metadata: Mapping[str, Any] | None = None, unlabelled: Collection[str] = ()) -> "FeatureSpec":
        """Return the specification of a tf_raw dataset with these features and splits: one file per chunk, the smallest dtypes.

        Args:
            splits: names of the splits.
            metadata: metadata of the dataset; None for the metadata of this specification.
            unlabelled: the splits that have no labels.

        Raises:
            FeatureSpecError: two features would share a file name, a name cannot be a file name, or tf_raw cannot hold the type of a column.
        """
        categorical = tuple(replace(feature, dtype=smallest_dtype(feature.cardinality), alpha=None) for feature in self.categorical)
        files = {feature.name: file_name(feature.name) for feature in categorical}
        weights = {feature.name: weights_file(feature.name) for feature in categorical if feature.weights}
        beside = {name: f"{channel}.bin" for name, channel in self.beside().items()}
        taken = Counter(["numerical.bin", "label.bin", *beside.values(), *files.values(), *weights.values()])
        for name, file in (*files.items(), *weights.items()):
            if taken[file] > 1:
                raise FeatureSpecError(f"feature {name} would be written to {file}, which another feature needs; rename it")
        dtypes = {feature.name: feature.dtype for feature in categorical}
        dtypes |= dict.fromkeys(self.numerical, self.numerical_dtype) | {self.label: LABEL_DTYPE}
        dtypes |= {name: getattr(self, f"{channel}_dtype") for name, channel in self.beside().items()}
        sources = {split: _tf_raw_chunks(self, split not in unlabelled, split, files | beside) for split in splits}
        kept = self.metadata if metadata is None else metadata
        return replace(self, categorical=categorical, dtypes=dtypes, sources=sources, metadata=kept, path=None)


def _checked_dtype(spec: FeatureSpec, feature: str, channel: str, known: Collection[str]) -> str:
    """Return the dtype of a channel's feature. Raises FeatureSpecError where it is none of those known."""
    dtype = spec.dtypes[feature]
    if dtype not in known:
        raise FeatureSpecError(f"feature {feature}: dtype is {dtype}, the {channel} must be {' or '.join(known)}")
    return dtype


def _tf_raw_chunks(spec: FeatureSpec, labelled: bool, split: str, files: Mapping[str, str]) -> tuple[Chunk, ...]:
    """Return the chunks of a tf_raw split; `files` are those of the categorical features and of the columns beside them."""
    chunks = [Chunk(SPLIT_BINARY, spec.numerical, (f"{split}/numerical.bin",))] if spec.numerical else []
    for feature in spec.categorical:
        names = (files[feature.name], *((weights_file(feature.name),) if feature.weights else ()))
        chunks.append(Chunk(SPLIT_BINARY, (feature.name,), tuple(f"{split}/{name}" for name in names)))
    chunks += [Chunk(SPLIT_BINARY, (spec.label,), (f"{split}/label.bin",))] if labelled else []
    return (*chunks, *(Chunk(SPLIT_BINARY, (name,), (f"{split}/{files[name]}",)) for name in spec.beside(labelled)))


def _content(spec: FeatureSpec) -> dict[str, Any]:
    features = {feature.name: _entries(feature) for feature in spec.categorical}
    beside = spec.beside()
    for name in (*spec.numerical, spec.label, *beside):
        only = {TRAINING_ONLY: {SERVE: spec.serve[name]}} if name in spec.serve else {}
        features[name] = {"dtype": spec.dtypes[name]} | only
    sources = None
    if spec.sources is not None:
        sources = {
            split: [{"type": chunk.type, "features": list(chunk.features), "files": list(chunk.files)} for chunk in chunks]
            for split, chunks in spec.sources.items()
        }
    return {
        "feature_spec": features,
        "channel_spec": {
            "categorical": [feature.name for feature in spec.categorical],
            "numerical": list(spec.numerical),
            "label": [spec.label],
            **{channel: [name] for name, channel in beside.items()},
        },
        "source_spec": sources,
        "metadata": dict(spec.metadata),
    }


def _entries(feature: Categorical) -> dict[str, Any]:
    """Return the YAML entries of a feature, without those that equal their defaults."""
    entries: dict[str, Any] = {"cardinality": feature.cardinality}
    if feature.alpha is not None or feature.hotness != 1:
        entries["hotness"] = feature.hotness
    if feature.pooling != SUM:
        entries["pooling"] = feature.pooling
    for name in ("alpha", "table", "embedding_dim"):
        if getattr(feature, name) is not None:
            entries[name] = getattr(feature, name)
    if feature.weights:
        entries["weights"] = True
    if feature.serve is not None:
        entries[TRAINING_ONLY] = {SERVE: feature.serve}
    return entries | {"dtype": feature.dtype}


def generator_spec(
    cardinalities: Iterable[int],
    num_numerical: int,
    alpha: float,
    metadata: Mapping[str, Any] | None = None,
    hotness: Sequence[int] = (1,),
) -> FeatureSpec:
    """Return a generator specification, which describes synthetic data before it is drawn.

    Args:
        cardinalities: rows of each table, `[F]`.
        num_numerical: M.
        alpha: exponent of the power law that ids are drawn from.
        metadata: metadata of the specification.
        hotness: ids per sample of each feature, `[F]`; a single number applies to all features.

    Raises:
        FeatureSpecError: the number of hotnesses differs from the number of features, or a hotness exceeds its feature's cardinality.
    """
    rows = list(map(int, cardinalities))
    ids = list(map(int, hotness)) * (len(rows) if len(hotness) == 1 else 1)
    if len(ids) != len(rows):
        raise FeatureSpecError(f"{len(ids)} hotnesses for {len(rows)} features; expected one number for all, or one for each")
    categorical = tuple(Categorical(f"cat_{i}", count, "int32", h, alpha) for i, (count, h) in enumerate(zip(rows, ids, strict=True)))
    for feature in categorical:
        check_drawable(feature)
    numerical = tuple(f"num_{i}" for i in range(num_numerical))
    dtypes = {feature.name: feature.dtype for feature in categorical} | dict.fromkeys(numerical, NUMERICAL_DTYPE) | {"label": "int8"}
    return FeatureSpec(categorical, numerical, "label", dtypes, None, metadata or {})


def _not_there(path: Path, flags: str) -> str:
    """Return the error message for a missing specification."""
    if url := url_of(str(path.parent)):
        url = without_secrets(url)
        return f"{url}: datasets are read from local files; fetch this one with python -m dataloading.fetch {url} FOLDER"
    return f"{path}: no such file; expected a feature specification (path from {flags}){_csv_hint(path.parent)}"


def _csv_hint(folder: Path) -> str:
    try:
        tables = sorted(path.name for path in folder.glob("*.csv"))
    except (OSError, ValueError):
        tables = []
    return f"; {tables[0]} in that folder needs one, see CSV in docs/data.md" if tables else ""
