"""The update of this worker's shards: by the C++ operation where it can, else by TensorFlow's operations, with the same bits."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from model.compilation import on_gpu
from model.embedding.placement import Placement
from model.embedding.replicated import unscaled
from model.embedding.row_squares import RowSquares, node_sum
from model.embedding.shard_group import ShardGroup
from model.embedding.side_by_side import of_group
from model.native import NativeOperations, Rule
from utils.distributed import World


class Target(NamedTuple):
    """A group of shards, and where each of them begins in the columns of a sample's gradients."""

    group: ShardGroup
    columns: list[int]

    def singly(self) -> "list[Target]":
        """The same shards, each a group of its own."""
        return [Target(group, [column]) for group, column in zip(self.group.singly(), self.columns, strict=True)]


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

    def apply(self, rule, targets: Sequence[Target], ids: tf.Tensor, parts: Sequence[tf.Tensor], scalars: tf.Tensor | None, loss_scale) -> None:
        """Update the touched rows of the shards.

        Args:
            rule: of the optimizer, see `training.optimizers.rule`.
            targets: all shards of this worker; there may be none.
            ids: `[F_r, B]`.
            parts: of the B samples' gradients, equal consecutive ones, `[n, columns]` in the vectors' dtype.
            scalars: of the rule, in this step; None where the gradients were multiplied by them, which a `linear` rule allows.
            loss_scale: what the gradients are divided by, in float32.
        """
        together = rule.needs_squares and self._row_squares.cut  # workers that hold columns of one table
        if together:  # whose sums of squares are exchanged table by table
            targets = [single for target in targets for single in target.singly()]
        natively = [self._native is not None and rule.native and not (together and self._is_cut(target)) for target in targets]
        if any(natively):
            by_native = [target for target, native in zip(targets, natively, strict=True) if native]
            locals_, rows, columns = zip(*((target.group.shards[0], target.group.id_rows[0], target.columns[0]) for target in by_native), strict=True)
            slots = [slot for local in locals_ for slot in local.slots.values()]
            arithmetic = Rule(rule.name, scalars, rule.constants)
            self._native.update(arithmetic, [local.weights for local in locals_], slots, ids, rows, parts, columns, loss_scale)
        rest = [target for target, native in zip(targets, natively, strict=True) if not native]
        if rule.linear and on_gpu():
            for target in rest:
                target.group.apply_linear(rule, ids, _gradients(target, parts, loss_scale), scalars)
        else:
            self._by_distinct_rows(rule, rest, ids, parts, scalars, loss_scale)

    def _by_distinct_rows(self, rule, targets: Sequence[Target], ids: tf.Tensor, parts: Sequence[tf.Tensor], scalars: tf.Tensor, loss_scale) -> None:
        """By TensorFlow's operations, each row once."""
        touched = [target.group.distinct(ids, _gradients(target, parts, loss_scale)) for target in targets]
        squares = {}
        if rule.needs_squares and self._row_squares.cut:
            cut = {target.group.shards[0].shard: rows for target, (_, rows) in zip(targets, touched, strict=True) if self._is_cut(target)}
            squares = self._row_squares.whole_rows(cut, ids)
        for target, (distinct, rows) in zip(targets, touched, strict=True):
            whole = None
            if rule.needs_squares:
                whole = squares[target.group.shards[0].shard.table] if self._is_cut(target) else node_sum(rows)
            target.group.apply(rule, distinct, rows, scalars, whole)

    def _is_cut(self, target: Target) -> bool:
        return target.group.width < self._dim


def _gradients(target: Target, parts: Sequence[tf.Tensor], loss_scale: float | tf.Tensor) -> tf.Tensor:
    """`[B, shards·width]` float32."""
    found = [of_group(target.group, part, target.columns) for part in parts]
    return unscaled(found[0] if len(found) == 1 else tf.concat(found, axis=0), loss_scale)
