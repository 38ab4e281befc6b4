"""The linear part of a model."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from model.layers.dense import LayerWeights, cut
from model.layers.mlp import Mlp, Start, zero_bias
from model.native import NativeOperations
from model.ordered_sums import summed

ZERO_START = Start(lambda seed: keras.initializers.Zeros(), zero_bias)


class Intercept(keras.layers.Layer):
    """A constant of the logits, for a linear part without numerical features: `[b, 0] -> [b, 1]`. It starts at 0.

    Args:
        name: the name of the layer, and the prefix of its weight's name.
        native: the C++ operations that add the slices' gradients; None for TensorFlow's own operations.
    """

    def __init__(self, name: str, native: NativeOperations | None = None):
        super().__init__(name=name, dtype="float32")
        self._native = native

    def build(self, input_shape):
        """Create the constant, `[1]`."""
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros")

    def step_weights(self, scoring: bool = False) -> list[LayerWeights]:
        """Return the current constant."""
        return [LayerWeights(tf.convert_to_tensor(self.bias.value), None, None)]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return the constant by name."""
        return {f"{self.name}/bias": self.bias}

    def forward(self, inputs: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Return the given constant for each sample, `[b, 1]`; `slices` as in `dense.dense`."""
        count = tf.shape(inputs)[0] if inputs.shape[0] is None else inputs.shape[0]

        @tf.custom_gradient
        def constant(bias):
            def gradient(upstream):
                return summed([tf.raw_ops.BiasAddGrad(out_backprop=part) for part in cut(upstream, slices or 1)], self._native)

            return tf.broadcast_to(bias, [count, 1]), gradient

        return constant(weights[0].kernel)

    def call(self, inputs):
        """Return the current constant for each sample, `[b, 1]`."""
        return self.forward(inputs, self.step_weights())


class LinearPart(NamedTuple):
    """The sum of a weight of each id and a linear layer of the numerical features, which is added to a model's logit.

    The features of the ids' weights follow the model's other features, one for each, with tables of one column.

    Attributes:
        layer: a layer of one unit, named "wide", or without numerical features an intercept; None where another part has a constant.
    """

    layer: Mlp | Intercept | None

    @property
    def parts(self) -> list[Mlp | Intercept]:
        """The layers that every worker holds a copy of."""
        return [] if self.layer is None else [self.layer]

    def build(self, num_numerical: int) -> None:
        """Create the layer's weights for M numerical features."""
        if self.layer is not None:
            with keras.name_scope(self.layer.name):
                self.layer.build((None, num_numerical))

    @staticmethod
    def cut(vectors: tf.Tensor, widths: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
        """Cut the looked-up vectors into those of the other features, `[b, C]`, and the weights of the ids `[b, F]`; `widths` of all features."""
        columns, width = sum(widths[: len(widths) // 2]), sum(widths)
        others, ids = tf.split(tf.reshape(vectors, [-1, width]), [columns, width - columns], axis=1)
        return others, ids

    def logits(self, numerical: tf.Tensor, ids: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Return the terms of the logits `[b]` float32, given the numericals `[b, M]`, the ids' weights `[b, F]` and the layer's weights."""
        return self.added(tf.reduce_sum(tf.cast(ids, tf.float32), axis=1), numerical, weights, slices)

    def added(self, logits: tf.Tensor, numerical: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Add the layer's terms to logits `[b]` float32, which already have those of the ids."""
        return logits if self.layer is None else logits + self.layer.forward(tf.cast(numerical, tf.float32), weights, slices)[:, 0]
