"""What every model here is: a distributed embedding, and layers of which each worker holds a copy."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from model.layers.mlp import Drop, LayerWeights


class ShardedModel(keras.Model):
    """A model of an `embedding`, whose tables are sharded over workers, and of data-parallel layers behind it.

    A model has its parts as objects, `embedding` among them, so that each can be replaced; `build_weights`; and `dense`: everything after the lookup,
    the part that is data parallel and that XLA compiles.
    """

    command: ClassVar[str]  # that trains and saves it
    embedding: Any
    bottom_width = 0  # columns of the bottom MLP's output; 0 where there is none

    def build_weights(self, num_numerical: int) -> None:
        """Create every weight, for M numerical features; the tables are allocated here."""
        raise NotImplementedError

    @property
    def dense_parts(self) -> Sequence[Any]:
        """The data-parallel layers, in the order of their weights."""
        raise NotImplementedError

    def dense(
        self, numerical: tf.Tensor, embeddings: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None, drop: Drop | None = None
    ) -> tf.Tensor:
        """numerical `[b, M]`, embeddings as `embedding` gives them -> logits `[b]` float32; `slices` and `drop` as in `Mlp.forward`."""
        raise NotImplementedError

    def step_weights(self) -> list[LayerWeights]:
        """Of the layers of `dense_parts`: what `dense` takes."""
        return [weights for part in self.dense_parts for weights in part.step_weights()]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Weights of the dense part by name (`bottom_mlp/0/kernel`, …): what every worker holds a copy of; in the order of `step_weights`."""
        return {name: weight for part in self.dense_parts for name, weight in part.dense_weights().items()}

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
            f"{type(self).__name__}.save: a model of sharded tables is saved by {self.command} --save_checkpoint_path FOLDER and loaded by "
            "--restore_checkpoint_path FOLDER"
        )

    def get_config(self):
        """As `save`."""
        self.save()
