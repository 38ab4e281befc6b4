"""A model's tables and features out of the configuration and the dataset. Imports no TensorFlow."""

from collections.abc import Sequence

from model.embedding.placement import Placement
from model.embedding.plan import build_placement
from model.embedding.table import UNIFORM, ZEROS, Feature, Storage, Table
from training.optimizers.table import table_rule
from utils.config import Config
from utils.options import PLAN, TRAIN


def tables_of(config: Config, names: Sequence[str], rows: Sequence[int], zeros: bool = False) -> tuple[Table, ...]:
    """A table for each feature, with its name.

    Args:
        config: of the run.
        names: of the categorical features, in the model's order.
        rows: V of each table.
        zeros: start them at zero, whatever the configuration says.
    """
    initializer = ZEROS if zeros or config.model.embedding_zeros_initializer else UNIFORM
    options = config.model.embedding_dim, config.optimizer.of_tables, initializer
    return tuple(Table(name, count, *options) for name, count in zip(names, rows, strict=True))


def features_of(names: Sequence[str]) -> tuple[Feature, ...]:
    """The categorical features, each with the dataset's column and the table of its name."""
    return tuple(Feature(name, source=name, table=name) for name in names)


def place_tables(config: Config, tables: Sequence[Table], num_workers: int, memory: float, host_memory: float = 0) -> Placement:
    """Where the tables go; see `plan.build_placement`."""
    return build_placement(config, tables, num_workers, memory, host_memory, storage_of(config))


def storage_of(config: Config) -> Storage:
    """What the tables' optimizer keeps beside them in this run."""
    trained = config.run.mode in (TRAIN, PLAN) and config.model.embedding_trainable
    return table_rule(config.optimizer, config.model.embedding_dim).storage if trained else Storage()
