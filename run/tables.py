"""A model's tables and features out of the configuration and the dataset. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dataloading.features import Categorical
from model.embedding.table import GLOROT_NORMAL, KERAS_UNIFORM, MEAN, UNIFORM, WIDE, ZEROS, Feature, Table, wide_name
from utils.config.config import Config
from utils.config.options import DOT, OF_FEATURE, SUM, WIDE_AND_DEEP, ModelConfig
from utils.errors import UserError


def with_widths(config: Config, categorical: Sequence[Categorical]) -> Config:
    """The configuration with the widths that the tables have, whoever says so: one number, or one for each feature. Raises UserError."""
    found = _widths(config.model, categorical)
    wanted = found[0] if len(set(found)) == 1 else tuple(found)
    if wanted == config.model.embedding_dim:
        return config
    model, layers = config.model, config.model.bottom_mlp_dims
    if model.interaction == DOT and len(set(found)) == 1 and "bottom_mlp_dims" not in config.given:
        layers = (*layers[:-1], found[0])
    try:
        return replace(config, model=replace(model, embedding_dim=wanted, bottom_mlp_dims=layers))
    except ValueError:
        _check_dot(model, categorical, found, 1)
        raise


def grown_widths(config: Config, known: Mapping[str, int], categorical: Sequence[Categorical]) -> Config:
    """The configuration of a model that grows, with the widths of the tables that there were, where no flag says all.

    Args:
        config: of the run.
        known: D of each table of the checkpoint, by its name.
        categorical: features of the dataset.

    Raises:
        UserError: the specification gives a table another width than it has; nothing says that of a new one, where they differ.
    """
    if "embedding_dim" in config.given:
        return config
    different = set(known.values())
    if len(different) < 2:  # new ones have it, too, where nothing else is said
        return replace(config, model=replace(config.model, embedding_dim=different.pop())) if different else config
    widths = []
    for feature in categorical:
        width, stated = known.get(feature.table_name), feature.embedding_dim
        if width and stated not in (None, width):
            raise UserError(f"feature {feature.name}: the checkpoint's table has {width} columns, the feature specification says {stated}")
        if not (width or stated):
            raise UserError(
                f"feature {feature.name}: is new, and the checkpoint's tables have different widths; say its own by embedding_dim in the feature "
                "specification, or all by --embedding_dim"
            )
        widths.append(width or stated)
    return replace(config, model=replace(config.model, embedding_dim=tuple(widths)))


def overruled_widths(model: ModelConfig, categorical: Sequence[Categorical]) -> str | None:
    """What to say of a specification whose widths differ, to a model of dot products, which wants vectors of one width; None of any other."""
    stated = {feature.embedding_dim for feature in categorical} - {None}
    if not stated or model.interaction != DOT or stated == {_widths(model, categorical)[0]}:
        return None
    shown = f"{min(stated)} to {max(stated)}" if len(stated) > 1 else f"{min(stated)} for some"
    return (
        f"--interaction dot takes tables of one width: all have the {model.embedding_dim} columns of --embedding_dim, and embedding_dim of the "
        f"feature specification ({shown}) has no effect; --interaction cross or cat takes any"
    )


def tables_and_features(
    config: Config, categorical: Sequence[Categorical], rows: Sequence[int], num_numerical: int, zeros: bool = False
) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
    """The tables and the features of a model, in the model's order; of Wide & Deep the deep ones and then, of the same sources, the wide ones.

    Args:
        config: of the run.
        categorical: features of the dataset.
        rows: V of the table of each of them.
        num_numerical: M.
        zeros: start the tables at zero, whatever the configuration says.

    Raises:
        UserError: the widths of the tables contradict each other, or the interaction; two tables or features would have one name.
    """
    widths = _widths(config.model, categorical)
    _check_dot(config.model, categorical, widths, num_numerical)
    tables: dict[str, Table] = {}
    for feature, count, width in zip(categorical, rows, widths, strict=True):
        table = _table(config, feature.table_name, count, width, zeros)
        if tables.setdefault(table.name, table) != table:
            raise UserError(
                f"feature {feature.name}: --embedding_dim gives it {width} columns, and its table {table.name} has {tables[table.name].dim}"
            )
    features = tuple(Feature(one.name, one.name, one.table_name, one.hotness, one.pooling) for one in categorical)
    if config.model.interaction != WIDE_AND_DEEP:
        return tuple(tables.values()), features
    return _with_wide(tuple(tables.values()), features, config.model.wide_pooling)


def averaged_wide_rows(config: Config, categorical: Sequence[Categorical]) -> str | None:
    """What to say of a checkpoint whose linear part averages the rows of a list; None where it adds them up."""
    averaged = [feature.name for feature in categorical if feature.pooling == MEAN]
    if config.model.interaction != WIDE_AND_DEEP or config.model.wide_pooling == SUM or not averaged:
        return None
    return (
        f"the linear part averages the rows of {averaged[0]}{' and others' if len(averaged) > 1 else ''}, as it did when the checkpoint was trained "
        f"(--wide_pooling {OF_FEATURE}); a model trained anew adds them up, as published"
    )


def _with_wide(tables: tuple[Table, ...], features: tuple[Feature, ...], pooling: str) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
    """The deep tables and features, and beside each a wide one: a column that starts as Keras's Embedding does, trained by FTRL."""
    for name in (*(table.name for table in tables), *(feature.name for feature in features)):
        wide = wide_name(name)
        if any(wide in (other.name, other.table) for other in features):
            raise UserError(f"feature {wide}: has the name of the linear part's table of {name}; rename it")
    initial = {UNIFORM: GLOROT_NORMAL}  # of the deep ones
    deep = tuple(replace(table, initializer=initial.get(table.initializer, table.initializer)) for table in tables)
    flat = (
        replace(
            one, name=wide_name(one.name), dim=1, optimizer="ftrl", group=WIDE, initializer=KERAS_UNIFORM if one.initializer == UNIFORM else ZEROS
        )
        for one in tables
    )
    wide = (replace(one, name=wide_name(one.name), table=wide_name(one.table), pooling=SUM if pooling == SUM else one.pooling) for one in features)
    return (*deep, *flat), (*features, *wide)


def _widths(model: ModelConfig, categorical: Sequence[Categorical]) -> list[int]:
    """D_f of each feature: what the specification says of its table, else what the configuration does; that alone where dot products want one."""
    given, stated = model.embedding_dim, {}
    for feature in categorical:
        stated[feature.table_name] = feature.embedding_dim or stated.get(feature.table_name)
    if isinstance(given, int):
        found = [stated[feature.table_name] or given for feature in categorical]
        return [given] * len(found) if model.interaction == DOT and len(set(found)) > 1 else found
    if len(given) != len(categorical):
        raise UserError(
            f"--embedding_dim lists {len(given)} widths, the dataset has {len(categorical)} categorical features; give one number, or one each"
        )
    for feature, width in zip(categorical, given, strict=True):
        if stated[feature.table_name] not in (None, width):
            said = stated[feature.table_name]
            raise UserError(f"--embedding_dim: {width} columns for feature {feature.name}, the feature specification says {said} of its table")
    return list(given)


def _check_dot(model: ModelConfig, categorical: Sequence[Categorical], widths: Sequence[int], num_numerical: int) -> None:
    """Dot products want the bottom MLP's output as wide as the tables, and two vectors."""
    if model.interaction != DOT:
        return
    if num_numerical and model.bottom_mlp_dims[-1] != widths[0]:
        shown = ",".join(map(str, model.bottom_mlp_dims))
        raise UserError(
            f"--bottom_mlp_dims {shown}: the last width must be {widths[0]}, as the tables have; the dot interaction takes products of both"
        )
    if not num_numerical and len(categorical) < 2:
        raise UserError("--interaction dot: one categorical feature and no numerical ones make no pair; --interaction cat takes them")


def _table(config: Config, name: str, rows: int, dim: int, zeros: bool) -> Table:
    initializer = ZEROS if zeros or config.model.embedding_zeros_initializer else UNIFORM
    return Table(name, rows, dim, config.optimizer.of_tables, initializer)


def tables_of(config: Config, names: Sequence[str], rows: Sequence[int]) -> tuple[Table, ...]:
    """A table for each feature of one id a sample, with its name and V rows, of the width that the configuration gives all."""
    return tuple(_table(config, name, count, config.model.embedding_dim, False) for name, count in zip(names, rows, strict=True))
