"""Multi-layer perceptrons."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from model.layers.batch_norm import BatchNorm, folded, with_norm
from model.layers.dense import Drop, LayerWeights, dense, layer_seed, weights_of
from model.native import NativeOperations


class Start(NamedTuple):
    """Initializers of a layer's weights: functions of a seed; the bias initializer also takes the layer's width."""

    kernel: Callable[[int], keras.Initializer]
    bias: Callable[[int, int], keras.Initializer]


class Norm(NamedTuple):
    """Settings of batch normalisation: the momentum of the moving statistics, and what is added to the variance."""

    momentum: float
    epsilon: float


def zero_bias(seed: int, width: int) -> keras.Initializer:
    """Return the initializer of biases that start at 0."""
    return keras.initializers.Zeros()


GLOROT_NORMAL = Start(keras.initializers.GlorotNormal, lambda seed, width: keras.initializers.RandomNormal(0.0, math.sqrt(1 / width), seed))


class Mlp(keras.layers.Layer):
    """Dense layers with ReLU between them (Naumov et al., arXiv:1906.00091, section 2.1).

    `[b, in] -> [b, units[-1]]`. By default kernels are initialised Glorot normal, and biases normal with standard deviation sqrt(1/out).

    With batch normalisation each product that a ReLU follows is normalised before it (see `BatchNorm`), and its beta, which starts at 0, replaces
    the bias; gamma starts at 1.

    Args:
        units: the width of each layer.
        final_activation: "relu", or None for logits; a final layer without activation computes in float32, because
            bfloat16 logits tie with each other.
        seed: the seed of the weights, see `layer_seed`.
        name: "bottom_mlp" or "top_mlp" for instance; the weights' seeds depend on it.
        dtype: Keras dtype policy, "float32" or "mixed_bfloat16" for instance.
        native: the C++ operations for the elementwise passes; None for TensorFlow's own operations.
        start: the initializers of the weights.
        norm: the batch normalisation; None for none.

    Attributes:
        beside: number of columns that the last layer reads before the hidden layers' output, see `forward`; set it before `build`.
        all_hidden: whether the last layer is a hidden layer, too, which dropout follows; set it before `forward`.

    Raises:
        ValueError: `units` is empty or holds a width below 1.
    """

    def __init__(
        self,
        units: Sequence[int],
        final_activation: str | None,
        seed: int,
        name: str,
        dtype: str = "float32",
        native: NativeOperations | None = None,
        start: Start = GLOROT_NORMAL,
        norm: Norm | None = None,
    ):
        super().__init__(name=name, dtype=dtype)
        if not units or min(units) < 1:
            raise ValueError(f"units: expected one or more positive layer widths, received {list(units)}")
        self._native, self.beside, self.all_hidden = native, 0, False
        self.stack: list[keras.layers.Dense] = []  # they hold variables and dtypes only; `forward` computes
        self.norms: list[keras.layers.BatchNormalization | None] = []  # of each layer
        for i, width in enumerate(units):
            last = i == len(units) - 1
            activation = final_activation if last else "relu"
            normalises = norm is not None and activation == "relu"
            self.norms.append(keras.layers.BatchNormalization(**norm._asdict(), dtype="float32", name=f"norm_{i}") if normalises else None)
            self.stack.append(
                keras.layers.Dense(
                    width,
                    activation=activation,
                    use_bias=not normalises,
                    kernel_initializer=start.kernel(layer_seed(seed, f"{name}/{i}/kernel")),
                    bias_initializer=start.bias(layer_seed(seed, f"{name}/{i}/bias"), width),
                    dtype="float32" if last and activation is None else dtype,
                    name=f"dense_{i}",
                )
            )

    def build(self, input_shape):
        """Create the weights for inputs `[b, in]`."""
        for layer, norm in zip(self.stack, self.norms, strict=True):
            if layer is self.stack[-1]:
                input_shape = (*input_shape[:-1], self.beside + input_shape[-1])
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)
            if norm is not None:
                norm.build(input_shape)

    def compute_output_shape(self, input_shape):
        """Return the output's shape, `[b, units[-1]]`."""
        return (*input_shape[:-1], self.stack[-1].units)

    def step_weights(self, scoring: bool = False) -> list[LayerWeights]:
        """Return the current weights of every layer; for `scoring`, with the moving statistics of batch normalisation folded into them."""
        normalised = folded if scoring else with_norm
        return [
            weights_of(layer, self._native) if norm is None else normalised(layer, norm, self._native)
            for layer, norm in zip(self.stack, self.norms, strict=True)
        ]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return every trained weight by name, `bottom_mlp/0/kernel` for instance, in the order of `step_weights`."""
        found = {}
        for i, (layer, norm) in enumerate(zip(self.stack, self.norms, strict=True)):
            others = {"bias": layer.bias} if norm is None else {"gamma": norm.gamma, "beta": norm.beta}
            found |= {f"{self.name}/{i}/{kind}": weight for kind, weight in {"kernel": layer.kernel, **others}.items()}
        return found

    def normalisations(self) -> dict[str, keras.layers.BatchNormalization]:
        """Return the batch normalisations by the names of their layers, `bottom_mlp/0` for instance."""
        return {f"{self.name}/{i}": norm for i, norm in enumerate(self.norms) if norm is not None}

    def forward(
        self,
        inputs: tf.Tensor,
        weights: Sequence[LayerWeights],
        slices: int | None = None,
        drop: Drop | None = None,
        beside: tf.Tensor | None = None,
        norm: BatchNorm | None = None,
    ) -> tf.Tensor:
        """Compute `[b, in] -> [b, units[-1]]` with the given weights.

        Args:
            inputs: `[b, in]`.
            weights: the layers' weights.
            slices: as in `dense`.
            drop: the dropout of each hidden layer's outputs.
            beside: columns `[b, w]` that the last layer reads before the hidden layers' output; w is the attribute `beside`.
            norm: the batch normalisation of a training step; None where the weights are those for scoring.
        """
        for i, (layer, values) in enumerate(zip(self.stack, weights, strict=True)):
            if beside is not None and layer is self.stack[-1]:
                inputs = tf.concat([beside, tf.cast(inputs, beside.dtype)], axis=1)
            dropped, name = drop is not None and (self.all_hidden or i < len(self.stack) - 1), f"{self.name}/{i}"
            mask = drop.mask(name) if dropped and self._native is not None else None
            inputs = tf.cast(inputs, values.kernel.dtype)
            if values.gamma is None:
                inputs = dense(inputs, values, layer.activation is keras.activations.relu, self._native, slices, mask)
            else:
                inputs = norm.dense(inputs, values, name, self._native, mask)
            if dropped and mask is None:
                inputs = drop(inputs, name)
        return inputs

    def call(self, inputs):
        """Compute `[b, in] -> [b, units[-1]]` with the current weights, for scoring."""
        return self.forward(inputs, self.step_weights(scoring=True))
