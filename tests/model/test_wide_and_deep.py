"""Tests of Wide & Deep against a plain Keras model: forward pass, loss, gradients and 50 steps of Keras's own optimizers and its legacy ones."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.keras.optimizer_v2 import ftrl, rmsprop

from dataloading.batches import Batch
from dataloading.feature_spec import Categorical
from model.build import build_model
from model.embedding.placement import single
from model.embedding.table import WIDE
from run.tables import tables_and_features
from tests.model.tiny_model import assert_close, weights
from training.build import build_trainer
from training.device_batch import to_device
from training.schedule import ConstantSchedule, WideAndDeepSchedule
from utils.dialects.command_line import parse
from utils.distributed import World
from utils.errors import UserError

CATEGORICAL = (
    Categorical("ad", 23, "int8", embedding_dim=6),
    Categorical("country", 5, "int8", embedding_dim=3),
    Categorical("site", 11, "int8", embedding_dim=3),
)
NUM_NUMERICAL, BATCH, STEPS = 4, 64, 50
FLAGS = ("--interaction", "wide_and_deep", "--optimizer", "rmsprop", "--rho", "0.5", "--learning_rate", "0.00012", "--deep_warmup_epochs", "1")


def configuration(*flags):
    return parse(["--dataset_type", "synthetic", "--cpu", "--top_mlp_dims", "16,8,1", "--epochs", "3", *FLAGS, *flags], "")


def built(*flags, num_numerical=NUM_NUMERICAL):
    """Build the model and its trainer. An epoch has 20 steps, so that the schedule warms up, falls to a quarter and then to an eighth."""
    config = configuration(*flags)
    tables, features = tables_and_features(config, CATEGORICAL, [one.cardinality for one in CATEGORICAL], num_numerical)
    model = build_model(config.model, single(tables, features), World(), num_numerical, 7)
    return model, build_trainer(config, model, "float32", steps_per_epoch=20)


def rows_of_step(step):
    """Draw numericals, ids `[F, B]` and labels. The first batch has every row: Keras's dense FTRL sets untouched rows to 0."""
    draw = np.random.default_rng(step)
    ids = np.stack([draw.integers(0, one.cardinality, BATCH) for one in CATEGORICAL]).astype(np.int32)
    if step == 0:
        ids = np.stack([np.arange(BATCH) % one.cardinality for one in CATEGORICAL]).astype(np.int32)
    return draw.random((BATCH, NUM_NUMERICAL)).astype(np.float32), ids, draw.integers(0, 2, BATCH).astype(np.uint8)


def batch(step):
    numerical, ids, labels = rows_of_step(step)
    return to_device(Batch(numerical, ids, np.empty((0, BATCH), np.int32), labels, np.ones(BATCH, np.float32), BATCH))


class Plain:
    """The same model of `tf.Variable`s with dense gradients, trained by Keras's optimizers."""

    def __init__(self, values):
        self.variables, self._traced = {name: keras.Variable(value) for name, value in values.items()}, tf.function(self._step, autograph=False)
        wide = [name for name in self.variables if "wide" in name]
        self.groups = [
            (wide, keras.optimizers.Ftrl(0.02)),
            ([name for name in self.variables if name not in wide], keras.optimizers.RMSprop(1.0, rho=0.5)),
        ]
        for names, optimizer in self.groups:
            optimizer.build([self.variables[name] for name in names])

    def logits(self, numerical, ids):
        value = self.variables
        vectors = [tf.gather(value[f"tables/{one.name}/weights"].value, some) for one, some in zip(CATEGORICAL, tf.unstack(ids), strict=True)]
        last = tf.concat([numerical, *vectors], axis=1)
        for layer in range(3):
            last = last @ value[f"dense/deep/{layer}/kernel"].value + value[f"dense/deep/{layer}/bias"].value
            last = tf.nn.relu(last) if layer < 2 else last
        wide = [tf.gather(value[f"tables/{one.name}_wide/weights"].value, some) for one, some in zip(CATEGORICAL, tf.unstack(ids), strict=True)]
        return (last + tf.add_n(wide) + numerical @ value["dense/wide/0/kernel"].value + value["dense/wide/0/bias"].value)[:, 0]

    def gradients(self, numerical, ids, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.binary_crossentropy(tf.cast(labels, tf.float32)[:, None], self.logits(numerical, ids)[:, None], from_logits=True)
            )
        found = tape.gradient(loss, [variable.value for variable in self.variables.values()])
        return loss, dict(zip(self.variables, found, strict=True))

    def step(self, number, deep_rate):
        self.groups[1][1].learning_rate.assign(deep_rate)
        return float(self._traced(*map(tf.constant, rows_of_step(number))))

    def _step(self, numerical, ids, labels):
        loss, found = self.gradients(numerical, ids, labels)
        for names, optimizer in self.groups:
            optimizer.apply([tf.convert_to_tensor(found[name]) for name in names], [self.variables[name] for name in names])
        return loss


class Legacy(Plain):
    """The model trained by the optimizers of TensorFlow's time when NVIDIA wrote its Wide & Deep, which take gradients of touched rows only."""

    def __init__(self, values):
        super().__init__(values)
        self.groups = [(self.groups[0][0], ftrl.Ftrl(0.02)), (self.groups[1][0], rmsprop.RMSprop(1.0, rho=0.5))]

    def step(self, number, deep_rate):
        loss, found = self.gradients(*rows_of_step(number))
        self.groups[1][1].learning_rate = deep_rate
        for names, optimizer in self.groups:
            optimizer.apply_gradients([(found[name], self.variables[name].value) for name in names])
        return float(loss)


def published_rate(step, base=0.00012, steps=20, warmup=1, epochs=3):
    """Return the learning rate of a step as NVIDIA's text defines it; `steps` is S, the steps per epoch."""
    step = max(1, step)
    if step < warmup * steps:
        return base * step / (warmup * steps)
    return base / 4 if step <= (warmup + (epochs - warmup) / 2) * steps else base / 8


@pytest.mark.parametrize(("peer", "flags"), [(Plain, ()), (Legacy, ("--epsilon_outside_root", "true"))])
def test_fifty_steps_equal_keras(peer, flags):
    """After 50 steps all rows equal those of Keras, whether a batch touches them or not."""
    model, trainer = built(*flags)
    plain = peer(weights(model))
    for step in range(STEPS):
        loss = float(trainer.step(batch(step), step, trainer.learning_rates(step)))
        assert loss == pytest.approx(plain.step(step, published_rate(step)), abs=1e-6)
    assert_close(weights(model), {name: variable.numpy() for name, variable in plain.variables.items()}, rtol=0, atol=1e-6)
    numerical, ids, _ = rows_of_step(99)
    np.testing.assert_allclose(model((numerical, ids.T)), plain.logits(numerical, ids), atol=1e-6)


def test_gradients_equal_plain_keras():
    model, _ = built()
    plain = Plain(weights(model))
    numerical, ids, labels = rows_of_step(0)
    variables = {f"tables/{local.name}/weights": local.weights for local in model.embedding.shards}
    variables |= {f"dense/{name}": weight.value for name, weight in model.dense_weights().items()}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels.astype(np.float32), model((numerical, ids.T))))
    found = tape.gradient(loss, variables)
    expected_loss, expected = plain.gradients(numerical, ids, labels)
    assert float(loss) == pytest.approx(float(expected_loss), abs=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(tf.convert_to_tensor(found[name]), tf.convert_to_tensor(gradient), rtol=0, atol=1e-6, err_msg=name)


def test_untouched_rows_do_not_change():
    model, trainer = built()
    before = weights(model)
    one = to_device(
        Batch(
            np.ones((4, NUM_NUMERICAL), np.float32),
            np.full((3, 4), 2, np.int32),
            np.empty((0, 4), np.int32),
            *[np.ones(4, np.uint8), np.ones(4, np.float32)],
            4,
        )
    )
    trainer.step(one, 30, trainer.learning_rates(30))
    after = weights(model)
    for name in ("ad", "ad_wide", "country", "country_wide"):
        changed = (after[f"tables/{name}/weights"] != before[f"tables/{name}/weights"]).any(axis=1)
        np.testing.assert_array_equal(np.flatnonzero(changed), [2], err_msg=name)


def test_each_part_has_its_optimizer_and_schedule():
    model, trainer = built("--embedding_learning_rate", "0.01")
    found = weights(model, trainer.groups)
    assert found["tables/ad_wide/accumulator"].shape == found["tables/ad_wide/linear"].shape == (23, 1)
    assert {name for name in found if name.startswith("tables/ad/")} == {f"tables/ad/{kind}" for kind in ("weights", "velocity", "touched")}
    assert {name.rsplit("/", 1)[1] for name in found if name.startswith("optimizer/wide/")} == {"accumulator", "linear"}
    deep, wide, wide_tables, deep_tables = trainer.learning_rates(50)
    assert (deep, wide, wide_tables, deep_tables) == (0.00012 / 8, 0.02, 0.02, 0.01 / 8)
    assert [group.name for group in trainer.groups.tables] == [WIDE, ""]


def test_schedule_value_by_value():
    schedule = WideAndDeepSchedule(8.0, 4, 6)
    assert [schedule(step) for step in range(9)] == [2, 2, 4, 6, 2, 2, 2, 1, 1]
    assert WideAndDeepSchedule(8.0, 0, 2.5)(2) == 2 and WideAndDeepSchedule(8.0, 0, 2.5)(3) == 1  # 2.5 epochs of one step each
    assert ConstantSchedule(0.02)(10**9) == 0.02


def test_initial_values_have_keras_distributions():
    config = configuration()
    tables, features = tables_and_features(config, (Categorical("big", 60_000, "int32", embedding_dim=16),), [60_000], 0)
    model = build_model(config.model, single(tables, features), World(), 0, 7)
    found = weights(model)
    deep, wide = found["tables/big/weights"], found["tables/big_wide/weights"]
    stddev = (2 / (60_000 + 16)) ** 0.5
    assert deep.std() == pytest.approx(stddev, rel=0.01) and abs(deep.mean()) < stddev / 100
    assert 1.99 < np.abs(deep).max() * 0.87962566 / stddev <= 2.0001
    keras_s = keras.initializers.GlorotNormal(1)((60_000, 16)).numpy()
    np.testing.assert_allclose(np.quantile(deep, np.arange(1, 20) / 20), np.quantile(keras_s, np.arange(1, 20) / 20), atol=stddev / 100)
    assert np.abs(wide).max() == pytest.approx(0.05, rel=0.01) and wide.std() == pytest.approx(0.05 / 3**0.5, rel=0.02)
    assert not any(name.startswith("dense/wide") for name in found) and not found["dense/deep/0/bias"].any()


def test_feature_named_like_a_wide_table_is_an_error():
    twice = (Categorical("ad", 3, "int8"), Categorical("ad_wide", 3, "int8"))
    with pytest.raises(UserError, match="feature ad_wide: has the same name as the linear part's table of ad"):
        tables_and_features(configuration(), twice, [3, 3], 1)
