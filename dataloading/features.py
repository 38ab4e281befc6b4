"""The entries of a feature specification: categorical features, chunks of features and their files, and stored types."""

from dataclasses import dataclass

import numpy as np

from utils.errors import UserError

CATEGORICAL_DTYPES = ("int8", "int16", "int32")
NUMERICAL_DTYPE = "float16"  # unless the specification says otherwise
NUMERICAL_DTYPES = ("float16", "float32")
GROUP_DTYPES = ("int32", "int64")
LABEL_DTYPE = "bool"
WEIGHT_DTYPE = "float32"
SUM, MEAN = POOLINGS = ("sum", "mean")
SPLITS = ("train", "valid", "test")
VOCABULARY = "vocabulary"  # folder of a dataset: FEATURE.parquet maps each id to its value


class DatasetError(UserError):
    """A dataset that violates the tf_raw contract."""


class FeatureSpecError(UserError):
    """A feature specification that cannot be read or violates the contract."""


@dataclass(frozen=True)
class Categorical:
    """A categorical feature: ids in [0, cardinality), `hotness` ids per sample.

    In a list (`is_list`) -1 means "no id" and pads shorter ones; `pooling` says how the embedding vectors of a sample are combined: as the sum or the
    mean. With `weights` these are the weighted sum, and the weighted mean: that sum over the sum of the weights, or zeros where this is 0.
    """

    name: str
    cardinality: int
    dtype: str
    hotness: int = 1
    alpha: float | None = None  # exponent of the power law that synthetic ids are drawn from; None for real data
    pooling: str = SUM
    table: str | None = None  # name of the embedding table, which several features may share; None for a table of its own
    embedding_dim: int | None = None  # columns of the table; None for the width that the run's options set
    weights: bool = False  # whether each id has a weight, see `id_weights`
    serve: int | None = None  # the id that scores take for a feature that is for training only, see `training_only`; None for other features

    @property
    def table_name(self) -> str:
        """The name of the feature's embedding table."""
        return self.table or self.name

    @property
    def is_list(self) -> bool:
        """True if a sample may have any number of ids up to `hotness`, and -1 means no id; else each sample has exactly one."""
        return self.hotness > 1 or self.weights

    @property
    def columns(self) -> int:
        """The numbers of a sample in an array of ids: `hotness`, and as many again for weights."""
        return 2 * self.hotness if self.weights else self.hotness


@dataclass(frozen=True)
class Chunk:
    """Some features of one split and the files that hold them."""

    type: str
    features: tuple[str, ...]
    files: tuple[str, ...]


def smallest_dtype(cardinality: int) -> str:
    """Return the dtype of a categorical file: the first of int8, int16, int32 with `cardinality < iinfo(dtype).max`.

    Raises:
        FeatureSpecError: the cardinality does not fit 32 bits.
    """
    for dtype in CATEGORICAL_DTYPES:
        if cardinality < np.iinfo(dtype).max:
            return dtype
    raise FeatureSpecError(f"cardinality {cardinality} does not fit int32, the widest type of a categorical file; hash the ids to fewer rows")


def file_name(feature: str) -> str:
    """Return the file name of a categorical feature: `cat_0.bin` for both `cat_0` and `cat_0.bin`. Raises FeatureSpecError for an impossible name."""
    if not feature or "/" in feature or "\0" in feature or feature.startswith("."):
        raise FeatureSpecError(f"feature name {feature!r} cannot be a file name; expected no '/', and no '.' at the start")
    return feature if feature.endswith(".bin") else f"{feature}.bin"


def weights_file(feature: str) -> str:
    """Return the file name of the weights of a feature's ids: `tags.weights.bin` for `tags`. Raises FeatureSpecError like `file_name`."""
    return f"{file_name(feature).removesuffix('.bin')}.weights.bin"


def check_drawable(feature: Categorical) -> None:
    """Raise FeatureSpecError where the hotness exceeds the cardinality: the ids of a synthetic sample are distinct."""
    if feature.hotness > feature.cardinality:
        raise FeatureSpecError(
            f"feature {feature.name}: hotness {feature.hotness} is above its cardinality {feature.cardinality}, and a sample's ids are drawn without "
            "repetition; expected at most as many ids as rows"
        )
