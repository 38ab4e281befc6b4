"""Wide & Deep (Cheng et al., arXiv:1606.07792) as a composition of its layers."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding
from model.layers.batch_norm import BatchNorm
from model.layers.dense import Drop, LayerWeights
from model.layers.mlp import Mlp, Start, zero_bias
from model.sharded_model import ShardedModel

# The initialisation of Keras's Dense layers.
GLOROT_UNIFORM = Start(keras.initializers.GlorotUniform, zero_bias)


class WideAndDeep(ShardedModel):
    """A linear part and an MLP over the same features, whose outputs are added (section 3 of the paper).

    The ids of every source are looked up in two tables: a deep table of any width and a wide table of one column. The embedding returns `[b, C]`:
    the deep vectors side by side, followed by the F wide ones.
    wide = sum of the wide vectors + linear layer of the numerical features; deep = MLP of [numerical `[b, M]`, deep vectors]; logit = wide + deep.

    Both parts are trained together, each by its own optimizer. `dense` is everything after the lookup.

    Args:
        embedding: the embedding of the deep features and, after them, of as many wide ones.
        linear: one layer of one unit, named "wide"; None without numerical features.
        mlp: the deep part, named "deep"; its last layer has one unit.
    """

    command = "wide_and_deep.py"

    def __init__(self, embedding: DistributedEmbedding, linear: Mlp | None, mlp: Mlp):
        super().__init__(name="wide_and_deep")
        self.embedding, self.linear, self.mlp = embedding, linear, mlp

    def build_weights(self, num_numerical: int) -> None:
        """Create all weights for M numerical features, and allocate the tables."""
        self.embedding.build()
        if self.linear is not None:
            with keras.name_scope("wide"):
                self.linear.build((None, num_numerical))
        with keras.name_scope("deep"):
            self.mlp.build((None, num_numerical + self._deep_columns))
        self.built = True

    @property
    def _deep_columns(self) -> int:
        widths = self.embedding.widths
        return sum(widths[: len(widths) // 2])

    def dense(
        self,
        numerical: tf.Tensor,
        embeddings: tf.Tensor,
        weights: Sequence[LayerWeights],
        slices: int | None = None,
        drop: Drop | None = None,
        norm: BatchNorm | None = None,
    ) -> tf.Tensor:
        """Return logits `[b]` float32 for numerical `[b, M]` and the output of `embedding`; `slices`, `drop` and `norm` as in `Mlp.forward`."""
        last, columns = len(self.mlp.stack), self._deep_columns
        width = sum(self.embedding.widths)
        deep, wide = tf.split(tf.reshape(embeddings, [-1, width]), [columns, width - columns], axis=1)
        dtype = self.mlp.compute_dtype
        joined = deep if self.linear is None else tf.concat([tf.cast(numerical, dtype), tf.cast(deep, dtype)], axis=1)
        logits = self.mlp.forward(tf.cast(joined, dtype), weights[:last], slices, drop, norm=norm)[:, 0] + tf.reduce_sum(
            tf.cast(wide, tf.float32), axis=1
        )
        if self.linear is not None:
            logits += self.linear.forward(tf.cast(numerical, tf.float32), weights[last:], slices)[:, 0]
        return logits

    @property
    def dense_parts(self) -> list[Mlp]:
        """The deep part and, where there are numerical features, the linear one."""
        return [self.mlp, *([] if self.linear is None else [self.linear])]
