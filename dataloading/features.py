"""What a feature specification lists: categorical features, the files of some features, and the types they are stored in."""

from dataclasses import dataclass

import numpy as np

from utils.errors import UserError

CATEGORICAL_DTYPES = ("int8", "int16", "int32")
NUMERICAL_DTYPE = "float16"  # unless the specification says otherwise
NUMERICAL_DTYPES = ("float16", "float32")
GROUP_DTYPES = ("int32", "int64")
LABEL_DTYPE = "bool"
SUM, MEAN = POOLINGS = ("sum", "mean")
SPLITS = ("train", "valid", "test")
VOCABULARY = "vocabulary"  # folder of a dataset: FEATURE.parquet says which value every id stands for


class DatasetError(UserError):
    """A dataset that does not keep the tf_raw contract."""


class FeatureSpecError(UserError):
    """A feature specification that cannot be read or does not keep the contract."""


@dataclass(frozen=True)
class Categorical:
    """One categorical feature: ids in [0, cardinality), `hotness` of them a sample.

    Where hotness is above 1, -1 stands for no id, so that lists may be shorter; `pooling` says what becomes of a sample's vectors.
    """

    name: str
    cardinality: int
    dtype: str
    hotness: int = 1
    alpha: float | None = None  # exponent of the power law that synthetic ids are drawn from; None where data is real
    pooling: str = SUM
    table: str | None = None  # name of the embedding table, which several features may share; None for one of its own
    embedding_dim: int | None = None  # columns of the table; None for what the run's options say

    @property
    def table_name(self) -> str:
        """Name of its embedding table."""
        return self.table or self.name


@dataclass(frozen=True)
class Chunk:
    """Some features of one split and the files that hold them."""

    type: str
    features: tuple[str, ...]
    files: tuple[str, ...]


def smallest_dtype(cardinality: int) -> str:
    """The dtype of a categorical file: the first of int8, int16, int32 with `cardinality < iinfo(dtype).max`.

    Raises:
        FeatureSpecError: the cardinality does not fit 32 bits.
    """
    for dtype in CATEGORICAL_DTYPES:
        if cardinality < np.iinfo(dtype).max:
            return dtype
    raise FeatureSpecError(f"cardinality {cardinality} does not fit int32, the widest type of a categorical file; hash the ids to fewer rows")


def file_name(feature: str) -> str:
    """The file of a categorical feature in its split's folder: `cat_0` and `cat_0.bin` both live in `cat_0.bin`."""
    if not feature or "/" in feature or "\0" in feature or feature.startswith("."):
        raise FeatureSpecError(f"feature name {feature!r} cannot be a file name; expected no '/', and no '.' at the start")
    return feature if feature.endswith(".bin") else f"{feature}.bin"


def check_drawable(feature: Categorical) -> None:
    """Raise FeatureSpecError where a sample of synthetic data cannot have so many different ids."""
    if feature.hotness > feature.cardinality:
        raise FeatureSpecError(
            f"feature {feature.name}: hotness {feature.hotness} is above its cardinality {feature.cardinality}, and a sample's ids are drawn without "
            "repetition; expected at most as many ids as rows"
        )
