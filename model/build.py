"""A model from the configuration."""

from typing import NamedTuple

from model.compilation import compiled
from model.dlrm import DLRM, Interaction
from model.embedding.distributed import DistributedEmbedding
from model.embedding.placement import Placement
from model.layers.cross import Concatenation, CrossNetwork
from model.layers.interaction import DotInteraction
from model.layers.mlp import Mlp
from model.native import NativeOperations, native_operations
from model.shapes import CROSS, DOT
from model.wide_and_deep import GLOROT_UNIFORM, WideAndDeep
from utils.config.options import WIDE_AND_DEEP, ModelConfig
from utils.distributed import World

Model = DLRM | WideAndDeep


class Precision(NamedTuple):
    """In which dtype dense layers compute, weights being float32, and what XLA compiles: as in `compiled`.

    XLA does not see into the C++ operations, so what it compiles is made of TensorFlow's.
    """

    dtype: str = "float32"
    xla: bool | str = False


FLOAT32 = Precision()


def build_model(
    config: ModelConfig,
    placement: Placement,
    world: World,
    num_numerical: int,
    seed: int,
    precision: Precision = FLOAT32,
) -> Model:
    """A model with all its weights allocated, dense ones equal on every worker.

    Args:
        config: layer widths.
        placement: of the tables and the features that are looked up in them.
        world: this worker and the collectives.
        num_numerical: M; without numerical features there is no bottom MLP.
        seed: of the initial weights.
        precision: and what XLA compiles.
    """
    embedding = DistributedEmbedding(placement, world, seed=seed, compute_dtype=precision.dtype, native=native_operations())
    model = with_tables(config, embedding, num_numerical, seed, precision)
    synchronise(model)
    return model


def with_tables(config: ModelConfig, embedding, num_numerical: int, seed: int, precision: Precision = FLOAT32) -> Model:
    """A model around an embedding, which is built here with all other weights; arguments as in `build_model`."""
    policy = precision.dtype if precision.dtype == "float32" else f"mixed_{precision.dtype}"
    native = None if compiled(precision.xla).dense else native_operations()
    if config.interaction == WIDE_AND_DEEP:
        linear = Mlp((1,), None, seed, "wide", policy, native, GLOROT_UNIFORM) if num_numerical else None
        model = WideAndDeep(embedding, linear, Mlp(config.top_mlp_dims, None, seed, "deep", policy, native, GLOROT_UNIFORM))
    else:
        bottom = Mlp(config.bottom_mlp_dims, "relu", seed, "bottom_mlp", policy, native) if num_numerical else None
        top = Mlp(config.top_mlp_dims, None, seed, "top_mlp", policy, native)
        model = DLRM(embedding, bottom, _interaction(config, seed, policy, native), top)
    model.build_weights(num_numerical)
    return model


def _interaction(config: ModelConfig, seed: int, policy: str, native: NativeOperations | None) -> Interaction:
    if config.interaction == CROSS:
        return CrossNetwork(config.num_cross_layers, config.cross_layer_projection_dim, seed, policy, native)
    return DotInteraction(policy, native=native) if config.interaction == DOT else Concatenation(policy)


def synchronise(model: Model) -> None:
    """Give every worker the first one's dense weights."""
    for name, weight in model.dense_weights().items():
        weight.value.assign(model.embedding.world.broadcast(weight.value.numpy(), f"broadcast/{name}"))
