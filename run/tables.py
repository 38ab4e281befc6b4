"""The tables and features of a model, from the configuration and the dataset. Imports no TensorFlow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dataloading.features import Categorical
from model.architectures import architecture_of
from model.embedding.table import MEAN, NORMAL, UNIFORM, WIDE, ZEROS, Feature, Table
from utils.config.config import Config
from utils.config.options import TRAIN, ModelConfig
from utils.errors import UserError

_NORMAL_SCALE = 1e-4  # standard deviation of --embedding_initializer normal


def with_widths(config: Config, categorical: Sequence[Categorical]) -> Config:
    """Return the configuration with the actual widths of the tables: one number, or one for each feature. Raises UserError."""
    found = _widths(config.model, categorical)
    wanted = found[0] if len(set(found)) == 1 else tuple(found)
    if wanted == config.model.embedding_dim:
        return config
    model, layers = config.model, config.model.bottom_mlp_dims
    if architecture_of(model).one_width and len(set(found)) == 1 and "bottom_mlp_dims" not in config.given:
        layers = (*layers[:-1], found[0])
    try:
        return replace(config, model=replace(model, embedding_dim=wanted, bottom_mlp_dims=layers))
    except ValueError:
        architecture_of(model).check(model, len(categorical), found, 1)
        raise


def grown_widths(config: Config, known: Mapping[str, int], categorical: Sequence[Categorical]) -> Config:
    """Return the configuration of a growing model, with the widths of the checkpoint's tables unless `--embedding_dim` is given.

    Args:
        config: configuration of the run.
        known: D of each table of the checkpoint, by its name.
        categorical: categorical features of the dataset.

    Raises:
        UserError: the specification contradicts the width of a table, or states no width for a new table where the existing widths differ.
    """
    if "embedding_dim" in config.given:
        return config
    different = set(known.values())
    if len(different) < 2:  # new tables get the common width, unless the specification states another
        return replace(config, model=replace(config.model, embedding_dim=different.pop())) if different else config
    widths = []
    for feature in categorical:
        width, stated = known.get(feature.table_name), feature.embedding_dim
        if width and stated not in (None, width):
            raise UserError(f"feature {feature.name}: the checkpoint's table has {width} columns, the feature specification says {stated}")
        if not (width or stated):
            raise UserError(
                f"feature {feature.name}: is new, and the checkpoint's tables have different widths; set its width by embedding_dim in the feature "
                "specification, or all widths by --embedding_dim"
            )
        widths.append(width or stated)
    return replace(config, model=replace(config.model, embedding_dim=tuple(widths)))


def overruled_widths(model: ModelConfig, categorical: Sequence[Categorical]) -> str | None:
    """Return a warning where a specification states widths that a model of dot products, which needs one width, cannot use; else None."""
    stated = {feature.embedding_dim for feature in categorical} - {None}
    if not stated or not architecture_of(model).one_width or stated == {_widths(model, categorical)[0]}:
        return None
    shown = f"{min(stated)} to {max(stated)}" if len(stated) > 1 else f"{min(stated)} for some"
    return (
        f"--interaction {model.interaction} takes tables of one width: all have the {model.embedding_dim} columns of --embedding_dim, and "
        f"embedding_dim of the feature specification ({shown}) has no effect; --interaction cross and cat take any width"
    )


def tables_and_features(
    config: Config, categorical: Sequence[Categorical], rows: Sequence[int], num_numerical: int, zeros: bool = False
) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
    """Return a model's tables and features, in the model's order; for Wide & Deep the deep ones, then the wide ones of the same sources.

    Args:
        config: configuration of the run.
        categorical: categorical features of the dataset.
        rows: V of each feature's table.
        num_numerical: M.
        zeros: initialise the tables with zeros, whatever the configuration says.

    Raises:
        UserError: the widths contradict each other or the interaction, two tables or features would have the same name, or `--table_l2` is given and
            a table is not updated whole.
    """
    widths = _widths(config.model, categorical)
    architecture = architecture_of(config.model)
    architecture.check(config.model, len(categorical), widths, num_numerical)
    architecture.check_features(config.model, [feature.name for feature in categorical])
    if config.model.batch_norm and not architecture.normalised(config.model, num_numerical):
        raise UserError("--batch_norm: this model has no layer with a ReLU, which it would normalise; drop the flag or give --top_mlp_dims 64,1")
    tables: dict[str, Table] = {}
    for feature, count, width in zip(categorical, rows, widths, strict=True):
        table = _table(config, feature.table_name, count, width, zeros)
        if tables.setdefault(table.name, table) != table:
            raise UserError(
                f"feature {feature.name}: --embedding_dim gives it {width} columns, but its table {table.name} has {tables[table.name].dim}"
            )
    features = tuple(Feature(one.name, one.name, one.table_name, one.hotness, one.pooling, one.weights) for one in categorical)
    looked_up, of_ids = architecture.looked_up(config.model, tuple(tables.values()), features)
    return tuple(replace(one, optimizer=config.optimizer.linear_optimizer) if one.group == WIDE else one for one in looked_up), of_ids


def list_note(config: Config, categorical: Sequence[Categorical]) -> str | None:
    """Return a warning about the way a checkpoint's model treats lists of ids; None where there is nothing to warn of."""
    return architecture_of(config.model).list_note(config.model, [feature.name for feature in categorical if feature.pooling == MEAN])


def _widths(model: ModelConfig, categorical: Sequence[Categorical]) -> list[int]:
    """Return D_f of each feature: the specification's width, else the configuration's; the configuration's alone where all must be equal."""
    given, stated = model.embedding_dim, {}
    for feature in categorical:
        stated[feature.table_name] = feature.embedding_dim or stated.get(feature.table_name)
    if isinstance(given, int):
        found = [stated[feature.table_name] or given for feature in categorical]
        return [given] * len(found) if architecture_of(model).one_width and len(set(found)) > 1 else found
    if len(given) != len(categorical):
        raise UserError(
            f"--embedding_dim lists {len(given)} widths, the dataset has {len(categorical)} categorical features; give one number, or one for each"
        )
    for feature, width in zip(categorical, given, strict=True):
        if stated[feature.table_name] not in (None, width):
            known = stated[feature.table_name]
            raise UserError(f"--embedding_dim: {width} columns for feature {feature.name}, the feature specification says {known} for its table")
    return list(given)


def _table(config: Config, name: str, rows: int, dim: int, zeros: bool) -> Table:
    model, trained = config.model, config.run.mode == TRAIN and config.model.embedding_trainable
    whole = trained and rows <= config.optimizer.dense_update_rows
    decay = config.regularisation.table_l2 if trained else 0.0
    if decay and not whole:
        raise UserError(
            f"table {name}: --table_l2 needs tables that are updated whole, and this one has {rows:,} rows; give --dense_update_rows {rows}, or "
            "--embedding_l2 for the rows of each batch"
        )
    initializer, scale = UNIFORM, None
    if zeros or model.embedding_zeros_initializer:
        initializer = ZEROS
    elif model.embedding_initializer is not None:
        initializer = model.embedding_initializer
        scale = model.embedding_initializer_scale or (_NORMAL_SCALE if initializer == NORMAL else 1 / math.sqrt(rows))
    return Table(name, rows, dim, config.optimizer.of_tables, initializer, scale=scale, whole=whole, l2=decay)


def tables_of(config: Config, names: Sequence[str], rows: Sequence[int]) -> tuple[Table, ...]:
    """Return one table for each feature of one id a sample: with its name, V rows, and the configuration's width."""
    return tuple(_table(config, name, count, config.model.embedding_dim, False) for name, count in zip(names, rows, strict=True))
