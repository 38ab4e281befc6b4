"""The two alltoalls of a step: vectors go from the workers that hold the shards to those that hold the samples, and gradients go back."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from model.embedding.blocks import Blocks
from model.embedding.placement import Placement
from model.native import NativeOperations
from utils.distributed import World


class Exchange:
    """The exchange of vectors and gradients between the workers of a placement.

    With the C++ operations a worker sends itself nothing: what is its own already, 1/N of everything, stays where it is.

    Args:
        placement: the placement of the tables.
        world: this worker and the collectives.
        native: the C++ operations that split and join columns; None for TensorFlow's own operations.
    """

    def __init__(self, placement: Placement, world: World, native: NativeOperations | None):
        self._placement, self._world, self._native = placement, world, native
        self._blocks = Blocks.of(placement, world.rank)
        self._before, self._length = placement.columns_before, placement.columns_before[-1]

    def vectors(self, look_up: Callable[[tf.Tensor], tf.Tensor], ids: tf.Tensor, replicated: Mapping[int, tf.Tensor]) -> tf.Tensor:
        """Look up vectors and send every worker its samples' columns; return `[b, C]` for this worker's samples, C the columns of all features.

        Args:
            look_up: looks up the vectors of ids `[K, n]` in this worker's shards, `[n, columns of this worker's lookups]`.
            ids: the ids of all samples, `[K, B]`.
            replicated: for each feature of a replicated table, by its index, the vectors of this worker's samples, `[b, D_f]`.
        """
        local_batch, rank = ids.shape[1] // self._world.size, self._world.rank
        if self._world.size == 1 and not replicated:  # every shard is here, in order
            return look_up(ids)
        shares = [local_batch * self._placement.columns(rank)] * self._world.size
        if self._native is not None:
            blocks = []
            if self._total_columns() > 0:
                first, end = rank * local_batch, (rank + 1) * local_batch
                if self._world.size > 1:
                    shares[rank] = 0
                    others = look_up(tf.concat([ids[:, :first], ids[:, end:]], axis=1))
                    blocks.append(self._world.alltoall(tf.reshape(others, [-1]), shares, "embedding_vectors"))
                blocks.append(tf.reshape(look_up(ids[:, first:end]), [-1]))
            columns = [self._before[feature] for feature in replicated]
            return self._native.blocks_to_samples(blocks, local_batch, self._length, self._blocks, list(replicated.values()), columns)
        received = None
        if self._total_columns() > 0:
            received = self._world.alltoall(tf.reshape(look_up(ids), [-1]), shares, "embedding_vectors")
        by_place = dict(self._received(received, local_batch)) | {(feature, 0): vectors for feature, vectors in replicated.items()}
        return tf.concat([by_place[key] for key in sorted(by_place)], axis=1)

    def _received(self, flat: tf.Tensor | None, local_batch: int) -> Iterator[tuple[tuple[int, int], tf.Tensor]]:
        """Yield the received vectors lookup by lookup: ((feature, first column of its table), `[b, width]`)."""
        start = 0
        for worker, lookups in enumerate(self._placement.lookups):
            if not lookups:
                continue
            columns = self._placement.columns(worker)
            block = tf.reshape(flat[start : start + local_batch * columns], [local_batch, columns])
            start += local_batch * columns
            for (feature, shard), vectors in zip(lookups, tf.split(block, [shard.width for _, shard in lookups], axis=1), strict=True):
                yield (feature, shard.first), vectors

    def gradients(self, parts: Sequence[tf.Tensor], batch: int) -> tuple[list[tf.Tensor], list[int]]:
        """Exchange the gradients; return those of this worker's lookups for the whole global batch.

        Args:
            parts: the gradients of this worker's samples `[b, …]`, C numbers a sample, in equal consecutive parts.
            batch: B.

        Returns:
            the gradients for the global batch in parts, `[n, columns]` each, and each lookup's first column in them.
        """
        placement, rank = self._placement, self._world.rank
        mine = placement.lookups[rank]
        flat = [tf.reshape(part, [part.shape[0], self._length]) for part in parts]
        if self._world.size == 1:
            return flat, [self._before[feature] + shard.first for feature, shard in mine]
        if self._total_columns() == 0:
            return [], []
        local_batch = batch // self._world.size
        shares = [local_batch * placement.columns(worker) for worker in range(self._world.size)]
        widths = [shard.width for _, shard in mine]
        columns = [sum(widths[:i]) for i in range(len(widths))]
        if self._native is None:
            received = self._world.alltoall(self._outgoing(tf.concat(flat, axis=0)), shares, "embedding_gradients")
            if not mine:
                must_run(received)
            return [tf.reshape(received, [batch, sum(widths)])], columns
        shares[rank] = 0
        blocks = self._native.samples_to_blocks(flat, self._blocks)
        outgoing, own = blocks[: sum(shares)], blocks[sum(shares) :]  # where bounds are aligned, no copies, unlike those of tf.split
        received = self._world.alltoall(outgoing, shares, "embedding_gradients")
        if not mine:
            must_run(received)
        parts = tf.split(tf.reshape(received, [batch - local_batch, sum(widths)]), self._world.size - 1)
        parts.insert(rank, tf.reshape(own, [local_batch, sum(widths)]))
        return parts, columns

    def _outgoing(self, own: tf.Tensor) -> tf.Tensor:
        """Return the gradients of this worker's samples, `[b, C]`, as the concatenated blocks for the workers that hold the shards."""
        place = [[self._before[feature] + shard.first for feature, shard in lookups] for lookups in self._placement.lookups]
        begins = sorted({*self._before, *itertools.chain.from_iterable(place)})
        pieces = tf.split(own, [stop - start for start, stop in itertools.pairwise(begins)], axis=1)
        by_column = dict(zip(begins[:-1], pieces, strict=True))
        blocks = [tf.reshape(tf.concat([by_column[column] for column in columns], axis=1), [-1]) for columns in place if columns]
        return tf.concat(blocks, axis=0)

    def _total_columns(self) -> int:
        return sum(self._placement.columns(worker) for worker in range(self._world.size))


def must_run(received: tf.Tensor) -> None:
    """Keep an exchange in the graph that returns nothing to this worker: TensorFlow prunes unused operations, and the other workers would wait."""
    tf.debugging.Assert(tf.equal(tf.size(received), 0), [tf.size(received)])
