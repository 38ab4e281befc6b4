"""The C++ scorer of a checkpoint's model, or of one in memory, where it can do what TensorFlow does. Imports no TensorFlow."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model.embedding.table import Feature
from model.native_scorer import DenseLayer, DenseLayers, NativeScorer, Stored, StoredFeature, native_scorer_library
from model.shapes import interaction_shape, layer_shapes
from utils.checkpoint.manifest import CheckpointError, DamagedError
from utils.checkpoint.reading import Checkpoint
from utils.config import Config
from utils.options import DeviceConfig, ModelConfig

FEW = 256  # samples up to which what may go either way goes this one: TensorFlow's own time for a call is seen up to there


def stored_scorer(checkpoint: Checkpoint, config: Config, num_numerical: int, features: Sequence[Feature], tables: Sequence[Stored]) -> Any:
    """The scorer of a checkpoint's model, or None where TensorFlow is to score: see `computes_alike`.

    Args:
        checkpoint: its dense weights are read.
        config: of the run.
        num_numerical: M.
        features: in the model's order.
        tables: where the table of each of them lies.

    Raises:
        CheckpointError: a dense weight is missing, damaged, or of another shape than the model's.
    """
    if not computes_alike(config.device):
        return None
    stored = [StoredFeature(one.name, table, one.hotness, one.pooling) for one, table in zip(features, tables, strict=True)]
    layers = dense_layers(lambda name: checkpoint.read(f"dense/{name}"), config.model, num_numerical)
    shapes = layer_shapes(
        num_numerical, config.model.bottom_mlp_dims, config.model.top_mlp_dims, [table.shape[1] for table in tables], interaction_shape(config.model)
    )
    for layer, shape in zip(layers.all, shapes, strict=True):
        if layer.kernel.shape != shape or (layer.bias is not None and layer.bias.shape != shape[1:]):
            raise CheckpointError(f"{checkpoint.folder}: a layer's weights have shape {list(layer.kernel.shape)}, the model's is {list(shape)}")
    try:
        return NativeScorer(native_scorer_library(), num_numerical, stored, layers, interaction_shape(config.model))
    except DamagedError:  # a table's file; it is said when its rows are wanted
        return None


def computes_alike(device: DeviceConfig) -> bool:
    """Whether a model on this device is one that the C++ scorer can stand for: float32 on a CPU, and the library is there."""
    if device.amp or os.environ.get("DLRM_BUILD_FOR") == "GPU" or (not device.cpu and any(Path("/dev").glob("nvidia[0-9]*"))):
        return False
    return native_scorer_library() is not None


def dense_layers(read: Callable[[str], np.ndarray], model: ModelConfig, num_numerical: int) -> DenseLayers:
    """A model's layers out of its weights by name, `bottom_mlp/0/kernel` for instance."""

    def mlp(name: str, count: int, last_relu: bool) -> list[DenseLayer]:
        return [DenseLayer(read(f"{name}/{i}/kernel"), read(f"{name}/{i}/bias"), last_relu or i < count - 1) for i in range(count)]

    crosses = range(interaction_shape(model).layers)
    pairs = [
        (DenseLayer(read(f"cross/{i}/v/kernel"), None, False), DenseLayer(read(f"cross/{i}/u/kernel"), read(f"cross/{i}/u/bias"), False))
        for i in crosses
    ]
    bottom = mlp("bottom_mlp", len(model.bottom_mlp_dims), True) if num_numerical else []
    return DenseLayers(bottom, [layer for pair in pairs for layer in pair], mlp("top_mlp", len(model.top_mlp_dims), False))
