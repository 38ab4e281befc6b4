"""A model's weights to a checkpoint and back."""

from collections.abc import Mapping
from typing import Any

from model.dlrm import DLRM
from model.table_memory import read_rows, write_rows
from utils.checkpoint import ArraySource, Checkpoint, CheckpointError


def arrays(model: DLRM) -> dict[str, ArraySource]:
    """Everything that a checkpoint of the model holds, by name."""
    sources = {}
    for name, variable in model.dense_variables().items():
        values = variable.numpy()
        sources[f"dense/{name}"] = ArraySource(values.shape, lambda start, stop, values=values: values[start:stop])
    for name, variable in model.embedding.weights_by_table.items():
        sources[f"tables/{name}/weights"] = ArraySource(
            tuple(variable.shape), lambda start, stop, variable=variable: read_rows(variable, start, stop)
        )
    return sources


def describe(model: DLRM, numerical: tuple[str, ...]) -> dict[str, Any]:
    """The features that the model's weights belong to, for the manifest."""
    return {"numerical": list(numerical), "categorical": {table.name: table.num_rows for table in model.embedding.tables}}


def check_features(checkpoint: Checkpoint, categorical: Mapping[str, int], numerical: tuple[str, ...]) -> None:
    """Compare the checkpoint's features with the data's, before anything is allocated.

    Args:
        checkpoint: whose manifest holds what `describe` gave.
        categorical: rows of each table, by feature name.
        numerical: names of the numerical features, in order.

    Raises:
        CheckpointError: a feature is missing or new, or a table has another number of rows.
    """
    saved = checkpoint.manifest.get("features", {})
    tables = saved.get("categorical", {})
    for name in categorical:
        if name not in tables:
            raise CheckpointError(f"{checkpoint.folder}: has no table for feature {name}; it was trained on {_listed(tables)}")
    for name, rows in tables.items():
        if name not in categorical:
            raise CheckpointError(f"{checkpoint.folder}: has a table for feature {name}, which the dataset lacks")
        if rows != categorical[name]:
            raise CheckpointError(f"{checkpoint.folder}: the table of feature {name} has {rows} rows, the dataset needs {categorical[name]}")
    if list(numerical) != saved.get("numerical"):
        known = saved.get("numerical") or []
        raise CheckpointError(
            f"{checkpoint.folder}: was trained on {len(known)} numerical features ({_listed(known)}), "
            f"the dataset has {len(numerical)} ({_listed(numerical)})"
        )


def restore(model: DLRM, checkpoint: Checkpoint) -> None:
    """Overwrite the model's weights with the checkpoint's.

    Raises:
        CheckpointError: an array is missing, damaged, or of another shape than the model's.
    """
    for name, variable in model.dense_variables().items():
        _check_shape(checkpoint, f"dense/{name}", tuple(variable.shape))
        variable.assign(checkpoint.read(f"dense/{name}"))
    for name, variable in model.embedding.weights_by_table.items():
        array = f"tables/{name}/weights"
        _check_shape(checkpoint, array, tuple(variable.shape))
        for start, rows in checkpoint.read_rows(array):
            write_rows(variable, start, rows)


def _check_shape(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    if checkpoint.shape(name) != shape:
        raise CheckpointError(f"{checkpoint.folder}: {name} has shape {list(checkpoint.shape(name))}, the model's is {list(shape)}")


def _listed(names) -> str:
    names = list(names)
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "") if names else "none"
