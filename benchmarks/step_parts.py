"""The parts of the project's training step, each as a separate TensorFlow function, made from the model's public objects."""

from collections.abc import Callable

import tensorflow as tf

from benchmarks.peers import Feed, steps
from benchmarks.rounds import Action
from benchmarks.workload import Workload
from model.compilation import on_gpu
from model.dlrm import DLRM
from model.embedding.distributed import GroupUpdate
from model.layers.batch_norm import BatchNorm
from model.native import native_operations
from model.ordered_sums import parts, summed
from model.slices import keeps_order
from training.gradient_slices import gradient_slices
from training.groups import DenseGroup
from training.optimizers.sgd import Sgd
from training.schedule import ConstantSchedule
from utils.distributed import World


def part_actions(work: Workload, model: DLRM, feed: Feed, dtype: str) -> dict[str, Action]:
    """Return the actions by part.

    Forward and backward passes are measured together. The batch is cut into slices as the trainer does. All gradients are returned, so that none
    is optimised away, and the learning rate is 0, so that weights do not change.
    """
    count = gradient_slices(work.config, "GPU" if on_gpu() else "CPU")
    in_order = count > 1 and keeps_order(count, work.batch_size, 1)
    count, slices = parts(count, work.batch_size) if in_order else (1, None)
    shape = (work.batch_size, len(work.rows), work.dim)
    width = model.interaction.compute_output_shape((None, work.dim), (None, *shape[1:]))[1]
    numerical, bottom, vectors, dots = (
        tf.cast(tf.random.normal(size), dtype) for size in ((shape[0], work.num_numerical), (shape[0], work.dim), shape, (shape[0], width))
    )
    logits = tf.random.normal((work.batch_size, 1))
    mlps, interaction = _mlps(model, count, slices), _interaction(model, count)
    return {
        "MLPs": steps(lambda _: mlps(numerical, bottom, dots, logits)),
        "interaction": steps(lambda _: interaction(bottom, vectors, dots)),
    } | _plain_parts(model, feed, vectors)


def _mlps(model: DLRM, count: int, slices: int | None) -> Callable:
    native = native_operations()

    together = bool(model.normalisations)
    pieces, slices = (1, count * (slices or 1) if count > 1 or slices else None) if together else (count, slices)

    def gradients(mlp, inputs, weights, upstream):
        by = [inputs, *(value for layer in weights for value in layer.trained)]
        real = tf.ones([inputs.shape[0]])
        norm = BatchNorm(real, tf.reduce_sum(real), slices, World()) if together else None
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(by)
            outputs = mlp.forward(inputs, weights, slices, norm=norm)
        return tape.gradient(outputs, by, upstream)

    @tf.function(autograph=False)
    def run(numerical, by_bottom, dots, by_logits):
        bottom_weights, top_weights = model.bottom_mlp.step_weights(), model.top_mlp.step_weights()
        results, by_dots = [], []
        for part in zip(*(tf.split(value, pieces) for value in (numerical, by_bottom, dots, by_logits)), strict=True):
            bottom = gradients(model.bottom_mlp, part[0], bottom_weights, part[1])
            top = gradients(model.top_mlp, part[2], top_weights, part[3])
            results.append([*bottom[1:], *top[1:]])
            by_dots.append(top[0])
        return by_dots, [summed(values, native) for values in zip(*results, strict=True)]

    return run


def _interaction(model: DLRM, count: int) -> Callable:
    def part(bottom, vectors, upstream):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([bottom, vectors])
            out = model.interaction(bottom, vectors)
        return out, *tape.gradient(out, [bottom, vectors], upstream)

    @tf.function(autograph=False)
    def run(*inputs):
        return [part(*values) for values in zip(*(tf.split(value, count) for value in inputs), strict=True)]

    return run


def _plain_parts(model: DLRM, feed: Feed, gradients: tf.Tensor) -> dict[str, Action]:
    weights = [*model.bottom_mlp.trainable_variables, *model.top_mlp.trainable_variables]
    rule = Sgd()
    group = DenseGroup({str(i): weight for i, weight in enumerate(weights)}, rule, ConstantSchedule(0.0), native=native_operations())
    dense_gradients = [tf.zeros(weight.shape) for weight in weights]
    rate, number = tf.constant(0.0), tf.constant(0, tf.int64)

    @tf.function(autograph=False)
    def lookup(batch):
        batch = batch.unpacked()
        return model.embedding(batch.ids, batch.local_ids)

    @tf.function(autograph=False)
    def update(ids, values, rate, number):
        model.embedding.update([GroupUpdate(rule, rate)], ids, values, number)

    @tf.function(autograph=False)
    def apply(values, rate, number):
        group.apply(values, rate, number)

    return {
        "lookup": steps(lambda i: lookup(feed.on_device(i).inputs)),
        "sparse update": steps(lambda i: update(feed.on_device(i).inputs.unpacked().ids, gradients, rate, number)),
        "dense optimizer": steps(lambda _: apply(dense_gradients, rate, number)),
    }
