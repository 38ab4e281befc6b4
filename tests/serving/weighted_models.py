"""Small datasets whose lists of ids have weights, rows of requests for models of them, and a slow pooling in float64."""

import math
from pathlib import Path

import numpy as np

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.id_weights import joined
from dataloading.tf_raw import TfRawWriter
from run.served_rows import ProofRows
from utils.checkpoint.reading import Checkpoint

RATE = 0.4  # of the negatives that are kept: logits are shifted by its logarithm
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
    """Write a dataset whose labels depend on the weights, and whose negatives are said to be sampled; return its folder."""
    dtypes = {one.name: "int32" for one in categorical} | dict.fromkeys(numerical, "float16") | {"label": "bool"}
    draw = np.random.default_rng(5)
    with TfRawWriter(folder, FeatureSpec(categorical, tuple(numerical), "label", dtypes), ("train", "test")) as writer:
        for split, count in zip(("train", "test"), rows, strict=True):
            ids = [drawn_ids(one, count, draw) for one in categorical]
            numbers = draw.gamma(1.0, 1.0, (count, len(numerical))).astype(np.float16)
            weights = next(column[:, one.hotness :].view(np.float32) for one, column in zip(categorical, ids, strict=True) if one.weights)
            labels = draw.random(count) < 1 / (1 + np.exp(-weights.sum(axis=1)))
            writer.append(split, numbers, ids, labels)
        writer.publish({"negative_rate": RATE})
    return folder


def inputs_of(rows: ProofRows, count: int | None = None) -> dict[str, np.ndarray]:
    """Return the first rows as inputs of a request."""
    inputs = {"numerical": rows.numerical, "categorical": rows.ids, "id_weights": rows.id_weights}
    return {name: values[:count] for name, values in inputs.items() if values.shape[1]}


def slow_scores(path: Path, inputs: dict[str, np.ndarray], categorical=WEIGHTED) -> np.ndarray:
    """Return the probabilities by a checkpoint of a DLRM, or of Wide & Deep, computed in float64 from the definitions.

    Args:
        path: the checkpoint.
        inputs: inputs of a request.
        categorical: the features of its dataset.
    """
    found, count = Checkpoint(path), len(inputs["categorical"])

    def read(name):
        return found.read(name).astype(np.float64)

    def mlp(name, values):
        layers = sum(one.startswith(f"dense/{name}/") for one in found.names("dense/")) // 2
        for layer in range(layers):
            values = values @ read(f"dense/{name}/{layer}/kernel") + read(f"dense/{name}/{layer}/bias")
            values = values if name in ("top_mlp", "deep") and layer == layers - 1 else np.maximum(values, 0)
        return values

    numerical = inputs["numerical"].astype(np.float16).astype(np.float64)
    vectors = pooled(inputs, categorical, lambda one: read(f"tables/{one.table_name}/weights"))
    if "dense/wide/0/kernel" in found.names("dense/"):
        wide = pooled(inputs, categorical, lambda one: read(f"tables/{one.table_name}_wide/weights"), means=False)
        logits = mlp("deep", np.concatenate([numerical, *vectors], axis=1)) + sum(wide)
        logits += numerical @ read("dense/wide/0/kernel") + read("dense/wide/0/bias")
    else:
        bottom = mlp("bottom_mlp", numerical)
        z = np.stack([bottom, *vectors], axis=1)
        dots = [(z[:, i] * z[:, j]).sum(axis=1) for i in range(z.shape[1]) for j in range(i)]
        logits = mlp("top_mlp", np.concatenate([bottom, np.stack(dots, axis=1)], axis=1))
    return 1 / (1 + np.exp(-logits.reshape(count) - math.log(RATE)))


def pooled(inputs: dict[str, np.ndarray], categorical, table_of, means=True) -> list[np.ndarray]:
    """Return the vector of each feature `[B, D]`, sample by sample, id by id."""
    vectors, first, of_weights = [], 0, 0
    for one in categorical:
        table = table_of(one)
        found = np.zeros((len(inputs["categorical"]), table.shape[1]))
        for sample, ids in enumerate(inputs["categorical"][:, first : first + one.hotness]):
            weights = inputs["id_weights"][sample, of_weights : of_weights + one.hotness].astype(np.float64) if one.weights else np.ones(one.hotness)
            for number, weight in zip(ids, weights, strict=True):
                found[sample] += weight * table[number] if number >= 0 else 0
            total = weights[ids >= 0].sum()
            found[sample] /= total if means and one.pooling == "mean" and total else 1
        vectors.append(found)
        first += one.hotness
        of_weights += one.hotness if one.weights else 0
    return vectors
