"""Transfer of a model's weights and optimizer slots to a checkpoint and back."""

import hashlib
from collections.abc import Mapping

import tensorflow as tf

from model.embedding.shard import LocalShard
from model.embedding.table_memory import CHUNK_ROWS
from model.sharded_model import ShardedModel
from training.groups import Groups
from training.growth import Growth
from training.lazy_state import check_room, of_shards, restore_slot, restore_weights
from training.loss_scale import SLOT as DYNAMIC_SCALE
from training.partial_state import note_slot, note_weights, partial_tables
from training.snapshot import Snapshot, kept_bytes
from training.touched import Touched
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import Array, ArrayPart
from utils.cluster.agreement import compare_weights

SLOTS_BY_WEIGHT = 3  # the first format of checkpoints that names dense slots by their weights


def arrays(model: ShardedModel, groups: Groups | None = None, touched: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Return all arrays of a checkpoint of the model and, with `groups`, of its training, by name; the same on every worker.

    Of the tables in `touched`, the lazy and the partial ones, so many rows are written.
    """
    placement = model.embedding.placement
    widths: dict[int, int] = {shard.table: shard.width for shards in placement.workers for shard in shards}
    found = {name: Array(tuple(variable.shape)) for name, variable in _shared(model, groups).items()}
    for number, table in enumerate(placement.tables):
        count = (touched or {}).get(table.name)
        rows, of = (table.rows, None) if count is None else (count, table.rows)
        found[f"tables/{table.name}/weights"] = Array((rows, table.dim), widths.get(number, table.dim), of)
        for slot in groups.table_slots(table.group) if groups else ():
            shape = Array((rows, 1), rows=of) if slot.per_row else found[f"tables/{table.name}/weights"]
            found[f"tables/{table.name}/{slot.name}"] = shape
    return found


def snapshot(model: ShardedModel, touched: Touched | None = None) -> Snapshot:
    """Take a snapshot of this worker's sharded tables; of partial tables, of the rows that `touched` names."""
    embedding = model.embedding
    return Snapshot(embedding.sharded, embedding.changed_by, kept_bytes(embedding.world.local_size), touched and touched.changed)


def parts(model: ShardedModel, groups: Groups | None = None, frozen: Snapshot | None = None) -> list[ArrayPart]:
    """Return the parts that this worker writes: its shards and, on the first worker, also the weights that every worker holds.

    Args:
        model: the model, whose weights are written.
        groups: the groups, whose optimizer slots are written; None for weights only.
        frozen: a snapshot of the sharded tables, to be read while training continues.
    """
    embedding = model.embedding
    written = []
    if embedding.world.first:
        for name, variable in _shared(model, groups).items():
            values = variable.numpy()
            written.append(ArrayPart(name, lambda start, stop, values=values: values[start:stop]))
        for local in embedding.replicated:  # read at once: a step also changes rows that only other workers looked up, which no snapshot keeps
            for kind, rows in local.kinds(groups is not None).items():
                written.append(ArrayPart(f"tables/{local.name}/{kind}", rows.read))
    for number, local in enumerate(embedding.sharded):
        for kind, rows in local.kinds(groups is not None).items():
            columns = _columns(local, kind)
            if columns is not None:
                later = frozen is not None and not local.whole  # every step changes all rows of a whole table
                read = frozen.rows(number, kind).read if later else rows.read
                written.append(ArrayPart(f"tables/{local.name}/{kind}", read, columns, later=later))
    return written


def _columns(local: LocalShard, kind: str) -> tuple[int, int] | None:
    """Return the columns that a shard's worker writes.

    Of a slot with one number a row every shard of the table has a copy; only the first shard's is written, and the others return None.
    """
    if kind not in local.per_row:
        return local.shard.first, local.shard.last
    return (0, 1) if local.shard.first == 0 else None


def _shared(model: ShardedModel, groups: Groups | None) -> dict[str, tf.Variable]:
    """Return the variables that every worker holds a copy of, by their names in a checkpoint; replicated tables are not included."""
    slots = groups.slots() if groups else {}
    return {f"dense/{name}": weight.value for name, weight in (model.dense_weights() | model.statistics()).items()} | {
        f"optimizer/{name}": variable for name, variable in slots.items()
    }


def restore(model: ShardedModel, checkpoint: Checkpoint, growth: Growth | None = None) -> None:
    """Overwrite the model's weights with the checkpoint's.

    Args:
        model: the model, whose weights are overwritten.
        checkpoint: a checkpoint of the same model, or of one that it has grown from.
        growth: the mapping to the grown model, or None. New rows and tables keep the values that they have, see `Growth`.

    Raises:
        CheckpointError: an array is missing, damaged, or of another shape than the model's.
    """
    for name, variable in _shared(model, None).items():
        values = checkpoint.read(name)
        values = growth.dense(name, values, model.bottom_width, model.embedding.widths) if growth else values
        _check_shape(checkpoint, name, values.shape, tuple(variable.shape))
        variable.assign(values)
    check_room(model, checkpoint)
    for table in of_shards(model.embedding.shards):
        rows = growth.known_rows(table.table.name) if growth else table.table.rows
        if rows:
            name = f"tables/{table.table.name}/weights"
            _check_shape(checkpoint, name, checkpoint.shape(name), (rows, table.table.dim))
            restore_weights(model.embedding.lazy, table, checkpoint, rows)
    for local in model.embedding.shards:
        rows = growth.known_rows(local.name) if growth else local.shard.rows
        if rows and not local.lazy:
            _restore_shard(local, "weights", checkpoint, (rows, model.embedding.placement.tables[local.shard.table].dim))
    for table in partial_tables(model.embedding.shards):
        if rows := growth.known_rows(table.table.name) if growth else table.table.rows:
            note_weights(table, checkpoint, rows)


def restore_optimizer(model: ShardedModel, groups: Groups, checkpoint: Checkpoint) -> None:
    """Overwrite the optimizers' slots with the checkpoint's. Raises CheckpointError like `restore`."""
    for name, variable in _saved_slots(groups, checkpoint).items():
        if name == DYNAMIC_SCALE and f"optimizer/{name}" not in checkpoint.names("optimizer/"):
            continue  # the loss scale was static until here
        values = checkpoint.read(f"optimizer/{name}")
        _check_shape(checkpoint, f"optimizer/{name}", values.shape, tuple(variable.shape))
        variable.assign(values)
    per_row = {local.name: local.per_row for local in model.embedding.shards}
    for table in of_shards(model.embedding.shards):
        for slot in table.shards[0].starts:
            name = f"tables/{table.table.name}/{slot}"
            width = 1 if slot in per_row[table.table.name] else table.table.dim
            _check_shape(checkpoint, name, checkpoint.shape(name), (table.table.rows, width))
            restore_slot(model.embedding.lazy, table, slot, checkpoint)
    for local in model.embedding.shards:
        for kind in local.slots if not local.lazy else ():
            width = 1 if kind in local.per_row else model.embedding.placement.tables[local.shard.table].dim
            _restore_shard(local, kind, checkpoint, (local.shard.rows, width))
    for table in partial_tables(model.embedding.shards):
        for slot in table.starts:
            note_slot(table, slot, checkpoint)


def _saved_slots(groups: Groups, checkpoint: Checkpoint) -> Mapping[str, tf.Variable]:
    """Return the dense weights' slots by their names in the checkpoint."""
    if checkpoint.manifest["format"] >= SLOTS_BY_WEIGHT:
        return groups.slots()
    (group,) = groups.dense  # models of that format had one group
    return group.slots_by_number()


def _restore_shard(local: LocalShard, kind: str, checkpoint: Checkpoint, shape: tuple[int, int]) -> None:
    name = f"tables/{local.name}/{kind}"
    _check_shape(checkpoint, name, checkpoint.shape(name), shape)
    columns = (0, 1) if kind in local.per_row else (local.shard.first, local.shard.last)
    mine = local.kinds()[kind]
    for start, values in checkpoint.read_rows(name, columns):
        mine.write(start, values)


def digest(model: ShardedModel, groups: Groups | None = None) -> str:
    """Return a hash of everything that every worker holds a copy of: dense weights, replicated tables and the slots of both.

    In a single process it is empty, because there is nothing to compare.
    """
    found = hashlib.blake2b(digest_size=16)
    if model.embedding.world.size == 1:
        return ""
    for variable in _shared(model, groups).values():
        found.update(variable.numpy().tobytes())
    for local in model.embedding.replicated:
        for rows in local.kinds(groups is not None).values():
            for start in range(0, rows.count, CHUNK_ROWS):
                found.update(rows.read(start, min(start + CHUNK_ROWS, rows.count)).tobytes())
    return found.hexdigest()


def check_equal(model: ShardedModel, groups: Groups | None = None) -> None:
    """Check, by a hash, that replicated weights and slots are still equal on all workers.

    Raises:
        DivergedError: they differ; the message names the workers that differ from the first.
    """
    compare_weights(model.embedding.world.everyone(digest(model, groups), "weights_digest"))


def _check_shape(checkpoint: Checkpoint, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise CheckpointError(f"{checkpoint.folder}: {name} has shape {list(found)}, the model expects {list(wanted)}")
