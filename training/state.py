"""A model's weights to a checkpoint and back."""

import functools
import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import tensorflow as tf

from model.dlrm import DLRM
from model.embedding.distributed import HeldSlice
from model.embedding.table_memory import CHUNK_ROWS, read_rows, write_rows
from training.growth import Growth
from training.snapshot import Snapshot
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import Array, Part
from utils.cluster.agreement import compare_weights

_GROWS = "; --allow_growth trains on from its weights"


class Slots(Protocol):
    """What a checkpoint keeps of a trainer (`step.Trainer`)."""

    @property
    def table_slots(self) -> tuple[str, ...]:
        """Names of the slots that the sparse optimizer keeps for each table."""

    def optimizer_variables(self) -> dict[str, tf.Variable]:
        """Slots of the dense optimizer by name."""


def arrays(model: DLRM, trainer: Slots | None = None) -> dict[str, Array]:
    """Everything that a checkpoint of the model, and of its training, holds, by name; the same on every worker."""
    embedding = model.embedding
    placement = embedding.placement
    widths: dict[int, int] = {piece.table: piece.width for pieces in placement.workers for piece in pieces}
    found = {name: Array(tuple(variable.shape)) for name, variable in _shared(model, trainer).items()}
    for table, name in enumerate(embedding.names):
        for kind in ("weights", *(trainer.table_slots if trainer else ())):
            found[f"tables/{name}/{kind}"] = Array((placement.rows[table], placement.dim), widths.get(table, placement.dim))
    return found


def snapshot(model: DLRM) -> Snapshot:
    """The sharded tables of this worker as they are now."""
    embedding = model.embedding
    return Snapshot(embedding.sharded, [embedding.global_features.index(held.piece.table) for held in embedding.sharded])


def parts(model: DLRM, trainer: Slots | None = None, frozen: Snapshot | None = None) -> list[Part]:
    """What this worker writes: its slices, and on the first worker also what all hold.

    Args:
        model: whose weights.
        trainer: whose optimizers' slots, too.
        frozen: the sharded tables, to be read while training goes on.
    """
    embedding = model.embedding
    written = []
    if embedding.world.first:
        for name, variable in _shared(model, trainer).items():
            values = variable.numpy()
            written.append(Part(name, lambda start, stop, values=values: values[start:stop]))
        for held in embedding.replicated:  # a step changes rows of them that other workers looked up
            for kind, variable in _of_slice(held, trainer is not None):
                written.append(Part(f"tables/{held.name}/{kind}", functools.partial(read_rows, variable)))
    for number, held in enumerate(embedding.sharded):
        columns = (held.piece.first, held.piece.last)
        for kind, variable in _of_slice(held, trainer is not None):
            read = frozen.rows(number, kind).read if frozen else functools.partial(read_rows, variable)
            written.append(Part(f"tables/{held.name}/{kind}", read, columns, later=frozen is not None))
    return written


def _shared(model: DLRM, trainer: Slots | None) -> dict[str, tf.Variable]:
    """What every worker holds a copy of, by its name in a checkpoint; replicated tables apart."""
    slots = trainer.optimizer_variables() if trainer else {}
    return {f"dense/{name}": variable for name, variable in model.dense_variables().items()} | {
        f"optimizer/{name}": variable for name, variable in slots.items()
    }


def _of_slice(held: HeldSlice, with_slots: bool) -> list[tuple[str, tf.Variable]]:
    return [("weights", held.weights), *(held.slots.items() if with_slots else ())]


def describe(model: DLRM, numerical: tuple[str, ...]) -> dict[str, Any]:
    """The features that the model's weights belong to, for the manifest."""
    return {"numerical": list(numerical), "categorical": dict(zip(model.embedding.names, model.embedding.placement.rows, strict=True))}


def features_of(checkpoint: Checkpoint) -> tuple[Mapping[str, int], list[str]]:
    """Rows of each table by feature, and the numerical features, that a checkpoint's model has. Raises CheckpointError."""
    saved = checkpoint.manifest.get("features")
    tables, known = (saved.get("categorical"), saved.get("numerical")) if isinstance(saved, Mapping) else (None, None)
    sound = isinstance(tables, Mapping) and isinstance(known, list) and all(isinstance(name, str) for name in (*known, *tables))
    if not sound or not all(isinstance(rows, int) and rows > 0 for rows in tables.values()) or len(set(known)) < len(known):
        raise CheckpointError(f"{checkpoint.folder}/manifest.json: does not name the model's features; the checkpoint is damaged")
    return tables, known


def check_features(checkpoint: Checkpoint, categorical: Mapping[str, int], numerical: tuple[str, ...]) -> None:
    """Compare the checkpoint's features with the data's, before anything is allocated.

    Args:
        checkpoint: whose manifest holds what `describe` gave.
        categorical: rows of each table, by feature name.
        numerical: names of the numerical features, in order.

    Raises:
        CheckpointError: a feature is missing or new, or a table has another number of rows.
    """
    tables, known = features_of(checkpoint)
    for name in categorical:
        if name not in tables:
            raise CheckpointError(f"{checkpoint.folder}: has no table for feature {name}; it was trained on {_listed(tables)}{_GROWS}")
    for name, rows in tables.items():
        if name not in categorical:
            raise CheckpointError(f"{checkpoint.folder}: has a table for feature {name}, which the dataset lacks")
        if rows != categorical[name]:
            raise CheckpointError(f"{checkpoint.folder}: the table of feature {name} has {rows} rows, the dataset needs {categorical[name]}{_GROWS}")
    if list(tables) != list(categorical):
        raise CheckpointError(
            f"{checkpoint.folder}: was trained on the categorical features in the order {_listed(tables)}, the dataset has {_listed(categorical)}; "
            "the interaction depends on the order: put channel_spec.categorical in the checkpoint's"
        )
    if list(numerical) != known:
        raise CheckpointError(
            f"{checkpoint.folder}: was trained on {len(known)} numerical features ({_listed(known)}), "
            f"the dataset has {len(numerical)} ({_listed(numerical)})"
        )


def restore(model: DLRM, checkpoint: Checkpoint, growth: Growth | None = None) -> None:
    """Overwrite the model's weights with the checkpoint's.

    Args:
        model: whose weights.
        checkpoint: of the same model, or of one that it has grown from.
        growth: how; what is new keeps the values it has, see `Growth`.

    Raises:
        CheckpointError: an array is missing, damaged, or of another shape than the model's.
    """
    for name, variable in _shared(model, None).items():
        values = checkpoint.read(name)
        values = growth.dense(name, values, model.embedding.dim) if growth else values
        _check_shape(checkpoint, name, values.shape, tuple(variable.shape))
        variable.assign(values)
    for held in model.embedding.held:
        if growth is None or not growth.is_new(held.name):
            rows = held.piece.rows - (growth.new_rows.get(held.name, 0) if growth else 0)
            _restore_slice(held, "weights", held.weights, checkpoint, model, rows)


def restore_optimizer(model: DLRM, trainer: Slots, checkpoint: Checkpoint) -> None:
    """Overwrite the optimizers' slots with the checkpoint's. Raises CheckpointError like `restore`."""
    for name, variable in trainer.optimizer_variables().items():
        values = checkpoint.read(f"optimizer/{name}")
        _check_shape(checkpoint, f"optimizer/{name}", values.shape, tuple(variable.shape))
        variable.assign(values)
    for held in model.embedding.held:
        for kind, variable in held.slots.items():
            _restore_slice(held, kind, variable, checkpoint, model, held.piece.rows)


def _restore_slice(held: HeldSlice, kind: str, variable: tf.Variable, checkpoint: Checkpoint, model: DLRM, rows: int) -> None:
    name = f"tables/{held.name}/{kind}"
    _check_shape(checkpoint, name, checkpoint.shape(name), (rows, model.embedding.dim))
    for start, values in checkpoint.read_rows(name, (held.piece.first, held.piece.last)):
        write_rows(variable, start, values)


def digest(model: DLRM, trainer: Slots | None = None) -> str:
    """A hash of what every worker holds a copy of: dense weights, their optimizer's slots, replicated tables with theirs."""
    found = hashlib.blake2b(digest_size=16)
    if model.embedding.world.size == 1:
        return ""
    for variable in _shared(model, trainer).values():
        found.update(variable.numpy().tobytes())
    for held in model.embedding.replicated:
        for _, variable in _of_slice(held, trainer is not None):
            for start in range(0, held.piece.rows, CHUNK_ROWS):
                found.update(read_rows(variable, start, min(start + CHUNK_ROWS, held.piece.rows)).tobytes())
    return found.hexdigest()


def check_equal(model: DLRM, trainer: Slots | None = None) -> None:
    """Check, by a hash, that what every worker holds a copy of is still the same everywhere.

    Raises:
        DivergedError: with the workers that differ from the first.
    """
    compare_weights(model.embedding.world.everyone(digest(model, trainer), "weights_digest"))


def _check_shape(checkpoint: Checkpoint, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise CheckpointError(f"{checkpoint.folder}: {name} has shape {list(found)}, the model's is {list(wanted)}")


def _listed(names) -> str:
    names = list(names)
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "") if names else "none"
