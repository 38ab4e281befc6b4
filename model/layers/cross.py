"""The interactions on concatenated elements: cross layers (DCN V2), and plain concatenation."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from model.layers.dense import LayerWeights, dense, layer_seed, weights_of
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

    def step_weights(self, scoring: bool = False) -> list[LayerWeights]:
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
        return self.joined(bottom, embeddings)

    def joined(self, bottom: tf.Tensor | None, embeddings: tf.Tensor) -> tf.Tensor:
        """Concatenate bottom and embeddings to `[b, d]`."""
        flat = tf.reshape(embeddings, [-1, math.prod(embeddings.shape[1:])])
        return flat if bottom is None else tf.concat([bottom, flat], axis=1)


class CrossNetwork(Concatenation):
    """Cross layers (DCN V2, Wang et al., arXiv:2008.13535, equations 1 and 2).

    With x_0 the output of `Concatenation`: x_{l+1} = x_0 * (U_l (V_l x_l) + b_l) + x_l, V_l `[d, r]`, U_l `[r, d]`, * elementwise; of full rank
    x_{l+1} = x_0 * (W_l x_l + b_l) + x_l, W_l `[d, d]`. The output is the last x. Kernels are initialised truncated normal with standard deviation
    0.05, biases zero.

    Args:
        layers: the number of cross layers.
        projection: r; 0 for full rank.
        seed: the seed of the weights, see `layer_seed`.
        dtype: Keras dtype policy.
        native: the C++ operations that add the slices' gradients; None for TensorFlow's own operations.
        name: the name of the layer, and the prefix of its weights' names.
    """

    def __init__(self, layers: int, projection: int, seed: int, dtype: str = "float32", native: NativeOperations | None = None, name: str = "cross"):
        super().__init__(dtype=dtype, name=name)
        self._num_layers, self._projection, self._seed, self._native = layers, projection, seed, native
        # (V, U) or (W,) of each layer; they hold variables and dtypes only, `forward` computes.
        self.stack: list[tuple[keras.layers.Dense, ...]] = []
        self._parts = ("v", "u") if projection else ("w",)

    def build_weights(self, bottom_shape, embeddings_shape) -> None:
        """Create the weights for inputs of these shapes."""
        width = self.compute_output_shape(bottom_shape, embeddings_shape)[1]
        for i in range(self._num_layers):
            products = []
            widths = {"v": (width, self._projection), "u": (self._projection, width), "w": (width, width)}
            for part in self._parts:
                inputs, units = widths[part]
                start = keras.initializers.TruncatedNormal(0.0, 0.05, layer_seed(self._seed, f"{self.name}/{i}/{part}/kernel"))
                layer = keras.layers.Dense(units, use_bias=part != "v", kernel_initializer=start, dtype=self.dtype_policy, name=f"{part}_{i}")
                layer.build((None, inputs))
                products.append(layer)
            self.stack.append(tuple(products))

    def step_weights(self, scoring: bool = False) -> list[LayerWeights]:
        """Return the current V and U, or W, of every layer."""
        return [weights_of(layer) for products in self.stack for layer in products]

    def dense_weights(self) -> dict[str, keras.Variable]:
        """Return every weight by name, `cross/0/v/kernel` for instance, in the order of `step_weights`."""
        found = {}
        for i, products in enumerate(self.stack):
            for part, layer in zip(self._parts, products, strict=True):
                found[f"{self.name}/{i}/{part}/kernel"] = layer.kernel
                if layer.bias is not None:
                    found[f"{self.name}/{i}/{part}/bias"] = layer.bias
        return found

    def forward(self, bottom: tf.Tensor | None, embeddings: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Compute `call` with the given weights; `slices` as in `mlp.dense`."""
        return self.crossed(self.joined(bottom, embeddings), weights, slices)

    def crossed(self, first: tf.Tensor, weights: Sequence[LayerWeights], slices: int | None = None) -> tf.Tensor:
        """Apply the cross layers to the concatenation `[b, d]`, with the given weights; `slices` as in `mlp.dense`."""
        last, count = first, len(self._parts)
        for i in range(0, len(weights), count):
            products = tf.cast(last, weights[i].kernel.dtype)
            for layer in weights[i : i + count]:
                products = dense(products, layer, False, self._native, slices)
            last = first * products + last
        return last

    def call(self, bottom, embeddings):
        """Return the output of the last cross layer, `[b, d]`; arguments as in `Concatenation`."""
        return self.forward(bottom, embeddings, self.step_weights())
