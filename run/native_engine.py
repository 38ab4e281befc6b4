"""A checkpoint's model without TensorFlow: its mapped tables, and the C++ scorer where it can replace TensorFlow."""

import os
from collections.abc import Sequence
from pathlib import Path

from model.architectures import architecture_of
from model.embedding.table import Feature
from model.native_places import places_available, row_numbers
from model.native_scorer import NativeScorer, Stored, StoredFeature, folded, native_precisions, native_scorer_library
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.mapped import MappedArray
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.serving import BFLOAT16, FLOAT32
from utils.initial_rows import numbers_of_rows

_DENSE = "dense/"
FEW = 256  # samples up to which the C++ scorer is used where either can score: up to there TensorFlow's overhead for a call shows


def stored_scorer(
    checkpoint: Checkpoint, config: Config, num_numerical: int, features: Sequence[Feature], tables: Sequence[Stored]
) -> NativeScorer | None:
    """Return the C++ scorer of a checkpoint's model, or None where TensorFlow must score: see `native_precision`.

    Args:
        checkpoint: checkpoint whose dense weights are read.
        config: configuration of the run.
        num_numerical: M.
        features: features in the model's order.
        tables: stored table of each feature.

    Raises:
        CheckpointError: a dense weight is missing, damaged or of another shape than the model's, or a table's file is missing.
    """
    precision = native_precision(config)
    if precision is None:
        return None
    stored = [StoredFeature(one.name, table, one.hotness, one.pooling, one.weights) for one, table in zip(features, tables, strict=True)]
    architecture = architecture_of(config.model)
    names = [name.removeprefix(_DENSE) for name in checkpoint.names(_DENSE)]
    readers = folded(lambda name: checkpoint.read(f"{_DENSE}{name}"), names, config.model)
    read, of_ids = (lambda name: readers[name]() if name in readers else checkpoint.read(f"{_DENSE}{name}")), [one.name for one in features]
    layers = architecture.native_layers(config.model, read, of_ids, num_numerical)
    shapes = architecture.layer_shapes(config.model, num_numerical, [table.shape[1] for table in tables])
    for layer, shape in zip(layers.all, shapes, strict=True):
        if layer.kernel.shape != shape or (layer.bias is not None and layer.bias.shape != shape[1:]):
            raise CheckpointError(f"{checkpoint.folder}: a layer's weights have shape {list(layer.kernel.shape)}, the model expects {list(shape)}")
    return NativeScorer(native_scorer_library(), num_numerical, stored, layers, architecture.native_shape(config.model), precision)


def mapped_array(checkpoint: Checkpoint, table: str) -> MappedArray:
    """Map the weights of a table in place. Raises CheckpointError as `MappedArray`."""
    return MappedArray(checkpoint, f"tables/{table}/weights", row_numbers if places_available() else numbers_of_rows)


def native_precision(config: Config) -> str | None:
    """Return what the C++ scorer computes the run's model in: FLOAT32 or BFLOAT16; None where it cannot replace TensorFlow."""
    device = config.device
    on_gpu = os.environ.get("DLRM_BUILD_FOR") == "GPU" or (not device.cpu and any(Path("/dev").glob("nvidia[0-9]*")))
    if on_gpu or architecture_of(config.model).native_shape(config.model) is None:
        return None
    precision = (device.amp_dtype or BFLOAT16) if device.amp else FLOAT32
    return precision if precision in native_precisions() else None
