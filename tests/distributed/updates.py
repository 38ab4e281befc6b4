"""Updates of embedding tables by every optimizer's rule, on any number of workers; run by `trainings.py`, checked by `test_updates.py`."""

import numpy as np

STEPS, BATCH, DIM, ROWS = 3, 16, 12, (40, 7, 64, 5)
RATES = (0.3, 0.0, 0.2)
BOTH = ("C++", "TensorFlow")  # the operations that update
FLAGS = {
    "sgd": (),
    "momentum": ("--optimizer", "sgd", "--momentum", "0.7"),
    "adagrad": (),
    "rowwise_adagrad": (),
    "adam": ("--beta1", "0.8", "--beta2", "0.95"),
    "ftrl": ("--ftrl_l1", "0.05", "--ftrl_l2", "0.1"),
    "rmsprop": ("--rho", "0.8"),
}
PLACEMENTS = {  # thresholds in elements
    "whole": {},
    "sliced": {"column_slice_threshold": 100},  # into thirds, too, which are no subtree of the tree of sums
    "replicated": {"data_parallel_threshold": 10_000},
    "mixed": {"column_slice_threshold": 300, "data_parallel_threshold": 90},
}
OPERATIONS = {"whole": BOTH, "sliced": BOTH, "replicated": ("TensorFlow",), "mixed": ("C++",)}


def start(table: int) -> np.ndarray:
    """A table's weights before the first step."""
    return np.random.default_rng(table).normal(size=(ROWS[table], DIM)).astype(np.float32)


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids `[F, B]`, many of them repeated, and gradients `[B, F, D]`."""
    draw = np.random.default_rng([9, step])
    ids = np.stack([np.minimum(draw.geometric(0.2, BATCH) - 1, rows - 1) for rows in ROWS]).astype(np.int32)
    return ids, draw.standard_normal((BATCH, len(ROWS), DIM)).astype(np.float32)


def rule_of(name: str):
    """An optimizer's rule by its name in FLAGS."""
    from training.optimizers.table import table_rule
    from utils.config import parse

    flags = FLAGS[name] if "--optimizer" in FLAGS[name] else ("--optimizer", name, *FLAGS[name])
    return table_rule(parse(["--dataset_type", "synthetic", *flags], "").optimizer, DIM)


def updated(world) -> dict[str, np.ndarray]:
    """This worker's part of every table after STEPS, by "updates/RULE/PLACEMENT/OPERATIONS/TABLE@FIRST COLUMN", and a dense weight."""
    from model.native import native_operations

    found = {}
    for rule in FLAGS:
        found[f"dense updates/{rule}"] = _dense(world, rule_of(rule))
        for where in PLACEMENTS:
            for kind in OPERATIONS[where]:
                native = native_operations() if kind == "C++" else None
                for name, values in _updated(world, rule_of(rule), PLACEMENTS[where], native).items():
                    found[f"updates/{rule}/{where}/{kind}/{name}"] = values
    return found


def dense_gradient(step: int) -> np.ndarray:
    """`[B, V, D]`, a sample's each, of a dense weight as large as the first table."""
    return np.random.default_rng([7, step]).standard_normal((BATCH, ROWS[0], DIM)).astype(np.float32)


def _dense(world, rule) -> np.ndarray:
    """A dense weight after STEPS, its gradients summed over the workers."""
    import keras
    import tensorflow as tf

    from model.ordered_sums import pairwise_sum, sum_in_order
    from training.groups import DenseGroup
    from training.schedule import LearningRateSchedule

    weight = keras.Variable(start(0))
    group = DenseGroup({"weight": weight}, rule, LearningRateSchedule(1.0, 0, 1, 1))
    for step in range(STEPS):
        mine = dense_gradient(step)[world.rank * BATCH // world.size : (world.rank + 1) * BATCH // world.size]
        total = sum_in_order(tf.constant(pairwise_sum(list(mine)).ravel()), world, "dense_gradients")
        group.apply([tf.reshape(total, weight.shape)], tf.constant(RATES[step]), tf.constant(step, tf.int64))
    return weight.numpy()


def _updated(world, rule, thresholds, native) -> dict[str, np.ndarray]:
    import tensorflow as tf

    from model.embedding.distributed import DistributedEmbedding
    from model.embedding.placement import place
    from model.embedding.table import Table
    from model.embedding.table_memory import write_rows
    from model.ordered_sums import sum_in_order

    tables = [Table(f"cat_{i}", rows, DIM) for i, rows in enumerate(ROWS)]
    embedding = DistributedEmbedding(place(tables, world.size, **thresholds), world, native=native)
    embedding.build()
    embedding.add_slots(rule)
    for local in embedding.shards:
        write_rows(local.weights, 0, start(local.shard.table)[:, local.shard.first : local.shard.last])
    mine = slice(world.rank * BATCH // world.size, (world.rank + 1) * BATCH // world.size)
    for step in range(STEPS):
        ids, gradients = batch(step)
        rate, number, own = tf.constant(RATES[step]), tf.constant(step, tf.int64), tf.constant(gradients[mine])
        local_ids = tf.constant(ids[list(embedding.view.local_features)][:, mine])
        # Slices of one sample: every number of workers adds them in one order.
        sums = embedding.replicated_gradients(local_ids, own, 1.0, BATCH // world.size)
        sums = [tf.reshape(sum_in_order(tf.reshape(total, [-1]), world, "dense_gradients"), total.shape) for total in sums]
        embedding.update(rule, tf.constant(ids[list(embedding.view.global_features)]), own, rate, number)
        embedding.update_replicated(rule, sums, rate, number)
    kept = embedding.shards if world.first else embedding.sharded
    return {f"{local.name}@{local.shard.first}": local.weights.numpy() for local in kept}
