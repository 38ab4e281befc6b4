"""The linear part of a model: a table of one column beside each table, and a layer of the numerical features. Imports no TensorFlow."""

from collections.abc import Sequence
from dataclasses import replace

from model.architectures.architecture import Operations, T, WeightGroup
from model.embedding.table import SUM, WIDE, Feature, Table, wide_name
from utils.config.learning import OptimizerConfig
from utils.errors import UserError


def _optimizer(options: OptimizerConfig) -> str:
    return options.linear_optimizer


def _learning_rate(options: OptimizerConfig) -> float:
    return options.linear_learning_rate


LINEAR = WeightGroup(WIDE, _optimizer, _learning_rate)


def with_linear(
    tables: Sequence[Table], features: Sequence[Feature], initializer: str, pooling: str | None = SUM
) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
    """Return tables and features, each followed by those of the linear part, whose tables have one column.

    Args:
        tables, features: those of the rest of the model.
        initializer: the initializer of the linear part's tables.
        pooling: the pooling of the linear part's features; None for that of the features.

    Raises:
        UserError: a feature has the name of a table of the linear part.
    """
    for name in (*(table.name for table in tables), *(feature.name for feature in features)):
        wide = wide_name(name)
        if any(wide in (other.name, other.table) for other in features):
            raise UserError(f"feature {wide}: has the same name as the linear part's table of {name}; rename the feature")
    flat = (replace(one, name=wide_name(one.name), dim=1, group=WIDE, initializer=initializer, scale=None) for one in tables)
    wide = (replace(one, name=wide_name(one.name), table=wide_name(one.table), pooling=pooling or one.pooling) for one in features)
    return (*tables, *flat), (*features, *wide)


def linear_terms(operations: Operations[T]) -> list[T]:
    """Return the terms of the logit that the linear part gives, `[B, 1]` each; its features are the second half of the vectors."""
    vectors, numerical = operations.vectors, operations.numerical
    return [*vectors[len(vectors) // 2 :], *([] if numerical is None else [operations.mlp(WIDE, numerical)])]
