"""Sums of the squares of whole rows' gradients where a row's columns lie on several workers: bit-identical wherever the columns are cut.

The squares of D columns are padded with zeros to the next power of two and summed by a balanced binary tree: ((0+1)+(2+3))+…. A worker that
holds columns first to last sums the largest whole subtrees among them, one float each for every touched row, and sends these sums to the workers
that hold other columns of the table. Where D and the number of shards are powers of two, that is one float a row.
"""

from collections.abc import Mapping

import tensorflow as tf

from model.embedding.exchange import must_run
from model.embedding.placement import Placement, Shard
from model.embedding.subtrees import Node, padded_width, sent, subtrees
from utils.distributed import World


def node_sum(gradients: tf.Tensor) -> tf.Tensor:
    """Sum the squares of each row in the order of the tree, `[k, n] -> [k]`."""
    sums = tf.square(gradients)
    while sums.shape[1] > 1:
        if sums.shape[1] % 2:
            sums = tf.pad(sums, [[0, 0], [0, 1]])
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0]


def root(nodes: Mapping[Node, tf.Tensor], dim: int) -> tf.Tensor:
    """Return the sum over all columns, given the sums of subtrees that cover them."""
    found, width = dict(nodes), 1
    while width < padded_width(dim):
        for start in range(0, padded_width(dim), 2 * width):
            if (start, width) in found:
                found[start, 2 * width] = found[start, width] + found[start + width, width]
        width *= 2
    return found[0, padded_width(dim)]


class RowSquares:
    """The exchange of sums of squares between the workers of a placement."""

    def __init__(self, placement: Placement, world: World):
        self._placement, self._world = placement, world
        self._cut = sorted({shard.table for shards in placement.workers for shard in shards if placement.is_cut(shard)})

    @property
    def cut(self) -> bool:
        """True if any table is cut by columns."""
        return bool(self._cut)

    def whole_rows(self, gradients: Mapping[Shard, tf.Tensor], ids: tf.Tensor) -> dict[int, tf.Tensor]:
        """Return the sums of squares of the touched rows, `[k]`, of each table that is cut by columns and partly held by this worker.

        Every worker must call this.

        Args:
            gradients: the gradients of this worker's shards of such tables, `[k, width]`, for the k distinct ids in the order of their first
                occurrence, which is the same on every worker; of tables that are updated whole, of all rows.
            ids: the ids of the step, `[K_r, B]`.
        """
        counts = {shard.table: tf.shape(rows)[0] for shard, rows in gradients.items()}
        nodes: dict[int, dict[Node, tf.Tensor]] = {table: {} for table in self._cut}
        for shard, rows in gradients.items():
            dim, most = self._placement.tables[shard.table].dim, self._most(shard.table, ids)
            for start, width in subtrees(shard.first, shard.last, dim):
                columns = rows[:, start - shard.first : min(start + width, dim) - shard.first]
                padded = tf.pad(columns, [[0, 0], [0, width - columns.shape[1]]])
                nodes[shard.table][start, width] = tf.ensure_shape(tf.pad(node_sum(padded), [[0, most - counts[shard.table]]]), [most])
        if self._cut and self._world.size > 1:
            self._exchange(nodes, ids)
        return {table: root(nodes[table], self._placement.tables[table].dim)[:count] for table, count in counts.items()}

    def _most(self, table: int, ids: tf.Tensor) -> int:
        """Return the most rows of a table that a step updates. So many numbers are sent: the other workers do not know the actual count."""
        return self._placement.most_updated(table, ids.shape[1])

    def _exchange(self, nodes: dict[int, dict[Node, tf.Tensor]], ids: tf.Tensor) -> None:
        """Add the other workers' sums to the `nodes` of this worker."""
        rank, workers = self._world.rank, range(self._world.size)
        outgoing = [tf.reshape(nodes[table][node], [-1]) for other in workers for table, node in sent(self._placement, rank, other)]
        counts = [sum(self._most(table, ids) for table, _ in sent(self._placement, rank, other)) for other in workers]
        # An empty tensor, but not a constant: TensorFlow computes an exchange of constants only once, while it builds the graph.
        flat = tf.concat(outgoing, axis=0) if outgoing else tf.cast(tf.boolean_mask(tf.reshape(ids, [-1]), tf.reshape(ids, [-1]) < 0), tf.float32)
        received = self._world.alltoall(flat, counts, "embedding_row_squares")
        start = 0
        for other in workers:
            for table, node in sent(self._placement, other, rank):
                nodes[table][node] = received[start : start + self._most(table, ids)]
                start += self._most(table, ids)
        if not start:
            must_run(received)
