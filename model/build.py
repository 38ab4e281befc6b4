"""A DLRM and its trainer from the configuration."""

from collections.abc import Sequence

from model.compilation import compiled, on_gpu
from model.dlrm import DLRM
from model.embedding import DistributedEmbedding
from model.gradient_slices import gradient_slices
from model.interaction import DotInteraction
from model.mlp import Mlp
from model.native import native_operations
from model.placement import Placement
from model.schedule import LearningRateSchedule
from model.sparse_optimizers import SparseAdagrad, SparseAdam, SparseSgd
from model.state import synchronise
from model.trainer import Trainer, dense_optimizer
from utils.config import Config, ModelConfig, OptimizerConfig
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


def build_trainer(config: Config, model: DLRM, dtype: str) -> Trainer:
    """The trainer of a model; allocates the optimizers' slots."""
    options = config.optimizer
    sparse = {"sgd": SparseSgd, "adagrad": SparseAdagrad, "adam": lambda: SparseAdam(options.beta1, options.beta2)}[options.optimizer]()
    return Trainer(
        model,
        dense_optimizer(options.optimizer, options.beta1, options.beta2),
        sparse if config.model.embedding_trainable else None,
        compiled=compiled(config.device.xla),
        loss_scale=config.device.loss_scale if dtype == "float16" else 1.0,
        gradient_slices=gradient_slices(config, "GPU" if on_gpu() else "CPU"),
        native=native_operations(),
    )


def build_schedule(options: OptimizerConfig) -> LearningRateSchedule:
    """The learning-rate schedule."""
    return LearningRateSchedule(options.learning_rate, options.warmup_steps, options.decay_start_step, options.decay_steps, options.decay_power)
