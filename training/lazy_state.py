"""Transfer of lazy tables to a checkpoint and back: of the rows that exist, and of the generators that the others come from."""

import contextlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from model.embedding.lazy_rows import LazyTables
from model.embedding.lazy_table import LazyTable
from model.embedding.shard import LocalShard
from model.sharded_model import ShardedModel
from training.snapshot import Snapshot
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.touched_form import TOUCHED_ROWS, bitmap_name, bits_of
from utils.cluster.agreement import DivergedError
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
    mine: dict[str, tuple[int, int, dict[str, Any] | None]] = {}
    bits: dict[str, np.ndarray] = {}
    for number, local in enumerate(embedding.sharded):
        if local.lazy is None:
            continue
        numbers, first = frozen.numbers(number), local.shard.first == 0
        about = {"origins": [origin.described() for origin in local.lazy.origins], "slots": dict(local.lazy.memory(local.shard).starts)}
        if first or local.name not in mine:
            mine[local.name] = len(numbers), zlib.crc32(numbers.tobytes()), about if first else None
        if first:
            bits[local.name] = bits_of(numbers, local.shard.rows)
    by_worker = world.everyone(mine, "lazy_rows")
    every: dict[str, tuple[int, dict[str, Any]]] = {}
    for some in by_worker:
        for name, (count, _, about) in some.items():
            if about is not None:
                every[name] = count, about
    if diverged := [name for name in every if len({some[name][:2] for some in by_worker if name in some}) > 1]:
        raise DivergedError(f"table {diverged[0]}: the workers that hold its columns have different rows; this is a defect, please report it")
    in_order = [bits[name] for name in mine if name in bits]
    received = world.gather_to_first(np.concatenate(in_order) if in_order else np.empty(0, np.uint8), "lazy_bits")
    found: dict[str, np.ndarray] = {}
    if world.first:
        rows, start = {table.name: table.rows for table in tables}, 0
        for name in every:
            stop = start + -(-rows[name] // 8)
            found[name], start = received[start:stop], stop
    return LazyState({name: count for name, (count, _) in every.items()}, {name: about for name, (_, about) in every.items()}, found)


def restore_weights(lazy: LazyTables, table: LazyTable, checkpoint: Checkpoint, rows: int) -> None:
    """Take over a checkpoint's first rows of a table. A row that equals its initial value does not exist.

    Raises:
        CheckpointError: an array is damaged.
        UserError: the rows do not fit the memory of the lazy tables.
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
        places = add_rows(lazy, table, start + changed, checkpoint)
        for shard in table.shards:
            shard.arrays["weights"].values[places] = values[changed, slice(*shard.columns)]


def restore_slot(lazy: LazyTables, table: LazyTable, slot: str, checkpoint: Checkpoint) -> None:
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


def _beyond(origins: Iterable, rows: int) -> list:
    """Return the origins of the rows from `rows` on."""
    return [replace(origin, first=max(origin.first, rows)) for origin in origins if origin.last > rows]


def _differing(values: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the places of the rows that differ in a bit, `[n]`."""
    return np.flatnonzero((np.ascontiguousarray(values).view(np.int32) != expected.view(np.int32)).any(axis=1))


def of_shards(shards: Iterable[LocalShard]) -> list[LazyTable]:
    """Return the lazy tables of some shards, each once."""
    return list({id(local.lazy): local.lazy for local in shards if local.lazy}.values())
