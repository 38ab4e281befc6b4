"""The columns of a worker's shards, which lie side by side in the order of its shards, and those of its groups of shards."""

from collections.abc import Sequence

import tensorflow as tf

from model.embedding.shard import LocalShard
from model.embedding.shard_group import ShardGroup


def joined(groups: Sequence[ShardGroup], vectors: Sequence[tf.Tensor], order: Sequence[LocalShard]) -> tf.Tensor:
    """The groups' vectors `[B, n·width]` as those of the shards in `order`, `[B, columns]`."""
    place = {id(local): (number, i) for number, group in enumerate(groups) for i, local in enumerate(group.shards)}
    pieces = []
    for number, i in (place[id(local)] for local in order):
        if pieces and pieces[-1][0] == number and pieces[-1][2] == i:
            pieces[-1][2] += 1
        else:
            pieces.append([number, i, i + 1])
    found = [_columns(vectors[number], first * groups[number].width, last * groups[number].width) for number, first, last in pieces]
    return found[0] if len(found) == 1 else tf.concat(found, axis=1)


def of_group(group: ShardGroup, part: tf.Tensor, columns: Sequence[int]) -> tf.Tensor:
    """A group's columns `[n, shards·width]` of gradients `[n, columns]`, where each of its shards begins in `columns`."""
    runs: list[list[int]] = []
    for column in columns:
        if runs and runs[-1][1] == column:
            runs[-1][1] += group.width
        else:
            runs.append([column, column + group.width])
    found = [_columns(part, first, last) for first, last in runs]
    return found[0] if len(found) == 1 else tf.concat(found, axis=1)


def whole_vectors(shards: Sequence[LocalShard], ids: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """ids `[B, F]` of all tables -> vectors `[B, F, D]`, of shards that are all of them; gradients flow to the variables."""
    by_table: dict[int, list[tf.Tensor]] = {}
    for local in sorted(shards, key=lambda local: (local.shard.table, local.shard.first)):
        with tf.device(local.device or None):
            rows = tf.gather(local.weights, tf.cast(ids[:, local.shard.table], tf.int64) + local.first)
        by_table.setdefault(local.shard.table, []).append(tf.cast(rows, dtype))
    return tf.stack([tf.concat(columns, axis=1) for _, columns in sorted(by_table.items())], axis=1)


def _columns(values: tf.Tensor, first: int, last: int) -> tf.Tensor:
    return values if (first, last) == (0, values.shape[1]) else values[:, first:last]
