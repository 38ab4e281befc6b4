"""Small datasets for the tests of dataloading."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dataloading.feature_spec import Categorical, FeatureSpec, generator_spec
from dataloading.tf_raw import TfRawWriter

CARDINALITIES = (5, 126, 127, 300, 40_000)  # int8, int8, int16, int16, int32


def small_spec(cardinalities=CARDINALITIES, num_numerical=3) -> FeatureSpec:
    """Return a specification whose cardinalities cover every width of ids."""
    return generator_spec(cardinalities, num_numerical, alpha=1.2)


def rich_spec(hotness=(1, 3, 1, 12), num_numerical=2, numerical_dtype="float16", group: str | None = "int64") -> FeatureSpec:
    """Return a specification with lists of ids, a shared table and a group."""
    spec = generator_spec((5, 126, 126, 40_000), num_numerical, alpha=1.2, hotness=hotness)
    first, second, third, fourth = spec.categorical
    categorical = (
        first,
        replace(second, table="shared"),
        replace(third, table="shared"),
        replace(fourth, pooling="mean" if hotness[3] > 1 else "sum"),
    )
    dtypes = dict(spec.dtypes) | dict.fromkeys(spec.numerical, numerical_dtype) | ({} if group is None else {"session": group})
    return replace(spec, categorical=categorical, dtypes=dtypes, group=None if group is None else "session")


def weighted(spec: FeatureSpec, name: str = "importance") -> FeatureSpec:
    """Return the specification with a weight of each row."""
    return replace(spec, dtypes=dict(spec.dtypes) | {name: "float32"}, weight=name)


def named_spec(categorical: dict[str, int], numerical: tuple[str, ...], label: str) -> FeatureSpec:
    """Return a specification with the given names."""
    features = tuple(Categorical(name, rows, "int32") for name, rows in categorical.items())
    dtypes = dict.fromkeys(categorical, "int32") | dict.fromkeys(numerical, "float16") | {label: "int8"}
    return FeatureSpec(features, numerical, label, dtypes)


def random_rows(spec: FeatureSpec, count: int, seed: int = 0):
    """Draw numericals, id columns and labels that keep the contract; lists have holes anywhere, and some are empty."""
    draw = np.random.default_rng(seed)
    numerical = draw.random((count, len(spec.numerical))).astype(spec.numerical_dtype)
    ids = [draw.integers(0, feature.cardinality, _shape(feature, count)).astype(np.int32) for feature in spec.categorical]
    labels = draw.integers(0, 2, count).astype(np.uint8)
    for column in ids:
        if column.ndim > 1:
            column[draw.random(column.shape) < 0.4] = -1
            column[draw.random(count) < 0.1] = -1
    return numerical, ids, labels


def _shape(feature: Categorical, count: int) -> tuple[int, ...]:
    return (count,) if feature.hotness == 1 else (count, feature.hotness)


def random_groups(spec: FeatureSpec, count: int, seed: int = 0) -> np.ndarray | None:
    """Draw groups from the whole range of their dtype; return None where the specification has no group."""
    if spec.group is None:
        return None
    limits = np.iinfo(spec.group_dtype)
    return np.random.default_rng([seed, 1]).integers(limits.min, limits.max, count, spec.group_dtype, endpoint=True)


def random_weights(spec: FeatureSpec, count: int, seed: int = 0) -> np.ndarray | None:
    """Draw weights, 0 for a third of the rows; return None where the specification has no weight."""
    draw = np.random.default_rng([seed, 2])
    return None if spec.weight is None else np.where(draw.random(count) < 1 / 3, 0, 10 * draw.random(count)).astype(np.float32)


def write_dataset(folder: Path, spec: FeatureSpec, train: int = 50, test: int = 20, metadata: dict | None = None) -> FeatureSpec:
    """Write a valid tf_raw dataset; return its specification."""
    with TfRawWriter(folder, spec) as writer:
        for split, count, seed in (("train", train, 0), ("test", test, 1)):
            writer.append(split, *random_rows(spec, count, seed), random_groups(spec, count, seed), random_weights(spec, count, seed))
        return writer.publish(metadata or {})


def least_squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the weights of a linear model of labels, which order rows nearly as those of a logistic regression do, in a tenth of its time."""
    x = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    return np.linalg.solve(x.T @ x + 1e-3 * np.eye(x.shape[1]), x.T @ y)
