"""Factorisation machines and DeepFM as compositions of their layers."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding
from model.layers.batch_norm import BatchNorm
from model.layers.dense import Drop, LayerWeights
from model.layers.fields import ScaledVectors, Wanted, fields
from model.layers.linear import LinearPart
from model.layers.mlp import Mlp
from model.native import NativeOperations
from model.sharded_model import ShardedModel


class FactorisationMachine(ShardedModel):
    """A factorisation machine (Rendle 2010), or with an MLP DeepFM (Guo et al., arXiv:1703.04247).

    Every feature has a weight and a vector of D columns; those of a numerical feature are multiplied by its value. The embedding returns the ids'
    vectors, followed by their F weights.
    logit = sum of the weights + sum of the dot products of all pairs of vectors + MLP of all vectors side by side, if there is one.

    Args:
        embedding: the embedding of the ids' vectors and, after them, of as many weights.
        linear: the sum of the weights.
        vectors: the numerical features' vectors; None without numerical features.
        mlp: the MLP, named "top_mlp", whose last layer has one unit; None for none.
        native: the C++ operations; None for TensorFlow's own.
    """

    command = "fm.py"

    def __init__(
        self,
        embedding: DistributedEmbedding,
        linear: LinearPart,
        vectors: ScaledVectors | None,
        mlp: Mlp | None,
        native: NativeOperations | None = None,
    ):
        super().__init__(name="fm")
        self._native = native
        self.embedding, self.linear, self.scaled_vectors, self.mlp = embedding, linear, vectors, mlp

    def build_weights(self, num_numerical: int) -> None:
        """Create all weights for M numerical features, and allocate the tables."""
        self.embedding.build()
        if self.scaled_vectors is not None:
            with keras.name_scope(self.scaled_vectors.name):
                self.scaled_vectors.build((None, num_numerical))
        if self.mlp is not None:
            with keras.name_scope(self.mlp.name):
                self.mlp.build((None, (num_numerical + self._count) * self.embedding.widths[0]))
        self.linear.build(num_numerical)
        self.built = True

    @property
    def _count(self) -> int:
        """F."""
        return len(self.embedding.widths) // 2

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
        first, last = len(self._of_numericals), len(weights) - len(self.linear.parts)
        found = fields(
            self._wanted(), numerical, self.scaled_vectors, weights[:first], tf.reshape(embeddings, [-1, sum(self.embedding.widths)]), slices
        )
        logits = self.linear.added(found.sums, numerical, weights[last:], slices)
        if self.mlp is None:
            return logits
        return logits + tf.cast(self.mlp.forward(found.joined, weights[first:last], slices, drop, norm=norm)[:, 0], tf.float32)

    def _wanted(self) -> Wanted:
        joined = None if self.mlp is None else self.mlp.compute_dtype
        return Wanted(self._count, self.embedding.widths[0], weighs=True, pairs=True, joined=joined, native=self._native)

    @property
    def _of_numericals(self) -> list[ScaledVectors]:
        return [] if self.scaled_vectors is None else [self.scaled_vectors]

    @property
    def dense_parts(self) -> list[ScaledVectors | Mlp]:
        """The numerical features' vectors, the MLP and the linear layer; those that there are."""
        return [*self._of_numericals, *([] if self.mlp is None else [self.mlp]), *self.linear.parts]
