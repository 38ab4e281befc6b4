"""The architecture of a logistic regression. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from model.architectures.architecture import NUMERICALS, Architecture, Layers, Operations, T
from model.embedding.table import SUM, WIDE, ZEROS, Feature, Table
from model.scored_layers import DenseLayers, Read, linear_layer
from model.shapes import InteractionShape, interaction_shape
from utils.config.options import ModelConfig

if TYPE_CHECKING:
    from model.logistic_regression import LogisticRegression


class LogisticRegressionArchitecture(Architecture):
    """A weight of each id and of each numerical feature; see `model.logistic_regression.LogisticRegression`."""

    name = "logistic_regression"
    logit_parts = (WIDE,)
    sums_products = True  # its rows are terms of the logit
    reads_numericals = "linear layer"

    def build(self, config: ModelConfig, embedding: Any, num_numerical: int, layers: Layers) -> "LogisticRegression":
        """See `Architecture.build`."""
        # Imported here because the layers import TensorFlow, which this module must not.
        from model.layers.linear import ZERO_START, Intercept
        from model.layers.mlp import Mlp
        from model.logistic_regression import LogisticRegression

        layer = Mlp((1,), None, layers.seed, WIDE, layers.policy, layers.native, ZERO_START) if num_numerical else Intercept(WIDE, layers.native)
        return LogisticRegression(embedding, layer)

    def layer_shapes(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> list[tuple[int, int]]:
        """Return (in, out) of the layer of the numerical features."""
        return [(num_numerical, 1)] if num_numerical else []

    def dense_elements(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> int:
        """See `Architecture.dense_elements`: a weight of each numerical feature and the intercept."""
        return num_numerical + 1

    def logits(self, operations: Operations[T]) -> T:
        """See `Architecture.logits`."""
        if operations.numerical is None:
            return operations.shifted(operations.summed(operations.vectors), f"{WIDE}/bias")
        return operations.summed([*operations.vectors, operations.mlp(WIDE, operations.numerical)])

    def looked_up(
        self, config: ModelConfig, tables: tuple[Table, ...], features: tuple[Feature, ...]
    ) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
        """Return the dataset's tables with one column each, which start at zero, and its features, whose lists are summed."""
        return tuple(replace(one, dim=1, initializer=ZEROS, scale=None) for one in tables), tuple(replace(one, pooling=SUM) for one in features)

    def native_shape(self, config: ModelConfig) -> InteractionShape:
        """See `Architecture.native_shape`."""
        return interaction_shape(config)

    def native_layers(self, config: ModelConfig, read: Read, features: Sequence[str], num_numerical: int) -> DenseLayers:
        """See `Architecture.native_layers`."""
        return DenseLayers(linear=linear_layer(read, WIDE, num_numerical, intercept=True), linear_alone=True)

    def reads(self, weight: str, model: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """See `Architecture.reads`."""
        return ((0,), (NUMERICALS,)) if weight == f"{WIDE}/0/kernel" else None
