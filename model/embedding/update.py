"""The update of this worker's shards: by the C++ operation where possible, else by TensorFlow's operations, with identical bits."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from model.compilation import on_gpu
from model.embedding.placement import Placement
from model.embedding.replicated import unscaled
from model.embedding.row_squares import RowSquares, node_sum
from model.embedding.shard import LocalLookup, LocalShard
from model.embedding.shard_group import ShardGroup
from model.native import Lookup, NativeOperations, RowRule
from utils.distributed import World


class Received(NamedTuple):
    """The gradients of the vectors that a worker's shards gave to all samples of a step.

    Attributes:
        ids: `[K_r, B]`.
        parts: the gradients of the B samples in equal consecutive parts, `[n, columns]` in the vectors' dtype.
        columns: the first column of each lookup in a sample's gradients.
        loss_scale: the divisor of the gradients, applied in float32.
        divisor: the divisor of each row's summed gradient, decay included; None for none.
    """

    ids: tf.Tensor
    parts: Sequence[tf.Tensor]
    columns: Sequence[int]
    loss_scale: float | tf.Tensor
    divisor: tf.Tensor | None = None

    @property
    def sample_divisor(self) -> float | tf.Tensor:
        """The divisor of a sample's gradients where rows have no decay."""
        return self.loss_scale if self.divisor is None else self.loss_scale * self.divisor

    def divided(self, divisor: float | tf.Tensor) -> tf.Tensor:
        """Return the gradients of all samples, divided, in float32."""
        return unscaled(self.parts[0] if len(self.parts) == 1 else tf.concat(self.parts, axis=0), divisor)


class Target(NamedTuple):
    """A group of shards, and the first column of each of its lookups in a sample's gradients."""

    group: ShardGroup
    columns: list[int]

    def singly(self) -> "list[Target]":
        """Split the target: return the same shards, each in a group of its own."""
        begins = {id(lookup): column for lookup, column in zip(self.group.lookups, self.columns, strict=True)}
        return [Target(group, [begins[id(lookup)] for lookup in group.lookups]) for group in self.group.singly()]


def targets_of(
    groups: Sequence[ShardGroup], lookups: Sequence[LocalLookup], received: Received, chosen: Callable[[ShardGroup], bool] = lambda group: True
) -> list[Target]:
    """Return the chosen ones of this worker's groups of shards; `lookups` are all its lookups, in the order of the received columns."""
    begins = {id(lookup): column for lookup, column in zip(lookups, received.columns, strict=True)} if received.parts else {}
    return [Target(group, [begins[id(lookup)] for lookup in group.lookups]) for group in groups if chosen(group)]


def native_lookups(lookups: Sequence[LocalLookup], shards: Sequence[LocalShard]) -> list[Lookup]:
    """Convert lookups for the C++ operations, which number the tables by their order in `shards`."""
    number = {id(local): place for place, local in enumerate(shards)}
    return [Lookup(number[id(one.local)], one.ids.first, one.ids.hotness, one.ids.mean, one.ids.weighted) for one in lookups]


def gradients_of_rows(targets: Sequence[Target], received: Received) -> list[tf.Tensor]:
    """Return the gradients of each target's rows, before their `divisor`; those of a row that occurs several times are summed."""
    whole = received.divided(received.loss_scale) if targets else None
    return [target.group.gradients(received.ids, whole, target.columns)[1] for target in targets]


class ShardUpdate:
    """Updates the shards of a placement that this worker holds.

    Args:
        placement: the placement of the tables.
        world: this worker and the collectives.
        native: the C++ operations; None for TensorFlow's own.
    """

    def __init__(self, placement: Placement, world: World, native: NativeOperations | None):
        self._placement, self._native = placement, native
        self._row_squares = RowSquares(placement, world)

    def apply(self, rule, targets: Sequence[Target], received: Received, scalars: tf.Tensor | None) -> None:
        """Update the touched rows of the shards.

        Args:
            rule: the optimizer's rule, see `training.optimizers.rule`.
            targets: this worker's shards that the rule updates; may be empty.
            received: the gradients.
            scalars: the rule's scalars of this step; None where the gradients are already multiplied by them, which a `linear` rule allows.
        """
        together = rule.needs_squares and self._row_squares.cut  # workers that share a table exchange sums of squares
        if together:  # the exchange goes table by table
            targets = [single for target in targets for single in target.singly()]
        possible = self._native is not None and rule.native
        natively = [possible and not target.group.whole and not (together and self._is_cut(target)) for target in targets]
        self._by_native(rule, [target for target, native in zip(targets, natively, strict=True) if native], received, scalars)
        rest = [target for target, native in zip(targets, natively, strict=True) if not native]
        if not rest and not together:  # every worker takes part in the exchange, even one without shards
            return
        linear = [target for target in rest if rule.linear and on_gpu() and not target.group.l2]
        if linear:
            divided = received.divided(received.sample_divisor)
            for target in linear:
                target.group.apply_linear(rule, received.ids, divided, target.columns, scalars)
        if together or len(linear) < len(rest):
            self._by_distinct_rows(rule, [target for target in rest if target not in linear], received, scalars)

    def _by_native(self, rule, targets: Sequence[Target], received: Received, scalars: tf.Tensor | None) -> None:
        """Update by the C++ operation, called once for each set of constants: those of some rules depend on the tables' width."""
        alike: dict[tuple[float, ...], list[Target]] = {}
        for target in targets:
            alike.setdefault(rule.of_width(self._dim(target)).constants, []).append(target)
        for constants, some in alike.items():
            locals_ = [target.group.shards[0] for target in some]
            slots = [slot for local in locals_ for slot in local.slots.values()]
            lookups = native_lookups([lookup for target in some for lookup in target.group.lookups], locals_)
            columns = [column for target in some for column in target.columns]
            arithmetic = RowRule(rule.name, scalars, constants)
            weights, divisor = [local.weights for local in locals_], received.sample_divisor
            self._native.update(arithmetic, weights, slots, received.ids, lookups, received.parts, columns, divisor)

    def _by_distinct_rows(self, rule, targets: Sequence[Target], received: Received, scalars: tf.Tensor) -> None:
        """Update each touched row, or all rows, once by TensorFlow's operations."""
        touched = [self._row_gradients(target, received) for target in targets]
        squares = {}
        if rule.needs_squares and self._row_squares.cut:
            cut = {target.group.shards[0].shard: rows for target, (_, rows) in zip(targets, touched, strict=True) if self._is_cut(target)}
            squares = self._row_squares.whole_rows(cut, received.ids)
        for target, (distinct, rows) in zip(targets, touched, strict=True):
            whole = None
            if rule.needs_squares:
                whole = squares[target.group.shards[0].shard.table] if self._is_cut(target) else node_sum(rows)
            target.group.apply(rule.of_width(self._dim(target)), distinct, rows, scalars, whole)

    @staticmethod
    def _row_gradients(target: Target, received: Received) -> tuple[tf.Tensor | None, tf.Tensor]:
        """Return a target's rows and their gradients, see `ShardGroup.gradients`. Touched rows get the bits that the C++ operation gives them."""
        group, whole = target.group, target.group.whole and received.divisor is not None
        of_samples = received.divided(received.loss_scale if whole else received.sample_divisor)
        rows, gradients = group.gradients(received.ids, of_samples, target.columns)
        return rows, gradients / received.divisor if whole else gradients

    def _is_cut(self, target: Target) -> bool:
        return any(self._placement.is_cut(local.shard) for local in target.group.shards)

    def _dim(self, target: Target) -> int:
        """Return D of a target's tables. Tables in one group on a GPU differ in D only where one of them is cut."""
        return self._placement.tables[target.group.shards[0].shard.table].dim
