"""A DLRM from the configuration."""

from collections.abc import Sequence

from model.compilation import compiled
from model.dlrm import DLRM
from model.embedding.distributed import DistributedEmbedding
from model.embedding.placement import Placement
from model.layers.interaction import DotInteraction
from model.layers.mlp import Mlp
from model.native import native_operations
from utils.config import ModelConfig
from utils.distributed import World


def build_model(
    config: ModelConfig,
    names: Sequence[str],
    placement: Placement,
    world: World,
    num_numerical: int,
    *,
    dtype: str,
    seed: int,
    zeros: bool = False,
    xla: bool | str = False,
) -> DLRM:
    """A model with all its weights allocated, dense ones equal on every worker.

    Args:
        config: layer widths and D.
        names: of the categorical features, in the model's order.
        placement: of their tables.
        world: this worker and the collectives.
        num_numerical: M.
        dtype: in which dense layers compute; weights are float32.
        seed: of the initial weights.
        zeros: start the tables at zero.
        xla: as in `compiled`; XLA does not see into the C++ operations, so what it compiles is made of TensorFlow's.
    """
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    native = native_operations()
    dense_native = None if compiled(xla).dense else native
    model = DLRM(
        DistributedEmbedding(names, placement, world, seed=seed, zeros=zeros, compute_dtype=dtype, native=native),
        Mlp(config.bottom_mlp_dims, "relu", seed, "bottom_mlp", policy, dense_native),
        DotInteraction(policy, native=dense_native),
        Mlp(config.top_mlp_dims, None, seed, "top_mlp", policy, dense_native),
    )
    model.build_weights(num_numerical)
    synchronise(model)
    return model


def synchronise(model: DLRM) -> None:
    """Give every worker the first one's dense weights."""
    for name, variable in model.dense_variables().items():
        variable.assign(model.embedding.world.broadcast(variable.numpy(), f"broadcast/{name}"))
