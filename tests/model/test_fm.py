"""Tests of factorisation machines, DeepFM and linear parts against plain Keras models, written from the papers."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from dataloading.batches import Batch
from dataloading.feature_spec import Categorical
from model.build import build_model
from model.embedding.placement import single
from run.tables import tables_and_features
from tests.model.tiny_model import assert_close, weights
from training.build import build_trainer
from training.device_batch import to_device
from utils.dialects.command_line import parse
from utils.distributed import World
from utils.errors import UserError

CATEGORICAL = (Categorical("ad", 23, "int8"), Categorical("country", 5, "int8"), Categorical("tags", 11, "int8", hotness=3))
NUM_NUMERICAL, BATCH, STEPS, RATE, LINEAR_RATE = 4, 64, 50, 0.01, 0.03
FLAGS = ("--embedding_dim", "6", "--dense_update_rows", "100", "--optimizer", "adam", "--linear_optimizer", "adagrad")
NORMAL = ("--embedding_initializer", "normal", "--embedding_initializer_scale", "0.3")
FM = ("--interaction", "fm", "--top_mlp_dims", "1")
DEEPFM = ("--interaction", "fm", "--top_mlp_dims", "16,8,1")
DOT = ("--linear", "--bottom_mlp_dims", "8,6", "--top_mlp_dims", "8,1")
CAT = (*DOT, "--interaction", "cat")
CROSS = (*DOT, "--interaction", "cross", "--num_cross_layers", "2", "--cross_layer_projection_dim", "0", "--structure", "parallel")
MODELS = {"fm": FM, "deepfm": DEEPFM, "dot": DOT, "cat": CAT, "cross": CROSS}


def configured(*flags, num_numerical=NUM_NUMERICAL):
    """Return the configuration of a model, and its tables and features."""
    rates = ("--learning_rate", str(RATE), "--linear_learning_rate", str(LINEAR_RATE), "--warmup_steps", "0")
    config = parse(["--dataset_type", "synthetic", "--cpu", *FLAGS, *NORMAL, *rates, *flags], "")
    return config, *tables_and_features(config, CATEGORICAL, [one.cardinality for one in CATEGORICAL], num_numerical)


def built(*flags, num_numerical=NUM_NUMERICAL, seed=7):
    config, tables, features = configured(*flags, num_numerical=num_numerical)
    model = build_model(config.model, single(tables, features), World(), num_numerical, seed)
    return model, build_trainer(config, model, "float32")


def rows_of_step(step, num_numerical=NUM_NUMERICAL):
    """Draw numericals, ids `[K, B]` (lists are padded with −1) and labels."""
    draw = np.random.default_rng(step)
    ids = np.concatenate([draw.integers(-1 if one.hotness > 1 else 0, one.cardinality, (one.hotness, BATCH)) for one in CATEGORICAL])
    return draw.normal(size=(BATCH, num_numerical)).astype(np.float32), ids.astype(np.int32), draw.integers(0, 2, BATCH).astype(np.uint8)


def batch(step, num_numerical=NUM_NUMERICAL):
    numerical, ids, labels = rows_of_step(step, num_numerical)
    return to_device(Batch(numerical, ids, np.empty((0, BATCH), np.int32), labels, np.ones(BATCH, np.float32), BATCH))


class Plain:
    """The same models of `keras.Variable`s with dense gradients, trained by Keras's optimizers.

    Args:
        values: the weights by their names in checkpoints.
        kind: a key of `MODELS`.
    """

    def __init__(self, values, kind):
        self.kind, self._traced = kind, tf.function(self._step, autograph=False)
        self.variables = {name: keras.Variable(value) for name, value in values.items()}
        linear = [name for name in self.variables if "wide" in name]
        self.groups = [(linear, keras.optimizers.Adagrad(LINEAR_RATE))]
        self.groups.append(([name for name in self.variables if name not in linear], keras.optimizers.Adam(RATE)))
        for names, optimizer in self.groups:
            optimizer.build([self.variables[name] for name in names])

    def of(self, name):
        return self.variables[name].value

    def values(self):
        return {name: variable.numpy() for name, variable in self.variables.items()}

    def pooled(self, ids, suffix=""):
        first, found = 0, []
        for one in CATEGORICAL:
            rows = ids[first : first + one.hotness]
            looked_up = tf.gather(self.of(f"tables/{one.name}{suffix}/weights"), tf.maximum(rows, 0))
            found.append(tf.reduce_sum(tf.where((rows >= 0)[:, :, tf.newaxis], looked_up, 0.0), axis=0))
            first += one.hotness
        return found

    def mlp(self, name, last, relu_at_end=False):
        count = sum(key.startswith(f"dense/{name}/") and key.endswith("/kernel") for key in self.variables)
        for layer in range(count):
            last = last @ self.of(f"dense/{name}/{layer}/kernel") + self.of(f"dense/{name}/{layer}/bias")
            last = tf.nn.relu(last) if relu_at_end or layer < count - 1 else last
        return last

    def deep(self, numerical, ids):
        vectors = self.pooled(ids)
        if self.kind in ("fm", "deepfm"):
            if numerical.shape[1]:
                kernel = self.of("dense/numerical_vectors/kernel")
                vectors = [*(numerical[:, m : m + 1] * kernel[m] for m in range(numerical.shape[1])), *vectors]
            products = tf.add_n([tf.reduce_sum(one * other, axis=1, keepdims=True) for one, other in itertools.combinations(vectors, 2)])
            return products + self.mlp("top_mlp", tf.concat(vectors, axis=1)) if self.kind == "deepfm" else products
        bottom = self.mlp("bottom_mlp", numerical, relu_at_end=True)
        joined = tf.concat([bottom, *vectors], axis=1)
        if self.kind == "cat":
            return self.mlp("top_mlp", joined)
        if self.kind == "dot":
            all_vectors = [bottom, *vectors]
            dots = [tf.reduce_sum(all_vectors[i] * all_vectors[j], axis=1, keepdims=True) for i in range(len(all_vectors)) for j in range(i)]
            return self.mlp("top_mlp", tf.concat([bottom, *dots], axis=1))
        crossed = joined
        for layer in range(2):
            crossed = joined * (crossed @ self.of(f"dense/cross/{layer}/w/kernel") + self.of(f"dense/cross/{layer}/w/bias")) + crossed
        hidden = tf.nn.relu(joined @ self.of("dense/top_mlp/0/kernel") + self.of("dense/top_mlp/0/bias"))
        return tf.concat([crossed, hidden], axis=1) @ self.of("dense/top_mlp/1/kernel") + self.of("dense/top_mlp/1/bias")

    def logits(self, numerical, ids):
        logits = self.deep(numerical, ids) + tf.add_n(self.pooled(ids, "_wide"))
        if numerical.shape[1]:
            logits += numerical @ self.of("dense/wide/0/kernel") + self.of("dense/wide/0/bias")
        elif "dense/wide/bias" in self.variables:
            logits += self.of("dense/wide/bias")
        return logits[:, 0]

    def step(self, numerical, ids, labels):
        return float(self._traced(tf.constant(numerical), tf.constant(ids), tf.constant(labels, tf.float32)))

    def _step(self, numerical, ids, labels):
        with tf.GradientTape() as tape:
            logits = self.logits(numerical, ids)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        names = list(self.variables)
        found = dict(zip(names, tape.gradient(loss, [self.of(name) for name in names]), strict=True))
        for some, optimizer in self.groups:
            optimizer.apply([tf.convert_to_tensor(found[name]) for name in some], [self.variables[name] for name in some])
        return loss


def distinct_start(model):
    """Give the linear parts, which start at zero, values to be told apart by."""
    draw = np.random.default_rng(3)
    for local in model.embedding.shards:
        if local.name.endswith("_wide"):
            local.weights.assign(draw.normal(size=local.weights.shape))
    for name, weight in model.dense_weights().items():
        if "wide" in name:
            weight.assign(draw.normal(size=weight.shape))


@pytest.mark.parametrize("num_numerical", [NUM_NUMERICAL, 0])
@pytest.mark.parametrize("kind", ["fm", "deepfm"])
def test_forward_pass_equals_the_plain_model(kind, num_numerical):
    model, _ = built(*MODELS[kind], num_numerical=num_numerical)
    distinct_start(model)
    numerical, ids, _ = rows_of_step(0, num_numerical)
    expected = Plain(weights(model), kind).logits(numerical, ids).numpy()
    np.testing.assert_allclose(model((numerical, ids.T)).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert np.ptp(expected) > 1


def trained_beside(plain_of, flags, slices=("1", "4"), num_numerical=NUM_NUMERICAL, steps=STEPS, rel=2e-5, **tolerance):
    """Train models in slices, and a plain one of the same start; compare losses and weights; return the last model and the plain one.

    Args:
        plain_of: a function of the weights at the start that returns a `Plain`.
        flags: the flags of the models.
        slices: numbers of slices.
        num_numerical: M.
        steps: the number of steps.
        rel: the tolerance of losses.
        tolerance: that of weights.
    """
    models = {count: built(*flags, "--gradient_slices", count, num_numerical=num_numerical) for count in slices}
    plain = plain_of(weights(models[slices[0]][0]))
    for step in range(steps):
        expected = plain.step(*rows_of_step(step, num_numerical))
        for count, (_, trainer) in models.items():
            found = float(trainer.step(batch(step, num_numerical), step, trainer.learning_rates(step)))
            assert found == pytest.approx(expected, rel=rel), f"{count} slices, step {step}"
    for count, (model, _) in models.items():
        assert_close(weights(model), plain.values(), f"{count} slices", **{"atol": 2e-5} | tolerance)
    return model, plain


# Dots, concatenation and cross layers without the linear part are trained whole and in slices in test_cross.py.
@pytest.mark.parametrize(("kind", "slices"), [("fm", ("1", "4")), ("deepfm", ("1", "4")), ("dot", ("1", "4")), ("cat", ("4",)), ("cross", ("4",))])
def test_50_steps_equal_keras_optimizers(kind, slices):
    trained_beside(lambda start: Plain(start, kind), MODELS[kind], slices)


def test_fm_without_numericals_trains_its_intercept():
    model, _ = trained_beside(lambda start: Plain(start, "fm"), FM, ("1",), 0, steps=10)
    assert abs(weights(model)["dense/wide/bias"][0]) > 1e-3


def test_linear_part_starts_without_an_effect_on_the_scores():
    plain, _ = built(*DOT[1:])
    linear, _ = built(*DOT)
    numerical, ids, _ = rows_of_step(0)
    np.testing.assert_array_equal(plain((numerical, ids.T)).numpy(), linear((numerical, ids.T)).numpy())


@pytest.mark.parametrize("flags", [("--linear_l2", "0.5"), ("--embedding_l2", "0.2"), ("--embedding_l2", "0.2", "--linear_l2", "0")], ids=" ".join)
def test_l2_of_vectors_and_of_the_linear_part(flags):
    """A step of SGD with the terms moves the rows by learning rate times factor times the mean of the rows that samples look up."""
    words = dict(zip(flags[::2], flags[1::2], strict=True))
    of_vectors = float(words.get("--embedding_l2", 0))
    of_linear = float(words.get("--linear_l2", of_vectors))
    moved = []
    for some in ((), flags):
        model, trainer = built(*FM, "--optimizer", "sgd", "--linear_optimizer", "sgd", *some)
        distinct_start(model)
        before = weights(model)
        trainer.step(batch(0), 0, trainer.learning_rates(0))
        moved.append({name: before[name] - value for name, value in weights(model).items()})
    _, ids, _ = rows_of_step(0)
    for name, factor, rate in (("ad", of_vectors, RATE), ("ad_wide", of_linear, LINEAR_RATE)):
        shares = np.bincount(ids[0], minlength=23)[:, np.newaxis] / BATCH
        expected = rate * factor * shares * before[f"tables/{name}/weights"]
        np.testing.assert_allclose(moved[1][f"tables/{name}/weights"] - moved[0][f"tables/{name}/weights"], expected, rtol=1e-3, atol=1e-7)
    added = moved[1]["dense/numerical_vectors/kernel"] - moved[0]["dense/numerical_vectors/kernel"]
    np.testing.assert_allclose(added, RATE * of_vectors * before["dense/numerical_vectors/kernel"], rtol=1e-3, atol=1e-7)


def test_names_that_collide_and_models_without_a_linear_part_are_one_line():
    config = parse(["--dataset_type", "synthetic", "--cpu", *FM], "")
    with pytest.raises(UserError, match="feature ad_wide: has the same name as the linear part's table of ad"):
        tables_and_features(config, (Categorical("ad", 3, "int8"), Categorical("ad_wide", 3, "int8")), [3, 3], 0)
    with pytest.raises(UserError, match="--batch_norm: this model has no layer with a ReLU"):
        built(*FM, "--batch_norm")
    with pytest.raises(UserError, match="--embedding_dim 4,6,6: --interaction fm takes tables of one width"):
        built(*FM[:2], "--embedding_dim", "4,6,6")
