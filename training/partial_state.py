"""Transfer to a checkpoint and back of tables of which it stores the rows that may differ from their initial values, see `touched_form`."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from model.embedding.partial_table import PartialTable
from model.embedding.shard import LocalShard
from model.sharded_model import ShardedModel
from training.snapshot import Snapshot
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.touched_form import TOUCHED_ROWS, TouchedTable, bitmap_name, bits_of
from utils.cluster.agreement import DivergedError
from utils.initial_rows import Origin


class PartialState(NamedTuple):
    """The content of a checkpoint about tables of which it stores some rows, beside these rows: the same on every worker but for the bits.

    Attributes:
        counts: the rows that are stored, by table.
        described: the entry of the manifest, by table.
        bits: which rows these are, by table; on the first worker only.
    """

    counts: Mapping[str, int]
    described: Mapping[str, Any]
    bits: Mapping[str, np.ndarray]

    def metadata(self) -> dict[str, Any]:
        """Return the entries of the manifest; none where all tables are stored whole."""
        return {TOUCHED_ROWS: dict(self.described)} if self.described else {}

    def files(self) -> dict[str, bytes]:
        """Return the files beside the arrays, by name; on the first worker."""
        return {bitmap_name(table): bits.tobytes() for table, bits in self.bits.items()}


def partial_state(model: ShardedModel, frozen: Snapshot) -> PartialState:
    """Return the state of the lazy and the partial tables at a snapshot. Every worker calls this."""
    embedding = model.embedding
    world, tables = embedding.world, embedding.placement.tables
    if not any(table.lazy or table.partial for table in tables):
        return PartialState({}, {}, {})
    mine: dict[str, tuple[int, int, dict[str, Any] | None]] = {}
    bits: dict[str, np.ndarray] = {}
    for number, local in enumerate(embedding.sharded):
        if (numbers := frozen.numbers(number)) is None:
            continue
        first = local.shard.first == 0
        about = {"origins": [origin.described() for origin in local.by_rows.origins], "slots": dict(local.starts)}
        if first or local.name not in mine:
            mine[local.name] = len(numbers), zlib.crc32(numbers.tobytes()), about if first else None
        if first:
            bits[local.name] = bits_of(numbers, local.shard.rows)
    by_worker = world.everyone(mine, "stored_rows")
    every: dict[str, tuple[int, dict[str, Any]]] = {}
    for some in by_worker:
        for name, (count, _, about) in some.items():
            if about is not None:
                every[name] = count, about
    if diverged := [name for name in every if len({some[name][:2] for some in by_worker if name in some}) > 1]:
        raise DivergedError(f"table {diverged[0]}: the workers that hold its columns have different rows; this is a defect, please report it")
    in_order = [bits[name] for name in mine if name in bits]
    received = world.gather_to_first(np.concatenate(in_order) if in_order else np.empty(0, np.uint8), "stored_bits")
    found: dict[str, np.ndarray] = {}
    if world.first:
        rows, start = {table.name: table.rows for table in tables}, 0
        for name in every:
            stop = start + -(-rows[name] // 8)
            found[name], start = received[start:stop], stop
    return PartialState({name: count for name, (count, _) in every.items()}, {name: about for name, (_, about) in every.items()}, found)


def note_weights(table: PartialTable, checkpoint: Checkpoint, rows: int) -> None:
    """Note which of the first rows differ in a checkpoint from their initial values. Raises CheckpointError where an array is damaged."""
    if saved := checkpoint.touched_table(table.table.name):
        table.begin_with([*saved.origins, *origins_beyond(table.origins, rows)], saved.bits)
        return
    untouched = table.whole_rows()
    for start, values in checkpoint.read_rows(f"tables/{table.table.name}/weights"):
        drawn = np.empty_like(values)
        untouched(drawn, start)
        _note(table, start + differing(values, drawn))


def note_slot(table: PartialTable, slot: str, checkpoint: Checkpoint) -> None:
    """Note which rows differ in a checkpoint's slot from its start value.

    Raises:
        CheckpointError: the array is damaged, or its untouched rows have another start value.
    """
    if saved := checkpoint.touched_table(table.table.name):
        check_start(saved, slot, table.starts[slot], checkpoint)
        return
    for start, values in checkpoint.read_rows(f"tables/{table.table.name}/{slot}"):
        _note(table, start + differing(values, np.full_like(values, table.starts[slot])))


def _note(table: PartialTable, numbers: np.ndarray) -> None:
    """Note that rows differ, `[n]` ascending, all at once: few bytes of the bits are read."""
    if len(numbers):
        first = int(numbers[0]) // 8
        bits = bits_of(numbers - 8 * first, int(numbers[-1]) + 1 - 8 * first)
        table.differs[first : first + len(bits)] |= bits


def check_start(saved: TouchedTable, slot: str, start: float, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError where the untouched rows of a checkpoint's slot hold another value than the run's."""
    if saved.slots.get(slot) != start:
        raise CheckpointError(f"{checkpoint.folder}: {slot} of table {saved.name} begins at {saved.slots.get(slot)}, the run's at {start}")


def origins_beyond(origins: Iterable[Origin], rows: int) -> list[Origin]:
    """Return the origins of the rows from `rows` on."""
    return [replace(origin, first=max(origin.first, rows)) for origin in origins if origin.last > rows]


def differing(values: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the places of the rows that differ in a bit, `[n]`."""
    return np.flatnonzero((np.ascontiguousarray(values).view(np.int32) != expected.view(np.int32)).any(axis=1))


def partial_tables(shards: Iterable[LocalShard]) -> list[PartialTable]:
    """Return the partial tables of some shards, each once."""
    return list({id(local.partial): local.partial for local in shards if local.partial}.values())
