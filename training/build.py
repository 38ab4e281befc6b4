"""A trainer and its schedule from the configuration."""

from model.compilation import compiled, on_gpu
from model.dlrm import DLRM
from model.native import native_operations
from training.gradient_slices import gradient_slices
from training.optimizers.sparse import SparseAdagrad, SparseAdam, SparseSgd
from training.schedule import LearningRateSchedule
from training.step import Trainer, dense_optimizer
from utils.config import Config, OptimizerConfig


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
