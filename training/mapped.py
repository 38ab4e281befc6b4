"""Scores of a model whose tables stay in the files of a checkpoint."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from model.dlrm import DLRM
from training.device_batch import TensorBatch
from training.evaluator import Evaluator
from utils.checkpoint.mapped import MappedArray
from utils.distributed import World


class MappedTables:
    """Takes the place of the embedding in a model that only scores: F tables of V rows, D columns each."""

    shards = replicated = ()

    def __init__(self, names: Sequence[str], tables: Sequence[MappedArray]):
        self.names, self._tables, self.dim, self.world = tuple(names), tuple(tables), tables[0].shape[1], World()

    def build(self) -> None:
        """Nothing is allocated."""

    def look_up(self, ids: np.ndarray) -> np.ndarray:
        """`[F, B] -> [B, F, D]` float32."""
        return np.stack([table.rows(some) for table, some in zip(self._tables, ids, strict=True)], axis=1)


class MappedEvaluator(Evaluator):
    """The evaluator of a model whose tables stay where they are.

    Args:
        model: built, with `MappedTables`.
        dtype: in which its dense layers compute.
        xla: as in `Evaluator`.
    """

    def __init__(self, model: DLRM, dtype: str, xla: bool | str = False):
        super().__init__(model, xla)
        self._dtype = dtype

    def _after_lookup(self, numerical: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
        return super()._after_lookup(numerical, tf.cast(vectors, self._dtype))

    def logits(self, batch: TensorBatch) -> np.ndarray:
        """Logits `[b]` of a batch, padding included, on the host."""
        return self._dense(batch.inputs.numerical, tf.convert_to_tensor(self._model.embedding.look_up(batch.host.ids))).numpy()
