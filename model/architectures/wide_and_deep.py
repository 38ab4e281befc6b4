"""The architecture of Wide & Deep. Imports no TensorFlow."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from model.architectures.architecture import NUMERICALS, VECTORS, Architecture, Layers, LogForm, Operations, T
from model.architectures.linear import LINEAR, linear_terms, with_linear
from model.embedding.table import GLOROT_NORMAL, KERAS_UNIFORM, UNIFORM, WIDE, ZEROS, Feature, Table
from model.scored_layers import DenseLayers, Read, linear_layer, mlp_layers
from model.shapes import InteractionShape, interaction_shape
from utils.config.options import OF_FEATURE, SUM, WIDE_AND_DEEP, ModelConfig

if TYPE_CHECKING:
    from model.wide_and_deep import WideAndDeep

DEEP = "deep"
_ALSO = MappingProxyType({"throughput": "train_throughput", "mean_inference_throughput": "validation_throughput"})
_SPEED = "samples/s"
# The log keys of NVIDIA's Wide & Deep: of its current release, whose data are Parquet files, and of its first one.
_CURRENT_LOG = LogForm(
    evaluation=MappingProxyType({"loss_val": "log_loss", "streaming_map_val": "map_at_12", "auc_roc": "auc"}),
    batch=MappingProxyType({"loss": "log_loss"}),
    also=_ALSO,
    every=100,
    units=MappingProxyType({"streaming_map_val": None, "train_throughput": _SPEED, "validation_throughput": _SPEED}),
    plain=True,
)
_PUBLISHED_LOG = LogForm(
    evaluation=MappingProxyType(
        {"binary_accuracy_val": "binary_accuracy", "auc_val": "auc", "loss_val": "log_loss", "streaming_map_val": "map_at_12"}
    ),
    batch=MappingProxyType({"binary_accuracy": "binary_accuracy", "auc": "auc", "loss": "log_loss", "streaming_map": "map_at_12"}),
    also=_ALSO,
    every=100,
    of_parquet=_CURRENT_LOG,
)


class WideAndDeepArchitecture(Architecture):
    """A linear part beside an MLP; see `model.wide_and_deep.WideAndDeep`."""

    name = WIDE_AND_DEEP
    logit_parts = (DEEP, WIDE)
    groups = (LINEAR,)
    linear = True
    reads_numericals = "linear layer"
    log = _PUBLISHED_LOG
    unrecorded = MappingProxyType({"wide_pooling": OF_FEATURE})  # in older checkpoints the linear part averages where the deep part does

    def build(self, config: ModelConfig, embedding: Any, num_numerical: int, layers: Layers) -> "WideAndDeep":
        """See `Architecture.build`."""
        # Imported here because the layers import TensorFlow, which this module must not.
        from model.layers.mlp import Mlp
        from model.wide_and_deep import GLOROT_UNIFORM, WideAndDeep

        seed, policy, native = layers.seed, layers.policy, layers.native
        linear = Mlp((1,), None, seed, WIDE, policy, native, GLOROT_UNIFORM) if num_numerical else None
        return WideAndDeep(embedding, linear, Mlp(config.top_mlp_dims, None, seed, DEEP, policy, native, GLOROT_UNIFORM, layers.norm))

    def layer_shapes(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> list[tuple[int, int]]:
        """Return (in, out) of the deep part's layers and of the linear layer of the numerical features."""
        # `widths` lists the deep features first, then as many wide ones of one column, which no layer reads.
        inputs = num_numerical + sum(widths[: len(widths) // 2])
        return [*itertools.pairwise((inputs, *config.top_mlp_dims)), *([(num_numerical, 1)] if num_numerical else [])]

    def normalised(self, config: ModelConfig, num_numerical: int) -> Sequence[int]:
        """See `Architecture.normalised`."""
        return config.top_mlp_dims[:-1] if config.batch_norm else ()

    def logits(self, operations: Operations[T]) -> T:
        """See `Architecture.logits`."""
        numerical, deep = operations.numerical, operations.vectors[: len(operations.vectors) // 2]
        joined = operations.concatenated([*([] if numerical is None else [numerical]), *deep])
        return operations.summed([operations.mlp(DEEP, joined), *linear_terms(operations)])

    def looked_up(
        self, config: ModelConfig, tables: tuple[Table, ...], features: tuple[Feature, ...]
    ) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
        """Return the deep tables and features, followed by a wide one for each: one column, initialised like Keras's Embedding."""
        deep = tuple(replace(table, initializer=GLOROT_NORMAL) if table.initializer == UNIFORM and table.scale is None else table for table in tables)
        starts = {table.initializer for table in tables} == {ZEROS}
        return with_linear(deep, features, ZEROS if starts else KERAS_UNIFORM, SUM if config.wide_pooling == SUM else None)

    def list_note(self, config: ModelConfig, averaged: Sequence[str]) -> str | None:
        """Return a warning for a checkpoint whose linear part averages the rows of a list; see `Architecture.list_note`."""
        if config.wide_pooling == SUM or not averaged:
            return None
        return (
            f"the linear part averages the rows of {averaged[0]}{' and others' if len(averaged) > 1 else ''}, as it did when the checkpoint was "
            f"trained (--wide_pooling {OF_FEATURE}); a new model sums them, as published"
        )

    def native_shape(self, config: ModelConfig) -> InteractionShape:
        """See `Architecture.native_shape`."""
        return interaction_shape(config)

    def native_layers(self, config: ModelConfig, read: Read, features: Sequence[str], num_numerical: int) -> DenseLayers:
        """See `Architecture.native_layers`."""
        linear = linear_layer(read, WIDE, num_numerical, intercept=False)
        return DenseLayers(top=mlp_layers(read, DEEP, len(config.top_mlp_dims)), linear=linear)

    def reads(self, weight: str, model: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """See `Architecture.reads`."""
        if weight == f"{WIDE}/0/kernel":
            return (0,), (NUMERICALS,)
        return ((0,), (NUMERICALS, VECTORS)) if weight == f"{DEEP}/0/kernel" else None
