"""Norms by group of weights: of a step's gradients, in its graph, and of the weights, on the host."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding, GroupUpdate
from model.embedding.table_memory import CHUNK_ROWS
from model.embedding.update import gradients_of_rows
from model.sharded_model import ShardedModel
from training.groups import Groups
from utils.distributed import World


class GradientSquares:
    """The sums of the squares of a step's gradients by group of weights (`Groups.names`), float64; zeros in a step that does not measure.

    The gradients are those that the optimizers get, but before clipping: summed over samples, and over the places of a row in the batch; with
    regularisation. A worker measures its shards; the first one also what all workers know. All workers build the same conditions: their number is in
    the names of exchanges.

    Args:
        measured: whether this step measures, a boolean scalar.
        groups: the groups of weights.
        embedding: the tables.

    Attributes:
        known: the squares of what all workers know, `[groups]`.
    """

    def __init__(self, measured: tf.Tensor, groups: Groups, embedding: DistributedEmbedding):
        self._measured, self._groups, self._embedding = measured, groups, embedding
        self._of_shards: list[tf.Tensor] = []
        self.known = self._none = tf.zeros([len(groups.names)], tf.float64)

    def add_known(self, dense: Callable[[], Mapping[str, tf.Tensor]], updates: Sequence[GroupUpdate], replicated: Sequence[tf.Tensor]) -> None:
        """Add the squares of the dense weights' gradients, which `dense` returns by name, and of the summed gradients of replicated tables."""

        def squares() -> tf.Tensor:
            by_name = dense()
            found = [_squares([by_name[name] for name in group.weights]) for group in self._groups.dense]
            for one in updates:
                mine = zip(self._embedding.replicated_groups, replicated, strict=True)
                found.append(_squares([group.decayed(total[:, :-1]) for group, total in mine if one.changes(group)]))
            return tf.stack(found)

        known = tf.cond(self._measured, squares, lambda: self._none)
        self.known = known if self._embedding.world.first else self._none

    def watching(self, updates: Sequence[GroupUpdate], factor: tf.Tensor | float) -> list[GroupUpdate]:
        """Return the updates, which now add the squares of the sharded tables' gradients; these are multiplied by `factor` already."""

        def watch(targets, received) -> None:
            none = tf.zeros([], tf.float64)

            def squares() -> tf.Tensor:
                return _squares(gradients_of_rows(targets, received)) / tf.cast(factor, tf.float64) ** 2 if targets else none

            self._of_shards.append(tf.cond(self._measured, squares, lambda: none))

        return [one._replace(watch=watch) for one in updates]

    @property
    def undefined(self) -> tf.Tensor:
        """NaN for every group, for a step that was skipped, `[groups]`."""
        return self.known * math.nan

    def total(self) -> tf.Tensor:
        """Return the squares of all groups after the updates, `[groups]`."""
        if not self._of_shards:
            return self.known
        return self.known + tf.pad(tf.stack(self._of_shards), [[len(self._groups.dense), 0]])


def _squares(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    squares = [tf.reduce_sum(tf.square(tf.cast(gradient, tf.float64))) for gradient in gradients]
    return tf.add_n(squares) if squares else tf.zeros([], tf.float64)


def measures(seconds: Sequence[tf.Tensor], squares: tf.Tensor | None, divisor: tf.Tensor | None = None) -> tf.Tensor | None:
    """Return a step's measures as `StepReport.pack` takes them: the times of its exchanges, what divided its gradients, and the squares by group.

    None where it has none of them.
    """
    if squares is None and divisor is None:
        return tf.cast(tf.add_n(seconds), tf.float32)[tf.newaxis] if seconds else None
    spent = tf.cast(tf.add_n(seconds), tf.float64) if seconds else tf.zeros([], tf.float64)
    first = [spent, tf.ones([], tf.float64) if divisor is None else tf.cast(divisor, tf.float64)]
    return tf.stack(first) if squares is None else tf.concat([first, squares], axis=0)


def gradient_norms(squares: Sequence[float], names: Sequence[str], world: World) -> dict[str, float]:
    """Return the norms by group, given each worker's squares. Every worker calls this."""
    by_worker = world.everyone(list(squares), "gradient_squares")
    return {f"gradient_norm/{name}": math.sqrt(math.fsum(mine)) for name, mine in zip(names, zip(*by_worker, strict=True), strict=True)}


def weight_norms(model: ShardedModel, groups: Groups) -> tuple[dict[str, float], dict[str, float]]:
    """Return the norms of the weights that are trained, by group, and of all tables, by name. Every worker calls this; it reads all tables."""
    embedding, mine = model.embedding, {}
    for local in (*embedding.sharded, *(embedding.replicated if embedding.world.first else ())):
        rows = local.kinds(with_slots=False)["weights"]
        blocks = (rows.read(start, min(start + CHUNK_ROWS, rows.count)) for start in range(0, rows.count, CHUNK_ROWS))
        mine[local.name] = math.fsum([mine.get(local.name, 0.0), *map(_sum_of_squares, blocks)])
    by_worker = embedding.world.everyone(mine, "table_squares")
    of_tables = {table.name: math.fsum(one.get(table.name, 0.0) for one in by_worker) for table in embedding.placement.tables}
    squares = [math.fsum(_sum_of_squares(weight.numpy()) for weight in group.weights.values()) for group in groups.dense]
    for group in groups.tables:
        squares.append(math.fsum(of_tables[table.name] for table in embedding.placement.tables if table.group == group.name))
    by_group = {f"weight_norm/{name}": math.sqrt(one) for name, one in zip(groups.names, squares, strict=True)}
    return by_group, {name: math.sqrt(one) for name, one in of_tables.items()}


def _sum_of_squares(values: np.ndarray) -> float:
    return float(np.square(values, dtype=np.float64).sum())
