"""Imported checkpoints of NVIDIA's Wide & Deep: the same logits as the Keras 2 model that wrote them; TensorFlow still has Keras 2's classes."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
import yaml
from numpy.testing import assert_allclose
from tensorflow.python.keras import layers
from tensorflow.python.keras.engine.base_layer import Layer
from tensorflow.python.keras.engine.functional import Functional
from tensorflow.python.keras.engine.input_layer import Input
from tensorflow.python.keras.engine.training import Model
from tensorflow.python.keras.optimizer_v2 import ftrl, rmsprop

import dlrm
import wide_and_deep
from dataloading.tf_raw import TfRawSplit
from model.build import build_model
from model.embedding.placement import single
from preproc import nvidia_checkpoint
from preproc.nvidia.wide_and_deep import NUMERICAL, deep_rows
from preproc.outbrain.features import CATEGORICAL
from run.tables import tables_and_features
from tests.helpers.datasets import read_yaml, spec_in
from tests.preproc.nvidia.nvidia_forms import check_refused, paths, write, write_dataset
from training.state import restore
from utils.checkpoint.reading import Checkpoint
from utils.dialects.command_line import parse
from utils.distributed import World

# NVIDIA's model -----------------------------------------------------------------------------------------------------------


class DeepFeatures(Layer):
    """All columns side by side in the order of their names, as in NVIDIA's layer `deep_embedded`; `rows` and `widths` by feature."""

    def __init__(self, rows, widths, numerical):
        super().__init__(name="deep_embedded")
        self._rows, self._widths = rows, widths
        self._names = sorted([*(f"{name}_embedding" for name in rows), *numerical])

    def build(self, shapes):
        self.embedding_tables = {
            name: self.add_weight(name=f"{name}/embedding_weights", shape=(rows, self._widths[name])) for name, rows in sorted(self._rows.items())
        }
        self.built = True

    def call(self, inputs):
        tables = {f"{name}_embedding": lambda name=name: tf.gather(self.embedding_tables[name], inputs[name][:, 0]) for name in self._rows}
        return tf.concat([tables[name]() if name in tables else inputs[name] for name in self._names], axis=1)


class LinearFeatures(Layer):
    """The linear part of NVIDIA's later version."""

    def __init__(self, rows, numerical):
        super().__init__(name="wide_linear")
        self._rows, self._numerical = rows, sorted(numerical)

    def build(self, shapes):
        self.embedding_tables = {
            name: self.add_weight(name=f"{name}/embedding_weights", shape=(rows, 1)) for name, rows in sorted(self._rows.items())
        }
        self.embedding_tables["numeric"] = self.add_weight(name="numeric/embedding_weights", shape=(len(self._numerical), 1))
        self.bias = self.add_weight(name="bias", shape=(1,))
        self.built = True

    def call(self, inputs):
        wide = tf.add_n([tf.gather(self.embedding_tables[name], inputs[name][:, 0]) for name in self._rows])
        return self.bias + wide + tf.concat([inputs[name] for name in self._numerical], axis=1) @ self.embedding_tables["numeric"]


class WideDeepModel(Model):
    """A model with the checkpoint structure of `tf.keras.experimental.WideDeepModel`; its call returns logits."""

    def __init__(self, linear_model, dnn_model):
        super().__init__()
        self.linear_model, self.dnn_model = linear_model, dnn_model

    def call(self, inputs):
        return (self.linear_model(inputs) + self.dnn_model(inputs))[:, 0]


def original(rows, widths, numerical, later=False, units=(6, 4)):
    """Make the model with random weights, by the features' names, in the order of the application's lists of features."""
    inputs = {name: Input(shape=(1,), name=name, dtype=tf.int32) for name in rows}
    inputs |= {name: Input(shape=(1,), name=name, dtype=tf.float32) for name in numerical}
    if later:
        wide = LinearFeatures(rows, numerical)(inputs)
    else:
        of_features = [layers.Flatten()(layers.Embedding(rows[name], 1, input_length=1)(inputs[name])) for name in rows]
        wide = layers.add(of_features, name="categorical_output")
        wide += layers.Dense(1)(layers.concatenate([inputs[name] for name in numerical], name="numeric_dense"))
    deep = DeepFeatures(rows, widths, numerical)(inputs)
    for width in units:
        deep = layers.Dropout(0.1)(layers.Dense(width, activation="relu")(deep))
    model = WideDeepModel(Functional(inputs=inputs, outputs=wide), Functional(inputs=inputs, outputs=layers.Dense(1)(deep)))
    draw = np.random.default_rng(3)
    for weight in (*model.linear_model.weights, *model.dnn_model.weights):
        weight.assign(draw.normal(0, 0.5, weight.shape))
    return model


def save(folder, model):
    """Save a checkpoint as NVIDIA's run does after an epoch, with the optimizers' slots; `folder` is NVIDIA's --model_dir."""
    wide, deep = ftrl.Ftrl(0.02), rmsprop.RMSprop(0.00012, rho=0.5)
    for optimizer, part in ((wide, model.linear_model), (deep, model.dnn_model)):
        optimizer.apply_gradients([(tf.ones_like(weight), weight) for weight in part.trainable_variables])
    checkpoint = tf.train.Checkpoint(deep_optimizer=deep, wide_optimizer=wide, model=model, current_step=tf.Variable(455, dtype=tf.int64))
    tf.train.CheckpointManager(checkpoint, str(folder / "checkpoint"), max_to_keep=1).save()
    return folder


# The same logits ----------------------------------------------------------------------------------------------------------

ROWS = {"zz": 50, "cat": 300, "cat_b": 7, "m": 50}  # by name cat_b's column comes before cat's: cat_b_embedding, cat_embedding
WIDTHS = {"zz": 4, "cat": 3, "cat_b": 8, "m": 3}
NUMBERS = ("num_b", "z", "a")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", NUMBERS, ROWS.values(), name=list(ROWS))


def columns(dataset):
    """Return the dataset's specification, and the columns of the test split by the features' names."""
    split = TfRawSplit(spec_in(dataset), "test")
    numerical = split.read_numerical(0, split.num_samples).astype(np.float32)
    found = {name: numerical[:, i] for i, name in enumerate(split.spec.numerical)}
    found |= {one.name: split.read_ids(i, 0, split.num_samples).astype(np.int32) for i, one in enumerate(split.spec.categorical)}
    spec = split.spec
    split.close()
    return spec, found


def check_same(model, target, dataset):
    """Check that the imported model's logits equal the original's, and that `dlrm.load` gives their probabilities."""
    spec, samples = columns(dataset)
    expected = model({name: values[:, None] for name, values in samples.items()}).numpy()
    checkpoint = Checkpoint(target)
    config = checkpoint.manifest["config"]
    widths = config["embedding_dim"] if isinstance(config["embedding_dim"], list) else [config["embedding_dim"]] * len(spec.categorical)
    flags = ("--top_mlp_dims", ",".join(map(str, config["top_mlp_dims"])), "--embedding_dim", ",".join(map(str, widths)))
    options = parse(["--dataset_type", "synthetic", "--cpu", "--interaction", "wide_and_deep", *flags], "")
    placed = single(*tables_and_features(options, spec.categorical, spec.cardinalities, len(spec.numerical)))
    ours = build_model(options.model, placed, World(), len(spec.numerical), 0)
    restore(ours, checkpoint)
    numerical = np.stack([samples[name] for name in spec.numerical], axis=1)
    logits = ours((numerical, np.stack([samples[one.name] for one in spec.categorical], axis=1))).numpy()
    assert expected.std() > 0.3
    assert_allclose(logits, expected, rtol=1e-6, atol=1e-6)
    assert_allclose(dlrm.load(target).score(samples), tf.sigmoid(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("later", [False, True])
def test_imported_model_gives_nvidias_logits(call, tmp_path, dataset, later):
    model = original(ROWS, WIDTHS, NUMBERS, later)
    source, target = save(tmp_path / "nvidia", model), tmp_path / "ours"
    code, out, err = call(nvidia_checkpoint.main, *paths(source, dataset, target))
    size = "4 tables of 4,3,8 columns, 1,306 parameters; a wide table of 1 column for each; deep MLP 6,4,1; trained for 455 steps"
    assert (code, out) == (0, f"written: {target}/step-00000000: {size}\n"), err
    assert [line.partition(": ")[2].split(":")[0] for line in err.splitlines()] == (
        [] if later else ["the checkpoint does not name its wide tables", "the checkpoint does not name its weights of numerical features"]
    )
    check_same(model, target, dataset)


def test_lists_are_averaged_in_the_deep_part_and_added_in_the_wide_one(call, tmp_path, dataset):
    """NVIDIA's --combiner mean does this. Every list holds its one id twice: the deep vector is the original's, the wide row counts twice."""
    doubled = shutil.copytree(dataset, tmp_path / "doubled")
    content = read_yaml(doubled / "feature_spec.yaml")
    content["feature_spec"]["m"] |= {"hotness": 2, "pooling": "mean"}
    (doubled / "feature_spec.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    dtype = np.dtype(content["feature_spec"]["m"]["dtype"])
    for split, chunks in content["source_spec"].items():
        path = doubled / next(name for chunk in chunks if chunk["features"] == ["m"] for name in chunk["files"])
        np.repeat(np.fromfile(path, dtype), 2).tofile(path)
        assert path.is_file(), split
    model, target = original(ROWS, WIDTHS, NUMBERS), tmp_path / "ours"
    assert call(nvidia_checkpoint.main, *paths(save(tmp_path / "nvidia", model), doubled, target))[0] == 0
    samples = columns(dataset)[1]
    wide = Checkpoint(target).read("tables/m_wide/weights")[samples["m"]]
    expected = tf.sigmoid(model({name: values[:, None] for name, values in samples.items()}).numpy() + wide[:, 0])
    found = dlrm.load(target).score(samples | {"m": np.repeat(samples["m"][:, None], 2, axis=1)})
    assert np.abs(wide).max() > 0.01
    assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_outbrain_features_follow_the_applications_lists(call, tmp_path):
    """Dataset and checkpoint have the features in different orders; the checkpoint's is that of section 2 of NVIDIA's features.py."""
    rows = {
        name: 3 + i % 4 for i, name in enumerate(CATEGORICAL)
    }  # several features have the same number of rows, so that shapes do not identify them
    model = original(rows, dict.fromkeys(rows, 2), NUMERICAL)
    names = sorted(rows, reverse=True)
    dataset = write_dataset(tmp_path / "dataset", sorted(NUMERICAL, reverse=True), [rows[name] for name in names], name=names)
    source, target = save(tmp_path / "nvidia", model), tmp_path / "ours"
    code, _, err = call(nvidia_checkpoint.main, *paths(source / "checkpoint", dataset, target))
    assert (code, err) == (0, "")
    check_same(model, target, dataset)


def test_rows_of_the_first_deep_kernel_worked_out_by_hand():
    # theirs: ad_id_embedding (2 columns), num, user_embedding (1), z; ours: z, num, user, ad_id
    assert deep_rows(["z", "num"], ["user", "ad_id"], [1, 2]).tolist() == [4, 2, 3, 0, 1]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Save a checkpoint; tests that damage it copy it first."""
    return save(tmp_path_factory.mktemp("saved") / "nvidia", original(ROWS, WIDTHS, NUMBERS)) / "checkpoint"


@pytest.fixture
def source(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "nvidia")


def test_evaluation_and_training_continue_from_the_import(call, tmp_path, dataset, source):
    target = tmp_path / "ours"
    assert call(nvidia_checkpoint.main, *paths(source, dataset, target))[0] == 0
    flags = ("--cpu", "--dataset_path", dataset, "--affinity", "disabled", "--log_path", "")
    code, out, err = call(wide_and_deep.main, *flags, "--evaluate", "--restore_checkpoint_path", target, "--eval_batch_size", 64)
    assert code == 0 and "200 samples" in out, err
    more = ("--resume", "weights", "--save_checkpoint_path", tmp_path / "more", "--max_steps", 2, "--global_batch_size", 64, "--num_epochs", 8)
    code, _, err = call(wide_and_deep.main, *flags, *more, "--restore_checkpoint_path", target, "--eval_batch_size", 64)
    assert code == 0 and Checkpoint(tmp_path / "more").manifest["model"]["name"] == "wide_and_deep", err


DATASETS = {
    "fewer features": ({"cat_b": None}, NUMBERS, "shape [21, 6], expected 13 rows for the dataset's features or the layer before"),
    "another feature": ({"m": None, "n": 50}, NUMBERS, "the deep table of feature n is missing"),
    "other rows": ({"m": 51}, NUMBERS, "50 rows, but feature m has cardinality 51 in "),
    "fewer numericals": ({}, NUMBERS[:2], "shape [21, 6], expected 20 rows for the dataset's features or the layer before"),
    "no numericals": ({}, (), "NVIDIA's Wide & Deep has categorical and numerical features; give the dataset that it was trained on"),
}


@pytest.mark.parametrize("case", DATASETS)
def test_another_dataset_is_a_one_line_error(call, tmp_path, source, case):
    changes, numerical, message = DATASETS[case]
    rows = {name: count for name, count in (ROWS | changes).items() if count}
    check_refused(call, source, write_dataset(tmp_path / "dataset", numerical, rows.values(), name=list(rows)), message)


def test_error_of_another_width_says_where_to_set_it(call, tmp_path, source):
    dataset = write_dataset(tmp_path / "dataset", NUMBERS, ROWS.values(), name=list(ROWS), embedding_dim=[4, 3, 8, 16])
    check_refused(call, source, dataset, "3 columns, but feature m has embedding_dim 16 in ")


DAMAGE = {
    "no index": (lambda folder: (folder / "ckpt-1.index").unlink(), "ckpt-1.index or "),
    "cut data": (write("ckpt-1.data-00000-of-00001", b""), "ckpt-1.index: TensorFlow cannot read it: "),
    "no name": (write("checkpoint", b""), 'names no checkpoint; expected model_checkpoint_path: "ckpt-1"'),
    "two checkpoints": (
        lambda folder: ((folder / "checkpoint").unlink(), (folder / "ckpt-2.index").touch()),
        "2 checkpoints, and no file named checkpoint says which is the newest; keep one of them",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoint_is_a_one_line_error(call, dataset, source, damage):
    change, message = DAMAGE[damage]
    change(source)
    check_refused(call, source, dataset, message)


def test_weights_of_another_model_and_a_useless_flag_are_rejected(call, tmp_path, dataset, source):
    check_refused(call, source, dataset, "holds a Wide & Deep, which has no dot interaction; drop the flag", "--dot_interaction", "tensorflow")
    (tmp_path / "other").mkdir()
    tf.train.Checkpoint(current_step=tf.Variable(1)).write(str(tmp_path / "other/ckpt-1"))
    check_refused(
        call, tmp_path / "other", dataset, "the deep table of feature zz is missing, model/dnn_model/layer_with_weights-0/zz.Sembedding_weights"
    )
