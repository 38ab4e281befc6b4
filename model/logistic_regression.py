"""Logistic regression on ids and numerical features."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding
from model.layers.batch_norm import BatchNorm
from model.layers.dense import Drop, LayerWeights
from model.layers.linear import Intercept
from model.layers.mlp import Mlp
from model.sharded_model import ShardedModel


class LogisticRegression(ShardedModel):
    """logit = sum of a weight of each id + linear layer of the numerical features, or without any a constant.

    Args:
        embedding: the embedding of the ids' weights, tables of one column.
        layer: a layer of one unit, or without numerical features an intercept.
    """

    command = "fm.py"

    def __init__(self, embedding: DistributedEmbedding, layer: Mlp | Intercept):
        super().__init__(name="logistic_regression")
        self.embedding, self._layer = embedding, layer

    def build_weights(self, num_numerical: int) -> None:
        """Create all weights for M numerical features, and allocate the tables."""
        self.embedding.build()
        with keras.name_scope(self._layer.name):
            self._layer.build((None, num_numerical))
        self.built = True

    def dense(
        self,
        numerical: tf.Tensor,
        embeddings: tf.Tensor,
        weights: Sequence[LayerWeights],
        slices: int | None = None,
        drop: Drop | None = None,
        norm: BatchNorm | None = None,
    ) -> tf.Tensor:
        """Return logits `[b]` float32 for numerical `[b, M]` and the output of `embedding`; without hidden layers `drop` and `norm` do nothing."""
        of_ids = tf.reduce_sum(tf.reshape(tf.cast(embeddings, tf.float32), [-1, len(self.embedding.widths)]), axis=1)
        return of_ids + self._layer.forward(tf.cast(numerical, tf.float32), weights, slices)[:, 0]

    @property
    def dense_parts(self) -> list[Mlp | Intercept]:
        """The layer of the numerical features, or the intercept."""
        return [self._layer]
