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

    numerical `[b, M]` -> bottom MLP `[b, W]`; ids `[K_r, B]` -> embedding `[b, F, D]`, or `[b, C]` where tables differ in width; interaction of both;
    top MLP -> logits `[b]`. The dot interaction wants W = D. Without numerical features (M = 0) there is no bottom MLP.

    The parts are objects, so that each can be replaced; `dense` is everything after the lookup, the part that is data
    parallel and that XLA compiles.
    """

    def __init__(self, embedding: DistributedEmbedding, bottom_mlp: Mlp | None, interaction: Interaction, top_mlp: Mlp):
        super().__init__(name="dlrm")
        self.embedding, self.bottom_mlp, self.interaction, self.top_mlp = embedding, bottom_mlp, interaction, top_mlp

    def build_weights(self, num_numerical: int) -> None:
        """Create every weight, for M numerical features; the tables are allocated here."""
        self.embedding.build()
        widths, bottom = self.embedding.widths, None
        if self.bottom_mlp is not None:
            with keras.name_scope("bottom_mlp"):
                self.bottom_mlp.build((None, num_numerical))
            bottom = self.bottom_mlp.compute_output_shape((None, num_numerical))
        shapes = bottom, (None, sum(widths)) if len(set(widths)) > 1 else (None, len(widths), widths[0])
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
        """numerical `[b, M]`, embeddings as `embedding` gives them -> logits `[b]` float32; `slices` and `drop` as in `Mlp.forward`."""
        last, dtype = len(weights) - len(self.top_mlp.stack), self.interaction.compute_dtype
        first, bottom = 0, None
        if self.bottom_mlp is not None:
            first = len(self.bottom_mlp.stack)
            bottom = self.bottom_mlp.forward(tf.cast(numerical, dtype), weights[:first], slices, drop)
        joined = self.interaction.forward(bottom, tf.cast(embeddings, dtype), weights[first:last], slices)
        logits = self.top_mlp.forward(joined, weights[last:], slices, drop)
        return tf.cast(tf.squeeze(logits, axis=1), tf.float32)

    def call(self, inputs):
        """(numerical `[B, M]`, ids `[B, K]`) -> logits `[B]` float32, in a process alone; gradients flow to all weights.

        A feature with h ids a sample takes h consecutive columns of the ids, −1 where it has fewer.

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
    def bottom_width(self) -> int:
        """Columns of the bottom MLP's output, 0 where there is none."""
        return self.bottom_mlp.stack[-1].units if self.bottom_mlp is not None else 0

    @property
    def _dense_parts(self) -> list[Mlp | Interaction]:
        return [part for part in (self.bottom_mlp, self.interaction, self.top_mlp) if part is not None]
