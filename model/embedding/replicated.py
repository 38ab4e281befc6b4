"""Tables that every worker holds as a whole: their gradients are summed over the workers like those of dense weights."""

from collections.abc import Sequence

import tensorflow as tf

from model.embedding.row_squares import node_sum
from model.embedding.shard_group import ShardGroup
from model.ordered_sums import pairwise_sum


def replicated_vectors(groups: Sequence[ShardGroup], ids: tf.Tensor, dtype: tf.DType) -> dict[int, tf.Tensor]:
    """Return the vectors of this worker's samples for each feature of a replicated table, by the feature's index: `[K_l, b] -> [b, D_f]`."""
    found = {}
    for group in groups:
        for pack, vectors in zip(group.packs, group.look_up(ids), strict=True):
            vectors = tf.cast(vectors, dtype)
            by_lookup = [vectors] if len(pack) == 1 else tf.split(vectors, len(pack), axis=1)
            found |= {lookup.feature: some for lookup, some in zip(pack.lookups, by_lookup, strict=True)}
    return dict(sorted(found.items()))


def replicated_gradients(
    groups: Sequence[ShardGroup], ids: tf.Tensor, parts: Sequence[tf.Tensor], before: Sequence[int], loss_scale: float | tf.Tensor, slices: int
) -> list[tf.Tensor]:
    """Return for each group of replicated tables its rows' gradients and, in a last column, how often each was touched: `[rows, D+1]` float32.

    Args:
        groups: the groups of replicated tables.
        ids: `[K_l, b]`.
        parts: the gradients of this worker's samples `[b, …]`, C numbers a sample, in equal consecutive parts.
        before: each feature's first column among the C.
        loss_scale: the factor that the gradients were multiplied by.
        slices: the number of slices of the b samples, a multiple of the number of parts. The slices' sums are added pairwise, so that the order does
            not depend on N.
    """
    parts, out = [slice_ for part in parts for slice_ in tf.split(part, slices // len(parts))], []
    for group in groups:
        columns, sums = [before[lookup.feature] for lookup in group.lookups], []
        count = ids.shape[1] // len(parts)
        for number, part in enumerate(parts):
            flat = unscaled(tf.reshape(part, [part.shape[0], -1]), loss_scale)
            mine = ids if len(parts) == 1 else ids[:, number * count : (number + 1) * count]  # tf.split of int64 has no kernel on a GPU
            sums.append(_simple_sums(group, mine, flat, columns) if group.simple else _list_sums(group, mine, flat, columns))
        out.append(pairwise_sum(sums))
    return out


def _simple_sums(group: ShardGroup, ids: tf.Tensor, gradients: tf.Tensor, columns: Sequence[int]) -> tf.Tensor:
    rows, by_row = group.row_gradients(ids, gradients, columns)
    return tf.math.unsorted_segment_sum(_with_count(by_row), rows, group.num_rows)


def _list_sums(group: ShardGroup, ids: tf.Tensor, gradients: tf.Tensor, columns: Sequence[int]) -> tf.Tensor:
    total = tf.zeros([group.num_rows, group.width + 1])
    for rows, mine in group.lists(ids, gradients, columns):
        there = (rows >= 0)[:, tf.newaxis]  # where there is no id, row 0 gets a gradient and a count of 0, which change nothing
        total = tf.tensor_scatter_nd_add(total, tf.maximum(rows, 0)[:, tf.newaxis], tf.where(there, _with_count(mine), 0.0))
    return total


def _with_count(gradients: tf.Tensor) -> tf.Tensor:
    return tf.concat([gradients, tf.ones_like(gradients[:, :1])], axis=1)


def update_replicated(groups: Sequence[ShardGroup], updates: Sequence, sums: Sequence[tf.Tensor], step: tf.Tensor, divisor=None) -> None:
    """Apply the gradients of `replicated_gradients`, summed over the workers, to the touched rows, or to all rows of tables that are updated whole.

    `updates` and `divisor` as in `DistributedEmbedding.update_replicated`.
    """
    for one in updates:
        mine = [(group, total) for group, total in zip(groups, sums, strict=True) if one.changes(group)]
        scalars = one.rule.scalars(one.learning_rate, step) if mine else None
        for group, total in mine:
            if group.whole:
                touched, gradients = None, group.decayed(total[:, :-1])
            else:
                touched = tf.where(total[:, -1] > 0)[:, 0]
                gradients = tf.gather(total[:, :-1], touched)
            gradients = gradients if divisor is None else gradients / divisor
            group.apply(one.rule.of_width(group.width), touched, gradients, scalars, node_sum(gradients) if one.rule.needs_squares else None)


def unscaled(gradients: tf.Tensor, loss_scale: float | tf.Tensor) -> tf.Tensor:
    """Divide the gradients of a loss that was multiplied by `loss_scale`, in float32."""
    gradients = tf.cast(gradients, tf.float32)
    return gradients if isinstance(loss_scale, float | int) and loss_scale == 1 else gradients / loss_scale
