"""Tests of dropout and the loss's regularisation terms against a slow reference; masks do not depend on how workers share a batch."""

import numpy as np
import pytest
import tensorflow as tf

from model.layers.dropout import Dropout, Place
from tests.model.tiny_model import assert_close, batch, model_and_trainer, sample, slow_gradients, weights

RATE, SEED = 0.03, 0


def place(step, first=0):
    return Place(tf.constant(step, tf.int64), tf.constant(first, tf.int64))


def kept(dropout, layer, where, shape):
    return dropout.kept(layer, where, tf.TensorShape(shape)).numpy()


@pytest.mark.parametrize("units", [1, 4, 5, 512])
def test_masks_are_the_same_however_the_batch_is_shared(units):
    dropout = Dropout(0.4, seed=5)
    whole = kept(dropout, "top_mlp/0", place(3), (24, units))
    for size in (1, 3, 8, 12):
        parts = [kept(dropout, "top_mlp/0", place(3, first), (size, units)) for first in range(0, 24, size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    compiled = tf.function(lambda: dropout.kept("top_mlp/0", place(3), tf.TensorShape((24, units))), jit_compile=True)()
    np.testing.assert_array_equal(compiled.numpy(), whole)


def test_masks_differ_from_step_to_step_layer_to_layer_and_sample_to_sample():
    masks = [
        kept(Dropout(0.5, seed), layer, place(step, first), (64, 128))
        for seed, layer, step, first in [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 64), (0, "a", 2**40, 0)]
    ]
    for i, mask in enumerate(masks):
        assert abs(mask.mean() - 0.5) < 0.03  # 5 standard deviations
        for other in masks[:i]:
            assert abs((mask == other).mean() - 0.5) < 0.03
    assert len(np.unique(masks[0], axis=0)) == 64


@pytest.mark.parametrize("rate", [0.01, 0.5, 0.99])
def test_dropout_drops_its_share_of_units_and_keeps_the_mean(rate):
    dropout = Dropout(rate, seed=1)
    values = dropout(tf.ones([512, 1000]), "top_mlp/1", place(0)).numpy()
    assert np.mean(values == 0) == pytest.approx(rate, abs=5 * np.sqrt(rate * (1 - rate) / values.size))
    assert np.unique(values[values != 0]) == np.float32(1 / (1 - rate))


@pytest.mark.parametrize("flags", [(), ("--gradient_slices", "4"), ("--gradient_slices", "4", "--xla", "all")], ids=" ".join)
def test_steps_equal_the_slow_reference(flags):
    model, trainer = model_and_trainer("--dropout", "0.3", "--embedding_l2", "0.2", "--mlp_l2", "0.1", "--seed", str(SEED), *flags)
    dropout, expected = Dropout(0.3, SEED), weights(model)
    for step in range(4):
        tensors = batch(32, seed=step)
        inputs = sample(tensors)

        def drop(x, layer, step=step):
            return x * kept(dropout, layer, place(step), x.shape) / (1 - 0.3)

        plain, _ = slow_gradients(expected, *inputs, drop=drop)
        _, gradients = slow_gradients(expected, *inputs, drop=drop, embedding_l2=0.2, mlp_l2=0.1)
        assert float(trainer.step(tensors, step, RATE)) == pytest.approx(plain, rel=1e-5)  # the reported loss leaves out the regularisation terms
        expected = {name: value - RATE * gradients[name] for name, value in expected.items()}
    assert_close(weights(model), expected)


def test_padding_is_not_regularised():
    terms = {"embedding_l2": 0.2, "mlp_l2": 0.1}
    model, trainer = model_and_trainer(*(word for name, value in terms.items() for word in (f"--{name}", str(value))))
    for real in (1, 9):
        before, tensors = weights(model), batch(16, real)
        _, gradients = slow_gradients(before, *sample(tensors, real), **terms)
        trainer.step(tensors, 0, RATE)
        assert_close(weights(model), {name: value - RATE * gradients[name] for name, value in before.items()}, f"{real} real samples")


def test_half_precision_follows_float32():
    def trained(*flags, dtype="float32"):
        model, trainer = model_and_trainer("--dropout", "0.3", "--embedding_l2", "0.2", "--mlp_l2", "0.1", *flags, dtype=dtype)
        for step in range(3):
            trainer.step(batch(32, seed=step), step, RATE)
        return weights(model)

    exact, half = trained(), ("--amp", "--amp_dtype", "float16")
    for flags in (half, (*half, "--loss_scale", "1024")):
        assert_close(trained(*flags, dtype="float16"), exact, str(flags), 2e-2, 2e-3)


def test_scoring_has_no_dropout():
    from training.evaluator import Evaluator

    (model, _), (plain, _) = model_and_trainer("--dropout", "0.9"), model_and_trainer()
    np.testing.assert_array_equal(Evaluator(model).logits(batch(16)), Evaluator(plain).logits(batch(16)))
