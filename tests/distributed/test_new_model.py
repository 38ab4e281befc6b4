"""Tests of a user-defined model: a logistic regression, defined only in this file, works with every command.

Run as a program, this file is dlrm.py with one more value of --interaction; its argument is a file of command lines, as that of `commands.py`.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import polars
import pytest
import tensorflow as tf

from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from model.architectures import register
from model.architectures.architecture import NUMERICALS, Architecture
from model.layers.mlp import Mlp
from model.sharded_model import ShardedModel
from tests.distributed import commands
from tests.distributed.launching import launch
from tests.distributed.small_data import write_dataset
from utils.checkpoint.reading import Checkpoint

NAME = "logistic_regression"


class LogisticRegression(ShardedModel):
    """A logistic regression: the sum of an embedding of width 1 for each categorical feature and a weight for each numerical one."""

    command = "dlrm.py"

    def __init__(self, embedding, linear):
        super().__init__(name=NAME)
        self.embedding, self.linear = embedding, linear

    def build_weights(self, num_numerical):
        self.embedding.build()
        with keras.name_scope("linear"):
            self.linear.build((None, num_numerical))
        self.built = True

    def dense(self, numerical, embeddings, weights, slices=None, drop=None):
        columns = tf.reshape(tf.cast(embeddings, tf.float32), [-1, len(self.embedding.widths)])
        return tf.reduce_sum(columns, axis=1) + self.linear.forward(tf.cast(numerical, tf.float32), weights, slices)[:, 0]

    @property
    def dense_parts(self):
        return [self.linear]


class LogisticRegressionArchitecture(Architecture):
    """The architecture by which the rest of the program knows the model."""

    name = NAME
    logit_parts = ("linear",)
    reads_numericals = "linear layer"

    def build(self, config, embedding, num_numerical, layers):
        return LogisticRegression(embedding, Mlp((1,), None, layers.seed, "linear", layers.policy, layers.native))

    def layer_shapes(self, config, num_numerical, widths):
        return [(num_numerical, 1)]

    def logits(self, operations):
        return operations.summed([*operations.vectors, operations.mlp("linear", operations.numerical)])

    def looked_up(self, config, tables, features):
        return tuple(replace(table, dim=1) for table in tables), features

    def reads(self, weight):
        return (0, (NUMERICALS,)) if weight == "linear/0/kernel" else None


PROGRAM = Path(__file__)
FLAGS = ("--cpu", "--interaction", NAME, "--embedding_dim", "1", "--batch_size", "64", "--valid_batch_size", "128", "--warmup_steps", "0")
LENGTH = ("--gradient_slices", "2", "--epochs", "2")
TRAIN = (*FLAGS, "--optimizer", "adam", "--learning_rate", "0.02", *LENGTH)
# the project's own logistic regression, which is begun at zero
OWN = ("--cpu", "--interaction", "none", "--batch_size", "64", "--valid_batch_size", "128", "--linear_optimizer", "ftrl", *LENGTH)


def run(workers, folder, *lines):
    """Run command lines in turn in one launch."""
    path = folder / f"commands-{workers}.json"
    path.write_text(json.dumps([list(map(str, flags)) for flags in lines]))
    outcome = launch(workers, sys.executable, PROGRAM, path)
    assert outcome.code == 0, outcome.err


def arrays(folder):
    checkpoint = Checkpoint(folder)
    return {name: checkpoint.read(name) for name in checkpoint.manifest["arrays"]}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], name)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": 900, "test": 397})


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    """Train on one worker and on two, with and without an interruption; return the checkpoint folders by number of workers and name."""
    folder = tmp_path_factory.mktemp("logistic")
    found = {}
    for workers in (1, 2):
        names = {name: folder / f"{name}{workers}" for name in ("whole", "broken", "own whole", "own broken")}
        lines = []
        for prefix, flags in (("", TRAIN), ("own ", OWN)):
            common = ("--dataset_path", dataset, *flags, "--log_path", "", "--save_checkpoint_path")
            broken = (*common, names[f"{prefix}broken"])
            lines += [(*common, names[f"{prefix}whole"]), (*broken, "--max_steps", "7"), (*broken, "--resume", "auto")]
        run(workers, folder, *lines)
        found[workers] = names
    return found


def by_hand(weights, split):
    rows = split.num_samples
    logits = split.read_numerical(0, rows).astype(np.float64) @ weights["dense/linear/0/kernel"][:, 0] + weights["dense/linear/0/bias"][0]
    for place, feature in enumerate(split.spec.categorical):
        logits += weights[f"tables/{feature.name}/weights"][split.read_ids(place, 0, rows).reshape(rows), 0]
    return logits


@pytest.mark.costly("the first of the file trains on one worker and on two, in programs of its own")
@pytest.mark.parametrize("prefix", ["", "own "])
@pytest.mark.parametrize("workers", [1, 2])
def test_model_resumes_bit_for_bit(trained, workers, prefix):
    names = trained[workers]
    assert_equal(*(arrays(names[f"{prefix}{name}"]) for name in ("whole", "broken")))


@pytest.mark.parametrize(("prefix", "name"), [("", NAME), ("own ", "logistic_regression")])
def test_model_trains_equally_on_one_worker_and_on_two(trained, prefix, name):
    one, two = (arrays(trained[workers][f"{prefix}whole"]) for workers in (1, 2))
    assert Checkpoint(trained[1][f"{prefix}whole"]).manifest["model"]["name"] == name
    assert_equal(one, two)
    tables = [values for array, values in one.items() if array.startswith("tables/") and array.endswith("/weights")]
    assert tables and all(np.abs(values).max() > 0.01 for values in tables)


def test_model_evaluates_predicts_and_exports(trained, dataset, tmp_path):
    common = ("--dataset_path", dataset, *FLAGS, "--restore_checkpoint_path", trained[2]["whole"], "--log_path", tmp_path / "log")
    run(
        1,
        tmp_path,
        (*common, "--mode", "eval"),
        (*common, "--mode", "predict", "--predictions_path", tmp_path / "scores.parquet"),
        (*common, "--mode", "export", "--export_path", tmp_path / "models", "--formats", "savedmodel,onnx"),
    )
    scores = polars.read_parquet(tmp_path / "scores.parquet")["score"].to_numpy()
    logits = by_hand(arrays(trained[2]["whole"]), TfRawSplit(FeatureSpec.from_yaml(dataset / "feature_spec.yaml"), "test"))
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), atol=1e-6)
    assert np.std(scores) > 0.01


if __name__ == "__main__":
    register(NAME, LogisticRegressionArchitecture())
    sys.exit(commands.main(json.loads(Path(sys.argv[1]).read_text())))
