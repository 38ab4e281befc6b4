"""Peers of the project's step: the matrix products alone, stock Keras, and a plain step written by hand.

This module imports TensorFlow: call `prepare_tensorflow` first. All do the same work on the same batches: F tables, lists of ids summed, the MLPs,
the interaction, binary cross-entropy, plain SGD. The lists are full, as in MLPerf, so that peers do not need masks for shorter ones.
"""

import importlib
import importlib.util
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from benchmarks.rounds import Action
from benchmarks.workload import Workload
from training.device_batch import to_device
from utils.config.options import DOT

LEARNING_RATE = 0.01


class Feed:
    """The batches on which all peers train in turns, in the form that each needs; `load` replaces them."""

    def load(self, work: Workload, ids: str, count: int) -> None:
        """Draw `count` batches; `ids`, the distribution of the ids, is a key of `workload.EXPONENTS`."""
        batches = work.batches(ids, count)
        self._on_device = [to_device(batch) for batch in batches]
        self._for_keras = [
            ([batch.numerical.astype(np.float32), np.ascontiguousarray(batch.ids.T)], batch.labels[:, np.newaxis].astype(np.float32))
            for batch in batches
        ]

    def on_device(self, step: int):
        """Return the trainer's `TensorBatch` of a step."""
        return self._on_device[step % len(self._on_device)]

    def for_keras(self, step: int):
        """Return the inputs and labels of a step, for Keras."""
        return self._for_keras[step % len(self._for_keras)]


def steps(step: Callable[[int], object]) -> Action:
    """Return an action that runs steps, calling `step` with the step's number, and waits until the device has finished the last one."""
    done = 0

    def act(count: int) -> None:
        nonlocal done
        for _ in range(count):
            step(done)
            done += 1
        tf.test.experimental.sync_devices()

    return act


def ceiling(work: Workload, dtype: str, chained: bool = False) -> Action:
    """Return an action of the layers' matrix products alone, forward and backward; no step that computes them this way can be faster.

    Args:
        work: the workload whose `layers` are multiplied.
        dtype: the dtype of the operands.
        chained: use one matrix as the output of a layer and the input of the next, which halves the memory; all products are still different.
    """

    def drawn(*shape):
        return tf.cast(tf.random.normal(shape), dtype)

    operands = []
    for inputs, outputs in work.layers:
        goes_on = chained and operands and operands[-1][2].shape[1] == inputs
        x = operands[-1][2] if goes_on else drawn(work.batch_size, inputs)
        operands.append((x, drawn(inputs, outputs), drawn(work.batch_size, outputs)))

    @tf.function(autograph=False)
    def products():
        ends = []
        for x, w, g in operands:
            for product in (tf.matmul(x, w), tf.matmul(g, w, transpose_b=True), tf.matmul(x, g, transpose_a=True)):
                ends.append(product[0, 0])
        return tf.add_n(ends)

    return steps(lambda _: products())


# Stock Keras ---------------------------------------------------------------------------------------------------------


def has_keras_rs() -> bool:
    """Return True if keras-rs, which has its own DotInteraction, is installed."""
    return importlib.util.find_spec("keras_rs") is not None


class PlainInteraction(keras.layers.Layer):
    """The lower triangle of all pairs' dot products, written straightforwardly with Keras operations."""

    def call(self, vectors):
        """Return the dot products of pairs, F+1 vectors `[B, D]` -> `[B, P]`."""
        stacked = ops.stack(vectors, axis=1)
        products = ops.matmul(stacked, ops.transpose(stacked, (0, 2, 1)))
        count = len(vectors)
        lower = [i * count + j for i in range(count) for j in range(i)]
        return ops.take(ops.reshape(products, (-1, count * count)), lower, axis=-1)

    def compute_output_shape(self, shapes):
        """Return the output's shape `[B, P]`."""
        return (shapes[0][0], len(shapes) * (len(shapes) - 1) // 2)


def _joined(work: Workload, policy: str, vectors: list):
    """Return the top MLP's input: the first vector beside the dot products of all, or all vectors through the cross layers."""
    if work.interaction.kind == DOT:
        interaction = importlib.import_module("keras_rs").layers.DotInteraction if has_keras_rs() else PlainInteraction
        return keras.layers.Concatenate(dtype=policy)([vectors[0], interaction(dtype=policy)(vectors)])
    first = last = keras.layers.Concatenate(dtype=policy)(vectors)
    for _ in range(work.interaction.layers):
        projected = keras.layers.Dense(work.interaction.projection, use_bias=False, dtype=policy)(last)
        crossed = keras.layers.Multiply(dtype=policy)([first, keras.layers.Dense(first.shape[1], dtype=policy)(projected)])
        last = keras.layers.Add(dtype=policy)([crossed, last])
    return last


def hidden(work: Workload, units: int, policy: str, inputs):
    """Return the output of a hidden layer."""
    model = work.config.model
    if not model.batch_norm:
        return keras.layers.Dense(units, activation="relu", dtype=policy)(inputs)
    products = keras.layers.Dense(units, use_bias=False, dtype=policy)(inputs)
    norm = keras.layers.BatchNormalization(momentum=model.batch_norm_momentum, epsilon=model.batch_norm_epsilon, dtype=policy)
    return keras.layers.Activation("relu", dtype=policy)(norm(products))


def keras_peer(work: Workload, dtype: str, feed: Feed) -> dict[bool, Action]:
    """Return the actions of a model of stock layers, trained by `train_on_batch`, by whether XLA compiles it."""
    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    numerical, ids = keras.Input((work.num_numerical,)), keras.Input((work.id_rows[-1].stop,), dtype="int32")
    x = numerical
    for units in work.config.model.bottom_mlp_dims:
        x = hidden(work, units, policy, x)
    y = _joined(work, policy, [x, *looked_up_by_keras(work, ids, work.dim)])
    for units in work.config.model.top_mlp_dims[:-1]:
        y = hidden(work, units, policy, y)
    return keras_actions(feed, numerical, ids, keras.layers.Dense(1, dtype="float32")(y))


def looked_up_by_keras(work: Workload, ids, dim: int) -> list:
    """Return each feature's vector of `dim` columns, the sum of a list's.

    Tables look up in float32, and the layers after them cast the vectors. Under a mixed policy Keras would cast whole tables every step.
    """
    vectors = []
    for rows, places in zip(work.rows, work.id_rows, strict=True):
        table = keras.layers.Embedding(rows, dim, dtype="float32")
        several = len(places) > 1
        vectors.append(ops.sum(table(ids[:, places.start : places.stop]), axis=1) if several else table(ids[:, places.start]))
    return vectors


def keras_actions(feed: Feed, numerical, ids, logits) -> dict[bool, Action]:
    """Return the actions of a model from these inputs to logits, trained by `train_on_batch`, by whether XLA compiles it."""

    def action(compiled: bool) -> Action:
        model = keras.Model([numerical, ids], logits)  # both models share the layers, so that the tables exist once
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(LEARNING_RATE), loss=loss, jit_compile=compiled)
        return steps(lambda step: model.train_on_batch(*feed.for_keras(step)))

    return {compiled: action(compiled) for compiled in (False, True)}


# By hand ---------------------------------------------------------------------------------------------------------------


def looked_up(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Return the sums of the rows that lists of ids name, `[h, B] -> [B, D]`, as usually written in TensorFlow."""
    if ids.shape[0] == 1:
        return tf.gather(table, ids[0])
    return tf.nn.embedding_lookup_sparse(table, as_sparse(ids), None, combiner="sum")


def as_sparse(ids: tf.Tensor) -> tf.SparseTensor:
    """Return full lists of ids `[h, B]` as a sparse matrix `[B, h]`, whose indices are a constant."""
    hotness, batch_size = ids.shape
    places = np.stack([np.repeat(np.arange(batch_size), hotness), np.tile(np.arange(hotness), batch_size)], axis=1)
    values = tf.reshape(tf.stack(tf.unstack(ids), axis=1), [-1])  # not tf.transpose: with integers oneDNN prints errors on standard error
    return tf.SparseTensor(places, values, [batch_size, hotness])


def plain_peer(work: Workload, dtype: str, feed: Feed) -> Action:
    """Return the action of a plain TensorFlow step: gather or sparse lookup, tape, and the tape's IndexedSlices scattered into the tables."""
    draw = tf.random.Generator.from_seed(0)
    tables = [tf.Variable(draw.uniform((rows, work.dim), -0.01, 0.01)) for rows in work.rows]
    layers = [(tf.Variable(draw.normal((i, o), stddev=(2 / (i + o)) ** 0.5)), tf.Variable(tf.zeros(o))) for i, o in work.layers]
    first_top = len(layers) - len(work.config.model.top_mlp_dims)
    bottom, crosses, top = (
        layers[: len(work.config.model.bottom_mlp_dims)],
        layers[len(work.config.model.bottom_mlp_dims) : first_top],
        layers[first_top:],
    )
    # leave out the unused bias of each cross layer's first product, for which the tape would return None
    unused = {id(bias) for _, bias in crosses[::2]}
    dense = [variable for layer in layers for variable in layer if id(variable) not in unused]
    count = len(work.rows) + 1
    lower = tf.constant([i * count + j for i in range(count) for j in range(i)])

    def mlp(x, layers):
        for kernel, bias in layers:
            x = tf.nn.relu(tf.matmul(x, tf.cast(kernel, dtype)) + tf.cast(bias, dtype))
        return x

    @tf.function(autograph=False)
    def step(numerical, ids, labels):
        with tf.GradientTape() as tape:
            x = mlp(tf.cast(numerical, dtype), bottom)
            lists = tf.split(ids, list(map(len, work.id_rows)))
            vectors = [tf.cast(looked_up(table, some), dtype) for table, some in zip(tables, lists, strict=True)]
            if work.interaction.kind == DOT:
                z = tf.stack([x, *vectors], axis=1)
                products = tf.reshape(tf.matmul(z, z, transpose_b=True), [-1, count * count])
                joined = tf.concat([x, tf.gather(products, lower, axis=1)], axis=1)
            else:
                first = joined = tf.concat([x, *vectors], axis=1)
                for (v, _), (u, bias) in zip(crosses[::2], crosses[1::2], strict=True):
                    joined = first * (joined @ tf.cast(v, dtype) @ tf.cast(u, dtype) + tf.cast(bias, dtype)) + joined
            y = mlp(joined, top[:-1])
            kernel, bias = top[-1]
            logits = tf.matmul(tf.cast(y, tf.float32), kernel) + bias
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits[:, 0]))
        by_table, by_weight = tape.gradient(loss, [tables, dense])
        for table, gradient in zip(tables, by_table, strict=True):
            table.scatter_sub(tf.IndexedSlices(LEARNING_RATE * gradient.values, gradient.indices))
        for variable, gradient in zip(dense, by_weight, strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)
        return loss

    def make(number: int) -> None:
        batch = feed.on_device(number).inputs.unpacked()
        step(batch.numerical, batch.ids, batch.labels)

    return steps(make)
