"""The update of this worker's shards: by the C++ operation where it can, else by TensorFlow's operations, with the same bits."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from model.embedding.placement import Placement
from model.embedding.replicated import unscaled
from model.embedding.row_squares import RowSquares, node_sum
from model.embedding.shard import LocalShard
from model.embedding.touched_rows import sum_repeated
from model.native import NativeOperations, Rule
from utils.distributed import World


class Target(NamedTuple):
    """A shard, the row of `ids` that holds its ids, and its first column in a sample's gradients."""

    local: LocalShard
    id_row: int
    column: int


class ShardUpdate:
    """Updates the shards of a placement that this worker holds.

    Args:
        placement: of the tables.
        world: this worker and the collectives.
        native: the C++ operations; None for TensorFlow's own.
    """

    def __init__(self, placement: Placement, world: World, native: NativeOperations | None):
        self._dim, self._native = placement.dim, native
        self._row_squares = RowSquares(placement, world)

    def apply(self, rule, targets: Sequence[Target], ids: tf.Tensor, parts: Sequence[tf.Tensor], scalars: tf.Tensor, loss_scale: float) -> None:
        """Update the touched rows of the shards.

        Args:
            rule: of the optimizer, see `training.optimizers.rule`.
            targets: all shards of this worker; there may be none.
            ids: `[F_r, B]`.
            parts: of the B samples' gradients, equal consecutive ones, `[n, columns]` in the compute dtype.
            scalars: of the rule, in this step.
            loss_scale: what the gradients are divided by, in float32.
        """
        together = rule.needs_squares and self._row_squares.cut  # workers that hold columns of one table
        natively = [self._native is not None and rule.native and not (together and self._is_cut(target)) for target in targets]
        if any(natively):
            by_native = [target for target, native in zip(targets, natively, strict=True) if native]
            locals_, rows, columns = zip(*by_native, strict=True)
            slots = [slot for local in locals_ for slot in local.slots.values()]
            arithmetic = Rule(rule.name, scalars, rule.constants)
            self._native.update(arithmetic, [local.weights for local in locals_], slots, ids, rows, parts, columns, loss_scale)
        rest = [target for target, native in zip(targets, natively, strict=True) if not native]
        touched = [sum_repeated(ids[target.id_row], _gradients(target, parts, loss_scale)) for target in rest]
        squares = {}
        if together:
            cut = {target.local.shard: rows for target, (_, rows) in zip(rest, touched, strict=True) if self._is_cut(target)}
            squares = self._row_squares.whole_rows(cut, ids)
        for target, (distinct, rows) in zip(rest, touched, strict=True):
            whole = squares.get(target.local.shard.table) if self._is_cut(target) else node_sum(rows) if rule.needs_squares else None
            target.local.apply(rule, distinct, rows, scalars, whole)

    def _is_cut(self, target: Target) -> bool:
        return target.local.shard.width < self._dim


def _gradients(target: Target, parts: Sequence[tf.Tensor], loss_scale: float) -> tf.Tensor:
    """`[B, width]` float32."""
    columns = [part[:, target.column : target.column + target.local.shard.width] for part in parts]
    return unscaled(columns[0] if len(columns) == 1 else tf.concat(columns, axis=0), loss_scale)
