"""`--table_storage lazy`: the tables that are lazy, and the memory for their rows. Imports no TensorFlow itself."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dataloading.synthetic.touched_ids import Draws
from model.embedding.placement import Placement, Shard
from model.embedding.plan import rounded_up
from model.embedding.table import ZEROS, Feature, Storage, Table
from run.expected_rows import expected_rows
from run.placing import agreed_memory, place_in, storage_of
from utils.config.config import Config
from utils.config.options import PLAN, TRAIN
from utils.config.placement import LAZY, TOUCHED
from utils.distributed import World
from utils.errors import AgreedError, UserError
from utils.memory import GIB, check_fits

if TYPE_CHECKING:
    from utils.checkpoint.reading import Checkpoint

_SHARE = 0.5  # of a worker's memory, for the rows of its lazy tables, where --table_memory_gb is not given
_INSTEAD = "or give --table_storage memory"


def stored_tables(config: Config, tables: Sequence[Table], restored: "Checkpoint | None" = None) -> tuple[Table, ...]:
    """Return the tables with the lazy and the partial ones marked.

    Args:
        config: the configuration of the run.
        tables: the tables of the model.
        restored: a checkpoint that has the rows of all tables: tables in memory start at zero, which is faster than random values. Lazy tables keep
            their initial values, which the rows have that the checkpoint lacks, and partial ones those that the checkpoint's rows are compared with.
    """
    storage, found = storage_of(config), []
    for table in tables:
        if _is_lazy(config, table, storage):
            table = replace(table, lazy=True)
        else:
            table = replace(table, partial=_is_partial(config, table))
            if restored and not (table.partial and restored.touched_table(table.name) is None):
                table = replace(table, initializer=ZEROS, scale=None)
        found.append(table)
    return tuple(found)


def _is_partial(config: Config, table: Table) -> bool:
    """Return whether checkpoints store of a table in memory the touched rows: not of one updated whole or replicated."""
    options, saves = config.placement, config.run.mode == TRAIN and config.training.save_checkpoint_path
    return bool(saves) and options.checkpoint_rows == TOUCHED and not table.whole and table.rows * table.dim > options.data_parallel_threshold


def _is_lazy(config: Config, table: Table, storage: Storage) -> bool:
    options = config.placement
    planned_whole = config.run.mode == PLAN and config.model.embedding_trainable and table.rows <= config.optimizer.dense_update_rows
    return (
        options.table_storage == LAZY
        and not (table.whole or planned_whole)
        and table.rows * table.dim > options.data_parallel_threshold
        and storage.bytes(table.rows, table.dim) >= options.table_storage_above
    )


def checkpoint_bytes(config: Config, tables: Sequence[Table]) -> int:
    """Return the most bytes that these tables take in a checkpoint, with their optimizer slots."""
    storage = storage_of(config)
    return sum(storage.bytes(table.held_rows, table.dim) for table in tables)


def without_lazy(config: Config, tables: Sequence[Table]) -> str | None:
    """Return a warning where `--table_storage lazy` is given and no table is lazy, else None."""
    if config.placement.table_storage != LAZY or "table_storage" not in config.given or any(table.lazy for table in tables):
        return None
    storage = storage_of(config)
    largest = max(tables, key=lambda table: storage.bytes(table.rows, table.dim), default=None)
    size = f"; the largest, {largest.name}, takes {storage.bytes(largest.rows, largest.dim):,}" if largest else ""
    return (
        f"--table_storage {LAZY} has no effect: no table takes at least --table_storage_above {config.placement.table_storage_above:,} bytes with "
        f"its optimizer slots and is neither updated whole (--dense_update_rows) nor replicated (--data_parallel_threshold){size}"
    )


def check_lazy(config: Config, tables: Sequence[Table], device: str) -> None:
    """Raise UserError where some tables are lazy and this process cannot hold them: it computes on a GPU, has no C++ operations, or needs all rows.

    Args:
        config: the configuration of the run.
        tables: the tables of the model.
        device: "CPU" or "GPU".
    """
    if not any(table.lazy for table in tables):
        return
    from model.compilation import on_gpu
    from model.native import native_operations

    if device == "GPU" or on_gpu():
        raise UserError(f"--table_storage {LAZY} needs a CPU, and this run computes on a GPU; add --cpu, {_INSTEAD}")
    if config.run.log_norms and config.run.mode == TRAIN:
        raise UserError(f"--log_norms reads all rows of all tables, of which --table_storage {LAZY} has only some; drop it, {_INSTEAD}")
    if native_operations() is None:
        off = os.environ.get("DLRM_NATIVE_OPS") == "0"
        why = "are turned off by DLRM_NATIVE_OPS=0; unset it" if off else "are not built for these sources; run ops/build"
        raise UserError(f"--table_storage {LAZY} needs the C++ operations, which {why}, {_INSTEAD}")


def table_memory(config: Config, available: float) -> float:
    """Return the bytes for the rows of a worker's lazy tables, with their optimizer slots.

    Args:
        config: the configuration of the run.
        available: bytes for tables on one worker, where `--worker_memory_gb` is not given.
    """
    options = config.placement
    if options.table_memory_gb is not None:
        return options.table_memory_gb * 1e9
    return _SHARE * (available if options.worker_memory_gb is None else options.worker_memory_gb * 1e9)


def place_stored(
    config: Config,
    tables: Sequence[Table],
    features: Sequence[Feature],
    world: World,
    device: str,
    laws: Mapping[str, Draws],
    warn: Callable[[str], None],
) -> tuple[tuple[Table, ...], Placement, float]:
    """Place the tables in the memory of the workers, equally on each; every worker calls this.

    Args:
        config: the configuration of the run.
        tables: the tables of the model.
        features: its features.
        world: the workers.
        device: "CPU" or "GPU".
        laws: as in `batches_note`.
        warn: called with its warning.

    Returns:
        the tables with the rows of lazy ones that memory may hold, their placement, and the bytes for the rows of a worker's lazy tables.

    Raises:
        UserError: the tables do not fit, or `--table_memory_gb` is too much or too little.
    """
    memory = agreed_memory(world, device)
    check_table_memory(config, tables, memory.free)
    of_lazy = table_memory(config, memory.free)
    tables = with_held(config, tables, of_lazy)
    placement = place_in(config, tables, features, world.size, memory)
    given = config.placement.worker_memory_gb
    for note in (batches_note(config, placement, of_lazy, laws), worker_note(placement, of_lazy, memory.device if given is None else given * 1e9)):
        if note:
            warn(note)
    return tables, placement, of_lazy


def check_table_memory(config: Config, tables: Sequence[Table], available: int) -> None:
    """Raise AgreedError where `--table_memory_gb` exceeds the bytes available to one worker."""
    given = config.placement.table_memory_gb
    if given is None or not any(table.lazy for table in tables):
        return
    try:
        check_fits(int(given * 1e9), f"--table_memory_gb {given:g}: the rows of a worker's lazy tables", available)
    except UserError as error:
        raise AgreedError(str(error)) from None


def with_held(config: Config, tables: Sequence[Table], memory: float) -> tuple[Table, ...]:
    """Return the tables with the rows of lazy ones that memory may come to hold: an equal share of it each, or all rows where they take less.

    This is what placements and checks of memory weigh tables by. It is no limit of a single table: rows of one may take what another leaves.

    Args:
        config: the configuration of the run.
        tables: the tables of the model.
        memory: bytes as `table_memory` returns them.

    Raises:
        AgreedError: not even a row of each lazy table fits.
    """
    storage, left, held = storage_of(config), memory, {}
    lazy = sorted((storage.bytes(table.rows, table.dim), i) for i, table in enumerate(tables) if table.lazy)
    if lazy and memory < sum(storage.bytes(1, tables[i].dim) for _, i in lazy):
        raise AgreedError(
            f"--table_memory_gb: {memory:,.0f} bytes cannot hold one row of each of the {len(lazy)} lazy tables, which take "
            f"{sum(storage.bytes(1, tables[i].dim) for _, i in lazy):,} bytes with their optimizer slots; give more"
        )
    for turn, (size, i) in enumerate(lazy):  # the smallest first: what they leave is for the others
        table, share = tables[i], left / (len(lazy) - turn)
        rows = table.rows if size <= share else max(1, int(share // storage.bytes(1, table.dim)))
        held[i], left = rows, left - storage.bytes(rows, table.dim)
    return tuple(replace(table, held=held[i] if held[i] < table.rows else None) if i in held else table for i, table in enumerate(tables))


def batches_note(config: Config, placement: Placement, memory: float, laws: Mapping[str, Draws]) -> str | None:
    """Return a warning where the rows of two batches could exceed the memory for lazy tables, else None.

    Two are needed: the batch of a step, and the next one, which is read ahead.

    Args:
        config: the configuration of the run.
        placement: the placement of the tables.
        memory: bytes as `table_memory` returns them.
        laws: the laws of the sources' ids, by name, as far as they are known.

    Raises:
        AgreedError: the rows that two batches are expected to name exceed it.
    """
    if config.run.mode not in (TRAIN, PLAN) or not placement.lazy or math.isinf(memory):
        return None
    samples, flag = 2 * config.data.batch_size, f"--batch_size {config.data.batch_size}"
    most = {i: min(placement.rows[i], samples * placement.reads[i]) for i in placement.lazy}
    if (worst := lazy_bytes(placement, most)) <= memory:
        return None
    named = {i: expected_rows(placement, i, samples, laws) for i in placement.lazy}
    known = lazy_bytes(placement, {i: 0 if rows is None else rows for i, rows in named.items()})
    has = f"a worker has {memory / 1e9:.3g} GB for its lazy tables"
    if known > memory:
        raise AgreedError(
            f"{flag}: the rows of two batches take some {known / 1e9:.3g} GB with their optimizer slots, and {has}; give a smaller batch, or at "
            f"least --table_memory_gb {rounded_up(known)}"
        )
    return f"{flag}: the rows of two batches may take up to {worst / 1e9:.3g} GB with their optimizer slots, and {has} (--table_memory_gb)"


def worker_note(placement: Placement, memory: float, available: float) -> str | None:
    """Return a warning where a worker's tables in memory leave less than its lazy tables may take, else None.

    A placement on several workers weighs lazy tables by equal shares of one worker's memory, though each worker has as much for its own.

    Args:
        placement: the placement of the tables.
        memory: bytes as `table_memory` returns them.
        available: bytes for tables on one worker.
    """
    lazy = {i: placement.rows[i] for i in placement.lazy}
    for worker, shards in enumerate(placement.workers):
        others = placement.replicated_bytes + sum(placement.size(shard) for shard in shards if shard.table not in lazy)
        rows = min(memory, _bytes_of(placement, shards, lazy))
        if rows and others + rows > available:
            return (
                f"--table_memory_gb: the rows of lazy tables may take {rows / GIB:.1f} GiB on worker {worker} beside {others / GIB:.1f} GiB of other "
                f"tables, and it has {available / GIB:.1f} GiB; give less, or use more workers"
            )
    return None


def lazy_bytes(placement: Placement, rows: Mapping[int, float]) -> float:
    """Return the bytes of so many rows of the lazy tables, with their slots, on the worker where they take the most."""
    return max(_bytes_of(placement, shards, rows) for shards in placement.workers)


def _bytes_of(placement: Placement, shards: Sequence[Shard], rows: Mapping[int, float]) -> float:
    return sum(placement.storage.bytes(1, shard.width) * rows[shard.table] for shard in shards if shard.table in rows)


def held_described(placement: Placement, memory: float) -> str:
    """Return a text about the lazy tables and their memory, for messages; empty where there are none."""
    if not placement.lazy:
        return ""
    count, most = len(placement.lazy), min(memory, lazy_bytes(placement, {i: placement.rows[i] for i in placement.lazy}))
    return f"{count} lazy table{'s' * (count != 1)}, of whose rows a worker holds at most {most / GIB:.1f} GiB"
