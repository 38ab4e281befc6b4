"""Building of a model from the configuration."""

from typing import NamedTuple

from model.architectures import architecture_of
from model.architectures.architecture import Layers
from model.compilation import compiled
from model.embedding.distributed import DistributedEmbedding
from model.embedding.lazy_rows import LazyMemory
from model.embedding.placement import Placement
from model.layers.mlp import Norm
from model.native import native_operations
from model.sharded_model import ShardedModel
from utils.config.options import ModelConfig
from utils.distributed import World


class Precision(NamedTuple):
    """The compute dtype of the dense layers (weights are float32), and the value of `--xla`, see `compilation.compiled`.

    XLA cannot compile the C++ operations, so the parts that it compiles use TensorFlow's operations.
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
    memory: LazyMemory | None = None,
) -> ShardedModel:
    """Return a model with all its weights allocated; the dense weights are equal on every worker.

    Args:
        config: the layer widths.
        placement: the placement of the tables, with the features that are looked up in them.
        world: this worker and the collectives.
        num_numerical: M; without numerical features there is no bottom MLP.
        seed: the seed of the initial weights.
        precision: the compute dtype, and the parts that XLA compiles.
        memory: the memory for the rows of lazy tables; None where there are none.
    """
    embedding = DistributedEmbedding(placement, world, seed=seed, compute_dtype=precision.dtype, native=native_operations(), memory=memory)
    model = with_tables(config, embedding, num_numerical, seed, precision)
    synchronise(model)
    return model


def with_tables(config: ModelConfig, embedding, num_numerical: int, seed: int, precision: Precision = FLOAT32) -> ShardedModel:
    """Return a model around an embedding, and build the embedding and all other weights; arguments as in `build_model`."""
    policy = precision.dtype if precision.dtype == "float32" else f"mixed_{precision.dtype}"
    native = None if compiled(precision.xla).dense else native_operations()
    norm = Norm(config.batch_norm_momentum, config.batch_norm_epsilon) if config.batch_norm else None
    model = architecture_of(config).build(config, embedding, num_numerical, Layers(seed, policy, native, norm))
    model.build_weights(num_numerical)
    model.logit_shift = config.logit_shift
    return model


def synchronise(model: ShardedModel) -> None:
    """Broadcast the first worker's dense weights to all workers."""
    for name, weight in model.dense_weights().items():
        weight.value.assign(model.embedding.world.broadcast(weight.value.numpy(), f"broadcast/{name}"))
