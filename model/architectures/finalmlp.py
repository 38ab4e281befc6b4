"""The architecture of FinalMLP. Imports no TensorFlow."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from model.architectures.architecture import NUMERICALS, SCALED, VECTORS, Architecture, Layers, Operations, T
from model.architectures.fm import VECTORS_OF_NUMERICALS, start_of_vectors
from model.scored_layers import DenseLayer, DenseLayers, Read, Stream, mlp_layers
from model.shapes import InteractionShape, interaction_shape
from utils.config.options import FINALMLP, ZEROS, ModelConfig
from utils.errors import UserError

if TYPE_CHECKING:
    from model.finalmlp import FinalMlp

GATES, STREAMS, FUSION, BILINEAR = ("gate1", "gate2"), ("stream1", "stream2"), "fusion", "bilinear"


def _gated_by(config: ModelConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the features that each gate reads."""
    return config.gate1_features, config.gate2_features


def _dims(config: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the widths of each stream's layers."""
    return config.stream1_dims, config.stream2_dims


class FinalMlpArchitecture(Architecture):
    """Two gated MLPs of all vectors and a bilinear fusion of their outputs; see `model.finalmlp.FinalMlp`."""

    name = FINALMLP
    logit_parts = (*GATES, FUSION)
    one_width = True
    reads_numericals = "vectors of numerical features"

    def build(self, config: ModelConfig, embedding: Any, num_numerical: int, layers: Layers) -> "FinalMlp":
        """See `Architecture.build`."""
        # Imported here because the layers import TensorFlow, which this module must not.
        from model.finalmlp import FinalMlp, Fusion, Stream
        from model.layers.bilinear import Bilinear
        from model.layers.fields import ScaledVectors
        from model.layers.mlp import GLOROT_NORMAL, Mlp, zero_bias

        seed, policy, native, dim = layers.seed, layers.policy, layers.native, embedding.widths[0]
        start = GLOROT_NORMAL._replace(bias=zero_bias) if config.bias_initializer == ZEROS else GLOROT_NORMAL
        vectors = ScaledVectors(dim, start_of_vectors(config), seed, VECTORS_OF_NUMERICALS, native) if num_numerical else None
        gate_dims, streams = (*config.gate_dims, (num_numerical + len(embedding.widths)) * dim), []
        for gate, stream, names, dims in zip(GATES, STREAMS, _gated_by(config), _dims(config), strict=True):
            weighs = Mlp(gate_dims, None, seed, gate, policy, native, start) if names else None
            mlp = Mlp(dims, "relu", seed, stream, policy, native, start, layers.norm)
            mlp.all_hidden = True
            streams.append(Stream(mlp, weighs, [embedding.names.index(name) for name in names]))
        fusion = Fusion(Mlp((1,), None, seed, FUSION, policy, native, start), Bilinear(config.num_heads, seed, BILINEAR, policy, native))
        return FinalMlp(embedding, vectors, streams, fusion, native)

    def layer_shapes(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> list[tuple[int, int]]:
        """Return (in, out) of the layers of both streams, each after its gate's, of the fusion's layer and of the heads."""
        dim, found = widths[0], []
        inputs = (num_numerical + len(widths)) * dim
        for names, dims in zip(_gated_by(config), _dims(config), strict=True):
            found += itertools.pairwise((len(names) * dim, *config.gate_dims, inputs)) if names else ()
            found += itertools.pairwise((inputs, *dims))
        left, right = (dims[-1] for dims in _dims(config))
        return [*found, (left + right, 1), *[(left // config.num_heads, right // config.num_heads)] * config.num_heads]

    def dense_elements(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> int:
        """See `Architecture.dense_elements`; with the numerical features' vectors, and the heads have no bias."""
        without = config.stream2_dims[-1]
        return super().dense_elements(config, num_numerical, widths) + num_numerical * widths[0] - without

    def normalised(self, config: ModelConfig, num_numerical: int) -> Sequence[int]:
        """See `Architecture.normalised`."""
        return (*config.stream1_dims, *config.stream2_dims) if config.batch_norm else ()

    def check_features(self, config: ModelConfig, features: Sequence[str]) -> None:
        """Raise UserError where a gate's feature is none of the dataset's categorical features."""
        for gate, names in zip(GATES, _gated_by(config), strict=True):
            for name in names:
                if name not in features:
                    known = ", ".join(features[:8]) + (", …" if len(features) > 8 else "")
                    raise UserError(f"--{gate}_features {','.join(names)}: no categorical feature {name}; expected some of {known}")

    def logits(self, operations: Operations[T]) -> T:
        """See `Architecture.logits`."""
        scaled = [] if operations.numerical is None else operations.scaled(VECTORS_OF_NUMERICALS)
        joined, outputs = operations.concatenated([*scaled, *operations.vectors]), []
        for gate, stream, names in zip(GATES, STREAMS, _gated_by(operations.options), strict=True):
            inputs = joined
            if names:
                context = operations.concatenated([operations.vectors[operations.names.index(name)] for name in names])
                inputs = operations.gated(joined, operations.mlp(gate, context))
            outputs.append(operations.mlp(stream, inputs))
        linear = operations.mlp(FUSION, operations.concatenated(outputs))
        return operations.summed([linear, operations.bilinear(*outputs)])

    def native_shape(self, config: ModelConfig) -> InteractionShape:
        """See `Architecture.native_shape`."""
        return interaction_shape(config)

    def native_layers(self, config: ModelConfig, read: Read, features: Sequence[str], num_numerical: int) -> DenseLayers:
        """See `Architecture.native_layers`."""
        streams = []
        for gate, stream, names, dims in zip(GATES, STREAMS, _gated_by(config), _dims(config), strict=True):
            weighs = mlp_layers(read, gate, len(config.gate_dims) + 1) if names else []
            streams.append(Stream(weighs, [features.index(name) for name in names], mlp_layers(read, stream, len(dims), relu_at_end=True)))
        scaled = read(f"{VECTORS_OF_NUMERICALS}/kernel") if num_numerical else None
        heads = [DenseLayer(read(f"{BILINEAR}/{head}/kernel"), None) for head in range(config.num_heads)]
        return DenseLayers(scaled=scaled, streams=streams, fusion=mlp_layers(read, FUSION, 1)[0], heads=heads)

    def reads(self, weight: str, model: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """See `Architecture.reads`; a new feature's columns have a gate of 1."""
        part, _, layer = weight.partition("/")
        if weight == f"{VECTORS_OF_NUMERICALS}/kernel":
            return (0,), (NUMERICALS,)
        if part in STREAMS and layer == "0/kernel":
            return (0,), (SCALED, VECTORS)
        last = len(model.get("gate_dims", ()))
        axis = {f"{last}/kernel": 1, f"{last}/bias": 0}.get(layer) if part in GATES else None
        return None if axis is None else ((axis,), (SCALED, VECTORS))
