"""Tests of the model as a Keras model of one process: what a Keras user expects works, or fails with one line that says what to do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.model.tiny_model import TABLES, batch, model_and_trainer, weights
from training.evaluator import Evaluator


@pytest.fixture
def model():
    return model_and_trainer()[0]


def inputs(some):
    return some.inputs.numerical.numpy(), some.inputs.ids.numpy().T


def test_summary_counts_every_weight(model, capsys):
    lines = []
    model.summary(print_fn=lambda text, **_: lines.append(text))
    count = sum(values.size for values in weights(model).values())
    assert f"Total params: {count:,}" in "\n".join(lines)


def test_predict_gives_the_evaluators_logits(model):
    some = batch(24)
    expected = Evaluator(model).logits(some)
    np.testing.assert_allclose(model.predict(inputs(some), batch_size=7, verbose=0), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(inputs(some)), expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_a_users_tape_reach_the_tables(model):
    some = batch(16)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(some.inputs.labels[:, None], model(inputs(some))[:, None], from_logits=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    assert len(gradients) == len(model.trainable_variables) == len(TABLES) + 8
    assert all(gradient is not None for gradient in gradients)


@pytest.mark.parametrize("flags", [(), ("--interaction", "cross", "--num_cross_layers", "2", "--cross_layer_projection_dim", "3")])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_a_users_tape_in_16_bits_are_near_those_in_float32(flags, dtype):
    some, found = batch(16), {}
    for one in ("float32", dtype):
        made = model_and_trainer(*flags, *(() if one == "float32" else ("--amp", "--amp_dtype", one)), dtype=one)[0]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(some.inputs.labels[:, None], made(inputs(some))[:, None], from_logits=True))
        found[one] = [tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(loss, made.trainable_variables)]
    for exact, rounded in zip(found["float32"], found[dtype], strict=True):
        assert rounded.dtype == np.float32 and np.abs(exact - rounded).max() <= 0.05 * np.abs(exact).max() + 1e-3


def test_fit_trains_all_weights(model):
    some = batch(64)
    before = weights(model)
    model.compile(keras.optimizers.Adam(0.02), keras.losses.BinaryCrossentropy(from_logits=True))
    history = model.fit(inputs(some), some.inputs.labels.numpy(), batch_size=16, epochs=8, verbose=0).history["loss"]
    assert history[-1] < history[0]
    for name, values in weights(model).items():
        assert not np.array_equal(values, before[name]), name


def test_save_is_an_error_that_names_the_command(model, tmp_path):
    for action in (lambda: model.save(tmp_path / "model.keras"), model.get_config):
        with pytest.raises(NotImplementedError, match=r"dlrm\.py --save_checkpoint_path FOLDER"):
            action()


def test_wrong_number_of_ids_is_an_error(model):
    numerical, ids = inputs(batch(4))
    with pytest.raises(ValueError, match=r"ids: expected \[B, 3\], received \[4, 2\]"):
        model((numerical, ids[:, :2]))


def test_training_call_normalises_by_the_batch_and_moves_the_statistics():
    model, _ = model_and_trainer("--batch_norm")
    rows = inputs(batch(16))
    before = {name: weight.numpy() for name, weight in model.statistics().items()}
    scored = model(rows).numpy()
    assert all(np.array_equal(weight.numpy(), before[name]) for name, weight in model.statistics().items())
    trained = model(rows, training=True).numpy()
    assert np.isfinite(trained).all() and not np.allclose(trained, scored, atol=1e-4)
    assert all(not np.array_equal(weight.numpy(), before[name]) for name, weight in model.statistics().items())


def test_biases_start_drawn_or_at_zero():
    drawn, zero = (weights(model_and_trainer("--bias_initializer", start)[0]) for start in ("normal", "zeros"))
    biases = [name for name in drawn if name.endswith("/bias")]
    assert biases and all(drawn[name].any() and not zero[name].any() for name in biases)
    assert all(np.array_equal(drawn[name], zero[name]) for name in drawn if name not in biases)
