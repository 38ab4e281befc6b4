"""The dense layers of a model as arrays, for the C++ scorer. Imports no TensorFlow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Read = Callable[[str], np.ndarray]  # returns a dense weight by its name, `bottom_mlp/0/kernel` for instance


@dataclass(frozen=True)
class DenseLayer:
    """The weights of a layer: kernel `[in, out]`, bias `[out]` or None; `relu` tells whether a ReLU follows."""

    kernel: np.ndarray
    bias: np.ndarray | None
    relu: bool = False


@dataclass(frozen=True)
class Stream:
    """An MLP of all vectors side by side, which a gate may weigh first.

    Attributes:
        gate: layers of the gate's MLP; empty without a gate.
        gate_features: the positions of the features whose vectors the gate reads.
        layers: layers of the MLP.
    """

    gate: Sequence[DenseLayer]
    gate_features: Sequence[int]
    layers: Sequence[DenseLayer]


@dataclass(frozen=True)
class DenseLayers:
    """All layers of a model; a cross layer is V followed by U or, of full rank, W.

    Attributes:
        bottom, cross, top: layers of the bottom MLP, the interaction and the top MLP.
        linear: the layer of the linear part; with a kernel `[0, 1]` without numerical features.
        scaled: vectors of the numerical features, `[M, D]`.
        streams: two MLPs in place of the top MLP, or none.
        fusion: the layer `[d_1 + d_2, 1]` of both streams' outputs.
        heads: the bilinear layer's kernels, `[d_1 / H, d_2 / H]` each.
        linear_alone: the model is its linear part, and its features are those that the linear part reads.
    """

    bottom: Sequence[DenseLayer] = ()
    cross: Sequence[DenseLayer] = ()
    top: Sequence[DenseLayer] = ()
    linear: DenseLayer | None = None
    scaled: np.ndarray | None = None
    streams: Sequence[Stream] = ()
    fusion: DenseLayer | None = None
    heads: Sequence[DenseLayer] = ()
    linear_alone: bool = False

    @property
    def all(self) -> list[DenseLayer]:
        """All layers in the model's order, without a linear one that has no inputs."""
        return [*self._before, *([self.linear] if self.linear is not None and len(self.linear.kernel) else []), *self._of_streams]

    @property
    def given(self) -> list[DenseLayer]:
        """All layers as the C++ scorer takes them."""
        linear = [] if self.linear is None else [self.linear]
        return [*self._before, *linear, *([] if self.scaled is None else [DenseLayer(self.scaled, None)]), *self._of_streams]

    @property
    def _before(self) -> list[DenseLayer]:
        return [*self.bottom, *self.cross, *self.top]

    @property
    def _of_streams(self) -> list[DenseLayer]:
        layers = [layer for stream in self.streams for layer in (*stream.gate, *stream.layers)]
        return [*layers, *([] if self.fusion is None else [self.fusion]), *self.heads]


def mlp_layers(read: Read, name: str, count: int, relu_at_end: bool = False) -> list[DenseLayer]:
    """Return the layers of an MLP, given its name and the number of its layers."""
    return [DenseLayer(read(f"{name}/{i}/kernel"), read(f"{name}/{i}/bias"), relu_at_end or i < count - 1) for i in range(count)]


def cross_layers(read: Read, count: int, full_rank: bool) -> list[DenseLayer]:
    """Return the products of cross layers."""
    found = []
    for i in range(count):
        found += [] if full_rank else [DenseLayer(read(f"cross/{i}/v/kernel"), None)]
        part = "w" if full_rank else "u"
        found.append(DenseLayer(read(f"cross/{i}/{part}/kernel"), read(f"cross/{i}/{part}/bias")))
    return found


def linear_layer(read: Read, name: str, num_numerical: int, intercept: bool) -> DenseLayer:
    """Return the layer of a linear part; without numerical features its kernel is `[0, 1]`, and its bias the intercept, if the model has one."""
    if num_numerical:
        return DenseLayer(read(f"{name}/0/kernel"), read(f"{name}/0/bias"))
    return DenseLayer(np.zeros((0, 1), np.float32), read(f"{name}/bias") if intercept else np.zeros(1, np.float32))
