"""The interactions on concatenated elements: low-rank cross layers (DCN V2), and plain concatenation."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from model.layers.mlp import LayerWeights, dense, layer_seed, weights_of
from model.native import NativeOperations


class Concatenation(keras.layers.Layer):
    """The concatenation [bottom MLP output, embeddings], of any widths; the top MLP learns the interactions (Naumov et al., section 2.1).

    bottom `[b, W]`, or None without a bottom MLP; embeddings `[b, F, D]` or `[b, C]` -> `[b, d]`, d = W + F D or W + C.
    """

    def __init__(self, dtype: str = "float32", name: str = "interaction"):
        super().__init__(name=name, dtype=dtype)

    def compute_output_shape(self, bottom_shape, embeddings_shape):
        """Return the output's shape, `[b, d]`; `bottom_shape` is None without a bottom MLP."""
        return (embeddings_shape[0], (bottom_shape[1] if bottom_shape else 0) + math.prod(embeddings_shape[1:]))

    def build_weights(self, bottom_shape, embeddings_shape) -> None:
        """Do nothing: the layer has no weights."""

    def step_weights(self) -> list[LayerWeights]:
        """Return an empty list: the layer has no weights."""
        return []

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return an empty mapping: the layer has no weights."""
        return {}

    def forward(self, bottom: tf.Tensor | None, embeddings: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Return the result of `call`; `weights` and `slices` are ignored."""
        return self(bottom, embeddings)

    def call(self, bottom, embeddings):
        """Concatenate bottom and embeddings to `[b, d]`."""
        flat = tf.reshape(embeddings, [-1, math.prod(embeddings.shape[1:])])
        return flat if bottom is None else tf.concat([bottom, flat], axis=1)


class CrossNetwork(Concatenation):
    """Low-rank cross layers (DCN V2, Wang et al., arXiv:2008.13535, equation 2).

    With x_0 the output of `Concatenation`: x_{l+1} = x_0 * (U_l (V_l x_l) + b_l) + x_l, V_l `[d, r]`, U_l `[r, d]`, * elementwise. The output is the
    last x. Kernels are initialised truncated normal with standard deviation 0.05, biases zero.

    Args:
        layers: the number of cross layers.
        projection: r.
        seed: the seed of the weights, see `layer_seed`.
        dtype: Keras dtype policy.
        native: the C++ operations that add the slices' gradients; None for TensorFlow's own operations.
        name: the name of the layer, and the prefix of its weights' names.
    """

    def __init__(self, layers: int, projection: int, seed: int, dtype: str = "float32", native: NativeOperations | None = None, name: str = "cross"):
        super().__init__(dtype=dtype, name=name)
        self._num_layers, self._projection, self._seed, self._native = layers, projection, seed, native
        self.stack: list[tuple[keras.layers.Dense, keras.layers.Dense]] = []  # (V, U); they hold variables and dtypes only, `forward` computes

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
        """Return the current V and U of every layer."""
        return [weights_of(layer) for pair in self.stack for layer in pair]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return every weight by name, `cross/0/v/kernel` for instance, in the order of `step_weights`."""
        found = {}
        for i, (v, u) in enumerate(self.stack):
            found |= {f"{self.name}/{i}/v/kernel": v.kernel, f"{self.name}/{i}/u/kernel": u.kernel, f"{self.name}/{i}/u/bias": u.bias}
        return found

    def forward(self, bottom: tf.Tensor | None, embeddings: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Compute `call` with the given weights; `slices` as in `mlp.dense`."""
        first = last = super().call(bottom, embeddings)
        for v, u in zip(weights[::2], weights[1::2], strict=True):
            projected = dense(tf.cast(last, v.kernel.dtype), v, False, self._native, slices)
            last = first * dense(projected, u, False, self._native, slices) + last
        return last

    def call(self, bottom, embeddings):
        """Return the output of the last cross layer, `[b, d]`; arguments as in `Concatenation`."""
        return self.forward(bottom, embeddings, self.step_weights())
