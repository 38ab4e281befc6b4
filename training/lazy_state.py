"""Restoring of lazy tables from a checkpoint: of the rows that exist, and of the generators that the others come from."""

import contextlib
from collections.abc import Iterable

import numpy as np

from model.embedding.lazy_rows import LazyTables
from model.embedding.lazy_table import LazyTable
from model.embedding.shard import LocalShard
from model.sharded_model import ShardedModel
from training.partial_state import check_start, differing, origins_beyond
from utils.checkpoint.reading import Checkpoint
from utils.errors import AgreedError, UserError


def restore_weights(lazy: LazyTables, table: LazyTable, checkpoint: Checkpoint, rows: int) -> None:
    """Take over a checkpoint's first rows of a table. A row that equals its initial value does not exist.

    Raises:
        CheckpointError: an array is damaged.
        UserError: the rows do not fit the memory of the lazy tables.
    """
    name, own = f"tables/{table.table.name}/weights", table.origins
    if saved := checkpoint.touched_table(table.table.name):
        table.draw_by([*saved.origins, *origins_beyond(own, rows)])
        table.begin_with(saved.numbers)
        for shard in table.shards:
            for first, values in checkpoint.read_touched(name, shard.columns):
                shard.arrays["weights"].values[first : first + len(values)] = values
        return
    for start, values in checkpoint.read_rows(name):
        drawn = np.empty_like(values)
        table.whole_rows()(drawn, start)
        changed = differing(values, drawn)
        places = add_rows(lazy, table, start + changed, checkpoint)
        for shard in table.shards:
            shard.arrays["weights"].values[places] = values[changed, slice(*shard.columns)]


def restore_slot(lazy: LazyTables, table: LazyTable, slot: str, checkpoint: Checkpoint) -> None:
    """Take over a checkpoint's slot of a table whose weights were restored from it. Raises as `restore_weights`."""
    name, start = f"tables/{table.table.name}/{slot}", table.shards[0].starts[slot]
    per_row = checkpoint.shape(name)[1] == 1 < table.table.dim
    if saved := checkpoint.touched_table(table.table.name):
        check_start(saved, slot, start, checkpoint)
        for shard in table.shards:
            for first, values in checkpoint.read_touched(name, None if per_row else shard.columns):
                shard.arrays[slot].values[first : first + len(values)] = values
        return
    for first, values in checkpoint.read_rows(name):
        changed = differing(values, np.full_like(values, start))
        places = add_rows(lazy, table, first + changed, checkpoint)
        for shard in table.shards:
            shard.arrays[slot].values[places] = values[changed] if per_row else values[changed, slice(*shard.columns)]


def add_rows(lazy: LazyTables, table: LazyTable, numbers: np.ndarray, checkpoint: Checkpoint) -> np.ndarray:
    """Make rows of a checkpoint exist, `[n]`, and return their places; those that exist already keep theirs.

    Raises:
        UserError: they do not fit the memory of the lazy tables.
    """
    with contextlib.suppress(MemoryError):
        places = table.add(numbers)
        if lazy.bytes <= lazy.budget:
            return places
    raise UserError(
        f"{checkpoint.folder}: its touched rows, up to row {numbers[-1]:,} of table {table.table.name}, take more than the {_gb(lazy.budget)} GB of "
        f"--table_memory_gb; give more, or --table_storage memory"
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.6g}"


def check_room(model: ShardedModel, checkpoint: Checkpoint) -> None:
    """Check that the rows that a checkpoint holds of this worker's lazy tables fit their memory. Raises UserError."""
    lazy = model.embedding.lazy
    if lazy is None:
        return
    saved = {table: checkpoint.touched_table(one.table.name) for table, one in lazy.tables.items()}
    size = sum(saved[table].count * one.row_bytes for table, one in lazy.tables.items() if saved[table])
    if size > lazy.budget:
        raise UserError(
            f"{checkpoint.folder}: its touched rows take {_gb(size)} GB on a worker, and --table_memory_gb gives {_gb(lazy.budget)}; give at "
            f"least --table_memory_gb {_gb(size)}, and more to train on"
        )


def full_error(model: ShardedModel, after: str, saves: bool, resume: str | None) -> AgreedError | None:
    """Return the error that ends a run where some worker's rows exceed the memory of its lazy tables, else None. Every worker calls this.

    Args:
        model: the model.
        after: the last step, for the message.
        saves: whether the run writes checkpoints.
        resume: the value of `--resume`.
    """
    lazy, line = model.embedding.lazy, ""
    if lazy and lazy.bytes > lazy.budget:
        rows = sum(table.known for table in lazy.tables.values())
        line = (
            f"worker {model.embedding.world.rank}: the {rows:,} touched rows of its lazy tables take {_gb(lazy.bytes)} GB, more than the "
            f"{_gb(lazy.budget)} of --table_memory_gb"
        )
    full = next(filter(None, model.embedding.world.everyone(line, "full")), "")
    if not full:
        return None
    if not saves:
        return AgreedError(f"{after}: {full}; nothing is saved, there is no --save_checkpoint_path; give more")
    again = "" if resume == "auto" else " and --resume auto"
    return AgreedError(f"{after}, which is saved: {full}; to go on, run the same command with more{again}")


def of_shards(shards: Iterable[LocalShard]) -> list[LazyTable]:
    """Return the lazy tables of some shards, each once."""
    return list({id(local.lazy): local.lazy for local in shards if local.lazy}.values())
