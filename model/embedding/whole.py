"""The lookup of a model that is called as a Keras model: in a process that holds all tables, with gradients to them."""

from collections.abc import Sequence

import tensorflow as tf

from model.embedding.shard import IdRows, LocalShard, shifted


def whole_vectors(shards: Sequence[LocalShard], table_of: Sequence[int], features: Sequence[IdRows], ids: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Look up ids `[B, K]` of all features; return vectors `[B, C]`, side by side. Gradients flow to the variables.

    Args:
        shards: the shards of all tables.
        table_of: the index of each feature's table.
        features: the rows of ids that each feature takes.
        ids: the ids of the samples.
        dtype: the dtype of the vectors.

    Raises:
        ValueError: the number of ids a sample is not K.
    """
    expected = max(feature.end for feature in features)
    if ids.shape[-1] != expected:
        raise ValueError(f"ids: expected [B, {expected}], received {list(ids.shape)}")
    by_table: dict[int, list[LocalShard]] = {}
    for local in sorted(shards, key=lambda local: (local.shard.table, local.shard.first)):
        by_table.setdefault(local.shard.table, []).append(local)
    by_number = tf.transpose(tf.cast(ids, tf.int64))
    return tf.concat([_pooled(local, feature, by_number, dtype) for feature in features for local in by_table[table_of[feature.feature]]], axis=1)


def _pooled(local: LocalShard, feature: IdRows, ids: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the pooled vectors of a feature, `[B, width]`, for ids `[K, B]`."""
    found = []
    with tf.device(local.device or None):
        for number, row in enumerate(feature.rows):
            ids_there = shifted(ids[row], local.first, feature.is_list)
            if not feature.is_list:
                return tf.cast(tf.gather(local.weights, ids_there), dtype)
            vectors = tf.gather(local.weights, tf.maximum(ids_there, 0))
            vectors = vectors * feature.weights(ids, number)[:, tf.newaxis] if feature.weighted else vectors
            found.append(tf.where((ids_there >= 0)[:, tf.newaxis], vectors, 0.0))
        total = tf.add_n(found)
        return tf.cast(total / feature.count(ids) if feature.mean else total, dtype)
