"""The interactions that take every element: cross layers of low rank (DCNv2), and none at all."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from model.layers.mlp import LayerWeights, dense, layer_seed, weights_of
from model.native import NativeOperations


class Concatenation(keras.layers.Layer):
    """[bottom MLP output, embeddings], of any widths; the top MLP does the rest (Naumov et al., section 2.1).

    bottom `[b, W]`, or None where there is no bottom MLP; embeddings `[b, F, D]` or `[b, C]` -> `[b, d]`, d = W + F D or W + C.
    """

    def __init__(self, dtype: str = "float32", name: str = "interaction"):
        super().__init__(name=name, dtype=dtype)

    def compute_output_shape(self, bottom_shape, embeddings_shape):
        """`[b, d]`; `bottom_shape` is None where there is no bottom MLP."""
        return (embeddings_shape[0], (bottom_shape[1] if bottom_shape else 0) + math.prod(embeddings_shape[1:]))

    def build_weights(self, bottom_shape, embeddings_shape) -> None:
        """It has none."""

    def step_weights(self) -> list[LayerWeights]:
        """None: it has no weights."""
        return []

    def dense_weights(self) -> dict[str, keras.Variable]:
        """None."""
        return {}

    def forward(self, bottom: tf.Tensor | None, embeddings: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """As `call`."""
        return self(bottom, embeddings)

    def call(self, bottom, embeddings):
        """As the class says."""
        flat = tf.reshape(embeddings, [-1, math.prod(embeddings.shape[1:])])
        return flat if bottom is None else tf.concat([bottom, flat], axis=1)


class CrossNetwork(Concatenation):
    """Cross layers of low rank (DCN V2, Wang et al., arXiv:2008.13535, equation 2).

    With x_0 as in `Concatenation`: x_{l+1} = x_0 * (U_l (V_l x_l) + b_l) + x_l, V_l `[d, r]`, U_l `[r, d]`, * by
    elements. Gives the last x. Kernels start truncated normal with standard deviation 0.05, biases zero.

    Args:
        layers: how many.
        projection: r.
        seed: of the weights, see `layer_seed`.
        dtype: Keras dtype policy.
        native: adds the slices' gradients; None for TensorFlow's own operations.
        name: of the layer, and the beginning of its weights' names.
    """

    def __init__(self, layers: int, projection: int, seed: int, dtype: str = "float32", native: NativeOperations | None = None, name: str = "cross"):
        super().__init__(dtype=dtype, name=name)
        self._num_layers, self._projection, self._seed, self._native = layers, projection, seed, native
        self.stack: list[tuple[keras.layers.Dense, keras.layers.Dense]] = []  # their variables and dtypes; `forward` computes

    def build_weights(self, bottom_shape, embeddings_shape) -> None:
        """Create the weights for inputs of these shapes."""
        width = self.compute_output_shape(bottom_shape, embeddings_shape)[1]
        for i in range(self._num_layers):
            pair = []
            for part, inputs, units in (("v", width, self._projection), ("u", self._projection, width)):
                start = keras.initializers.TruncatedNormal(0.0, 0.05, layer_seed(self._seed, f"{self.name}/{i}/{part}/kernel"))
                layer = keras.layers.Dense(units, use_bias=part == "u", kernel_initializer=start, dtype=self.dtype_policy, name=f"{part}_{i}")
                layer.build((None, inputs))
                pair.append(layer)
            self.stack.append(tuple(pair))

    def step_weights(self) -> list[LayerWeights]:
        """V and U of every layer as they are now."""
        return [weights_of(layer) for pair in self.stack for layer in pair]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Every weight by name, `cross/0/v/kernel` for instance, in the order of `step_weights`."""
        found = {}
        for i, (v, u) in enumerate(self.stack):
            found |= {f"{self.name}/{i}/v/kernel": v.kernel, f"{self.name}/{i}/u/kernel": u.kernel, f"{self.name}/{i}/u/bias": u.bias}
        return found

    def forward(self, bottom: tf.Tensor | None, embeddings: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """As `call`, with the given weights; `slices` as in `mlp.dense`."""
        first = last = super().call(bottom, embeddings)
        for v, u in zip(weights[::2], weights[1::2], strict=True):
            projected = dense(tf.cast(last, v.kernel.dtype), v, False, self._native, slices)
            last = first * dense(projected, u, False, self._native, slices) + last
        return last

    def call(self, bottom, embeddings):
        """As `Concatenation`."""
        return self.forward(bottom, embeddings, self.step_weights())
