"""The parts of the project's training step, each alone as a TensorFlow function of its own, through the model's public objects."""

from collections.abc import Callable

import tensorflow as tf

from benchmarks.peers import Feed, steps
from benchmarks.rounds import Action
from benchmarks.workload import Workload
from model.dlrm import DLRM
from model.sparse_optimizers import SparseSgd
from model.trainer import dense_optimizer


def part_actions(work: Workload, model: DLRM, feed: Feed, dtype: str, compiled: bool) -> dict[str, Action]:
    """Actions by part; where `compiled`, only those that XLA could compile.

    Forward and backward together; the slices of the global batch are the trainer's. All gradients are returned, so that none is optimised
    away, and the learning rate is 0, so that weights stay as they are.
    """
    slices = work.config.device.gradient_slices
    slices = slices if work.batch_size % slices == 0 else 1
    mlps = _by_slices(_mlps(model), slices, compiled)
    interaction = _by_slices(_interaction(model), slices, compiled)
    shape = (work.batch_size, len(work.rows), work.dim)
    width = model.interaction.compute_output_shape((None, work.dim), (None, *shape[1:]))[1]
    numerical, bottom, vectors, dots = (
        tf.cast(tf.random.normal(size), dtype) for size in ((shape[0], work.num_numerical), (shape[0], work.dim), shape, (shape[0], width))
    )
    logits = tf.random.normal((work.batch_size, 1))
    actions = {
        "MLPs": steps(lambda _: mlps(numerical, bottom, dots, logits)),
        "interaction": steps(lambda _: interaction(bottom, vectors, dots)),
    }
    if compiled:
        return actions
    return actions | _plain_parts(model, feed, vectors)


def _mlps(model: DLRM) -> Callable:
    bottom_weights, top_weights = (list(mlp.trainable_variables) for mlp in (model.bottom_mlp, model.top_mlp))

    def run(numerical, by_bottom, dots, by_logits):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in bottom_weights])
            bottom = model.bottom_mlp(numerical)
        by_weights = tape.gradient(bottom, [variable.value for variable in bottom_weights], by_bottom)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([dots, *(variable.value for variable in top_weights)])
            logits = model.top_mlp(dots)
        return logits, *by_weights, *tape.gradient(logits, [dots, *(variable.value for variable in top_weights)], by_logits)

    return run


def _interaction(model: DLRM) -> Callable:
    def run(bottom, vectors, upstream):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([bottom, vectors])
            out = model.interaction(bottom, vectors)
        return out, *tape.gradient(out, [bottom, vectors], upstream)

    return run


def _plain_parts(model: DLRM, feed: Feed, gradients: tf.Tensor) -> dict[str, Action]:
    weights = [*model.bottom_mlp.trainable_variables, *model.top_mlp.trainable_variables]
    optimizer, sparse_optimizer = dense_optimizer("sgd", 0.9, 0.999), SparseSgd()
    optimizer.build(weights)
    dense_gradients = [tf.zeros(weight.shape) for weight in weights]
    rate, number = tf.constant(0.0), tf.constant(0, tf.int64)

    @tf.function(autograph=False)
    def lookup(batch):
        return model.embedding(batch.ids, batch.local_ids)

    @tf.function(autograph=False)
    def update(ids, values, rate, number):
        model.embedding.update(sparse_optimizer, ids, values, rate, number)

    @tf.function(autograph=False)
    def apply(values):
        optimizer.apply(values, weights)

    return {
        "lookup": steps(lambda i: lookup(feed.on_device(i))),
        "sparse update": steps(lambda i: update(feed.on_device(i).ids, gradients, rate, number)),
        "dense optimizer": steps(lambda _: apply(dense_gradients)),
    }


def _by_slices(function: Callable, slices: int, compiled: bool) -> Callable:
    part = tf.function(function, autograph=False, jit_compile=True if compiled else None)

    @tf.function(autograph=False)
    def whole(*inputs):
        return [part(*parts) for parts in zip(*(tf.split(value, slices) for value in inputs), strict=True)]

    return whole
