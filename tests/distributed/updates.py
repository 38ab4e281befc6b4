"""Updates of embedding tables by every optimizer's rule, on any number of workers; run by `trainings.py`, checked by `test_updates.py`."""

from dataclasses import dataclass

import numpy as np

STEPS, BATCH, DIM, ROWS = 3, 16, 12, (40, 7, 64, 5)


@dataclass(frozen=True)
class Case:
    """Tables (rows, columns) by name, features (table, ids per sample, pooling, with weights or not) by name, and the operations by placement."""

    tables: dict[str, tuple[int, int]]
    features: dict[str, tuple]
    operations: dict[str, tuple[str, ...]]

    def kinds(self, where: str, workers: int) -> tuple[str, ...]:
        """Return the kinds of operations that are tested with this placement on so many workers.

        Four workers test one kind. Two test only one with whole tables: the other placements have whole tables, too, and test both where it matters.
        """
        return self.operations[where][: 1 if workers == 4 or (workers == 2 and where == "whole") else None]

    def columns(self) -> dict[str, slice]:
        """Return each feature's columns in a sample's concatenated vectors."""
        found, first = {}, 0
        for name, (table, *_) in self.features.items():
            found[name] = slice(first, first + self.tables[table][1])
            first = found[name].stop
        return found


RATES = (0.3, 0.0, 0.2)
SLICES = 8  # slices of the batch's gradients: each of four workers has two and adds them before sending
BOTH = ("C++", "TensorFlow")  # the kinds of operations that update
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
    "sliced": {"column_slice_threshold": 200},  # includes slices into thirds, which are not a subtree of the tree of sums
    "replicated": {"data_parallel_threshold": 10_000},
    "mixed": {"column_slice_threshold": 300, "data_parallel_threshold": 90},
}
CASES = {
    "one id": Case(
        {f"cat_{i}": (rows, DIM) for i, rows in enumerate(ROWS)},
        {f"cat_{i}": (f"cat_{i}", 1, "sum") for i in range(len(ROWS))},
        {"whole": BOTH, "sliced": BOTH, "replicated": ("TensorFlow",), "mixed": ("C++",)},
    ),
    "weights of ids": Case(
        {"a": (40, DIM), "b": (30, 8), "c": (7, 5)},
        {"a1": ("a", 3, "sum", True), "b1": ("b", 4, "mean", True), "a2": ("a", 1, "sum"), "b2": ("b", 2, "mean"), "c": ("c", 1, "sum", True)},
        {"whole": BOTH, "mixed": ("C++",)},
    ),
    "lists": Case(  # lists of ids, a table that two features share, other widths
        {"a": (40, DIM), "b": (30, DIM), "c": (7, 5), "d": (24, 8)},
        {"a": ("a", 3, "sum"), "b1": ("b", 1, "sum"), "d": ("d", 4, "mean"), "b2": ("b", 5, "mean"), "c": ("c", 2, "sum")},
        {"whole": BOTH, "sliced": ("C++",), "replicated": ("TensorFlow",), "mixed": BOTH},
    ),
}


def start(case: Case, table: str) -> np.ndarray:
    """Return a table's weights before the first step."""
    return np.random.default_rng(list(case.tables).index(table)).normal(size=case.tables[table]).astype(np.float32)


def batch(case: Case, step: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw each feature's ids `[h, B]`, or `[2h, B]` with weights, and gradients `[B, C]`.

    Many ids are repeated, some lists are short or empty (−1), and the weights of some are all 0.
    """
    draw = np.random.default_rng([9, step])
    ids = {}
    for name, (table, hotness, _, *weighted) in case.features.items():
        drawn = np.minimum(draw.geometric(0.2, (hotness, BATCH)) - 1, case.tables[table][0] - 1)
        lists = hotness > 1 or weighted
        ids[name] = np.where(draw.random(drawn.shape) < 0.3, -1, drawn).astype(np.int32) if lists else drawn.astype(np.int32)
        if lists:
            ids[name][:, step] = -1
        if weighted:
            weights = draw.lognormal(0, 1, drawn.shape).astype(np.float32)
            weights[:, step + 1] = 0
            ids[name] = np.concatenate([ids[name], np.where(ids[name] == -1, np.float32(0), weights).view(np.int32)])
    return ids, draw.standard_normal((BATCH, sum(case.tables[table][1] for table, *_ in case.features.values()))).astype(np.float32)


def lists_of(case: Case, name: str, ids: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each sample of a feature its ids and what multiplies their rows in float64: a sum's weights, or a mean's shares."""
    hotness, pooling = case.features[name][1:3]
    weights = ids[hotness:].view(np.float32) if len(ids) > hotness else np.ones(ids.shape, np.float32)
    found = []
    for some, factors in zip(ids[:hotness].T, weights.T, strict=True):
        factors = factors[some >= 0].astype(np.float64)
        total = factors.sum() if pooling == "mean" else 1.0
        found.append((some[some >= 0], factors / (total or 1.0)))
    return found


def rules_on(workers: int) -> tuple[str, ...]:
    """Return the rules that are tested on so many workers: on four, where a step takes longest, every second one."""
    return tuple(FLAGS)[:: 2 if workers == 4 else 1]


def rule_of(name: str):
    """Return an optimizer's rule by its name in FLAGS."""
    from training.optimizers.table import table_rule
    from utils.dialects.command_line import parse

    flags = FLAGS[name] if "--optimizer" in FLAGS[name] else ("--optimizer", name, *FLAGS[name])
    return table_rule(parse(["--dataset_type", "synthetic", *flags], "").optimizer, DIM)


def updated(world) -> dict[str, np.ndarray]:
    """Return the worker's part of every table after STEPS, and a dense weight.

    The parts' names are "updates/CASE/RULE/PLACEMENT/OPERATIONS/TABLE@FIRST COLUMN"; "…/vectors" holds the vectors that the worker then looks up
    for its samples of the first step.
    """
    from model.native import native_operations

    rules = {name: rule_of(name) for name in rules_on(world.size)}
    found = {f"dense updates/{name}": _dense(world, rule) for name, rule in rules.items()}
    for key, case in CASES.items():
        for where in case.operations:
            sums = None
            for kind in case.kinds(where, world.size):
                tables = Tables(case, world, PLACEMENTS[where], native_operations() if kind == "C++" else None)
                sums = sums or [tables.replicated_sums(step) for step in range(STEPS)]
                for name, rule in rules.items():
                    for part, values in tables.updated(rule, sums).items():
                        found[f"updates/{key}/{name}/{where}/{kind}/{part}"] = values
    return found


def dense_gradient(step: int) -> np.ndarray:
    """Draw each sample's gradient of a dense weight as large as the first table, `[B, V, D]`."""
    return np.random.default_rng([7, step]).standard_normal((BATCH, ROWS[0], DIM)).astype(np.float32)


def _dense(world, rule) -> np.ndarray:
    """Return a dense weight after STEPS; its gradients are summed over the workers."""
    import keras
    import tensorflow as tf

    from model.native import native_operations
    from model.ordered_sums import pairwise_sum, sum_in_order
    from training.groups import DenseGroup
    from training.schedule import LearningRateSchedule

    weight = keras.Variable(start(CASES["one id"], "cat_0"))
    group = DenseGroup({"weight": weight}, rule, LearningRateSchedule(1.0, 0, 1, 1), native=native_operations())
    for step in range(STEPS):
        mine = dense_gradient(step)[world.rank * BATCH // world.size : (world.rank + 1) * BATCH // world.size]
        total = sum_in_order(tf.constant(pairwise_sum(list(mine)).ravel()), world, "dense_gradients")
        group.apply([tf.reshape(total, weight.shape)], tf.constant(RATES[step]), tf.constant(step, tf.int64))
    return weight.numpy()


class Tables:
    """The tables of a case on this worker, which every rule updates from the same start.

    Args:
        case: the tables and their features.
        world: this worker and the collectives.
        thresholds: those of the placement.
        native: the C++ operations; None for TensorFlow's.
    """

    def __init__(self, case: Case, world, thresholds: dict[str, int], native):
        from model.embedding.distributed import DistributedEmbedding
        from model.embedding.placement import place
        from model.embedding.table import Feature, Table

        self._case, self._world = case, world
        tables = [Table(name, rows, dim) for name, (rows, dim) in case.tables.items()]
        features = [Feature(name, name, *facts) for name, facts in case.features.items()]
        self._embedding = DistributedEmbedding(place(tables, world.size, features=features, **thresholds), world, native=native)
        self._embedding.build()
        self._mine = slice(world.rank * BATCH // world.size, (world.rank + 1) * BATCH // world.size)

    def _read(self, step: int):
        """Return the ids `[K_r, B]` and the local ids `[K_l, b]` of a step, and the gradients of this worker's samples `[b, C]`."""
        import tensorflow as tf

        by_feature, gradients = batch(self._case, step)
        by_feature, view, none = list(by_feature.values()), self._embedding.view, [np.empty((0, BATCH), np.int32)]
        ids, local_ids = (np.concatenate(none + [by_feature[i] for i in some]) for some in (view.global_features, view.local_features))
        return tf.constant(ids), tf.constant(local_ids[:, self._mine]), tf.constant(gradients[self._mine])

    def replicated_sums(self, step: int) -> list:
        """Return the gradients of the replicated tables in a step, summed over the workers; they depend on no rule."""
        import tensorflow as tf

        from model.ordered_sums import sum_in_order

        _, local_ids, own = self._read(step)
        # The slices are added in the same order on any number of workers.
        sums = self._embedding.replicated_gradients(local_ids, own, 1.0, SLICES // self._world.size)
        return [tf.reshape(sum_in_order(tf.reshape(total, [-1]), self._world, "dense_gradients"), total.shape) for total in sums]

    def updated(self, rule, sums: list[list]) -> dict[str, np.ndarray]:
        """Return the worker's part of every table after STEPS with a rule, and the vectors that it then looks up; `sums` are the steps' sums."""
        import tensorflow as tf

        from model.embedding.distributed import GroupUpdate
        from model.embedding.table_memory import write_rows

        embedding = self._embedding
        embedding.add_slots(rule)
        for local in embedding.shards:
            write_rows(local.weights, 0, start(self._case, local.name)[:, local.shard.first : local.shard.last])
        for step in range(STEPS):
            update, number = [GroupUpdate(rule, tf.constant(RATES[step]))], tf.constant(step, tf.int64)
            ids, _, own = self._read(step)
            embedding.update(update, ids, own, number)
            embedding.update_replicated(update, sums[step], number)
        kept = embedding.shards if self._world.first else embedding.sharded
        vectors = embedding(*self._read(0)[:2]).numpy()
        return {f"{local.name}@{local.shard.first}": local.weights.numpy() for local in kept} | {"vectors": vectors.reshape(len(vectors), -1)}
