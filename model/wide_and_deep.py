"""Wide & Deep (Cheng et al., arXiv:1606.07792), composed of its parts."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding
from model.layers.mlp import Drop, LayerWeights, Mlp, Start
from model.sharded_model import ShardedModel

# As Keras starts its Dense layers.
GLOROT_UNIFORM = Start(keras.initializers.GlorotUniform, lambda seed, width: keras.initializers.Zeros())


class WideAndDeep(ShardedModel):
    """A linear part and an MLP over the same features, whose outputs are added (section 3 of the paper).

    Every source of ids is looked up in two tables: a deep one of any width and a wide one of one column. The embedding gives `[b, C]`: the deep
    vectors, side by side, and then the F wide ones.
    wide = sum of the wide vectors + linear layer of the numerical features; deep = MLP of [numerical `[b, M]`, deep vectors]; logit = wide + deep.

    Both are trained together, each part with its optimizer; `dense` is everything after the lookup.

    Args:
        embedding: of the deep features and, after them, as many wide ones.
        linear: one layer of one unit, called "wide"; None without numerical features.
        mlp: the deep part, called "deep", its last layer of one unit.
    """

    command = "wide_and_deep.py"

    def __init__(self, embedding: DistributedEmbedding, linear: Mlp | None, mlp: Mlp):
        super().__init__(name="wide_and_deep")
        self.embedding, self.linear, self.mlp = embedding, linear, mlp

    def build_weights(self, num_numerical: int) -> None:
        """Create every weight, for M numerical features; the tables are allocated here."""
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
        self, numerical: tf.Tensor, embeddings: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None, drop: Drop | None = None
    ) -> tf.Tensor:
        """numerical `[b, M]`, embeddings as `embedding` gives them -> logits `[b]` float32; `slices` and `drop` as in `Mlp.forward`."""
        last, columns = len(self.mlp.stack), self._deep_columns
        width = sum(self.embedding.widths)
        deep, wide = tf.split(tf.reshape(embeddings, [-1, width]), [columns, width - columns], axis=1)
        dtype = self.mlp.compute_dtype
        joined = deep if self.linear is None else tf.concat([tf.cast(numerical, dtype), tf.cast(deep, dtype)], axis=1)
        logits = self.mlp.forward(tf.cast(joined, dtype), weights[:last], slices, drop)[:, 0] + tf.reduce_sum(tf.cast(wide, tf.float32), axis=1)
        if self.linear is not None:
            logits += self.linear.forward(tf.cast(numerical, tf.float32), weights[last:], slices)[:, 0]
        return logits

    @property
    def dense_parts(self) -> list[Mlp]:
        """The deep part and, where there are numerical features, the linear one."""
        return [self.mlp, *([] if self.linear is None else [self.linear])]
