"""The architecture of DLRM with any of its interactions; with cross layers it is DCN V2. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from model.architectures.architecture import BOTTOM, NUMERICALS, PAIRS, REST, VECTORS, Architecture, Layers, Operations, T
from model.architectures.linear import LINEAR, linear_terms, with_linear
from model.embedding.table import WIDE, ZEROS, Feature, Table
from model.scored_layers import DenseLayers, Read, cross_layers, linear_layer, mlp_layers
from model.shapes import InteractionShape, dense_elements, interaction_shape, layer_shapes
from utils.config.options import CROSS, DOT, PARALLEL, ModelConfig
from utils.errors import UserError

if TYPE_CHECKING:
    from model.dlrm import DLRM

BOTTOM_MLP, TOP_MLP = "bottom_mlp", "top_mlp"


class DlrmArchitecture(Architecture):
    """A bottom MLP of the numerical features, an interaction of its output and the embeddings, and a top MLP; see `model.dlrm.DLRM`.

    Args:
        interaction: `dot`, `cross` or `cat`.
        linear: the logit has a linear part, too.
    """

    def __init__(self, interaction: str, linear: bool = False):
        self.linear, self.groups, self.logit_parts = linear, (LINEAR,) if linear else (), (TOP_MLP, *([WIDE] if linear else []))
        self.name = "dcnv2" if interaction == CROSS else "dlrm"
        self.interaction, self.one_width = interaction, interaction == DOT

    def build(self, config: ModelConfig, embedding: Any, num_numerical: int, layers: Layers) -> "DLRM":
        """See `Architecture.build`."""
        # Imported here because the layers import TensorFlow, which this module must not.
        from model.dlrm import DLRM
        from model.layers.cross import Concatenation, CrossNetwork
        from model.layers.interaction import DotInteraction
        from model.layers.linear import ZERO_START, LinearPart
        from model.layers.mlp import GLOROT_NORMAL, Mlp, zero_bias

        seed, policy, native, norm = layers.seed, layers.policy, layers.native, layers.norm
        start = GLOROT_NORMAL._replace(bias=zero_bias) if config.bias_initializer == ZEROS else GLOROT_NORMAL
        bottom = Mlp(config.bottom_mlp_dims, "relu", seed, BOTTOM_MLP, policy, native, start, norm) if num_numerical else None
        top = Mlp(config.top_mlp_dims, None, seed, TOP_MLP, policy, native, start, norm)
        if self.interaction == CROSS:
            joins = CrossNetwork(config.num_cross_layers, config.cross_layer_projection_dim, seed, policy, native)
        else:
            joins = DotInteraction(policy, native=native) if self.interaction == DOT else Concatenation(policy)
        linear = Mlp((1,), None, seed, WIDE, policy, native, ZERO_START) if self.linear and num_numerical else None
        return DLRM(embedding, bottom, joins, top, interaction_shape(config).parallel, LinearPart(linear) if self.linear else None)

    def layer_shapes(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> list[tuple[int, int]]:
        """See `Architecture.layer_shapes`; the linear layer of the numerical features is last."""
        widths, linear = self._widths(widths), [(num_numerical, 1)] if self.linear and num_numerical else []
        return [*layer_shapes(num_numerical, config.bottom_mlp_dims, config.top_mlp_dims, widths, interaction_shape(config)), *linear]

    def _widths(self, widths: Sequence[int]) -> Sequence[int]:
        """Return the widths of the features that the interaction takes: without those of the linear part, the second half."""
        return widths[: len(widths) // 2] if self.linear else widths

    def dense_elements(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> int:
        """See `Architecture.dense_elements`; the first product of a cross layer has no bias."""
        dims = config.bottom_mlp_dims, config.top_mlp_dims
        plain = dense_elements(num_numerical, *dims, self._widths(widths), interaction_shape(config))
        plain += num_numerical + 1 if self.linear and num_numerical else 0
        return plain + sum(self.normalised(config, num_numerical))

    def normalised(self, config: ModelConfig, num_numerical: int) -> Sequence[int]:
        """See `Architecture.normalised`."""
        bottom = config.bottom_mlp_dims if num_numerical else ()
        return (*bottom, *config.top_mlp_dims[:-1]) if config.batch_norm else ()

    def logits(self, operations: Operations[T]) -> T:
        """See `Architecture.logits`."""
        if self.linear:
            return operations.summed([self._interacted(operations, operations.vectors[: len(operations.vectors) // 2]), *linear_terms(operations)])
        return self._interacted(operations, operations.vectors)

    def _interacted(self, operations: Operations[T], vectors: Sequence[T]) -> T:
        bottom = [] if operations.numerical is None else [operations.mlp(BOTTOM_MLP, operations.numerical)]
        parts = [*bottom, *vectors]
        if self.interaction == DOT:
            products = operations.products(parts)
            joined = operations.concatenated([*bottom, products]) if bottom else products
        else:
            joined = operations.concatenated(parts)
            if interaction_shape(operations.options).parallel:
                return operations.mlp(TOP_MLP, joined, operations.cross(joined))
            joined = operations.cross(joined)
        return operations.mlp(TOP_MLP, joined)

    def check(self, config: ModelConfig, num_categorical: int, widths: Sequence[int], num_numerical: int) -> None:
        """Raise UserError where the dot interaction has unequal widths, or fewer than two vectors."""
        if self.interaction != DOT:
            return
        if num_numerical and config.bottom_mlp_dims[-1] != widths[0]:
            shown = ",".join(map(str, config.bottom_mlp_dims))
            raise UserError(
                f"--bottom_mlp_dims {shown}: the last width must be {widths[0]}, the width of the tables, because the dot interaction multiplies both"
            )
        if not num_numerical and num_categorical < 2:
            raise UserError("--interaction dot: one categorical feature and no numerical ones, expected at least two vectors; use --interaction cat")

    def looked_up(
        self, config: ModelConfig, tables: tuple[Table, ...], features: tuple[Feature, ...]
    ) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
        """See `Architecture.looked_up`; the tables of the linear part start at zero."""
        return with_linear(tables, features, ZEROS) if self.linear else (tables, features)

    def native_shape(self, config: ModelConfig) -> InteractionShape:
        """See `Architecture.native_shape`."""
        return interaction_shape(config)

    def native_layers(self, config: ModelConfig, read: Read, features: Sequence[str], num_numerical: int) -> DenseLayers:
        """See `Architecture.native_layers`."""
        bottom = mlp_layers(read, BOTTOM_MLP, len(config.bottom_mlp_dims), relu_at_end=True) if num_numerical else []
        crosses = cross_layers(read, config.num_cross_layers, not config.cross_layer_projection_dim) if self.interaction == CROSS else []
        linear = linear_layer(read, WIDE, num_numerical, intercept=False) if self.linear else None
        return DenseLayers(bottom, crosses, mlp_layers(read, TOP_MLP, len(config.top_mlp_dims)), linear)

    def reads(self, weight: str, model: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """See `Architecture.reads`."""
        if weight in (f"{BOTTOM_MLP}/0/kernel", f"{WIDE}/0/kernel"):
            return (0,), (NUMERICALS,)
        if weight == f"{TOP_MLP}/0/kernel":
            return (0,), (BOTTOM, PAIRS if self.interaction == DOT else VECTORS)
        if model.get("structure") == PARALLEL and weight == f"{TOP_MLP}/{len(model['top_mlp_dims']) - 1}/kernel":
            return (0,), (BOTTOM, VECTORS, REST)
        if weight.startswith("cross/"):  # V `[d, r]`, U `[r, d]`, W `[d, d]` and bias `[d]`
            return {"u/kernel": (1,), "w/kernel": (0, 1)}.get(weight.split("/", 2)[2], (0,)), (BOTTOM, VECTORS)
        return None
