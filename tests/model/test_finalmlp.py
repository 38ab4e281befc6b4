"""Tests of FinalMLP against a plain Keras model, written from the paper, and of its C++ scorer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from model.build import build_model
from model.embedding.placement import single
from model.native_scorer import native_scorer_library
from tests.model.test_fm import BATCH, NUM_NUMERICAL, Plain, batch, built, configured, rows_of_step, trained_beside
from tests.model.tiny_model import assert_close, weights
from training.native_evaluator import NativeEvaluator
from utils.distributed import World
from utils.errors import UserError

DIMS = ("--stream1_dims", "16,12", "--stream2_dims", "8", "--gate_dims", "10", "--num_heads", "4")
MODELS = {
    "two gates": ("--gate1_features", "tags,ad", "--gate2_features", "country"),
    "one gate": ("--gate2_features", "tags"),
    "no gate": (),
    "one head": ("--gate1_features", "ad", "--num_heads", "1"),
}


def flags_of(kind):
    return "--interaction", "finalmlp", *DIMS, *MODELS[kind]


class PlainFinalMlp(Plain):
    """FinalMLP of `keras.Variable`s, with the bilinear fusion as a sum over all pairs of elements of a head."""

    def __init__(self, values, kind):
        super().__init__(values, kind)
        words = dict(zip(MODELS[kind][::2], MODELS[kind][1::2], strict=True))
        self.gated_by = [words[flag].split(",") if (flag := f"--gate{i}_features") in words else [] for i in (1, 2)]
        self.heads = int(words.get("--num_heads", 4))

    def logits(self, numerical, ids):
        vectors = dict(zip(("ad", "country", "tags"), self.pooled(ids), strict=True))
        scaled = []
        if numerical.shape[1]:
            kernel = self.of("dense/numerical_vectors/kernel")
            scaled = [numerical[:, m : m + 1] * kernel[m] for m in range(numerical.shape[1])]
        outputs = []
        for stream, names in enumerate(self.gated_by, start=1):
            inputs = tf.concat([*scaled, *vectors.values()], axis=1)
            if names:
                inputs *= 2 * tf.sigmoid(self.mlp(f"gate{stream}", tf.concat([vectors[name] for name in names], axis=1)))
            outputs.append(self.mlp(f"stream{stream}", inputs, relu_at_end=True))
        x, z = outputs
        logits = self.mlp("fusion", tf.concat(outputs, axis=1))[:, 0]
        for head, (left, right) in enumerate(zip(tf.split(x, self.heads, axis=1), tf.split(z, self.heads, axis=1), strict=True)):
            logits += tf.einsum("bi,ij,bj->b", left, self.of(f"dense/bilinear/{head}/kernel"), right)
        return logits


@pytest.mark.parametrize("num_numerical", [NUM_NUMERICAL, 0])
@pytest.mark.parametrize("kind", MODELS)
def test_forward_pass_equals_the_plain_model(kind, num_numerical):
    model, _ = built(*flags_of(kind), num_numerical=num_numerical)
    numerical, ids, _ = rows_of_step(0, num_numerical)
    expected = PlainFinalMlp(weights(model), kind).logits(numerical, ids).numpy()
    np.testing.assert_allclose(model((numerical, ids.T)).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert np.ptp(expected) > 0.1


@pytest.mark.parametrize(("kind", "slices"), [("two gates", ("1", "4")), ("one gate", ("4",)), ("no gate", ("1",)), ("one head", ("4",))])
def test_50_steps_equal_keras_optimizers(kind, slices):
    trained_beside(lambda start: PlainFinalMlp(start, kind), flags_of(kind), slices, rel=5e-5, rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize("slices", ["1", "4"])
def test_wide_heads_train_as_those_of_one_pass_do(slices, monkeypatch):
    """Heads above a width are products of their own; here all are."""
    found = []
    for widest in (128, 0):
        monkeypatch.setattr("model.finalmlp._WIDEST_FUSED", widest)
        model, trainer = built(*flags_of("two gates"), "--gradient_slices", slices)
        losses = [float(trainer.step(batch(step), step, trainer.learning_rates(step))) for step in range(5)]
        found.append((losses, weights(model)))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    assert_close(found[0][1], found[1][1], rtol=1e-3, atol=2e-5)


def test_dropout_follows_every_layer_of_the_streams():
    """With nearly all outputs dropped, the streams give zeros, and the logit is the fusion's bias."""
    model, trainer = built(*flags_of("two gates"), "--dropout", "0.999999", "--optimizer", "sgd")
    bias = float(weights(model)["dense/fusion/0/bias"][0])
    _, _, labels = rows_of_step(0)
    expected = np.mean(np.log1p(np.exp(np.where(labels, -bias, bias))))
    assert float(trainer.step(batch(0), 0, trainer.learning_rates(0))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("num_numerical", [NUM_NUMERICAL, 0])
@pytest.mark.parametrize("kind", MODELS)
def test_scorer_has_the_logits_of_tensorflow_in_any_batch(kind, num_numerical):
    if native_scorer_library() is None:
        pytest.skip("the scorer is not built: run .venv/bin/python ops/build")
    config, tables, features = configured(*flags_of(kind), num_numerical=num_numerical)
    model = build_model(config.model, single(tables, features), World(), num_numerical, 7)
    for name, weight in model.dense_weights().items():
        weight.assign(3 * weight if "gate" in name else weight)  # gates far from 1
    rows = [rows_of_step(step, num_numerical) for step in range(5)]
    numerical = np.concatenate([one[0] for one in rows])
    ids = np.ascontiguousarray(np.concatenate([one[1] for one in rows], axis=1).T)
    scorer, expected = NativeEvaluator(model, config.model, num_numerical), model((numerical, ids)).numpy()
    together = scorer.logits_of(numerical, ids)
    np.testing.assert_allclose(together, expected, rtol=2e-6, atol=1e-5)
    alone = np.concatenate([scorer.logits_of(numerical[i : i + 1], ids[i : i + 1]) for i in range(0, len(ids), 7)])
    np.testing.assert_array_equal(together[::7], alone)
    np.testing.assert_array_equal(scorer.logits_of(numerical[:130], ids[:130]), together[:130])


def test_gates_of_any_size_weigh_as_the_sigmoid_does():
    """Logits of gates far beyond those of training: the scorer's own exponential function has no overflow and keeps NaN."""
    if native_scorer_library() is None:
        pytest.skip("the scorer is not built: run .venv/bin/python ops/build")
    config, tables, features = configured(*flags_of("one head"), num_numerical=0)
    model = build_model(config.model, single(tables, features), World(), 0, 7)
    numerical, ids, _ = rows_of_step(0, 0)
    last, draw = model.dense_weights()["gate1/1/bias"], np.random.default_rng(0)
    for scale in (1, 30, 100, 1e4, 1e30):
        last.assign((scale * draw.normal(size=last.shape)).astype(np.float32))
        scorer = NativeEvaluator(model, config.model, 0)
        np.testing.assert_allclose(scorer.logits_of(numerical, ids.T), model((numerical, ids.T)).numpy(), rtol=2e-6, atol=1e-5)
    last.assign(np.full(last.shape, np.nan, np.float32))
    assert np.isnan(NativeEvaluator(model, config.model, 0).logits_of(numerical, ids.T)).all()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--gate1_features", "ad,city"), "--gate1_features ad,city: no categorical feature city; expected some of ad, country, tags"),
        (("--gate2_features", "ad,ad"), "--gate2_features ad,ad: expected different names, separated by commas"),
        (("--num_heads", "3"), "--stream1_dims 16,12: expected a last width that --num_heads 3 divides|--stream2_dims 8: expected"),
        (("--stream2_dims", "0"), "--stream2_dims 0: expected one or more positive layer widths"),
        (("--linear",), "--linear"),
        (("--embedding_dim", "4,6,6"), "--interaction finalmlp takes tables of one width"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_options_that_do_not_fit_are_one_line(flags, message):
    with pytest.raises((UserError, ValueError, SystemExit), match=message):
        configured("--interaction", "finalmlp", *DIMS, *flags)


def test_keras_trains_it():
    model, _ = built(*flags_of("two gates"))
    numerical, ids, labels = rows_of_step(0)
    with tf.GradientTape() as tape:
        loss = keras.losses.binary_crossentropy(labels[:, np.newaxis], tf.sigmoid(model((numerical, ids.T), training=True))[:, tf.newaxis])
    gradients = tape.gradient(loss, model.trainable_variables)
    assert all(gradient is not None for gradient in gradients)
    assert loss.shape == (BATCH,)
