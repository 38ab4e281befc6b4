"""Embedding tables sharded over workers: lookup, exchange by alltoall, and in-place update of the rows a batch touched."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from model.embedding.blocks import Blocks
from model.embedding.initializers import ConstantRows, UniformRows
from model.embedding.placement import Placement, Slice
from model.embedding.table_memory import new_table
from model.native import NativeOperations
from utils.distributed import World, pairwise_sum

Gradients = tf.Tensor | Sequence[tf.Tensor]


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
        native: looks up and updates the sharded tables where all of them are in host memory; None for TensorFlow's own operations.
    """

    def __init__(
        self,
        names: Sequence[str],
        placement: Placement,
        world: World,
        *,
        seed: int = 0,
        zeros: bool = False,
        compute_dtype: str = "float32",
        native: NativeOperations | None = None,
    ):
        super().__init__(name="embedding", dtype="float32")
        self.names, self.placement, self.world = tuple(names), placement, world
        self.dim = placement.dim
        self._seed, self._zeros, self._vector_dtype = seed, zeros, tf.as_dtype(compute_dtype)
        self._native = native
        self._blocks = Blocks.of(placement)
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
        if not self.sharded or not all(held.weights.device.endswith("CPU:0") for held in self.sharded):
            self._native = None
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
        mine = self._look_up(ids)
        local_batch = ids.shape[1] // self.world.size
        if self.world.size == 1 and not self.replicated:  # every slice is here, in order
            return tf.reshape(mine, [local_batch, len(self.names), self.dim])
        received, features = self._exchange(mine, ids.shape[1]), tf.unstack(local_ids, num=len(self.replicated))
        own = {held.piece.table: tf.cast(held.gather(column), self._vector_dtype) for held, column in zip(self.replicated, features, strict=True)}
        length = len(self.names) * self.dim
        if self._native is not None:
            columns = [table * self.dim for table in own]
            vectors = self._native.blocks_to_samples(received, local_batch, length, self._blocks, list(own.values()), columns)
        else:
            by_place = dict(self._received(received, local_batch)) | {(table, 0): vectors for table, vectors in own.items()}
            vectors = tf.concat([by_place[key] for key in sorted(by_place)], axis=1)
        return tf.reshape(vectors, [local_batch, len(self.names), self.dim])

    def _look_up(self, ids: tf.Tensor) -> tf.Tensor:
        """Rows of this worker's slices, side by side: `[B, columns]`."""
        if self._native is not None:
            return self._native.look_up([held.weights for held in self.sharded], ids, self._id_rows(), self._vector_dtype)
        if not self.sharded:
            # Not tf.zeros: of constants TensorFlow computes an exchange once, while it makes the graph, and the others wait in the next step.
            return tf.reshape(tf.cast(ids, self._vector_dtype), [ids.shape[1], 0])
        features = tf.unstack(ids, num=len(self.global_features))
        looked_up = [tf.cast(held.gather(features[row]), self._vector_dtype) for row, held in zip(self._id_rows(), self.sharded, strict=True)]
        return tf.concat(looked_up, axis=1)

    def _id_rows(self) -> list[int]:
        """For each of this worker's slices, the row of `ids` that holds its ids."""
        return [self.global_features.index(held.piece.table) for held in self.sharded]

    def _exchange(self, mine: tf.Tensor, batch: int) -> tf.Tensor | None:
        """Send every worker its samples' columns; gives what came, worker after worker, as one vector."""
        if self._total_columns() == 0:
            return None
        share = batch // self.world.size * self.placement.columns(self.world.rank)
        return self.world.alltoall(tf.reshape(mine, [-1]), [share] * self.world.size, "embedding_vectors")

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

    def update(self, optimizer, ids: tf.Tensor, gradients: Gradients, learning_rate: tf.Tensor, step: tf.Tensor, loss_scale: float = 1.0) -> None:
        """Apply the gradients of the sharded tables' vectors, in place.

        Args:
            optimizer: see `sparse_optimizers`.
            ids: `[F_r, B]` as in the lookup.
            gradients: `[b, F, D]` of the global loss by this worker's vectors, in the compute dtype; whole, or in equal consecutive parts.
            learning_rate: float32 scalar.
            step: from 0.
            loss_scale: what the gradients were multiplied by; they travel so and are divided in float32.
        """
        parts, columns = self._send_back(_parts(gradients), ids.shape[1])
        if not self.sharded:
            return
        if self._native is not None:
            tables, slots = [held.weights for held in self.sharded], [slot for held in self.sharded for slot in held.slots.values()]
            rule = optimizer.rule(learning_rate, step)
            self._native.update(rule, tables, slots, ids, self._id_rows(), parts, columns, loss_scale)
            return
        features, flat = tf.unstack(ids, num=len(self.global_features)), _whole(parts)
        widths = [held.piece.width for held in self.sharded]
        if sum(widths) == flat.shape[1]:
            by_slice = tf.split(flat, widths, axis=1)
        else:  # between them lie those of replicated tables
            by_slice = [flat[:, column : column + width] for column, width in zip(columns, widths, strict=True)]
        for held, row, gradient in zip(self.sharded, self._id_rows(), by_slice, strict=True):
            held.apply(optimizer, features[row], _unscaled(gradient, loss_scale), learning_rate, step)

    def _send_back(self, parts: list[tf.Tensor], batch: int) -> tuple[list[tf.Tensor], list[int]]:
        """The gradients of this worker's slices for the whole global batch, as parts of it `[n, columns]`, and each slice's first column in them."""
        flat = [tf.reshape(part, [part.shape[0], len(self.names) * self.dim]) for part in parts]
        if self.world.size == 1:
            return flat, [held.piece.table * self.dim + held.piece.first for held in self.sharded]
        if self._total_columns() == 0:
            return [], []
        shares = [batch // self.world.size * self.placement.columns(worker) for worker in range(self.world.size)]
        outgoing = self._native.samples_to_blocks(flat, self._blocks) if self._native is not None else self._outgoing(_whole(flat))
        received = self.world.alltoall(outgoing, shares, "embedding_gradients")
        if not self.sharded:  # an operation that must run: TensorFlow leaves out an exchange whose result nobody wants, and the others wait
            tf.debugging.Assert(tf.equal(tf.size(received), 0), [tf.size(received)])
        widths = [held.piece.width for held in self.sharded]
        mine = tf.reshape(received, [batch, self.placement.columns(self.world.rank)])
        return [mine], [sum(widths[:i]) for i in range(len(widths))]

    def _outgoing(self, own: tf.Tensor) -> tf.Tensor:
        """The gradients of this worker's samples, `[b, F·D]`, cut for the workers that hold the slices."""
        blocks = []
        for pieces in self.placement.workers:
            offsets = [piece.table * self.dim + piece.first for piece in pieces]
            if pieces:
                columns = [own[:, offset : offset + piece.width] for offset, piece in zip(offsets, pieces, strict=True)]
                blocks.append(tf.reshape(tf.concat(columns, axis=1), [-1]))
        return tf.concat(blocks, axis=0)

    def replicated_gradients(self, local_ids: tf.Tensor, gradients: Gradients, loss_scale: float = 1.0, slices: int = 1) -> list[tf.Tensor]:
        """For each replicated table, the gradient of its rows and how often each was touched: `[V, D+1]` float32.

        Args:
            local_ids: `[F_l, b]`.
            gradients, loss_scale: as in `update`.
            slices: of the b samples; their sums are added pairwise, so that the order does not depend on N. The parts of `gradients` divide them.
        """
        parts, out = _parts(gradients), []
        parts = [piece for part in parts for piece in tf.split(part, slices // len(parts))]
        for held, own in zip(self.replicated, tf.unstack(local_ids, num=len(self.replicated)), strict=True):
            sums = []
            for part, ids in zip(parts, tf.split(own, len(parts)), strict=True):
                by_sample = _unscaled(part[:, held.piece.table, :], loss_scale)
                with_count = tf.concat([by_sample, tf.ones_like(by_sample[:, :1])], axis=1)
                sums.append(tf.math.unsorted_segment_sum(with_count, ids, held.piece.rows))
            out.append(pairwise_sum(sums))
        return out

    def update_replicated(self, optimizer, sums: Sequence[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Apply the sums over the workers of `replicated_gradients`, to the touched rows only."""
        for held, total in zip(self.replicated, sums, strict=True):
            touched = tf.cast(tf.where(total[:, -1] > 0)[:, 0], tf.int32)
            held.apply(optimizer, touched, tf.gather(total[:, :-1], touched), learning_rate, step)


def _parts(gradients: Gradients) -> list[tf.Tensor]:
    return [gradients] if tf.is_tensor(gradients) else list(gradients)


def _whole(parts: list[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def _unscaled(gradients: tf.Tensor, loss_scale: float) -> tf.Tensor:
    gradients = tf.cast(gradients, tf.float32)
    return gradients if loss_scale == 1 else gradients / loss_scale
