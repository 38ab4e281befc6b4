"""Datasets with planted weights: the logit is a sum of one effect for each feature, of mean 0 and of a known size (its standard deviation)."""

from dataclasses import dataclass

import numpy as np

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.tf_raw import TfRawWriter

NUMERICAL = {"num_a": 0.9, "num_b": 0.35, "num_none": 0.0}
CATEGORICAL = {"cat_a": 1.3, "cat_b": 0.65, "cat_c": 0.5, "cat_d": 0.22, "cat_none": 0.0}
IDS = 40
SIZES = NUMERICAL | CATEGORICAL
COPY = "cat_a_copy"  # other ids, the same information
FLAGS = (
    *("--cpu", "--embedding_dim", "8", "--bottom_mlp_dims", "16,8", "--top_mlp_dims", "16,1", "--batch_size", "512", "--optimizer", "adam"),
    *("--learning_rate", "0.003", "--warmup_steps", "0", "--epochs", "3", "--valid_batch_size", "8192"),
)


@dataclass
class Rows:
    """Drawn rows: numericals, ids of each feature, labels, and the true effect of each feature."""

    numerical: np.ndarray
    ids: list[np.ndarray]
    labels: np.ndarray
    effects: dict[str, np.ndarray]


def tables():
    """Return the effect of each id of each categorical feature, of mean 0 and deviation 1."""
    draw = np.random.default_rng(11)
    drawn = {name: draw.normal(size=IDS) for name in CATEGORICAL}
    return {name: (values - values.mean()) / values.std() for name, values in drawn.items()}


def rows(count, seed):
    draw, effect = np.random.default_rng([7, seed]), tables()
    numerical = draw.random((count, len(NUMERICAL))).astype(np.float16)
    ids = [draw.integers(0, IDS, count) for _ in CATEGORICAL]
    effects = {name: size * (numerical[:, place].astype(float) - 0.5) * np.sqrt(12) for place, (name, size) in enumerate(NUMERICAL.items())}
    effects |= {name: size * effect[name][ids[place]] for place, (name, size) in enumerate(CATEGORICAL.items())}
    labels = draw.random(count) < 1 / (1 + np.exp(-(sum(effects.values()) - 1)))
    return Rows(numerical, ids, labels, effects)


def write(folder, copy=False, counts=(("train", 60_000), ("test", 20_000)), metadata=None):
    """Write a dataset; with `copy`, it has the feature COPY as well. Return its folder."""
    names = [*CATEGORICAL, *([COPY] if copy else [])]
    categorical = tuple(Categorical(name, IDS, "int8") for name in names)
    dtypes = dict.fromkeys(names, "int8") | dict.fromkeys(NUMERICAL, "float16") | {"label": "bool"}
    spec = FeatureSpec(categorical, tuple(NUMERICAL), "label", dtypes)
    with TfRawWriter(folder, spec, tuple(split for split, _ in counts)) as writer:
        for seed, (split, count) in enumerate(counts):
            found = rows(count, seed)
            ids = [*found.ids, *([(found.ids[0] * 7 + 3) % IDS] if copy else [])]
            writer.append(split, found.numerical, ids, found.labels)
        writer.publish(metadata or {})
    return folder
