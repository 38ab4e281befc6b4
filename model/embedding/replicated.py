"""Tables that every worker holds whole: their gradients are summed over the workers like those of dense weights."""

from collections.abc import Sequence

import tensorflow as tf

from model.embedding.row_squares import node_sum
from model.embedding.shard_group import ShardGroup
from model.embedding.side_by_side import of_group
from model.ordered_sums import pairwise_sum


def replicated_vectors(groups: Sequence[ShardGroup], ids: tf.Tensor, dtype: tf.DType) -> dict[int, tf.Tensor]:
    """For each replicated table, by its place, the vectors of this worker's samples, `[F_l, b] -> [b, D]`."""
    found = {}
    for group in groups:
        vectors = tf.cast(group.look_up(ids), dtype)
        by_shard = [vectors] if len(group) == 1 else tf.split(vectors, len(group), axis=1)
        found |= {local.shard.table: some for local, some in zip(group.shards, by_shard, strict=True)}
    return dict(sorted(found.items()))


def replicated_gradients(
    groups: Sequence[ShardGroup], ids: tf.Tensor, parts: Sequence[tf.Tensor], loss_scale: float | tf.Tensor, slices: int
) -> list[tf.Tensor]:
    """For each group of replicated tables, the gradient of its rows and how often each was touched: `[rows, D+1]` float32.

    Args:
        groups: of the replicated tables.
        ids: `[F_l, b]`.
        parts: of the gradients of this worker's samples `[b, F, D]`, equal consecutive ones.
        loss_scale: what they were multiplied by.
        slices: of the b samples; their sums are added pairwise, so that the order does not depend on N. The parts divide them.
    """
    parts, out = [slice_ for part in parts for slice_ in tf.split(part, slices // len(parts))], []
    for group in groups:
        columns, sums = [local.shard.table * group.width for local in group.shards], []
        everywhere, count = group.rows(ids), ids.shape[1] * len(group) // len(parts)
        for number, part in enumerate(parts):
            rows = everywhere[number * count : (number + 1) * count]  # tf.split of int64 has no kernel on a GPU
            flat = tf.reshape(part, [part.shape[0], part.shape[1] * part.shape[2]])
            by_row = unscaled(tf.reshape(of_group(group, flat, columns), [rows.shape[0], group.width]), loss_scale)
            with_count = tf.concat([by_row, tf.ones_like(by_row[:, :1])], axis=1)
            sums.append(tf.math.unsorted_segment_sum(with_count, rows, group.num_rows))
        out.append(pairwise_sum(sums))
    return out


def update_replicated(groups: Sequence[ShardGroup], rule, sums: Sequence[tf.Tensor], scalars: tf.Tensor) -> None:
    """Apply the sums over the workers of `replicated_gradients`, to the touched rows only; `scalars` of the rule, in this step."""
    for group, total in zip(groups, sums, strict=True):
        touched = tf.where(total[:, -1] > 0)[:, 0]
        gradients = tf.gather(total[:, :-1], touched)
        group.apply(rule, touched, gradients, scalars, node_sum(gradients) if rule.needs_squares else None)


def unscaled(gradients: tf.Tensor, loss_scale: float | tf.Tensor) -> tf.Tensor:
    """float32 gradients of a loss that was multiplied by `loss_scale`."""
    gradients = tf.cast(gradients, tf.float32)
    return gradients if isinstance(loss_scale, float | int) and loss_scale == 1 else gradients / loss_scale
