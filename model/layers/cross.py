"""The interactions on concatenated elements: cross layers (DCN V2), and plain concatenation."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from model.layers.dense import LayerWeights, cut, dense, layer_seed, product_gradients, products_of, weights_of, whole
from model.native import NativeOperations
from model.ordered_sums import summed


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
        return [weights_of(layer, self._native) for products in self.stack for layer in products]

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
        count = len(self._parts)
        layers = [weights[i : i + count] for i in range(0, len(weights), count)]
        if self._native is not None and layers and first.dtype == weights[0].kernel.dtype:
            return _crossed(first, layers, self._native, slices)
        last = first
        for layer in layers:
            products = tf.cast(last, layer[0].kernel.dtype)
            for part in layer:
                products = dense(products, part, False, self._native, slices)
            last = first * products + last
        return last

    def call(self, bottom, embeddings):
        """Return the output of the last cross layer, `[b, d]`; arguments as in `Concatenation`."""
        return self.forward(bottom, embeddings, self.step_weights())


def _crossed(first: tf.Tensor, layers: Sequence[Sequence[LayerWeights]], native: NativeOperations, slices: int | None) -> tf.Tensor:
    """Compute `CrossNetwork.crossed` with one pass around the products of each layer, and one back; `layers` holds V and U, or W, of each."""
    biases = [layer[-1].bias for layer in layers]

    @tf.custom_gradient
    def crossed(first, biases, *kernels):
        kernels = [kernels[i : i + len(layers[0])] for i in range(0, len(kernels), len(layers[0]))]
        last, chains = first, []  # of each layer: what its products read, then their result
        for layer, bias, of_layer in zip(layers, biases, kernels, strict=True):
            chain = [last]
            for part, kernel in zip(layer, of_layer, strict=True):
                chain.append(whole(products_of(chain[-1], kernel, part, native, slices)))
            chains.append(chain)
            last = native.cross.outputs(first, chain[-1], bias, last)

        def gradient(upstream):
            above, by_first, by_biases, by_kernels = [upstream], [], [], []
            for number in reversed(range(len(layers))):
                chain, count = chains[number], len(above)
                found = [
                    native.cross.gradients(x, products, biases[number], others[:count], others[count:], number == 0)
                    for x, products, *others in zip(*(cut(values, slices or 1) for values in (first, chain[-1], *above, *by_first)), strict=True)
                ]
                by_last, by_products, by_first, by_bias = (list(values) for values in zip(*found, strict=True))
                upstream = whole(by_products)
                by_biases.insert(0, summed(by_bias, native))
                for part, kernel, inputs in reversed(list(zip(layers[number], kernels[number], chain[:-1], strict=True))):
                    upstream, by_kernel = product_gradients(inputs, upstream, kernel, part, native, slices)
                    by_kernels.insert(0, by_kernel)
                above, by_first = [whole(by_last), upstream], [whole(by_first)]
            return by_first[0] + above[1], by_biases, *by_kernels

        return last, gradient

    return crossed(first, biases, *(part.kernel for layer in layers for part in layer))
