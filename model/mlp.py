"""The multi-layer perceptrons of DLRM."""

import hashlib
import math
from collections.abc import Sequence

import keras


def layer_seed(seed: int, name: str) -> int:
    """A seed of a weight of its own, the same on every worker: 31 bits of a hash of (seed, name)."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little") >> 1


class Mlp(keras.layers.Layer):
    """Dense layers with ReLU between them (Naumov et al., arXiv:1906.00091, section 2.1).

    `[b, in] -> [b, units[-1]]`. Kernels start Glorot normal, biases normal with standard deviation sqrt(1/out).

    Args:
        units: width of each layer.
        final_activation: "relu", or None for logits; a final layer without activation computes in float32, because
            bfloat16 logits tie with each other.
        seed: of the weights, see `layer_seed`.
        name: "bottom_mlp" or "top_mlp"; the weights' seeds depend on it.
        dtype: Keras dtype policy, "float32" or "mixed_bfloat16" for instance.

    Raises:
        ValueError: `units` is empty or holds a width below 1.
    """

    def __init__(self, units: Sequence[int], final_activation: str | None, seed: int, name: str, dtype: str = "float32"):
        super().__init__(name=name, dtype=dtype)
        if not units or min(units) < 1:
            raise ValueError(f"units: expected one or more positive layer widths, received {list(units)}")
        self.stack = []
        for i, width in enumerate(units):
            last = i == len(units) - 1
            activation = final_activation if last else "relu"
            self.stack.append(
                keras.layers.Dense(
                    width,
                    activation=activation,
                    kernel_initializer=keras.initializers.GlorotNormal(layer_seed(seed, f"{name}/{i}/kernel")),
                    bias_initializer=keras.initializers.RandomNormal(0.0, math.sqrt(1 / width), layer_seed(seed, f"{name}/{i}/bias")),
                    dtype="float32" if last and activation is None else dtype,
                    name=f"dense_{i}",
                )
            )

    def build(self, input_shape):
        """Create the weights for inputs `[b, in]`."""
        for layer in self.stack:
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def compute_output_shape(self, input_shape):
        """`[b, units[-1]]`."""
        return (*input_shape[:-1], self.stack[-1].units)

    def call(self, inputs):
        """`[b, in] -> [b, units[-1]]`."""
        for layer in self.stack:
            inputs = layer(inputs)
        return inputs
