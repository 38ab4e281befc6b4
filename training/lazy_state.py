"""Transfer of lazy tables to a checkpoint and back: of the rows that exist, and of the generators that the others come from."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from model.embedding.lazy_table import LazyTable
from model.embedding.row_bits import bits_of
from model.embedding.shard import LocalShard
from model.sharded_model import ShardedModel
from training.snapshot import Snapshot
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.touched_form import TOUCHED_ROWS, bitmap_name
from utils.errors import AgreedError, UserError


class LazyState(NamedTuple):
    """The content of a checkpoint about lazy tables, beside their rows: the same on every worker but for the bits.

    Attributes:
        counts: the rows that exist, by table.
        described: the entry of the manifest, by table.
        bits: which rows exist, by table; on the first worker only.
    """

    counts: Mapping[str, int]
    described: Mapping[str, Any]
    bits: Mapping[str, np.ndarray]

    def metadata(self) -> dict[str, Any]:
        """Return the entries of the manifest; none where there are no lazy tables."""
        return {TOUCHED_ROWS: dict(self.described)} if self.described else {}

    def files(self) -> dict[str, bytes]:
        """Return the files beside the arrays, by name; on the first worker."""
        return {bitmap_name(table): bits.tobytes() for table, bits in self.bits.items()}


def lazy_state(model: ShardedModel, frozen: Snapshot) -> LazyState:
    """Return the state of the lazy tables at a snapshot. Every worker calls this."""
    embedding = model.embedding
    world, tables = embedding.world, embedding.placement.tables
    if not any(table.lazy for table in tables):
        return LazyState({}, {}, {})
    mine: dict[str, tuple[int, dict[str, Any]]] = {}
    bits = []
    for number, local in enumerate(embedding.sharded):
        if local.lazy and local.shard.first == 0:
            numbers = frozen.numbers(number)
            origins, starts = [origin.described() for origin in local.lazy.origins], local.lazy.memory(local.shard).starts
            mine[local.name] = len(numbers), {"origins": origins, "slots": dict(starts)}
            bits.append(bits_of(numbers, local.shard.rows))
    by_worker = world.everyone(mine, "lazy_rows")
    every = {name: found for some in by_worker for name, found in some.items()}
    received = world.gather_to_first(np.concatenate(bits) if bits else np.empty(0, np.uint8), "lazy_bits")
    found: dict[str, np.ndarray] = {}
    if world.first:
        rows, start = {table.name: table.rows for table in tables}, 0
        for name in every:
            stop = start + -(-rows[name] // 8)
            found[name], start = received[start:stop], stop
    return LazyState({name: count for name, (count, _) in every.items()}, {name: about for name, (_, about) in every.items()}, found)


def restore_weights(table: LazyTable, checkpoint: Checkpoint, rows: int) -> None:
    """Take over a checkpoint's first rows of a table. A row that equals its initial value does not exist.

    Raises:
        CheckpointError: an array is damaged.
        MemoryError: there are more rows than places.
    """
    name, own = f"tables/{table.table.name}/weights", table.origins
    if saved := checkpoint.touched_table(table.table.name):
        table.draw_by([*saved.origins, *_beyond(own, rows)])
        table.begin_with(saved.numbers)
        for shard in table.shards:
            for first, values in checkpoint.read_touched(name, shard.columns):
                shard.arrays["weights"].values[first : first + len(values)] = values
        return
    for start, values in checkpoint.read_rows(name):
        drawn = np.empty_like(values)
        table.whole_rows()(drawn, start)
        changed = _differing(values, drawn)
        places = table.add(start + changed)
        for shard in table.shards:
            shard.arrays["weights"].values[places] = values[changed, slice(*shard.columns)]


def restore_slot(table: LazyTable, slot: str, checkpoint: Checkpoint) -> None:
    """Take over a checkpoint's slot of a table whose weights were restored from it. Raises as `restore_weights`."""
    name, start = f"tables/{table.table.name}/{slot}", table.shards[0].starts[slot]
    per_row = checkpoint.shape(name)[1] == 1 < table.table.dim
    if saved := checkpoint.touched_table(table.table.name):
        if saved.slots.get(slot) != start:
            raise CheckpointError(f"{checkpoint.folder}: {slot} of table {table.table.name} begins at {saved.slots.get(slot)}, the run's at {start}")
        for shard in table.shards:
            for first, values in checkpoint.read_touched(name, None if per_row else shard.columns):
                shard.arrays[slot].values[first : first + len(values)] = values
        return
    for first, values in checkpoint.read_rows(name):
        changed = _differing(values, np.full_like(values, start))
        places = table.add(first + changed)
        for shard in table.shards:
            shard.arrays[slot].values[places] = values[changed] if per_row else values[changed, slice(*shard.columns)]


def check_room(model: ShardedModel, checkpoint: Checkpoint) -> None:
    """Check that the rows that a checkpoint holds of this worker's lazy tables fit their memory. Raises UserError."""
    lazy = model.embedding.lazy
    if lazy is None:
        return
    saved = {table: checkpoint.touched_table(one.table.name) for table, one in lazy.tables.items()}
    size = sum(saved[table].count * one.row_bytes for table, one in lazy.tables.items() if saved[table])
    if size > lazy.budget:
        raise UserError(
            f"{checkpoint.folder}: its touched rows take {size / 1e9:.3f} GB on a worker, and --table_memory_gb gives {lazy.budget / 1e9:.3f}; give "
            f"at least --table_memory_gb {math.ceil(size / 1e8) / 10}"
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
            f"worker {model.embedding.world.rank}: the {rows:,} rows that batches have named take {lazy.bytes / 1e9:.3f} GB, more than the "
            f"{lazy.budget / 1e9:.3f} of --table_memory_gb"
        )
    full = next(filter(None, model.embedding.world.everyone(line, "full")), "")
    if not full:
        return None
    if not saves:
        return AgreedError(f"{after}: {full}; nothing is saved, there is no --save_checkpoint_path; give more")
    again = "" if resume == "auto" else " and --resume auto"
    return AgreedError(f"{after}, which is saved: {full}; to go on, run the same command with more{again}")


def _beyond(origins: Iterable, rows: int) -> list:
    """Return the origins of the rows from `rows` on."""
    return [replace(origin, first=max(origin.first, rows)) for origin in origins if origin.last > rows]


def _differing(values: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the places of the rows that differ in a bit, `[n]`."""
    return np.flatnonzero((np.ascontiguousarray(values).view(np.int32) != expected.view(np.int32)).any(axis=1))


def of_shards(shards: Iterable[LocalShard]) -> list[LazyTable]:
    """Return the lazy tables of some shards, each once."""
    return list({id(local.lazy): local.lazy for local in shards if local.lazy}.values())
