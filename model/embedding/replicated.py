"""Tables that every worker holds whole: their gradients are summed over the workers like those of dense weights."""

from collections.abc import Sequence

import tensorflow as tf

from model.embedding.row_squares import node_sum
from model.embedding.shard import LocalShard
from model.ordered_sums import pairwise_sum


def replicated_gradients(shards: Sequence[LocalShard], ids: tf.Tensor, parts: Sequence[tf.Tensor], loss_scale: float, slices: int) -> list[tf.Tensor]:
    """For each replicated table, the gradient of its rows and how often each was touched: `[V, D+1]` float32.

    Args:
        shards: the replicated tables.
        ids: `[F_l, b]`.
        parts: of the gradients of this worker's samples `[b, F, D]`, equal consecutive ones.
        loss_scale: what they were multiplied by.
        slices: of the b samples; their sums are added pairwise, so that the order does not depend on N. The parts divide them.
    """
    parts, out = [slice_ for part in parts for slice_ in tf.split(part, slices // len(parts))], []
    for local, own in zip(shards, tf.unstack(ids, num=len(shards)), strict=True):
        sums = []
        for part, some in zip(parts, tf.split(own, len(parts)), strict=True):
            by_sample = unscaled(part[:, local.shard.table, :], loss_scale)
            with_count = tf.concat([by_sample, tf.ones_like(by_sample[:, :1])], axis=1)
            sums.append(tf.math.unsorted_segment_sum(with_count, some, local.shard.rows))
        out.append(pairwise_sum(sums))
    return out


def update_replicated(shards: Sequence[LocalShard], rule, sums: Sequence[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
    """Apply the sums over the workers of `replicated_gradients`, to the touched rows only."""
    for local, total in zip(shards, sums, strict=True):
        touched = tf.cast(tf.where(total[:, -1] > 0)[:, 0], tf.int32)
        gradients = tf.gather(total[:, :-1], touched)
        squares = node_sum(gradients) if rule.needs_squares else None
        local.apply(rule, touched, gradients, rule.scalars(learning_rate, step), squares)


def unscaled(gradients: tf.Tensor, loss_scale: float | tf.Tensor) -> tf.Tensor:
    """float32 gradients of a loss that was multiplied by `loss_scale`."""
    gradients = tf.cast(gradients, tf.float32)
    return gradients if isinstance(loss_scale, float | int) and loss_scale == 1 else gradients / loss_scale
