"""Combinations of what a model can be trained with: their flags, an array of combinations that has the pairs of values, and the datasets."""

import functools
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter

CROSS = {"interaction": "cross", "num_cross_layers": 2}
MLPS = {"bottom_mlp_dims": "8,4", "top_mlp_dims": "8,1"}
MODELS = {
    "dot": MLPS,
    "cat": MLPS | {"interaction": "cat", "linear": True, "linear_optimizer": "adam", "linear_learning_rate": 0.05},
    "stacked": MLPS | CROSS | {"cross_layer_projection_dim": 3},
    "parallel": MLPS | CROSS | {"cross_layer_projection_dim": 0, "structure": "parallel"},
    "deepfm": {"interaction": "fm", "top_mlp_dims": "8,1", "linear_learning_rate": 0.1},
    "finalmlp": {"interaction": "finalmlp", "stream1_dims": "8,6", "stream2_dims": "4", "gate_dims": "5", "num_heads": 2},
    "wide_and_deep": {"interaction": "wide_and_deep", "top_mlp_dims": "8,1", "linear_learning_rate": 0.1},
}
LINEAR = {"cat", "deepfm", "wide_and_deep"}  # the models with a linear part, which has an optimizer of its own
GATES = {False: {"gate1_features": "a", "gate2_features": "b,c"}, True: {"gate1_features": "user", "gate2_features": "tags,bought"}}
OPTIMIZERS = {  # with learning rates at which the weights visibly move in a few steps
    "sgd": {"momentum": 0.9, "learning_rate": 0.5},
    "adam": {"learning_rate": 0.05},
    "adagrad": {"learning_rate": 0.1},
    "rowwise_adagrad": {"learning_rate": 0.1},
    "ftrl": {"optimizer": "adagrad", "embedding_optimizer": "ftrl", "learning_rate": 0.1},  # it erases the first weights of deep layers
    "rmsprop": {"learning_rate": 0.02},
}
TABLES = {
    "touched rows": {},
    "whole": {"dense_update_rows": 1000, "table_l2": 0.01},
    "looked up": {"embedding_l2": 0.1, "checkpoint_rows": "touched"},
    "lazy": {"table_storage": "lazy", "table_storage_above": 1, "table_memory_gb": 0.1},
}
FLOAT32 = "float32"
PRECISIONS = {
    FLOAT32: {},
    "bfloat16": {"amp": True, "amp_dtype": "bfloat16"},
    "float16": {"amp": True, "amp_dtype": "float16", "loss_scale": "dynamic"},
}
NORM = {False: {}, True: {"batch_norm": True}}
DROPOUT = {False: {}, True: {"dropout": 0.2}}
CLIP = {False: {}, True: {"clip_norm": 0.05}}
EVERY = 2  # steps between evaluations with a plateau
STEPS_ONLY = {"decay_start_step": 6, "decay_steps": 20, "evals_per_epoch": 2}
SCHEDULES = {False: STEPS_ONLY, True: {"lr_schedule": "plateau", "plateau_factor": 0.5, "test_freq": EVERY}}
VALUES = (tuple(MODELS), tuple(OPTIMIZERS), tuple(PRECISIONS), tuple(TABLES), *[(True, False)] * 5)

BATCH, EPOCHS, STEPS = 64, 3, 15  # the last batch of an epoch has 20 rows: of its 4 slices, 2 have no real sample and one is mostly padding
ROWS = {"train": 4 * BATCH + 20, "valid": 200, "test": 200}
COMMON = {
    "cpu": True,
    "batch_size": BATCH,
    "valid_batch_size": 200,
    "gradient_slices": 4,
    "embedding_dim": 4,
    "epochs": EPOCHS,
    "warmup_steps": 2,
    "print_freq": 1,
}
PLAIN = (Categorical("a", 50, "int32", alpha=1.2), Categorical("b", 400, "int32", alpha=1.2), Categorical("c", 60, "int32", alpha=1.2))
LISTS = (
    Categorical("user", 200, "int32", alpha=1.2),
    Categorical("bought", 90, "int32", 6, 1.1, table="items", weights=True),
    Categorical("item", 90, "int32", alpha=1.1, table="items"),
    Categorical("tags", 50, "int32", 4, 1.2, pooling="mean"),
)
NUMERICAL = ("x", "y", "z")


class Combination(NamedTuple):
    """The model of a run and the ways in which it trains; the names are keys of the tables of flags above."""

    model: str
    optimizer: str
    precision: str
    tables: str
    batch_norm: bool
    plateau: bool
    dropout: bool
    lists: bool
    clip: bool

    @property
    def flags(self) -> dict[str, Any]:
        """The flags of `dlrm.train`, without the dataset."""
        chosen = MODELS[self.model], OPTIMIZERS[self.optimizer], PRECISIONS[self.precision], TABLES[self.tables]
        found = dict(COMMON, optimizer=self.optimizer)
        gates = GATES[self.lists] if self.model == "finalmlp" else {}
        for flags in (*chosen, gates, NORM[self.batch_norm], SCHEDULES[self.plateau], DROPOUT[self.dropout], CLIP[self.clip]):
            found |= flags
        return found

    def __str__(self) -> str:
        switches = zip(self[4:], ("norm", "plateau", "dropout", "lists", "clip"), strict=True)
        return "-".join([self.model, self.optimizer, self.precision, self.tables.replace(" ", "_"), *(name for on, name in switches if on)])


ALL = tuple(Combination(*values) for values in itertools.product(*VALUES))


def pairs(values: Iterable[Any]) -> set[tuple[int, Any, int, Any]]:
    """Return the pairs of values of different parameters, each value with its parameter's number."""
    numbered = itertools.combinations(enumerate(values), 2)
    return {(first, one, second, other) for (first, one), (second, other) in numbered}


def _kinds(values: Combination) -> set[tuple]:
    """Return what a row of the array proves: its pairs of values but for the model with the optimizer, of which the linear part has an own one."""
    found = {pair for pair in pairs(values) if (pair[0], pair[2]) != (0, 1)}
    return found | {("linear", values.model in LINEAR, values.optimizer)}


@functools.cache
def covering() -> tuple[Combination, ...]:
    """Return combinations that have every pair of values but some of a model and an optimizer, and every model normalised in float32.

    There is one for each pair of a model and a kind of tables, which is the least possible number. The other values of each are those that bring most
    pairs that the ones before lack, then those whose pairs are rarest so far. Optimizers know weights by their groups only: each one occurs with and
    without a linear part, whose group is its own.
    """
    seen: Counter = Counter()
    found = []
    for (row, model), (column, tables) in itertools.product(enumerate(MODELS), enumerate(TABLES)):
        normalised = (row + 2) % (len(TABLES) - 1) == column  # never the lazy tables, which the C++ scorer does not take
        fitting = [
            one for one in ALL if (one.model, one.tables) == (model, tables) and (not normalised or (one.batch_norm and one.precision == FLOAT32))
        ]
        best = max(fitting, key=lambda one: (len(_kinds(one) - seen.keys()), -sum(seen[pair] ** 2 for pair in pairs(one))))
        found.append(best)
        seen.update(pairs(best) | _kinds(best))
    return tuple(found)


def features_of(lists: bool) -> tuple[Categorical, ...]:
    """Return the categorical features of a dataset, with or without lists of ids."""
    return LISTS if lists else PLAIN


def write_data(folder: Path, categorical: tuple[Categorical, ...], numerical: tuple[str, ...] = NUMERICAL, rows: dict[str, int] = ROWS) -> Path:
    """Write a synthetic dataset in tf_raw; return its folder."""
    dtypes = {feature.name: "int32" for feature in categorical} | dict.fromkeys(numerical, "float16") | {"label": "int8"}
    spec = FeatureSpec(categorical, numerical, "label", dtypes)
    with TfRawWriter(folder, spec, tuple(rows)) as writer:
        for split, count in rows.items():
            *columns, labels, _ = SyntheticSplit(spec, split, count, seed=1).read_rows(0, count)
            writer.append(split, *columns, labels)
        writer.publish({})
    return folder
