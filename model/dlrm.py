"""The Deep Learning Recommendation Model, composed of its parts."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding
from model.layers.cross import Concatenation
from model.layers.interaction import DotInteraction
from model.layers.mlp import Drop, LayerWeights, Mlp

Interaction = DotInteraction | Concatenation


class DLRM(keras.Model):
    """Deep Learning Recommendation Model (Naumov et al., arXiv:1906.00091); with a `CrossNetwork` as its interaction, DCN V2 (arXiv:2008.13535).

    numerical `[b, M]` -> bottom MLP `[b, W]`; ids `[F_r, B]` -> embedding `[b, F, D]`; interaction of both; top MLP -> logits `[b]`. The dot
    interaction wants W = D.

    The parts are objects, so that each can be replaced; `dense` is everything after the lookup, the part that is data
    parallel and that XLA compiles.
    """

    def __init__(self, embedding: DistributedEmbedding, bottom_mlp: Mlp, interaction: Interaction, top_mlp: Mlp):
        super().__init__(name="dlrm")
        self.embedding, self.bottom_mlp, self.interaction, self.top_mlp = embedding, bottom_mlp, interaction, top_mlp

    def build_weights(self, num_numerical: int) -> None:
        """Create every weight, for M numerical features; the tables are allocated here."""
        self.embedding.build()
        num_features, dim = len(self.embedding.names), self.embedding.dim
        with keras.name_scope("bottom_mlp"):
            self.bottom_mlp.build((None, num_numerical))
        shapes = self.bottom_mlp.compute_output_shape((None, num_numerical)), (None, num_features, dim)
        with keras.name_scope(self.interaction.name):
            self.interaction.build_weights(*shapes)
        with keras.name_scope("top_mlp"):
            self.top_mlp.build(self.interaction.compute_output_shape(*shapes))
        self.built = True

    def step_weights(self) -> list[LayerWeights]:
        """Of the layers of the bottom MLP, the interaction and the top MLP: what `dense` takes."""
        return [weights for part in self._dense_parts for weights in part.step_weights()]

    def dense(
        self, numerical: tf.Tensor, embeddings: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None, drop: Drop | None = None
    ) -> tf.Tensor:
        """numerical `[b, M]`, embeddings `[b, F, D]` -> logits `[b]` float32; `slices` and `drop` as in `Mlp.forward`."""
        first, last, dtype = len(self.bottom_mlp.stack), len(weights) - len(self.top_mlp.stack), self.interaction.compute_dtype
        bottom = self.bottom_mlp.forward(tf.cast(numerical, dtype), weights[:first], slices, drop)
        joined = self.interaction.forward(bottom, tf.cast(embeddings, dtype), weights[first:last], slices)
        logits = self.top_mlp.forward(joined, weights[last:], slices, drop)
        return tf.cast(tf.squeeze(logits, axis=1), tf.float32)

    def call(self, inputs):
        """(numerical `[B, M]`, ids `[B, F]`) -> logits `[B]` float32, in a process alone; gradients flow to all weights.

        This is the way of `predict`, `fit` and a GradientTape of one's own. The trainer goes through `embedding` and `dense`.
        """
        numerical, ids = inputs
        return self.dense(tf.convert_to_tensor(numerical), self.embedding.look_up_whole(ids), self.step_weights())

    def compute_output_shape(self, input_shape):
        """`[B]`."""
        return (input_shape[0][0],)

    def save(self, *args, **kwargs):
        """Not this way. Raises NotImplementedError that names the command."""
        raise NotImplementedError(
            "DLRM.save: a model of sharded tables is saved by dlrm.py --save_checkpoint_path FOLDER and loaded by --restore_checkpoint_path FOLDER"
        )

    def get_config(self):
        """As `save`."""
        self.save()

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Weights of the dense part by name: `bottom_mlp/0/kernel`, … — what every worker holds a copy of; in the order of `step_weights`."""
        return {name: weight for part in self._dense_parts for name, weight in part.dense_weights().items()}

    @property
    def _dense_parts(self) -> tuple[Mlp, Interaction, Mlp]:
        return self.bottom_mlp, self.interaction, self.top_mlp
