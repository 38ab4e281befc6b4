"""Small datasets whose lists of ids have weights, rows of requests for models of them, and a slow pooling in float64."""

from pathlib import Path

import numpy as np

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.id_weights import joined
from dataloading.tf_raw import TfRawWriter

WEIGHTED = (
    Categorical("user", 200, "int32"),
    Categorical("liked", 90, "int32", 4, table="items", weights=True),
    Categorical("item", 90, "int32", table="items"),
    Categorical("seen", 60, "int32", 3),
    Categorical("topics", 30, "int32", 5, pooling="mean", weights=True),
    Categorical("place", 40, "int32", weights=True),  # one id with a weight, or none
)


def drawn_ids(feature: Categorical, count: int, draw: np.random.Generator) -> np.ndarray:
    """Draw ids of a feature as a reader returns them; of lists some are absent, and some weights are 0."""
    ids = draw.integers(0, feature.cardinality, (count, feature.hotness)).astype(np.int32)
    if not feature.is_list:
        return ids[:, 0]
    ids[draw.random(ids.shape) < 0.3] = -1
    if not feature.weights:
        return ids
    weights = draw.lognormal(0, 1, ids.shape).astype(np.float32)
    weights[draw.random(ids.shape) < 0.2] = 0
    if feature.pooling != "mean":
        weights[draw.random(ids.shape) < 0.2] *= -1
    return joined(ids, weights)


def write_weighted(folder: Path, categorical=WEIGHTED, numerical=("x", "y"), rows=(1500, 400)) -> Path:
    """Write a dataset whose labels depend on the weights; return its folder."""
    dtypes = {one.name: "int32" for one in categorical} | dict.fromkeys(numerical, "float16") | {"label": "bool"}
    draw = np.random.default_rng(5)
    with TfRawWriter(folder, FeatureSpec(categorical, tuple(numerical), "label", dtypes), ("train", "test")) as writer:
        for split, count in zip(("train", "test"), rows, strict=True):
            ids = [drawn_ids(one, count, draw) for one in categorical]
            numbers = draw.gamma(1.0, 1.0, (count, len(numerical))).astype(np.float16)
            weights = next(column[:, one.hotness :].view(np.float32) for one, column in zip(categorical, ids, strict=True) if one.weights)
            labels = draw.random(count) < 1 / (1 + np.exp(-weights.sum(axis=1)))
            writer.append(split, numbers, ids, labels)
        writer.publish({})
    return folder
