"""A trainer from the configuration: groups of weights, their rules and schedules."""

from collections.abc import Sequence
from dataclasses import replace

from model.compilation import compiled, on_gpu
from model.dlrm import DLRM
from model.layers.dropout import Dropout
from model.native import native_operations
from training.gradient_slices import gradient_slices
from training.groups import DenseGroup, Groups, TableGroup
from training.loss_scale import LossScale
from training.optimizers.table import dense_rule, table_rule
from training.regularisation import Regularisation
from training.schedule import LearningRateSchedule
from training.step import Trainer
from utils.config import Config
from utils.learning_options import OptimizerConfig


def build_trainer(config: Config, model: DLRM, dtype: str) -> Trainer:
    """The trainer of a model; allocates the optimizers' slots."""
    options, dim = config.optimizer, model.embedding.widths[0]  # a rule knows what it is for another width
    schedules = build_schedules(options)
    tables = TableGroup(table_rule(options, dim), schedules[-1]) if config.model.embedding_trainable else None
    scale = LossScale(config.device.loss_scale if dtype == "float16" else 1.0)
    return Trainer(
        model,
        Groups((DenseGroup(model.dense_weights(), dense_rule(options, dim), schedules[0]),), tables, scale),
        compiled=compiled(config.device.xla),
        gradient_slices=gradient_slices(config, "GPU" if on_gpu() else "CPU"),
        native=native_operations(),
        regularisation=_regularisation(config),
    )


def _regularisation(config: Config) -> Regularisation:
    options = config.regularisation
    return Regularisation(options.embedding_l2, options.mlp_l2, Dropout(options.dropout, config.run.seed) if options.dropout else None)


def build_schedules(options: OptimizerConfig) -> Sequence[LearningRateSchedule]:
    """The learning-rate schedules of the dense weights and of the tables."""
    decay = options.decay_from, options.decay_steps, options.decay_power
    end_factor = options.decay_end_lr / options.learning_rate
    dense = LearningRateSchedule(options.learning_rate, options.warmup_steps, *decay, options.warmup_factor, end_factor)
    return dense, replace(dense, base=options.embedding_learning_rate or options.learning_rate)
