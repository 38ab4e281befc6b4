"""The Deep Learning Recommendation Model as a composition of its layers."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding
from model.layers.batch_norm import BatchNorm
from model.layers.cross import Concatenation
from model.layers.dense import Drop, LayerWeights
from model.layers.interaction import DotInteraction
from model.layers.linear import LinearPart
from model.layers.mlp import Mlp
from model.sharded_model import ShardedModel

Interaction = DotInteraction | Concatenation


class DLRM(ShardedModel):
    """Deep Learning Recommendation Model (Naumov et al., arXiv:1906.00091); with a `CrossNetwork` as its interaction, DCN V2 (arXiv:2008.13535).

    numerical `[b, M]` -> bottom MLP `[b, W]`; ids `[K_r, B]` -> embedding `[b, F, D]`, or `[b, C]` where tables differ in width; interaction of both;
    top MLP -> logits `[b]`. The dot interaction requires W = D. Without numerical features (M = 0) there is no bottom MLP.

    With `parallel` cross layers both the cross layers and the top MLP read the concatenation, and the top MLP's last layer reads the outputs of both
    (DCN V2, figure 1b). With a linear part, its terms are added to the logits.

    The parts are objects, so each can be replaced. `dense` is everything after the lookup: the part that is data parallel and that XLA compiles.
    """

    command = "dlrm.py"

    def __init__(
        self,
        embedding: DistributedEmbedding,
        bottom_mlp: Mlp | None,
        interaction: Interaction,
        top_mlp: Mlp,
        parallel: bool = False,
        linear: LinearPart | None = None,
    ):
        super().__init__(name="dlrm")
        self._parallel, self._linear = parallel, linear
        self.embedding, self.bottom_mlp, self.interaction, self.top_mlp = embedding, bottom_mlp, interaction, top_mlp

    def build_weights(self, num_numerical: int) -> None:
        """Create all weights for M numerical features, and allocate the tables."""
        self.embedding.build()
        widths, bottom = self._widths, None
        if self.bottom_mlp is not None:
            with keras.name_scope("bottom_mlp"):
                self.bottom_mlp.build((None, num_numerical))
            bottom = self.bottom_mlp.compute_output_shape((None, num_numerical))
        shapes = bottom, (None, sum(widths)) if len(set(widths)) > 1 else (None, len(widths), widths[0])
        with keras.name_scope(self.interaction.name):
            self.interaction.build_weights(*shapes)
        with keras.name_scope("top_mlp"):
            joined = self.interaction.compute_output_shape(*shapes)
            self.top_mlp.beside = joined[1] if self._parallel else 0
            self.top_mlp.build(joined)
        if self._linear is not None:
            self._linear.build(num_numerical)
        self.built = True

    @property
    def _widths(self) -> Sequence[int]:
        """The widths of the features that the interaction takes."""
        widths = self.embedding.widths
        return widths if self._linear is None else widths[: len(widths) // 2]

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
        if self._linear is None:
            return self._interacted(numerical, embeddings, weights, slices, drop, norm)
        vectors, ids = self._linear.cut(embeddings, self.embedding.widths)
        if len(set(self._widths)) == 1:
            vectors = tf.reshape(vectors, [-1, len(self._widths), self._widths[0]])
        count = len(weights) - len(self._linear.parts)
        linear = self._linear.logits(numerical, ids, weights[count:], slices)
        return self._interacted(numerical, vectors, weights[:count], slices, drop, norm) + linear

    def _interacted(self, numerical, embeddings, weights, slices, drop, norm) -> tf.Tensor:
        """Return the logits of the bottom MLP, the interaction and the top MLP, whose layers `weights` holds one after another."""
        last, dtype = len(weights) - len(self.top_mlp.stack), self.interaction.compute_dtype
        first, bottom = 0, None
        if self.bottom_mlp is not None:
            first = len(self.bottom_mlp.stack)
            bottom = self.bottom_mlp.forward(tf.cast(numerical, dtype), weights[:first], slices, drop, norm=norm)
        embeddings, crossed = tf.cast(embeddings, dtype), None
        if self._parallel:
            joined = self.interaction.joined(bottom, embeddings)
            crossed = self.interaction.crossed(joined, weights[first:last], slices)
        else:
            joined = self.interaction.forward(bottom, embeddings, weights[first:last], slices)
        logits = self.top_mlp.forward(joined, weights[last:], slices, drop, crossed, norm)
        return tf.cast(tf.squeeze(logits, axis=1), tf.float32)

    @property
    def bottom_width(self) -> int:
        """The number of columns of the bottom MLP's output; 0 without a bottom MLP."""
        return self.bottom_mlp.stack[-1].units if self.bottom_mlp is not None else 0

    @property
    def dense_parts(self) -> list[Mlp | Interaction]:
        """Bottom MLP (if there is one), interaction, top MLP, and the linear layer (if there is one)."""
        linear = self._linear.parts if self._linear is not None else []
        return [*(part for part in (self.bottom_mlp, self.interaction, self.top_mlp) if part is not None), *linear]
