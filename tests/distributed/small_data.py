"""Small datasets for these tests, and the flags of a small model for them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dataloading.feature_spec import Categorical, FeatureSpec, generator_spec
from dataloading.id_weights import joined
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter

# The cardinalities of the first features of criteo_t15_synthetic, cut to 200. Only a few features: each adds to the time that tracing a step takes.
CARDINALITIES = tuple(min(rows, 200) for rows in (7912889, 33823, 17139, 4, 7105, 63, 5554114))
NUM_NUMERICAL, SEED = 3, 1
DIM, BATCH = 8, 48
ROWS = {
    "whole": 5 * BATCH,
    "partial": 5 * BATCH - 17,
    "weighted": 5 * BATCH - 17,
    "large": 5000,
    "test": 397,
}  # 397 is prime: no batch and no N divides it
DIMS = ("--embedding_dim", str(DIM), "--bottom_mlp_dims", f"16,{DIM}", "--top_mlp_dims", "16,1")
FLAGS = (
    "--cpu",
    *DIMS,
    "--batch_size",
    str(BATCH),
    "--gradient_slices",
    "8",
    "--valid_batch_size",
    "96",
    "--optimizer",
    "adam",
    "--learning_rate",
    "0.01",
    "--warmup_steps",
    "0",
)


LISTS = {  # features of datasets with lists of ids, some with weights, shared tables or other widths; all but "lists" have no numerical features
    "lists": (
        Categorical("a", 200, "int16", 3, weights=True),
        Categorical("b1", 150, "int16", table="b"),
        Categorical("few", 4, "int8"),
        Categorical("b2", 150, "int16", 4, pooling="mean", table="b", weights=True),
        Categorical("c", 63, "int8", 2),
    ),
    "shapes": (
        Categorical("a", 200, "int16", 3, pooling="mean", embedding_dim=8),
        Categorical("b1", 150, "int16", 2, table="b", embedding_dim=12),
        Categorical("few", 4, "int8", embedding_dim=4),
        Categorical("b2", 150, "int16", table="b", embedding_dim=12),
        Categorical("one", 40, "int8", 4, embedding_dim=1, weights=True),
    ),
}


def write_lists(folder: Path, name: str, rows: dict[str, int], more: int = 0) -> Path:
    """Write a tf_raw dataset of `LISTS`: random ids, many of them repeated, some lists short or empty, and random labels; return its folder.

    Every table has so many rows `more`.
    """
    features = tuple(replace(feature, cardinality=feature.cardinality + more) for feature in LISTS[name])
    numerical = tuple(f"num_{i}" for i in range(NUM_NUMERICAL)) if name == "lists" else ()
    dtypes = {feature.name: feature.dtype for feature in features} | dict.fromkeys(numerical, "float32") | {"label": "int8"}
    spec = FeatureSpec(features, numerical, "label", dtypes)
    with TfRawWriter(folder, spec, tuple(rows)) as writer:
        for split, count in rows.items():
            draw = np.random.default_rng([len(split), count])
            ids = [np.minimum(draw.geometric(0.05, (count, feature.hotness)) - 1, feature.cardinality - 1) for feature in features]
            ids = [np.where(draw.random(some.shape) < 0.3, -1, some) if some.shape[1] > 1 else some[:, 0] for some in ids]
            for place, feature in enumerate(features):
                if feature.weights:
                    ids[place] = joined(ids[place], draw.choice([0.0, 0.5, 1.0, 3.25], ids[place].shape))
            writer.append(split, draw.random((count, len(numerical))), ids, draw.random(count) < 0.3)
        writer.publish({})
    return folder


def write_dataset(folder: Path, rows: dict[str, int], weighted: bool = False, more: int = 0) -> Path:
    """Write a tf_raw dataset with these splits, drawn as by `--dataset_type synthetic`; return its folder. Every table has so many rows `more`."""
    spec = generator_spec(tuple(one + more for one in CARDINALITIES), NUM_NUMERICAL, 1.2)
    if weighted:
        spec = replace(spec, weight="weight", dtypes={**spec.dtypes, "weight": "float32"})
    with TfRawWriter(folder, spec, tuple(rows)) as writer:
        for split, count in rows.items():
            numerical, ids, labels, _ = SyntheticSplit(spec, split, count, seed=SEED).read_rows(0, count)
            rows_of = np.arange(count)
            # those of the first of two workers have no weight in the first batch
            weights = 3 * np.random.default_rng(count).random(count) * ((rows_of % 5 > 0) & (rows_of >= BATCH // 2)) if weighted else None
            writer.append(split, numerical, ids, labels, None, weights)
        writer.publish({})
    return folder
