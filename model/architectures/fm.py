"""The architecture of factorisation machines, with or without an MLP. Imports no TensorFlow."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from model.architectures.architecture import NUMERICALS, SCALED, VECTORS, Architecture, Layers, Operations, T
from model.architectures.linear import LINEAR, linear_terms, with_linear
from model.embedding.table import WIDE, ZEROS, Feature, Table
from model.scored_layers import DenseLayers, Read, linear_layer, mlp_layers
from model.shapes import InteractionShape, interaction_shape
from utils.config.options import FM, NORMAL, ModelConfig
from utils.config.options import ZEROS as ZERO_BIAS

if TYPE_CHECKING:
    from model.fm import FactorisationMachine

TOP_MLP, VECTORS_OF_NUMERICALS = "top_mlp", "numerical_vectors"
_START = 0.01  # standard deviation of the numerical features' vectors, where the tables' is not given


def start_of_vectors(config: ModelConfig) -> float:
    """Return the standard deviation of the initial vectors of numerical features."""
    scale = config.embedding_initializer_scale if config.embedding_initializer == NORMAL else None
    return scale or _START


class FmArchitecture(Architecture):
    """A linear part, the dot products of all pairs of features, and an MLP of their vectors or none; see `model.fm.FactorisationMachine`."""

    name = FM
    logit_parts = (TOP_MLP, WIDE)
    groups = (LINEAR,)
    linear, sums_products, one_width = True, True, True
    reads_numericals = "linear layer"

    def build(self, config: ModelConfig, embedding: Any, num_numerical: int, layers: Layers) -> "FactorisationMachine":
        """See `Architecture.build`."""
        # Imported here because the layers import TensorFlow, which this module must not.
        from model.fm import FactorisationMachine
        from model.layers.fields import ScaledVectors
        from model.layers.linear import ZERO_START, Intercept, LinearPart
        from model.layers.mlp import GLOROT_NORMAL, Mlp, zero_bias

        seed, policy, native, norm = layers.seed, layers.policy, layers.native, layers.norm
        start = GLOROT_NORMAL._replace(bias=zero_bias) if config.bias_initializer == ZERO_BIAS else GLOROT_NORMAL
        layer = Mlp((1,), None, seed, WIDE, policy, native, ZERO_START) if num_numerical else Intercept(WIDE, native)
        dim = embedding.widths[0]
        vectors = ScaledVectors(dim, start_of_vectors(config), seed, VECTORS_OF_NUMERICALS, native) if num_numerical else None
        mlp = Mlp(config.top_mlp_dims, None, seed, TOP_MLP, policy, native, start, norm) if self._is_deep(config) else None
        return FactorisationMachine(embedding, LinearPart(layer), vectors, mlp, native)

    @staticmethod
    def _is_deep(config: ModelConfig) -> bool:
        return len(config.top_mlp_dims) > 1

    def layer_shapes(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> list[tuple[int, int]]:
        """Return (in, out) of the MLP's layers and of the linear layer of the numerical features."""
        inputs = (num_numerical + len(widths) // 2) * widths[0]
        deep = [*itertools.pairwise((inputs, *config.top_mlp_dims))] if self._is_deep(config) else []
        return [*deep, *([(num_numerical, 1)] if num_numerical else [])]

    def dense_elements(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> int:
        """See `Architecture.dense_elements`; with the numerical features' vectors, and without any the intercept."""
        intercept = 0 if num_numerical else 1
        return super().dense_elements(config, num_numerical, widths) + num_numerical * widths[0] + intercept

    def normalised(self, config: ModelConfig, num_numerical: int) -> Sequence[int]:
        """See `Architecture.normalised`."""
        return config.top_mlp_dims[:-1] if config.batch_norm else ()

    def logits(self, operations: Operations[T]) -> T:
        """See `Architecture.logits`."""
        scaled = [] if operations.numerical is None else operations.scaled(VECTORS_OF_NUMERICALS)
        vectors = [*scaled, *operations.vectors[: len(operations.vectors) // 2]]
        deep = [operations.mlp(TOP_MLP, operations.concatenated(vectors))] if operations.has(TOP_MLP) else []
        logits = operations.summed([operations.pair_sum(vectors), *deep, *linear_terms(operations)])
        return operations.shifted(logits, f"{WIDE}/bias") if operations.numerical is None else logits

    def looked_up(
        self, config: ModelConfig, tables: tuple[Table, ...], features: tuple[Feature, ...]
    ) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
        """See `Architecture.looked_up`; the tables of the linear part start at zero."""
        return with_linear(tables, features, ZEROS)

    def native_shape(self, config: ModelConfig) -> InteractionShape:
        """See `Architecture.native_shape`."""
        return interaction_shape(config)

    def native_layers(self, config: ModelConfig, read: Read, features: Sequence[str], num_numerical: int) -> DenseLayers:
        """See `Architecture.native_layers`."""
        top = mlp_layers(read, TOP_MLP, len(config.top_mlp_dims)) if self._is_deep(config) else []
        scaled = read(f"{VECTORS_OF_NUMERICALS}/kernel") if num_numerical else None
        return DenseLayers(top=top, linear=linear_layer(read, WIDE, num_numerical, intercept=True), scaled=scaled)

    def reads(self, weight: str, model: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """See `Architecture.reads`."""
        if weight in (f"{WIDE}/0/kernel", f"{VECTORS_OF_NUMERICALS}/kernel"):
            return (0,), (NUMERICALS,)
        return ((0,), (SCALED, VECTORS)) if weight == f"{TOP_MLP}/0/kernel" else None
