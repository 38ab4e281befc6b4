"""A DLRM and its trainer from the configuration."""

from collections.abc import Sequence

from model.dlrm import DLRM
from model.embedding import Embedding, Table
from model.interaction import DotInteraction
from model.mlp import Mlp
from model.schedule import LearningRateSchedule
from model.sparse_optimizers import SparseAdagrad, SparseAdam, SparseSgd
from model.trainer import Trainer, dense_optimizer
from utils.config import Config, ModelConfig, OptimizerConfig


def build_model(config: ModelConfig, tables: Sequence[Table], num_numerical: int, *, dtype: str, seed: int, zeros: bool = False) -> DLRM:
    """A model with all its weights allocated.

    Args:
        config: layer widths and D.
        tables: one a categorical feature, in the model's order.
        num_numerical: M.
        dtype: in which dense layers compute; weights are float32.
        seed: of the initial weights.
        zeros: start the tables at zero.
    """
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    model = DLRM(
        Embedding(tables, config.embedding_dim, seed=seed, zeros=zeros, compute_dtype=dtype),
        Mlp(config.bottom_mlp_dims, "relu", seed, "bottom_mlp", policy),
        DotInteraction(policy),
        Mlp(config.top_mlp_dims, None, seed, "top_mlp", policy),
    )
    model.build_weights(num_numerical)
    return model


def build_trainer(config: Config, model: DLRM, dtype: str) -> Trainer:
    """The trainer of a model; allocates the optimizers' slots."""
    options = config.optimizer
    sparse = {"sgd": SparseSgd, "adagrad": SparseAdagrad, "adam": lambda: SparseAdam(options.beta1, options.beta2)}[options.optimizer]()
    return Trainer(
        model,
        dense_optimizer(options.optimizer, options.beta1, options.beta2),
        sparse if config.model.embedding_trainable else None,
        xla=config.device.xla,
        loss_scale=config.device.loss_scale if dtype == "float16" else 1.0,
    )


def build_schedule(options: OptimizerConfig) -> LearningRateSchedule:
    """The learning-rate schedule."""
    return LearningRateSchedule(options.learning_rate, options.warmup_steps, options.decay_start_step, options.decay_steps, options.decay_power)


def slots_per_table(optimizer: str) -> int:
    """Arrays of a table's size that the optimizer keeps beside it."""
    return {"sgd": 0, "adagrad": 1, "adam": 2}[optimizer]
