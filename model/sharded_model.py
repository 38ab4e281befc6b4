"""The base class of all models: a distributed embedding, and dense layers that every worker holds a copy of."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from model.layers.batch_norm import BatchNorm, Moments, follow
from model.layers.dense import Drop, LayerWeights
from model.layers.mlp import Mlp
from utils.distributed import World


class ShardedModel(keras.Model):
    """A model that consists of an `embedding`, whose tables are sharded over workers, and of data-parallel layers after it.

    A subclass holds its parts as objects, `embedding` among them, so each can be replaced. It defines `build_weights`, `dense_parts` and `dense`.
    `dense` is everything after the lookup: the part that is data parallel and that XLA compiles.
    """

    command: ClassVar[str]  # the command that trains and saves the model
    embedding: Any
    bottom_width = 0  # columns of the bottom MLP's output; 0 without a bottom MLP
    logit_shift = 0.0  # added to the logit wherever the model scores

    def build_weights(self, num_numerical: int) -> None:
        """Create all weights for M numerical features, and allocate the tables."""
        raise NotImplementedError

    @property
    def dense_parts(self) -> Sequence[Any]:
        """The data-parallel layers, in the order of their weights."""
        raise NotImplementedError

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
        raise NotImplementedError

    def step_weights(self, scoring: bool = False) -> list[LayerWeights]:
        """Return the weights of the layers of `dense_parts`, as `dense` takes them; for `scoring`, with batch normalisation folded into them."""
        return [weights for part in self.dense_parts for weights in part.step_weights(scoring)]

    def scored(self, numerical: tf.Tensor, embeddings: tf.Tensor) -> tf.Tensor:
        """Return the logits `[b]` of scores: those of `dense` with the weights for scoring, and the shift."""
        logits = self.dense(numerical, embeddings, self.step_weights(scoring=True))
        return logits + self.logit_shift if self.logit_shift else logits

    @property
    def normalisations(self) -> dict[str, keras.layers.BatchNormalization]:
        """The batch normalisations by the names of their layers, in the order of the layers; empty without batch normalisation."""
        return {name: norm for part in self.dense_parts if isinstance(part, Mlp) for name, norm in part.normalisations().items()}

    def statistics(self) -> dict[str, keras.Variable]:
        """Return the moving statistics of batch normalisation by name (`top_mlp/0/moving_mean`, …); every worker holds a copy of them."""
        kinds = ("moving_mean", "moving_variance")
        return {f"{name}/{kind}": getattr(norm, kind) for name, norm in self.normalisations.items() for kind in kinds}

    def follow(self, found: Mapping[str, Moments], num_samples: tf.Tensor) -> None:
        """Move the moving statistics towards those of a batch of n real samples."""
        follow(self.normalisations, found, num_samples)

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return the dense weights by name (`bottom_mlp/0/kernel`, …), in the order of `step_weights`; every worker holds a copy of them."""
        return {name: weight for part in self.dense_parts for name, weight in part.dense_weights().items()}

    def call(self, inputs, training=False):
        """Return logits `[B]` float32 for (numerical `[B, M]`, ids `[B, K]`), in a single process; gradients flow to all weights.

        A feature with up to h ids a sample takes h consecutive columns of the ids, padded with −1. With `training`, batch normalisation takes the
        batch's statistics, and its moving statistics follow them.

        `predict`, `fit` and a user's own GradientTape call this method. The trainer calls `embedding` and `dense` instead.
        """
        numerical, ids = inputs
        numerical, vectors = tf.convert_to_tensor(numerical), self.embedding.look_up_whole(ids)
        if not (training and self.normalisations):
            return self.dense(numerical, vectors, self.step_weights(scoring=True)) if training else self.scored(numerical, vectors)
        count = tf.shape(vectors)[0]
        norm = BatchNorm(tf.ones([count]), tf.cast(count, tf.float32), None, World())
        logits = self.dense(numerical, vectors, self.step_weights(), norm=norm)
        self.follow(norm.found, tf.cast(count, tf.float32))
        return logits

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
