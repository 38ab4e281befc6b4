"""Embedding tables sharded over workers: lookup, exchange by alltoall, and in-place update of the rows a batch touched."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from model.compilation import on_gpu
from model.embedding.exchange import Exchange
from model.embedding.initializers import ConstantRows, UniformRows
from model.embedding.placement import Placement, Shard
from model.embedding.replicated import replicated_vectors
from model.embedding.shard import LocalShard
from model.embedding.shard_group import Wanted, allocate
from model.embedding.side_by_side import joined, whole_vectors
from model.embedding.table import ZEROS, Feature
from model.embedding.update import ShardUpdate, Target
from model.native import NativeOperations
from utils.distributed import World

Gradients = tf.Tensor | Sequence[tf.Tensor]


class DistributedEmbedding(keras.layers.Layer):
    """F embedding tables over N workers: ids -> vectors `[b, F, D]`, in the order of the features.

    A worker gets the ids of the whole global batch for the tables it holds, `[F_r, B]`, looks them up, and sends each
    worker the vectors of its b = B/N samples (one alltoall, in the compute dtype); the gradient goes the same way back
    (another one). Replicated tables are looked up by every worker for its own samples, and their gradients are summed
    together with those of the dense weights.

    Tables are float32 whatever the compute dtype. Gradients do not flow through `call`: the trainer takes the gradient of
    its output and hands it to `update`, which touches the looked-up rows only (a dense gradient of a table would be as
    large as the table). They do through `look_up_whole`.

    Args:
        features: in the model's order, each with a table of its own and one id a sample.
        placement: of their tables, in the same order: which worker holds what.
        world: this worker and the collectives.
        seed: of the initial rows, see `UniformRows`.
        compute_dtype: dtype of the vectors.
        native: looks up and updates the sharded tables where all of them are in host memory; None for TensorFlow's own operations.

    Raises:
        ValueError: the features and the tables do not go together so.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        placement: Placement,
        world: World,
        *,
        seed: int = 0,
        compute_dtype: str = "float32",
        native: NativeOperations | None = None,
    ):
        super().__init__(name="embedding", dtype="float32")
        self.features, self.placement, self.world = tuple(features), placement, world
        self.names, self.dim = tuple(feature.name for feature in features), placement.dim
        if [feature.table for feature in features] != [table.name for table in placement.tables]:
            raise ValueError("features: expected one table a feature, in the same order")
        if any(feature.hotness != 1 for feature in features):
            raise ValueError("features: expected hotness 1")
        self._seed, self._compute_dtype, self._native = seed, tf.as_dtype(compute_dtype), native
        self.view = placement.view(world.rank)

    def build(self, input_shape=None):
        """Allocate and initialise this worker's tables, in place."""
        hosted = self.placement.hosted[self.world.rank]
        whole = [Shard(table, self.placement.rows[table], 0, self.dim) for table in self.placement.replicated]
        mine = [self._wanted(shard, False, "CPU:0" if shard in hosted else "", row) for shard, row in zip(self._own, self.id_rows, strict=True)]
        self.groups = allocate(mine, self._weight)
        self.replicated_groups = allocate([self._wanted(shard, True, "", row) for row, shard in enumerate(whole)], self._weight)
        by_shard = {local.shard: local for group in self.groups for local in group.shards}
        self.sharded: list[LocalShard] = [by_shard[shard] for shard in self._own]
        self.replicated: list[LocalShard] = [local for group in self.replicated_groups for local in group.shards]
        if on_gpu() or not self.sharded:
            self._native = None
        self._exchange = Exchange(self.placement, self.world, self._native)
        self._update = ShardUpdate(self.placement, self.world, self._native)
        self.built = True

    @property
    def _own(self) -> tuple[Shard, ...]:
        return self.placement.workers[self.world.rank]

    @property
    def shards(self) -> list[LocalShard]:
        """All that this worker holds."""
        return [*self.sharded, *self.replicated]

    def _wanted(self, shard: Shard, replicated: bool, device: str, id_row: int) -> Wanted:
        table = self.placement.tables[shard.table]
        zeros = table.initializer == ZEROS
        fill = ConstantRows(0.0) if zeros else UniformRows(self._seed, table.name, table.rows, table.dim, (shard.first, shard.last))
        return Wanted(table.name, shard, replicated, device, fill, id_row)

    def _weight(self, name: str, initial: tf.Tensor) -> tf.Variable:
        def initializer(shape, dtype=None):
            return initial

        name = name.replace("/", "_")  # Keras allows no slash in a weight's name
        return self.add_weight(name=name, shape=initial.shape, initializer=initializer, autocast=False).value

    def add_slots(self, rule) -> None:
        """Allocate the slots of an optimizer's rule beside every shard."""
        for group in (*self.groups, *self.replicated_groups):
            group.add_slots(rule)

    def call(self, ids, local_ids):
        """Look up.

        Args:
            ids: `[F_r, B]` int32, on a GPU int64, of the features `view.global_features`.
            local_ids: `[F_l, b]` of the same dtype, of the features `view.local_features`.

        Returns:
            `[b, F, D]`, see `vector_dtype`.
        """
        own = replicated_vectors(self.replicated_groups, local_ids, self.vector_dtype)
        vectors = self._exchange.vectors(self._look_up(ids), own)
        return tf.reshape(vectors, [ids.shape[1] // self.world.size, len(self.names), self.dim])

    def look_up_whole(self, ids) -> tf.Tensor:
        """ids `[B, F]` -> vectors `[B, F, D]` in the compute dtype, in a process alone; gradients flow to the tables.

        Raises:
            ValueError: there are other workers, or ids of another number of features.
        """
        if self.world.size > 1:
            raise ValueError(f"the model is called in a process alone, there are {self.world.size} workers; dlrm.py trains and evaluates on several")
        if ids.shape[-1] != len(self.names):
            raise ValueError(f"ids: expected [B, {len(self.names)}], received {list(ids.shape)}")
        return whole_vectors(self.shards, ids, self._compute_dtype)

    def _look_up(self, ids: tf.Tensor) -> tf.Tensor:
        """Rows of this worker's shards, side by side: `[B, columns]`."""
        if self._native is not None:
            return self._native.look_up([local.weights for local in self.sharded], ids, self.id_rows, self.vector_dtype)
        if not self.sharded:
            # Not tf.zeros: of constants TensorFlow computes an exchange once, while it makes the graph, and the others wait in the next step.
            return tf.reshape(tf.cast(ids, self.vector_dtype), [ids.shape[1], 0])
        return joined(self.groups, [tf.cast(group.look_up(ids), self.vector_dtype) for group in self.groups], self.sharded)

    @property
    def vector_dtype(self) -> tf.DType:
        """Of the vectors: the compute dtype, in which they travel; float32 on a single GPU, where the dense part casts them while it reads them."""
        return tf.float32 if on_gpu() and self.world.size == 1 else self._compute_dtype

    @property
    def id_rows(self) -> list[int]:
        """For each of this worker's shards, the row of `ids` that holds its ids."""
        return [self.view.global_features.index(shard.table) for shard in self.placement.workers[self.world.rank]]

    def update(
        self, rule, ids: tf.Tensor, gradients: Gradients, learning_rate: tf.Tensor | None, step: tf.Tensor, loss_scale: float | tf.Tensor = 1.0
    ) -> None:
        """Apply the gradients of the sharded tables' vectors, in place.

        Args:
            rule: of the optimizer, see `training.optimizers.rule`.
            ids: `[F_r, B]` as in the lookup.
            gradients: `[b, F, D]` of the global loss by this worker's vectors, in their dtype; whole, or in equal consecutive parts.
            learning_rate: float32 scalar; None where the gradients were multiplied by it, which a `linear` rule allows.
            step: from 0.
            loss_scale: what the gradients were multiplied by; they travel so and are divided in float32.
        """
        parts, columns = self._exchange.gradients(parts_of(gradients), ids.shape[1])
        begins = {id(local): column for local, column in zip(self.sharded, columns, strict=True)} if parts else {}
        targets = [Target(group, [begins[id(local)] for local in group.shards]) for group in self.groups] if self.sharded else []
        scalars = None if learning_rate is None else rule.scalars(learning_rate, step)
        self._update.apply(rule, targets, ids, parts, scalars, loss_scale)


def parts_of(gradients: Gradients) -> list[tf.Tensor]:
    """Gradients that are whole or in parts, as parts."""
    return [gradients] if tf.is_tensor(gradients) else list(gradients)
