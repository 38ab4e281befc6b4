"""The base class of all models: a distributed embedding, and dense layers that every worker holds a copy of."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from model.layers.mlp import Drop, LayerWeights


class ShardedModel(keras.Model):
    """A model that consists of an `embedding`, whose tables are sharded over workers, and of data-parallel layers after it.

    A subclass holds its parts as objects, `embedding` among them, so each can be replaced. It defines `build_weights`, `dense_parts` and `dense`.
    `dense` is everything after the lookup: the part that is data parallel and that XLA compiles.
    """

    command: ClassVar[str]  # the command that trains and saves the model
    embedding: Any
    bottom_width = 0  # columns of the bottom MLP's output; 0 without a bottom MLP

    def build_weights(self, num_numerical: int) -> None:
        """Create all weights for M numerical features, and allocate the tables."""
        raise NotImplementedError

    @property
    def dense_parts(self) -> Sequence[Any]:
        """The data-parallel layers, in the order of their weights."""
        raise NotImplementedError

    def dense(
        self, numerical: tf.Tensor, embeddings: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None, drop: Drop | None = None
    ) -> tf.Tensor:
        """Return logits `[b]` float32 for numerical `[b, M]` and the output of `embedding`; `slices` and `drop` as in `Mlp.forward`."""
        raise NotImplementedError

    def step_weights(self) -> list[LayerWeights]:
        """Return the weights of the layers of `dense_parts`, as `dense` takes them."""
        return [weights for part in self.dense_parts for weights in part.step_weights()]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return the dense weights by name (`bottom_mlp/0/kernel`, …), in the order of `step_weights`; every worker holds a copy of them."""
        return {name: weight for part in self.dense_parts for name, weight in part.dense_weights().items()}

    def call(self, inputs):
        """Return logits `[B]` float32 for (numerical `[B, M]`, ids `[B, K]`), in a single process; gradients flow to all weights.

        A feature with up to h ids a sample takes h consecutive columns of the ids, padded with −1.

        `predict`, `fit` and a user's own GradientTape call this method. The trainer calls `embedding` and `dense` instead.
        """
        numerical, ids = inputs
        return self.dense(tf.convert_to_tensor(numerical), self.embedding.look_up_whole(ids), self.step_weights())

    def compute_output_shape(self, input_shape):
        """Return the shape of the logits, `[B]`."""
        return (input_shape[0][0],)

    def save(self, *args, **kwargs):
        """Raise NotImplementedError, which names the command that saves the model."""
        raise NotImplementedError(
            f"{type(self).__name__}.save: a model of sharded tables is saved by {self.command} --save_checkpoint_path FOLDER and loaded by "
            "--restore_checkpoint_path FOLDER"
        )

    def get_config(self):
        """Raise NotImplementedError, like `save`."""
        self.save()
