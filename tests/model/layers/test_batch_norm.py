import keras
import numpy as np
import pytest
import tensorflow as tf

from model.layers.batch_norm import BatchNorm
from model.layers.dropout import Dropout, Place
from model.layers.mlp import Mlp, Norm
from model.native import native_operations
from utils.distributed import World

NORM = Norm(0.9, 1e-5)
KINDS = ("gamma", "beta", "moving_mean", "moving_variance")


@pytest.fixture(params=["native", "tensorflow"])
def native(request):
    return native_operations() if request.param == "native" else None


def mlp(native, units=(24, 9, 1), dtype="float32", seed=3):
    """Return an MLP with batch normalisation whose gammas, betas and biases are drawn."""
    made = Mlp(units, None, seed, "top_mlp", dtype, native, norm=NORM)
    made.build((None, 7))
    draw = np.random.default_rng(seed)
    for layer, norm in zip(made.stack, made.norms, strict=True):
        for weight in (layer.bias,) if norm is None else (norm.gamma, norm.beta):
            weight.assign(draw.uniform(0.5, 1.5, weight.shape))
    return made


def step(made, inputs, real, slices=None, drop=None, dtype=tf.float32):
    """Return outputs, the weighted loss's gradients by inputs and weights, and the statistics, all of one step."""
    norm = BatchNorm(tf.constant(real, tf.float32), tf.constant(real.sum(), tf.float32), slices, World())
    weights, factors = made.step_weights(), tf.constant(np.linspace(-1, 1, len(real)) * real, tf.float32)

    def run(inputs, weights):
        by = [inputs, *(value for layer in weights for value in layer.trained)]
        with tf.GradientTape() as tape:
            tape.watch(by)
            outputs = tf.cast(made.forward(tf.cast(inputs, dtype), weights, slices, drop, norm=norm), tf.float32)
            loss = tf.reduce_sum(outputs[:, 0] * factors)
        return outputs, tape.gradient(loss, by), norm.found

    outputs, gradients, found = tf.function(run, autograph=False)(tf.constant(inputs), weights)
    return outputs.numpy(), [np.asarray(gradient, np.float32) for gradient in gradients], found


def in_keras(made, inputs, real, dropped=None):
    """Compute the same by Keras's own layers in float64, on the real samples alone, with the mask of the dropout by layer."""
    keep = real > 0
    layers = []
    for layer, norm in zip(made.stack, made.norms, strict=True):
        dense = keras.layers.Dense(layer.units, use_bias=norm is None, dtype="float64")
        dense.build((None, layer.kernel.shape[0]))
        dense.set_weights([weight.numpy() for weight in layer.weights])
        one = None
        if norm is not None:
            one = keras.layers.BatchNormalization(**NORM._asdict(), dtype="float64")
            one.build((None, layer.units))
            one.set_weights([getattr(norm, kind).numpy() for kind in KINDS])
        layers.append((dense, one))
    values, x = [], tf.Variable(inputs[keep].astype(np.float64))
    with tf.GradientTape() as tape:
        hidden = x
        for number, (dense, one) in enumerate(layers):
            hidden = dense(hidden)
            values.append(hidden)
            if one is not None:
                hidden = tf.nn.relu(one(hidden, training=True))
                if dropped is not None:
                    hidden *= dropped[number][keep]
        loss = tf.reduce_sum(hidden[:, 0] * np.linspace(-1, 1, len(real))[keep])
    weights = [w for dense, one in layers for w in ((dense.kernel, dense.bias) if one is None else (dense.kernel, one.gamma, one.beta))]
    gradients = tape.gradient(loss, [x, *(weight.value for weight in weights)])
    return hidden.numpy(), [gradient.numpy() for gradient in gradients], [np.asarray(value) for value in values]


def drawn(samples, padding=0, seed=0):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(3, 2, (samples, 7)).astype(np.float32)
    real = np.ones(samples, np.float32)
    if padding:
        real[-padding:] = 0
        inputs[-padding:] = 1e6
    return inputs, real


@pytest.mark.parametrize("padding", [0, 5])
def test_step_equals_keras_layers_on_the_real_samples(native, padding):
    made, (inputs, real) = mlp(native), drawn(64, padding)
    outputs, gradients, found = step(made, inputs, real)
    expected, by, values = in_keras(made, inputs, real)
    np.testing.assert_allclose(outputs[real > 0], expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(gradients[0][real > 0], by[0], rtol=1e-5, atol=2e-6)
    assert not gradients[0][real == 0].any()
    for gradient, other in zip(gradients[1:], by[1:], strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-5)
    for (mean, variance), layer in zip(found.values(), values[:-1], strict=True):
        np.testing.assert_allclose(mean, layer.mean(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(variance, layer.var(0, ddof=1), rtol=1e-5)


def test_dropout_follows_the_relu(native):
    made, (inputs, real) = mlp(native), drawn(64, 3)
    dropout, place = Dropout(0.3, 5), Place(tf.constant(7, tf.int64), tf.constant(128, tf.int64))
    dropped = [dropout.kept(f"top_mlp/{i}", place, tf.TensorShape([64, units])).numpy() / 0.7 for i, units in enumerate((24, 9))]
    outputs, gradients, _ = step(made, inputs, real, drop=dropout.at(place))
    expected, by, _ = in_keras(made, inputs, real, dropped)
    np.testing.assert_allclose(outputs[real > 0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients[0][real > 0], by[0], rtol=1e-4, atol=1e-5)
    for gradient, other in zip(gradients[1:], by[1:], strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("samples", [64, 1024])  # slices that are computed together, and one by one
@pytest.mark.parametrize("padding", [0, 5, 300])
def test_slices_give_the_result_of_one(native, samples, padding):
    if padding >= samples:
        padding = samples - 1  # one real sample
    made, (inputs, real) = mlp(native), drawn(samples, padding)
    whole, sliced = step(made, inputs, real), step(made, inputs, real, slices=4)
    for one, other in zip([whole[0], *whole[1]], [sliced[0], *sliced[1]], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=2e-4)
    for name, moments in whole[2].items():
        for one, other in zip(moments, sliced[2][name], strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


def test_one_real_sample_gives_relu_of_beta_and_no_gradient(native):
    made, (inputs, real) = mlp(native, units=(24, 1)), drawn(16, 15)
    outputs, gradients, _ = step(made, inputs, real)
    beta = np.maximum(made.norms[0].beta.numpy(), 0)
    np.testing.assert_allclose(outputs[0], beta @ made.stack[1].kernel.numpy() + made.stack[1].bias.numpy(), rtol=1e-6)
    assert max(np.abs(gradient).max() for gradient in gradients[:3]) < 1e-3  # the factor 1 / sqrt(epsilon) is 316


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_follow_32(native, dtype):
    inputs, real = drawn(256, 6)
    inputs[real == 0] = 1
    exact, rounded = (
        step(mlp(native, dtype=policy), inputs, real, dtype=kind) for policy, kind in (("float32", "float32"), (f"mixed_{dtype}", dtype))
    )
    assert np.corrcoef(exact[0][:, 0], rounded[0][:, 0])[0, 1] > 0.999
    for one, other in zip(exact[1], rounded[1], strict=True):
        assert np.linalg.norm(one - other) < 0.1 * np.linalg.norm(one)  # single units cross the ReLU's kink


def test_scoring_folds_the_moving_statistics(native):
    made, (inputs, _) = mlp(native), drawn(64)
    draw = np.random.default_rng(1)
    for norm in made.normalisations().values():
        norm.moving_mean.assign(draw.normal(size=norm.moving_mean.shape))
        norm.moving_variance.assign(draw.uniform(0.1, 9, norm.moving_variance.shape))
    hidden = inputs.astype(np.float64)
    for layer, norm in zip(made.stack, made.norms, strict=True):
        hidden = hidden @ layer.kernel.numpy()
        if norm is None:
            hidden += layer.bias.numpy()
        else:
            gamma, beta, mean, variance = (getattr(norm, kind).numpy().astype(np.float64) for kind in KINDS)
            hidden = np.maximum((hidden - mean) / np.sqrt(variance + NORM.epsilon) * gamma + beta, 0)
    np.testing.assert_allclose(made(inputs).numpy(), hidden, rtol=1e-5, atol=1e-5)
