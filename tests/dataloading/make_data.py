"""Small datasets for the tests of dataloading."""

from pathlib import Path

import numpy as np

from dataloading.feature_spec import Categorical, FeatureSpec, generator_spec
from dataloading.tf_raw import TfRawWriter

CARDINALITIES = (5, 126, 127, 300, 40_000)  # int8, int8, int16, int16, int32


def small_spec(cardinalities=CARDINALITIES, num_numerical=3) -> FeatureSpec:
    """A specification with one feature per interesting width."""
    return generator_spec(cardinalities, num_numerical, alpha=1.2)


def named_spec(categorical: dict[str, int], numerical: tuple[str, ...], label: str) -> FeatureSpec:
    """A specification with these names."""
    features = tuple(Categorical(name, rows, "int32") for name, rows in categorical.items())
    dtypes = dict.fromkeys(categorical, "int32") | dict.fromkeys(numerical, "float16") | {label: "int8"}
    return FeatureSpec(features, numerical, label, dtypes)


def random_rows(spec: FeatureSpec, count: int, seed: int = 0):
    """Numericals, id columns and labels that keep the contract."""
    draw = np.random.default_rng(seed)
    numerical = draw.random((count, len(spec.numerical))).astype(np.float16)
    ids = [draw.integers(0, feature.cardinality, count).astype(np.int32) for feature in spec.categorical]
    return numerical, ids, draw.integers(0, 2, count).astype(np.uint8)


def write_dataset(folder: Path, spec: FeatureSpec, train: int = 50, test: int = 20, metadata: dict | None = None) -> FeatureSpec:
    """A sound tf_raw dataset; returns its specification."""
    with TfRawWriter(folder, spec) as writer:
        for split, count, seed in (("train", train, 0), ("test", test, 1)):
            writer.append(split, *random_rows(spec, count, seed))
        return writer.publish(metadata or {})


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too, by its relative name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
