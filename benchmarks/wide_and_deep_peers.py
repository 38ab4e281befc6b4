"""Peers of the project's Wide & Deep step: stock Keras 3 with two optimizers, and tf_keras's WideDeepModel.

This module imports TensorFlow: call `prepare_tensorflow` first. Both peers train the model of `model/wide_and_deep.py` on the same batches: F deep
tables, F wide tables of one column, the linear layer, the MLP with dropout, binary cross-entropy, FTRL for the linear part and RMSprop for the deep
part (Keras 3's RMSprop has its epsilon inside the root).
"""

import importlib
import importlib.metadata
import importlib.util

import keras
import tensorflow as tf

from benchmarks.peers import Feed, steps
from benchmarks.rounds import Action
from benchmarks.workload import Workload

LEGACY = "tf_keras"


class KerasWideAndDeep:
    """The model as usually written in Keras 3, and its steps.

    Tables look up in float32, and the layer that joins the vectors casts them. Under a mixed policy Keras would cast whole tables every step.

    Args:
        work: the workload; its `config` gives layer widths, dropout, rho and learning rates.
        dtype: the compute dtype of the deep part.
    """

    def __init__(self, work: Workload, dtype: str):
        linear, deep = _parts(keras, work, dtype)
        self.model = keras.Model(linear.inputs, keras.layers.Add(dtype="float32")([linear.outputs[0], deep(linear.inputs)]))
        options = work.config.optimizer
        self.groups = (
            (linear.trainable_variables, keras.optimizers.Ftrl(options.linear_learning_rate)),
            (deep.trainable_variables, keras.optimizers.RMSprop(work.config.schedule.learning_rate, rho=options.rho)),
        )
        for variables, optimizer in self.groups:
            optimizer.build(variables)
        self._loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self._inputs = _Inputs(work)

    def step(self, compiled: bool):
        """Return a function that trains on a batch's `StepInputs` and returns the loss, compiled by XLA or not."""

        def train(batch):
            with tf.GradientTape() as tape:
                logits = self.model(self._inputs(batch), training=True)
                loss = self._loss(_column(batch.labels), logits)
            gradients = tape.gradient(loss, [[variable.value for variable in variables] for variables, _ in self.groups])
            # Dense gradients: Keras's optimizers treat each occurrence of a row in IndexedSlices as its whole gradient, which trains another model.
            for (variables, optimizer), values in zip(self.groups, gradients, strict=True):
                optimizer.apply([tf.convert_to_tensor(value) for value in values], variables)
            return loss

        return tf.function(train, autograph=False, jit_compile=compiled or None)

    def weights(self) -> dict[str, keras.Variable]:
        """Return the variables by their names in the project's checkpoints: `tables/cat_0/weights`, `dense/deep/0/kernel`, …"""
        return {_checkpoint_name(*variable.path.split("/")[-2:]): variable for variable in self.model.trainable_variables}


def keras_wide_and_deep(work: Workload, dtype: str, feed: Feed) -> dict[bool, Action]:
    """Return the step actions of one model, by whether XLA compiles them."""
    model = KerasWideAndDeep(work, dtype)

    def action(compiled: bool) -> Action:
        step = model.step(compiled)
        return steps(lambda number: step(feed.on_device(number).inputs))

    return {compiled: action(compiled) for compiled in (False, True)}


def tf_keras_version() -> str | None:
    """Return the version of tf_keras (Keras 2 as a package); None where it is not installed."""
    return importlib.metadata.version(LEGACY) if importlib.util.find_spec(LEGACY) else None


class LegacyWideAndDeep:
    """tf_keras's `WideDeepModel` with its legacy optimizers, as in NVIDIA's Wide & Deep for TensorFlow 2.

    The arguments are those of `KerasWideAndDeep`.
    """

    def __init__(self, work: Workload, dtype: str):
        library = importlib.import_module(LEGACY)
        options, optimizers, self._inputs = work.config.optimizer, library.optimizers.legacy, _Inputs(work)
        self.model = library.experimental.WideDeepModel(*_parts(library, work, dtype))
        self.model.compile(
            optimizer=[optimizers.Ftrl(options.linear_learning_rate), optimizers.RMSprop(work.config.schedule.learning_rate, rho=options.rho)],
            loss=library.losses.BinaryCrossentropy(from_logits=True),
        )

    def step(self):
        """Return a function that trains on a batch's `StepInputs` and returns the mean loss of all steps so far."""

        def train(batch):
            inputs = self._inputs(batch)
            return self.model.train_step(((inputs, inputs), _column(batch.labels)))["loss"]

        return tf.function(train, autograph=False)


def legacy_wide_and_deep(work: Workload, dtype: str, feed: Feed) -> Action:
    """Return the step action of one model."""
    step = LegacyWideAndDeep(work, dtype).step()
    return steps(lambda number: step(feed.on_device(number).inputs))


def _parts(library, work: Workload, dtype: str):
    """Build the linear and the deep model from the layers of Keras 3 or tf_keras; their inputs are `[numerical, ids of a feature, …]`."""
    layers, policy = library.layers, "float32" if dtype == "float32" else f"mixed_{dtype}"
    features = work.spec().categorical
    numerical = library.Input((work.num_numerical,))
    ids = [library.Input(_of_sample(feature.hotness), dtype="int32") for feature in features]
    flat, deep = [layers.Dense(1, name="linear", dtype="float32")(numerical)], [numerical]
    for feature, width, one in zip(features, work.widths[: len(features)], ids, strict=True):
        for vectors, columns, name, start in ((deep, width, feature.name, "glorot_normal"), (flat, 1, f"{feature.name}_wide", "uniform")):
            found = layers.Embedding(feature.cardinality, columns, start, name=name, dtype="float32")(one)
            vectors.append(_summed(library, found) if feature.hotness > 1 else found)
    *hidden, last = work.config.model.top_mlp_dims
    x = layers.Concatenate(dtype=policy)(deep)
    for number, units in enumerate(hidden):
        x = layers.Dense(units, activation="relu", name=f"deep_{number}", dtype=policy)(x)
        x = layers.Dropout(work.config.regularisation.dropout, dtype=policy)(x)
    logits = layers.Dense(last, name=f"deep_{len(hidden)}", dtype="float32")(x)
    inputs = [numerical, *ids]
    return library.Model(inputs, layers.Add(dtype="float32")(flat)), library.Model(inputs, logits)


def _summed(library, vectors):
    """Sum the vectors of each list, `[B, h, D] -> [B, D]`."""
    return library.ops.sum(vectors, axis=1) if hasattr(library, "ops") else tf.reduce_sum(vectors, axis=1)


def _of_sample(hotness: int) -> tuple[int, ...]:
    return (hotness,) if hotness > 1 else ()


class _Inputs:
    """The conversion of a batch's `StepInputs`, whose ids are `[sum of h, B]`, to the models' inputs."""

    def __init__(self, work: Workload):
        self._places = work.id_rows

    def __call__(self, batch) -> list[tf.Tensor]:
        rows = tf.unstack(batch.unpacked().ids)  # not tf.transpose: with integers oneDNN prints errors on standard error
        ids = [tf.stack(rows[some.start : some.stop], axis=1) if len(some) > 1 else rows[some.start] for some in self._places]
        return [tf.cast(batch.numerical, tf.float32), *ids]


def _column(labels: tf.Tensor) -> tf.Tensor:
    return tf.cast(labels, tf.float32)[:, tf.newaxis]


def _checkpoint_name(layer: str, kind: str) -> str:
    if kind == "embeddings":
        return f"tables/{layer}/weights"
    return f"dense/wide/0/{kind}" if layer == "linear" else f"dense/{layer.replace('_', '/')}/{kind}"
