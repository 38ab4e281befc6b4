"""Scoring by a model whose tables stay in the files of a checkpoint."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
import tensorflow as tf

from model.embedding.placement import Placement
from model.embedding.shard import IdRows
from model.embedding.shard_specs import ids_of
from model.sharded_model import ShardedModel
from training.device_batch import TensorBatch
from training.evaluator import Evaluator
from utils.distributed import World


class RowReader(Protocol):
    """A table `[V, D]` that is not in memory: a checkpoint's array, or a file with fewer bits a number."""

    shape: tuple[int, ...]

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows by their numbers, `[n] -> [n, D]` float32."""


class MappedTables:
    """A replacement for the embedding in a model that only scores.

    Args:
        placement: the placement of the tables and features on one worker.
        tables: the tables, `[V, D_f]` each.
    """

    shards = replicated = ()
    lazy = None

    def __init__(self, placement: Placement, tables: Sequence[RowReader]):
        self.widths, self.world, self.names = placement.widths, World(), tuple(feature.name for feature in placement.features)
        self._lookups = [(ids, tables[placement.table_of[ids.feature]]) for ids in ids_of(placement)]

    def build(self) -> None:
        """Do nothing: there is nothing to allocate."""

    def look_up(self, ids: np.ndarray) -> np.ndarray:
        """Look up ids `[K, B]`; return vectors `[B, F, D]` float32, or `[B, C]` where tables differ in width.

        The vectors are bit-identical to those of `DistributedEmbedding`.
        """
        found = [_pooled(table, ids[one.first : one.end], one) for one, table in self._lookups]
        return np.concatenate(found, axis=1) if len(set(self.widths)) > 1 else np.stack(found, axis=1)


def _pooled(table: RowReader, ids: np.ndarray, how: IdRows) -> np.ndarray:
    """Return the sum or the mean of the rows of ids `[h, B]`, or `[2h, B]` with the bits of their weights: `[B, D_f]`."""
    if not how.is_list:
        return table.rows(ids[0])
    weights = np.ascontiguousarray(ids[how.hotness :], np.int32).view(np.float32) if how.weighted else (ids >= 0).astype(np.float32)
    total, count = np.zeros((ids.shape[1], table.shape[1]), np.float32), np.zeros(ids.shape[1], np.float32)
    for some, weight in zip(ids, weights, strict=False):
        there = some >= 0
        rows = table.rows(some[there])
        total[there] += rows * weight[there, np.newaxis] if how.weighted else rows
        count += weight
    return total / np.where(count == 0, np.float32(1), count)[:, np.newaxis] if how.mean else total


class MappedEvaluator(Evaluator):
    """The evaluator of a model whose tables stay in their files.

    Args:
        model: the model, built with `MappedTables`.
        dtype: the compute dtype of its dense layers.
        xla: as in `Evaluator`.
    """

    def __init__(self, model: ShardedModel, dtype: str, xla: bool | str = False):
        super().__init__(model, xla)
        self._dtype = dtype
        self._any_batch = None

    def _after_lookup(self, numerical: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
        return super()._after_lookup(numerical, tf.cast(vectors, self._dtype))

    def logits(self, batch: TensorBatch) -> np.ndarray:
        """Return the logits `[b]` of a batch, padding included, on the host."""
        return self._dense(batch.inputs.numerical, tf.convert_to_tensor(self._model.embedding.look_up(batch.host.ids))).numpy()

    def logits_of(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return logits `[b]` for plain arrays, numericals `[b, M]` float32 and ids `[b, K]`; one graph serves every b."""
        vectors = self._model.embedding.look_up(ids.T)
        return self._graph(numerical.shape[1], vectors.shape[1:])(tf.convert_to_tensor(numerical), tf.convert_to_tensor(vectors)).numpy()

    def _graph(self, num_numerical: int, vector_shape: tuple[int, ...]):
        """Return the graph of the dense part for any b. If two threads build it at the same time, either graph is valid."""
        if self._any_batch is None:
            specs = tf.TensorSpec([None, num_numerical], tf.float32), tf.TensorSpec([None, *vector_shape], tf.float32)
            self._any_batch = tf.function(partial(self._after_lookup), autograph=False).get_concrete_function(*specs)
        return self._any_batch
