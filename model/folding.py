"""Batch normalisation folded into the layer before it, for everything that scores without the trainer: the C++ scorer and exports. No TensorFlow."""

from collections.abc import Callable, Collection

import numpy as np

_FOLDED = ("gamma", "beta", "moving_mean", "moving_variance")


def folded(read: Callable[[str], np.ndarray], names: Collection[str], epsilon: float) -> dict[str, Callable[[], np.ndarray]]:
    """Return a reader for every weight of the model whose scores are those of the model with its moving statistics.

    A layer that is normalised becomes a kernel and a bias: kernel gamma / sqrt(variance + epsilon), and beta - mean gamma / sqrt(variance + epsilon).

    Args:
        read: returns a weight by its name, `top_mlp/0/kernel` for instance.
        names: the names of all weights and moving statistics.
        epsilon: `--batch_norm_epsilon`.
    """
    found: dict[str, Callable[[], np.ndarray]] = {}
    for name in names:
        layer, _, kind = name.rpartition("/")
        if f"{layer}/gamma" not in names:
            found[name] = lambda name=name: read(name)
        elif kind not in _FOLDED:
            found[name] = lambda name=name, layer=layer: read(name) * _scale(read, layer, epsilon).astype(np.float32)
            found[f"{layer}/bias"] = lambda layer=layer: _bias(read, layer, epsilon)
    return found


def _scale(read: Callable[[str], np.ndarray], layer: str, epsilon: float) -> np.ndarray:
    return read(f"{layer}/gamma").astype(np.float64) / np.sqrt(read(f"{layer}/moving_variance").astype(np.float64) + epsilon)


def _bias(read: Callable[[str], np.ndarray], layer: str, epsilon: float) -> np.ndarray:
    return (read(f"{layer}/beta").astype(np.float64) - read(f"{layer}/moving_mean") * _scale(read, layer, epsilon)).astype(np.float32)
