"""The C++ scorer of a checkpoint's model, where it can stand for TensorFlow. Imports no TensorFlow."""

import os
from collections.abc import Sequence
from pathlib import Path

from model.architectures import architecture_of
from model.embedding.table import Feature
from model.native_scorer import NativeScorer, Stored, StoredFeature, dense_layers, native_scorer_library
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config

FEW = 256  # samples up to which what may go either way goes this one: TensorFlow's own time for a call is seen up to there


def stored_scorer(
    checkpoint: Checkpoint, config: Config, num_numerical: int, features: Sequence[Feature], tables: Sequence[Stored]
) -> NativeScorer | None:
    """The scorer of a checkpoint's model, or None where TensorFlow is to score: see `computes_alike`.

    Args:
        checkpoint: its dense weights are read.
        config: of the run.
        num_numerical: M.
        features: in the model's order.
        tables: where the table of each of them lies.

    Raises:
        CheckpointError: a dense weight is missing, damaged, or of another shape than the model's; or a table's file is missing.
    """
    if not computes_alike(config):
        return None
    stored = [StoredFeature(one.name, table, one.hotness, one.pooling) for one, table in zip(features, tables, strict=True)]
    architecture = architecture_of(config.model)
    layers = dense_layers(lambda name: checkpoint.read(f"dense/{name}"), config.model, num_numerical)
    shapes = architecture.layer_shapes(config.model, num_numerical, [table.shape[1] for table in tables])
    for layer, shape in zip(layers.all, shapes, strict=True):
        if layer.kernel.shape != shape or (layer.bias is not None and layer.bias.shape != shape[1:]):
            raise CheckpointError(f"{checkpoint.folder}: a layer's weights have shape {list(layer.kernel.shape)}, the model's is {list(shape)}")
    return NativeScorer(native_scorer_library(), num_numerical, stored, layers, architecture.native_shape(config.model))


def computes_alike(config: Config) -> bool:
    """Whether a run's model is one that the C++ scorer can stand for, in float32 on a CPU, and the library is there."""
    device = config.device
    if (
        architecture_of(config.model).native_shape(config.model) is None
        or device.amp
        or os.environ.get("DLRM_BUILD_FOR") == "GPU"
        or (not device.cpu and any(Path("/dev").glob("nvidia[0-9]*")))
    ):
        return False
    return native_scorer_library() is not None
