"""Building of a trainer from the configuration: the groups of weights, their rules and schedules."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from model.architectures import architecture_of
from model.compilation import compiled_by, on_gpu
from model.layers.dropout import Dropout
from model.native import native_operations
from model.sharded_model import ShardedModel
from training.gradient_slices import gradient_slices
from training.groups import DenseGroup, Groups, TableGroup
from training.loss_scale import LossScale
from training.optimizers.table import RULES, dense_rule, table_rule
from training.regularisation import Regularisation
from training.schedule import ConstantSchedule, LearningRateSchedule, Plateau, Schedule, WideAndDeepSchedule
from training.step import Trainer
from utils.config.config import Config
from utils.config.learning import ScheduleConfig


def build_trainer(config: Config, model: ShardedModel, dtype: str, steps_per_epoch: int = 1) -> Trainer:
    """Return the trainer of a model, and allocate the optimizers' slots. `steps_per_epoch` is for schedules measured in epochs."""
    scale = LossScale(config.device.loss_scale if dtype == "float16" else 1.0)
    dense, tables = _groups(config, model, steps_per_epoch)
    return Trainer(
        model,
        Groups(dense, tables if config.model.embedding_trainable else (), scale, plateau_of(config.schedule), config.regularisation.clip_norm),
        compiled=compiled_by(config, model.embedding.world.size),
        gradient_slices=gradient_slices(config, "GPU" if on_gpu() else "CPU"),
        native=native_operations(),
        regularisation=_regularisation(config, model.embedding.widths),
        norms=config.run.log_norms,
    )


def _groups(config: Config, model: ShardedModel, steps_per_epoch: int) -> tuple[tuple[DenseGroup, ...], tuple[TableGroup, ...]]:
    """Return the groups of the model's dense weights and of its tables, with their rules and schedules."""
    options, weights, dim = config.optimizer, model.dense_weights(), model.embedding.widths[0]  # for other widths, see `Rule.of_width`
    of_dense, of_tables = build_schedules(config.schedule, steps_per_epoch, config.training.epochs)
    groups = architecture_of(config.model).groups
    own = {name: group.name for name in weights for group in groups if name.startswith(f"{group.name}/")}
    native = None if compiled_by(config, model.embedding.world.size).optimizer else native_operations()
    dense = [DenseGroup({name: weight for name, weight in weights.items() if name not in own}, dense_rule(options, dim), of_dense, native=native)]
    tables = [TableGroup(table_rule(options, dim), of_tables)]
    for group in reversed(groups):
        rule, schedule = RULES[group.optimizer(options)](options, 1), ConstantSchedule(group.learning_rate(options))
        tables.insert(0, TableGroup(rule, schedule, group.name))
        if members := {name: weight for name, weight in weights.items() if own.get(name) == group.name}:
            dense.insert(1, DenseGroup(members, rule, schedule, group.name, native))
    return tuple(dense), tuple(tables)


def _regularisation(config: Config, widths: Sequence[int]) -> Regularisation:
    options, of_vectors = config.regularisation, config.regularisation.embedding_l2
    if architecture_of(config.model).linear and options.linear_l2 not in (None, of_vectors):
        count = len(widths) // 2  # of the features, each of which has a vector and then a weight in the linear part
        columns = [of_vectors] * sum(widths[:count]) + [options.linear_l2] * count
        of_vectors = np.array(columns, np.float32)
    return Regularisation(of_vectors, options.mlp_l2, Dropout(options.dropout, config.run.seed) if options.dropout else None)


def build_schedules(options: ScheduleConfig, steps_per_epoch: int = 1, epochs: int = 1) -> tuple[Schedule, Schedule]:
    """Return the learning-rate schedules of the dense weights and of the tables; for Wide & Deep, those of its deep part."""
    if options.reduces_on_plateau:
        dense = LearningRateSchedule(options.learning_rate, options.warmup_steps, 0, 0, warmup_factor=options.warmup_factor)
    elif (warmup := options.deep_warmup_epochs) is not None:
        steps = warmup * steps_per_epoch, (warmup + (epochs - warmup) / 2) * steps_per_epoch
        dense = WideAndDeepSchedule(options.learning_rate, *steps)
    else:
        decay = options.decay_from, options.decay_steps, options.decay_power
        end_factor = options.decay_end_lr / options.learning_rate
        dense = LearningRateSchedule(options.learning_rate, options.warmup_steps, *decay, options.warmup_factor, end_factor)
    return dense, replace(dense, base=options.embedding_learning_rate or options.learning_rate)


def plateau_of(options: ScheduleConfig) -> Plateau | None:
    """Return the reductions of the learning rates by evaluations; None where there are none."""
    return Plateau(options.plateau_factor, options.plateau_min_lr) if options.reduces_on_plateau else None
