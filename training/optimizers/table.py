"""The table of optimizers, by the names that `--optimizer` and `--embedding_optimizer` accept. Imports no TensorFlow."""

from collections.abc import Callable, Mapping

from training.optimizers.adagrad import Adagrad, RowwiseAdagrad
from training.optimizers.adam import Adam
from training.optimizers.ftrl import Ftrl
from training.optimizers.rmsprop import Rmsprop
from training.optimizers.rule import Rule
from training.optimizers.sgd import Momentum, Sgd
from utils.config.learning import OptimizerConfig

# Functions of the options and of D, the width of the tables.
RULES: Mapping[str, Callable[[OptimizerConfig, int], Rule]] = {
    "sgd": lambda options, dim: Momentum(options.momentum) if options.momentum else Sgd(),
    "adagrad": lambda options, dim: Adagrad(options.epsilon),
    "rowwise_adagrad": lambda options, dim: RowwiseAdagrad(dim, options.epsilon),
    "adam": lambda options, dim: Adam(options.beta1, options.beta2, options.epsilon),
    "ftrl": lambda options, dim: Ftrl(options.ftrl_l1, options.ftrl_l2, options.ftrl_power),
    "rmsprop": lambda options, dim: Rmsprop(options.rho, options.epsilon_outside_root, options.epsilon),
}


def dense_rule(options: OptimizerConfig, dim: int) -> Rule:
    """Return the rule of the dense weights."""
    return RULES[options.optimizer](options, dim)


def table_rule(options: OptimizerConfig, dim: int) -> Rule:
    """Return the rule of the embedding tables, of width D."""
    return RULES[options.embedding_optimizer or options.optimizer](options, dim)
