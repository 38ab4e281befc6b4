"""Embedding tables sharded over workers: lookup, exchange by alltoall, and in-place update of the rows that a batch touched."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from model.compilation import on_gpu
from model.embedding.allocation import allocated
from model.embedding.exchange import Exchange
from model.embedding.lazy_rows import LazyMemory, LazyTables
from model.embedding.pack import joined
from model.embedding.placement import Placement
from model.embedding.replicated import replicated_gradients, replicated_vectors, update_replicated
from model.embedding.shard import LocalShard
from model.embedding.shard_group import ShardGroup
from model.embedding.shard_specs import ids_of
from model.embedding.update import Received, ShardUpdate, gradients_of_rows, native_lookups, targets_of
from model.embedding.whole import whole_vectors
from model.native import NativeOperations
from utils.distributed import World

Gradients = tf.Tensor | Sequence[tf.Tensor]
Scale = float | tf.Tensor


class GroupUpdate(NamedTuple):
    """The optimizer rule and learning rate of a group of tables in one step."""

    rule: Any  # the optimizer's rule, see `training.optimizers.rule`
    learning_rate: tf.Tensor | None  # float32 scalar; None where the gradients are already multiplied by it, which a `linear` rule allows
    group: str | None = None  # the group of the tables; None for all tables
    watch: Callable = lambda *gradients: None  # called before an update with its targets and gradients, see `ShardUpdate.apply`

    def changes(self, shards: ShardGroup) -> bool:
        """Return whether these shards belong to the group."""
        return self.group in (None, shards.group)


class DistributedEmbedding(keras.layers.Layer):
    """Embedding tables of F features, sharded over N workers: ids -> vectors `[b, F, D]`, in the order of the features.

    Where tables differ in width, the vectors are `[b, C]`, side by side; C sums the widths. The vectors of a feature's h ids are summed or averaged.

    A worker reads the ids of the whole global batch, `[K_r, B]`, for the features whose tables it holds. It looks them up and sends each worker the
    pooled vectors of that worker's b = B/N samples (one alltoall, in the compute dtype). A second alltoall sends the gradients back. Replicated
    tables are looked up by every worker for its own samples, and their gradients are summed together with those of the dense weights.

    Ids: a feature with h ids a sample takes h consecutive rows; row j holds every sample's j-th id, or −1 where a sample has no j-th id.

    Tables are float32 for every compute dtype. Gradients do not flow through `call`: the trainer takes the gradient with respect to its output and
    passes it to `update`, which touches the looked-up rows only (a dense gradient of a table would be as large as the table). Gradients do flow
    through `look_up_whole`.

    Args:
        placement: the shards of each worker, and the features in the model's order.
        world: this worker and the collectives.
        seed: the seed of the initial rows, see `UniformRows`.
        compute_dtype: the dtype of the vectors.
        native: the C++ operations, which look up and update the sharded tables where all of them are in host memory; None for TensorFlow's own.
        memory: the memory for the rows of lazy tables; None where there are none.

    Attributes:
        lazy: this worker's lazy tables; None where it has none. The lookup and the update take their ids as places, see `lazy_rows`.
    """

    def __init__(
        self,
        placement: Placement,
        world: World,
        *,
        seed: int = 0,
        compute_dtype: str = "float32",
        native: NativeOperations | None = None,
        memory: LazyMemory | None = None,
    ):
        super().__init__(name="embedding", dtype="float32")
        self.placement, self.world, self.features, self.view = placement, world, placement.features, placement.view(world.rank)
        self.names, self.widths = tuple(feature.name for feature in placement.features), placement.widths
        self._seed, self._compute_dtype, self._native, self._memory = seed, tf.as_dtype(compute_dtype), native, memory
        self.lazy: LazyTables | None = None

    def build(self, input_shape=None):
        """Allocate this worker's tables and initialise them in place."""
        placement = self.placement
        held = allocated(placement, self.world.rank, self._seed, self._memory, self._native, self._weight)
        self.groups, self.replicated_groups, self._lookups, self.lazy = held.groups, held.replicated, held.lookups, held.lazy
        self.sharded, self.replicated = held.shards, [local for group in held.replicated for local in group.shards]
        self._native = None if on_gpu() or not self.sharded else self._native  # the C++ operations work on tables in host memory only
        self._exchange = Exchange(placement, self.world, self._native)
        self._update = ShardUpdate(placement, self.world, self._native)
        self.built = True

    @property
    def shards(self) -> list[LocalShard]:
        """All shards that this worker holds, replicated tables included."""
        return [*self.sharded, *self.replicated]

    def _weight(self, name: str, initial: tf.Tensor) -> tf.Variable:
        name = name.replace("/", "_")  # Keras allows no /
        return self.add_weight(name=name, shape=initial.shape, initializer=lambda shape, dtype=None: initial, autocast=False).value

    def add_slots(self, rule, group: str | None = None) -> None:
        """Allocate the slots of an optimizer's rule for every shard of a group's tables, or of all tables."""
        for shards in (*self.groups, *self.replicated_groups):
            if group in (None, shards.group):
                shards.add_slots(rule)

    def call(self, ids, local_ids):
        """Look up the vectors of this worker's samples.

        Args:
            ids: `[K_r, B]` int32, on a GPU int64, the ids of the features `view.global_features`; with lazy tables `Placed.ids`.
            local_ids: `[K_l, b]` of the same dtype, the ids of the features `view.local_features`.

        Returns:
            `[b, F, D]`, or `[b, C]`; see `vector_dtype`.
        """
        own = replicated_vectors(self.replicated_groups, local_ids, self.vector_dtype)
        return self._shaped(self._exchange.vectors(self._look_up, ids, own))

    def _shaped(self, vectors: tf.Tensor) -> tf.Tensor:
        """Reshape vectors side by side, `[b, C]`, to the result of `call`."""
        return vectors if len(set(self.widths)) > 1 else tf.reshape(vectors, [vectors.shape[0] or -1, len(self.widths), self.widths[0]])

    def look_up_whole(self, ids) -> tf.Tensor:
        """Look up ids `[B, K]` of all features in a single process: vectors `[B, F, D]`, or `[B, C]`; gradients flow to the tables.

        Raises:
            ValueError: there are other workers, a table is lazy, or the number of ids is wrong, see `whole_vectors`.
        """
        if self.lazy:
            raise ValueError("the model can be called only where all its tables are in memory; load it without --table_storage lazy")
        if self.world.size > 1:
            raise ValueError(f"the model can be called only in a single process, there are {self.world.size} workers; use dlrm.py with several")
        return self._shaped(whole_vectors(self.shards, self.placement.table_of, ids_of(self.placement), ids, self._compute_dtype))

    def _look_up(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the vectors of this worker's lookups, side by side: `[B, columns]`."""
        if self._native is not None:
            weights, lookups = [local.weights for local in self.sharded], native_lookups(self._lookups, self.sharded)
            return self._native.look_up(weights, ids, lookups, self.vector_dtype)
        if not self.sharded:
            # Not tf.zeros: TensorFlow would do an exchange of constants once, while it builds the graph, and the other workers would wait later.
            return tf.reshape(tf.cast(ids, self.vector_dtype), [ids.shape[1], 0])
        packs = [pack for group in self.groups for pack in group.packs]
        vectors = [tf.cast(some, self.vector_dtype) for group in self.groups for some in group.look_up(ids)]
        return joined(packs, vectors, self._lookups)

    @property
    def vector_dtype(self) -> tf.DType:
        """The dtype of the vectors: the compute dtype, in which workers exchange them; float32 on a single GPU, where the dense part casts them."""
        return tf.float32 if on_gpu() and self.world.size == 1 else self._compute_dtype

    @property
    def changed_by(self) -> list[tuple[int, ...]]:
        """For each shard, the rows of `ids` that name the table rows a step changes; none of a table updated whole, which is saved at once."""
        return [() if local.whole else tuple(row for one in self._lookups if one.local is local for row in one.ids.rows) for local in self.sharded]

    def gradients_of_rows(self, received: Received) -> list[tf.Tensor]:
        """Return the gradients of the rows of this worker's shards, summed, with decay and before their `divisor`."""
        return gradients_of_rows(targets_of(self.groups, self._lookups, received), received)

    def update(self, updates: Sequence[GroupUpdate], ids: tf.Tensor, gradients: Gradients, step: tf.Tensor, loss_scale: Scale = 1.0) -> None:
        """Apply the gradients of the sharded tables' vectors, in place: `receive`, then `apply`."""
        self.apply(updates, self.receive(ids, gradients, loss_scale), step)

    def receive(self, ids: tf.Tensor, gradients: Gradients, loss_scale: Scale = 1.0) -> Received:
        """Exchange the gradients of the sharded tables' vectors, and return those of this worker's shards; `ids` as in the lookup.

        `gradients` are those of the global loss by this worker's vectors, of their shape and dtype; whole, or in equal consecutive parts. They were
        multiplied by `loss_scale`: workers exchange them so, and divide in float32.
        """
        return Received(ids, *self._exchange.gradients(parts_of(gradients), ids.shape[1]), loss_scale)

    def apply(self, updates: Sequence[GroupUpdate], received: Received, step: tf.Tensor) -> None:
        """Update the shards by the received gradients, in place; `step` is the number of the step, from 0."""
        for one in updates:
            targets = targets_of(self.groups, self._lookups, received, one.changes)
            one.watch(targets, received)
            self._update.apply(one.rule, targets, received, None if one.learning_rate is None else one.rule.scalars(one.learning_rate, step))

    def replicated_gradients(self, local_ids: tf.Tensor, gradients: Gradients, loss_scale: float | tf.Tensor, slices: int) -> list[tf.Tensor]:
        """Return this worker's part of the replicated tables' gradients, to be summed over the workers; see `replicated.replicated_gradients`."""
        return replicated_gradients(self.replicated_groups, local_ids, parts_of(gradients), self.placement.columns_before, loss_scale, slices)

    def update_replicated(self, updates: Sequence[GroupUpdate], sums: Sequence[tf.Tensor], step: tf.Tensor, divisor: tf.Tensor | None = None) -> None:
        """Apply the summed gradients to the replicated tables, in place; `divisor` divides each row's gradient, decay included."""
        update_replicated(self.replicated_groups, updates, sums, step, divisor)


def parts_of(gradients: Gradients) -> list[tf.Tensor]:
    """Return gradients, which are one tensor or a sequence of parts, as a list of parts."""
    return [gradients] if tf.is_tensor(gradients) else list(gradients)
