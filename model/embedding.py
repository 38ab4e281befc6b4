"""Embedding tables sharded over workers: lookup, exchange by alltoall, and in-place update of the rows a batch touched."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from model.initializers import ConstantRows, UniformRows
from model.placement import Placement, Slice
from model.table_memory import new_table
from utils.distributed import World, pairwise_sum


@dataclass
class HeldSlice:
    """Columns of one table on this worker: the weights `[V, width]` and the optimizer's slots, of the same shape."""

    name: str  # of the feature
    piece: Slice
    replicated: bool
    device: str  # "" for the default one, else "CPU:0": the slice lives in host memory
    weights: tf.Variable
    slots: dict[str, tf.Variable] = field(default_factory=dict)

    def gather(self, ids: tf.Tensor) -> tf.Tensor:
        """Rows of the ids, `[n] -> [n, width]` float32."""
        with tf.device(self.device or None):
            return tf.raw_ops.ResourceGather(resource=self.weights.handle, indices=ids, dtype=tf.float32)

    def apply(self, optimizer, ids: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update the rows of the ids, `[n]`, with gradients `[n, width]` float32."""
        with tf.device(self.device or None):
            optimizer.apply(self.weights, list(self.slots.values()), ids, gradients, learning_rate, step)


class DistributedEmbedding(keras.layers.Layer):
    """F embedding tables over N workers: ids -> vectors `[b, F, D]`, in the order of the features.

    A worker gets the ids of the whole global batch for the tables it holds, `[F_r, B]`, looks them up, and sends each
    worker the vectors of its b = B/N samples (one alltoall, in the compute dtype); the gradient goes the same way back
    (another one). Replicated tables are looked up by every worker for its own samples, and their gradients are summed
    together with those of the dense weights.

    Tables are float32 whatever the compute dtype. Gradients do not flow through this layer: the trainer takes the gradient of
    its output and hands it to `update`, which touches the looked-up rows only (a dense gradient of a table would be as
    large as the table).

    Args:
        names: of the F features, in the model's order.
        placement: which worker holds what.
        world: this worker and the collectives.
        seed: of the initial rows, see `UniformRows`.
        zeros: start at zero instead.
        compute_dtype: dtype of the vectors.
    """

    def __init__(
        self, names: Sequence[str], placement: Placement, world: World, *, seed: int = 0, zeros: bool = False, compute_dtype: str = "float32"
    ):
        super().__init__(name="embedding", dtype="float32")
        self.names, self.placement, self.world = tuple(names), placement, world
        self.dim = placement.dim
        self._seed, self._zeros, self._vector_dtype = seed, zeros, tf.as_dtype(compute_dtype)
        self.sharded: list[HeldSlice] = []  # this worker's slices, in the order of placement.workers[rank]
        self.replicated: list[HeldSlice] = []
        # Places, in the model's order, of the features whose ids this worker needs: of the global batch, of its own samples.
        self.global_features = tuple(dict.fromkeys(piece.table for piece in placement.workers[world.rank]))
        self.local_features = placement.replicated
        # Of a table that is cut by columns, several workers read the ids; who has the first column counts those out of range.
        self.uncounted_features = tuple(set(self.global_features) - {piece.table for piece in placement.workers[world.rank] if piece.first == 0})

    def build(self, input_shape=None):
        """Allocate and initialise this worker's tables, in place."""
        hosted = self.placement.hosted[self.world.rank]
        self.sharded = [self._hold(piece, False, "CPU:0" if piece in hosted else "") for piece in self.placement.workers[self.world.rank]]
        whole = [Slice(table, self.placement.rows[table], 0, self.dim) for table in self.placement.replicated]
        self.replicated = [self._hold(piece, True, "") for piece in whole]
        self.built = True

    @property
    def held(self) -> list[HeldSlice]:
        """All that this worker holds."""
        return [*self.sharded, *self.replicated]

    def _hold(self, piece: Slice, replicated: bool, device: str) -> HeldSlice:
        name = self.names[piece.table]
        fill = ConstantRows(0.0) if self._zeros else UniformRows(self._seed, name, piece.rows, self.dim, (piece.first, piece.last))
        with tf.device(device or None):
            weights = new_table(piece.rows, piece.width, fill, functools.partial(self._weight, f"{name}_{piece.first}"))
        return HeldSlice(name, piece, replicated, device, weights)

    def _weight(self, name: str, initial: tf.Tensor) -> tf.Variable:
        def initializer(shape, dtype=None):
            return initial

        name = name.replace("/", "_")  # Keras allows no slash in a weight's name
        return self.add_weight(name=name, shape=initial.shape, initializer=initializer, autocast=False, trainable=False).value

    def add_slots(self, optimizer) -> None:
        """Allocate the optimizer's slots, one of the weights' shape for each name in `optimizer.slots`."""
        for held in self.held:
            with tf.device(held.device or None):
                held.slots = {
                    slot: new_table(held.piece.rows, held.piece.width, ConstantRows(start), tf.Variable) for slot, start in optimizer.slots.items()
                }

    def call(self, ids, local_ids):
        """Look up.

        Args:
            ids: `[F_r, B]` int32, of the features `global_features`.
            local_ids: `[F_l, b]` int32, of the features `local_features`.

        Returns:
            `[b, F, D]` in the compute dtype.
        """
        column = dict(zip(self.global_features, tf.unstack(ids, num=len(self.global_features)), strict=True))
        looked_up = [tf.cast(held.gather(column[held.piece.table]), self._vector_dtype) for held in self.sharded]
        local_batch = ids.shape[1] // self.world.size
        if self.world.size == 1 and not self.replicated:  # every slice is here, in order
            return tf.reshape(tf.concat(looked_up, axis=1), [local_batch, len(self.names), self.dim])
        vectors = dict(self._received(self._exchange(looked_up, ids.shape[1]), local_batch))
        for held, own in zip(self.replicated, tf.unstack(local_ids, num=len(self.replicated)), strict=True):
            vectors[(held.piece.table, 0)] = tf.cast(held.gather(own), self._vector_dtype)
        in_order = [vectors[key] for key in sorted(vectors)]
        return tf.reshape(tf.concat(in_order, axis=1), [local_batch, len(self.names), self.dim])

    def _exchange(self, looked_up: list[tf.Tensor], batch: int) -> tf.Tensor | None:
        """Send every worker its samples' columns; gives what came, worker after worker, as one vector."""
        if self._total_columns() == 0:
            return None
        mine = tf.reshape(tf.concat(looked_up, axis=1), [-1]) if looked_up else tf.zeros([0], self._vector_dtype)
        share = batch // self.world.size * self.placement.columns(self.world.rank)
        return self.world.alltoall(mine, [share] * self.world.size, "embedding_vectors")

    def _received(self, flat: tf.Tensor | None, local_batch: int) -> Iterator[tuple[tuple[int, int], tf.Tensor]]:
        """Cut what came into slices: ((table, first column), `[b, width]`)."""
        start = 0
        for worker, pieces in enumerate(self.placement.workers):
            if not pieces:
                continue
            columns = self.placement.columns(worker)
            block = tf.reshape(flat[start : start + local_batch * columns], [local_batch, columns])
            start += local_batch * columns
            for piece, vectors in zip(pieces, tf.split(block, [piece.width for piece in pieces], axis=1), strict=True):
                yield (piece.table, piece.first), vectors

    def _total_columns(self) -> int:
        return sum(self.placement.columns(worker) for worker in range(self.world.size))

    def update(self, optimizer, ids: tf.Tensor, gradients: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor, loss_scale: float = 1.0) -> None:
        """Apply the gradients of the sharded tables' vectors, in place.

        Args:
            optimizer: see `sparse_optimizers`.
            ids: `[F_r, B]` as in the lookup.
            gradients: `[b, F, D]` of the global loss by this worker's vectors, in the compute dtype.
            learning_rate: float32 scalar.
            step: from 0.
            loss_scale: what the gradients were multiplied by; they travel so and are divided in float32.
        """
        column = dict(zip(self.global_features, tf.unstack(ids, num=len(self.global_features)), strict=True))
        for held, gradient in zip(self.sharded, self._send_back(gradients, ids.shape[1]), strict=True):
            held.apply(optimizer, column[held.piece.table], _unscaled(gradient, loss_scale), learning_rate, step)

    def _send_back(self, gradients: tf.Tensor, batch: int) -> list[tf.Tensor]:
        """The gradients of this worker's slices for the whole global batch: `[B, width]` each."""
        if self._total_columns() == 0:
            return []
        local_batch = batch // self.world.size
        flat = tf.reshape(gradients, [local_batch, len(self.names) * self.dim])
        widths = [held.piece.width for held in self.sharded]
        if self.world.size == 1 and not self.replicated:
            return tf.split(flat, widths, axis=1)
        outgoing, shares = [], []
        for worker, pieces in enumerate(self.placement.workers):
            offsets = [piece.table * self.dim + piece.first for piece in pieces]
            columns = [flat[:, offset : offset + piece.width] for offset, piece in zip(offsets, pieces, strict=True)]
            shares.append(local_batch * self.placement.columns(worker))
            if columns:
                outgoing.append(tf.reshape(tf.concat(columns, axis=1), [-1]))
        received = self.world.alltoall(tf.concat(outgoing, axis=0), shares, "embedding_gradients")
        if not self.sharded:
            return []
        mine = tf.reshape(received, [batch, self.placement.columns(self.world.rank)])
        return tf.split(mine, widths, axis=1)

    def replicated_gradients(self, local_ids: tf.Tensor, gradients: tf.Tensor, loss_scale: float = 1.0, slices: int = 1) -> list[tf.Tensor]:
        """For each replicated table, the gradient of its rows and how often each was touched: `[V, D+1]` float32.

        Args:
            local_ids: `[F_l, b]`.
            gradients, loss_scale: as in `update`.
            slices: equal slices of the samples whose sums are added pairwise, so that the order does not depend on N.
        """
        out = []
        for held, own in zip(self.replicated, tf.unstack(local_ids, num=len(self.replicated)), strict=True):
            by_sample = _unscaled(gradients[:, held.piece.table, :], loss_scale)
            with_count = tf.concat([by_sample, tf.ones_like(by_sample[:, :1])], axis=1)
            parts = zip(tf.split(with_count, slices), tf.split(own, slices), strict=True)
            out.append(pairwise_sum([tf.math.unsorted_segment_sum(rows, ids, held.piece.rows) for rows, ids in parts]))
        return out

    def update_replicated(self, optimizer, sums: Sequence[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Apply the sums over the workers of `replicated_gradients`, to the touched rows only."""
        for held, total in zip(self.replicated, sums, strict=True):
            touched = tf.cast(tf.where(total[:, -1] > 0)[:, 0], tf.int32)
            held.apply(optimizer, touched, tf.gather(total[:, :-1], touched), learning_rate, step)


def _unscaled(gradients: tf.Tensor, loss_scale: float) -> tf.Tensor:
    gradients = tf.cast(gradients, tf.float32)
    return gradients if loss_scale == 1 else gradients / loss_scale
