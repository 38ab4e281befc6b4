"""Embeddings with several ids a sample, alone: the project's, TensorFlow's and keras-rs's, as TensorFlow functions on the same tables.

This module imports TensorFlow: call `prepare_tensorflow` first. Each embedding gets the ids in its own input format. All lists are full, so that no
mask is needed.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.bag_values import BOTH, LEARNING_RATE, LOOKUP, UPDATE, gradient_values, probe, repeated, table_values
from benchmarks.peers import as_sparse
from benchmarks.workload import Workload
from model.embedding.distributed import DistributedEmbedding, GroupUpdate
from model.embedding.placement import single
from model.native import native_operations
from run.tables import tables_and_features
from training.optimizers.adagrad import RowwiseAdagrad
from training.optimizers.rule import EPSILON
from training.optimizers.sgd import Sgd
from training.optimizers.table import table_rule
from utils.distributed import World

_START = RowwiseAdagrad.slots[0].start


class Functions:
    """The measured functions of an embedding: a lookup, an update with given gradients, and the lookup followed by the update.

    Args:
        rule: the name of the optimizer's rule; embeddings with the same rule change tables in the same way.
        prepare: converts ids `[K, B]` and their weights, or None, to the input of the functions.
        look_up: returns vectors, `[B, …]` or a list of `[B, D]`.
        update: changes the tables and returns nothing.
        both: looks up, then updates, and returns the vectors.
    """

    def __init__(self, rule: str, prepare: Callable[..., Any], look_up: Callable, update: Callable, both: Callable):
        self.rule, self._prepare = rule, prepare
        functions = {LOOKUP: look_up, UPDATE: update, BOTH: both}
        self._functions = {name: tf.function(function, autograph=False) for name, function in functions.items()}

    def load(self, batches: Sequence[np.ndarray], weights: Sequence[np.ndarray | None]) -> None:
        """Set the batches of ids, `[K, B]` int32 each, and their weights, `[K, B]` float32, or None."""
        self._inputs = [self._prepare(*both) for both in zip(batches, weights, strict=True)]
        self._turns = cycle(self._inputs)

    def probes(self) -> list[float]:
        """Return the probes of the first batch's vectors, before and after an update with that batch."""
        before = self._probe()
        self._functions[UPDATE](self._inputs[0])
        return [before, self._probe()]

    def turn(self, seconds: float) -> dict[str, float]:
        """Return the seconds of one call of each function, each repeated for `seconds`."""
        return {name: repeated(lambda function=function: function(next(self._turns)), seconds) for name, function in self._functions.items()}

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _probe(self) -> float:
        vectors = self._functions[LOOKUP](self._inputs[0])
        parts = [vectors] if tf.is_tensor(vectors) else vectors
        return probe(np.concatenate([tf.cast(part, tf.float32).numpy().reshape(part.shape[0], -1) for part in parts], axis=1))


def project(work: Workload, dtype: str) -> Functions:
    """Return the functions of the project's embedding on one worker, as `training.step` calls it."""
    categorical = [replace(feature, weights=work.id_weights) for feature in work.spec().categorical]
    tables, features = tables_and_features(work.config, categorical, work.rows, work.num_numerical, zeros=True)
    embedding = DistributedEmbedding(single(tables, features), World(), compute_dtype=dtype, native=native_operations())
    embedding.build()
    rule = table_rule(work.config.optimizer, work.dim)
    embedding.add_slots(rule)
    for local in embedding.sharded:
        local.kinds()["weights"].write(0, table_values(local.shard.table, local.shard.rows, work.dim))
    shape = work.batch_size, len(work.rows), work.dim
    gradients = tf.cast(tf.reshape(gradient_values(shape[0], shape[1] * shape[2]), shape), dtype)
    none, rate, step = tf.zeros((0, work.batch_size), tf.int32), tf.constant(LEARNING_RATE), tf.constant(0, tf.int64)

    def prepare(ids, weights):
        if weights is None:
            return tf.constant(ids)
        parts = [values[rows.start : rows.stop] for rows in work.id_rows for values in (ids, weights.view(np.int32))]
        return tf.constant(np.concatenate(parts))

    def look_up(ids):
        return embedding(ids, none)

    def update(ids):
        embedding.update([GroupUpdate(rule, rate)], ids, gradients, step)

    def both(ids):
        vectors = look_up(ids)
        update(ids)
        return vectors

    return Functions(rule.name, prepare, look_up, update, both)


def _by_tape(rule: str, work: Workload, dtype: str, prepare: Callable, look_up: Callable, weights: Sequence, apply: Callable) -> Functions:
    """Return the functions of a peer with gradients from the tape; from the update, TensorFlow prunes operations that gradients do not need.

    Args:
        rule: as in `Functions`.
        work: the workload.
        dtype: the dtype of the vectors.
        prepare: as in `Functions`.
        look_up: returns a list of `[B, D]`.
        weights: the tables' variables.
        apply: updates the tables, given the gradient of each.
    """
    columns = np.split(gradient_values(work.batch_size, len(work.rows) * work.dim), len(work.rows), axis=1)
    gradients = [tf.cast(np.ascontiguousarray(some), dtype) for some in columns]

    def both(ids):
        with tf.GradientTape() as tape:
            vectors = look_up(ids)
        apply(tape.gradient(vectors, weights, output_gradients=gradients))
        return vectors

    def update(ids) -> None:
        both(ids)

    return Functions(rule, prepare, look_up, update, both)


def plain(work: Workload, dtype: str) -> Functions:
    """Return the functions of `tf.nn.embedding_lookup_sparse`, with its gradient's distinct rows scattered into the tables by the project's rule."""
    rule = table_rule(work.config.optimizer, work.dim).name
    tables = [tf.Variable(table_values(number, rows, work.dim)) for number, rows in enumerate(work.rows)]
    accumulators = [tf.Variable(tf.fill([rows], _START)) for rows in work.rows]

    def look_up(lists):
        pooled = (tf.nn.embedding_lookup_sparse(table, *both, combiner="sum") for table, both in zip(tables, lists, strict=True))
        return [tf.cast(vectors, dtype) for vectors in pooled]

    def apply(gradients) -> None:
        for table, accumulator, gradient in zip(tables, accumulators, gradients, strict=True):
            changes = LEARNING_RATE * gradient.values
            if rule == RowwiseAdagrad.name:
                squares = tf.reduce_mean(tf.square(gradient.values), axis=1)
                accumulator.scatter_add(tf.IndexedSlices(squares, gradient.indices))
                changes /= tf.sqrt(tf.gather(accumulator, gradient.indices) + EPSILON)[:, tf.newaxis]
            table.scatter_sub(tf.IndexedSlices(changes, gradient.indices))

    def prepare(ids, weights):
        def sparse(values, rows):
            return None if values is None else as_sparse(tf.constant(values[rows.start : rows.stop]))

        return [(sparse(ids, rows), sparse(weights, rows)) for rows in work.id_rows]

    return _by_tape(rule, work, dtype, prepare, look_up, tables, apply)


def keras_rs(work: Workload, dtype: str) -> Functions:
    """Return the functions of keras-rs's `EmbedReduce`, of which its `DistributedEmbedding` consists on a CPU, and Keras's optimizer.

    Keras's Adagrad is elementwise.
    """
    reduces = importlib.import_module("keras_rs").layers.EmbedReduce
    layers = [reduces(rows, work.dim, combiner="sum", embeddings_initializer="zeros", dtype="float32") for rows in work.rows]
    for number, (layer, rows) in enumerate(zip(layers, work.rows, strict=True)):
        layer.build()
        layer.embeddings.assign(table_values(number, rows, work.dim))
    weights = [layer.embeddings for layer in layers]
    plain_sgd = table_rule(work.config.optimizer, work.dim).name == Sgd.name
    optimizer = keras.optimizers.SGD(LEARNING_RATE) if plain_sgd else keras.optimizers.Adagrad(LEARNING_RATE)
    optimizer.build(weights)

    def look_up(lists):
        return [tf.cast(layer(*both), dtype) for layer, both in zip(layers, lists, strict=True)]

    def prepare(ids, weights):
        def of(values, rows):  # with weights keras-rs takes lists of one id, too
            several = len(rows) > 1 or weights is not None
            return None if values is None else tf.constant(values[rows.start : rows.stop].T if several else values[rows.start])

        return [(of(ids, rows), of(weights, rows)) for rows in work.id_rows]

    values = [weight.value for weight in weights]
    return _by_tape(
        Sgd.name if plain_sgd else "adagrad", work, dtype, prepare, look_up, values, lambda gradients: optimizer.apply(gradients, weights)
    )
