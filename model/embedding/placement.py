"""The assignment of tables, or of their columns, to workers: a pure function without TensorFlow and Horovod.

Tables are model parallel: each lies on one worker or, where it is too large, has its columns spread over several. Small tables may be
replicated instead. Letters as in the docstrings of the model: V rows, D columns, N workers.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from model.embedding.shards import Placement, Shard, View
from model.embedding.table import NO_SLOTS, Feature, Storage, Table

__all__ = ["GIB", "STRATEGIES", "UNLIMITED", "Memory", "Placement", "PlacementError", "Shard", "View", "place", "single"]

STRATEGIES = ("memory_balanced", "memory_optimized", "basic")
_LOAD = "load"  # balances the columns that a sample reads, with memory only as a limit: tried where samples read unequal amounts from tables
_LESS_HELD = "; or give lazy tables less (--table_memory_gb)"
GIB = 1 << 30


class PlacementError(ValueError):
    """The tables do not fit the workers; the message states how many GiB are missing."""


class Memory(NamedTuple):
    """Bytes available for tables on a worker: on its device and, for its largest tables, in host memory in addition."""

    device: float = math.inf
    host: float = 0


UNLIMITED = Memory()


def single(tables: Sequence[Table], features: Sequence[Feature] = ()) -> Placement:
    """Return the placement of whole tables on a single worker; `features` as in `Placement`."""
    shards = tuple(Shard(i, table.rows, 0, table.dim) for i, table in enumerate(tables))
    return Placement(tuple(tables), (shards,), hosted=(frozenset(),), features=tuple(features))


def place(
    tables: Sequence[Table],
    num_workers: int,
    *,
    features: Sequence[Feature] = (),
    strategy: str = "memory_balanced",
    memory: Memory = UNLIMITED,
    storage: Storage = NO_SLOTS,
    column_slice_threshold: float = math.inf,
    data_parallel_threshold: int = 0,
) -> Placement:
    """Place tables on workers.

    Args:
        tables: tables of any widths.
        num_workers: N.
        features: the features that are looked up in the tables; by default one for each table.
        strategy: "memory_balanced" balances the looked-up columns first and the stored elements second; "memory_optimized" minimises the
            bytes on the fullest worker; "basic" deals tables round robin.
        memory: the memory of one worker.
        storage: the optimizer's slots beside the tables.
        column_slice_threshold: tables of more elements than this are cut into shards by columns; of a lazy table, those that memory holds count.
        data_parallel_threshold: tables of at most this many elements are replicated, except lazy ones.

    Raises:
        PlacementError: the tables do not fit, however they are cut.
        ValueError: the strategy is unknown, or a feature has no table.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
    replicated = tuple(i for i, table in enumerate(tables) if table.rows * table.dim <= data_parallel_threshold and not table.lazy)
    base = Placement(tuple(tables), ((),) * num_workers, replicated, (frozenset(),) * num_workers, storage, tuple(features))
    capacity = sum(memory) - base.replicated_bytes
    dealt = {i: _Table(table.rows, table.dim, base.reads[i], table.held_rows) for i, table in enumerate(tables) if i not in set(replicated)}
    needed = sum(storage.bytes(one.held, one.dim) for one in dealt.values())
    advice = _LESS_HELD if base.lazy else ""
    if needed > capacity * num_workers:
        missing = needed - capacity * num_workers
        raise PlacementError(_shortfall(missing, needed + num_workers * base.replicated_bytes, num_workers, sum(memory)) + advice)
    solutions, stuck = [], []
    uneven = len({one.dim * one.reads for one in dealt.values()}) > 1
    for name in _tried(strategy, uneven):
        # The fullest worker can come near the mean only where shards are smaller than the mean.
        wanted = min(capacity, needed / num_workers / 2) if name == strategy == "memory_optimized" else capacity
        dealer = _Dealer(dealt, num_workers, name, capacity, storage)
        solution = dealer.cut_until_it_fits(dealer.first_parts(column_slice_threshold, wanted))
        (stuck if isinstance(solution, Shard) else solutions).append(solution)
    if not solutions:
        largest = max(stuck, key=base.size)
        if base.size(largest) > capacity and largest.width == 1:
            raise PlacementError(_too_long(tables[largest.table], base.size(largest), capacity) + advice)
        size = base.size(largest)
        raise PlacementError(_shortfall(size - capacity % size, needed, num_workers, sum(memory)) + advice)
    best = min(solutions, key=lambda workers: _objective(workers, strategy, dealt))
    placement = replace(base, workers=best)
    return replace(placement, hosted=tuple(_hosted(placement, worker, memory.device) for worker in range(num_workers)))


def _shortfall(missing: float, needed: float, num_workers: int, memory: float) -> str:
    return (
        f"the embedding tables take {needed / GIB:.1f} GiB with their optimizer slots and do not fit {num_workers} worker{'s' * (num_workers > 1)} "
        f"of {memory / GIB:.1f} GiB: {max(missing, 1) / GIB:.1f} GiB short; use more workers, more memory (--worker_memory_gb), --optimizer sgd or a "
        "smaller --embedding_dim"
    )


def _too_long(table: Table, size: float, capacity: float) -> str:
    return (
        f"table {table.name}, {table.rows:,} rows of {table.dim} columns: one column takes {size / GIB:.1f} GiB with its optimizer slots, a worker "
        f"has {max(capacity, 0) / GIB:.1f} GiB: {(size - max(capacity, 0)) / GIB:.1f} GiB short; "
        "tables are cut by columns, not by rows: use more memory a worker (--worker_memory_gb), "
        "--optimizer sgd, or hash the ids to fewer rows (--max_table_size with --out_of_range hash)"
    )


def _divisors(dim: int) -> Iterator[int]:
    return (count for count in range(1, dim + 1) if dim % count == 0)


def _next_divisor(dim: int, parts: int) -> int:
    return next(count for count in _divisors(dim) if count > parts)


def _tried(strategy: str, uneven: bool) -> tuple[str, ...]:
    """Return the strategies to try. The best result under the strategy's objective wins, so none is worse than dealing round robin."""
    return {
        "memory_balanced": (*STRATEGIES, _LOAD) if uneven else STRATEGIES,
        "memory_optimized": ("memory_optimized", "basic"),
        "basic": ("basic",),
    }[strategy]


def _objective(workers: tuple[tuple[Shard, ...], ...], strategy: str, tables: Mapping[int, "_Table"]) -> tuple[int, ...]:
    columns = max(sum(shard.width * tables[shard.table].reads for shard in shards) for shards in workers)
    stored = max(sum(shard.width * tables[shard.table].held for shard in shards) for shards in workers)
    return (stored, columns) if strategy == "memory_optimized" else (columns, stored)


class _Table(NamedTuple):
    """A table to deal: V, D, the number of its rows that a sample reads, and the number of rows that memory holds."""

    rows: int
    dim: int
    reads: int
    held: int

    def elements(self, parts: int) -> int:
        """Return the number of elements that memory holds of a shard when the table is cut into so many."""
        return self.held * (self.dim // parts)

    def shards(self, table: int, parts: int) -> list[Shard]:
        """Return the shards of the table, by its index, when it is cut into so many."""
        width = self.dim // parts
        return [Shard(table, self.rows, i * width, (i + 1) * width) for i in range(parts)]


@dataclass(frozen=True)
class _Dealer:
    """Cuts tables into equal shards by columns and deals the shards to N workers; `tables` is keyed by index."""

    tables: Mapping[int, _Table]
    num_workers: int
    strategy: str
    capacity: float  # bytes a worker
    storage: Storage

    def first_parts(self, threshold: float, wanted: float) -> dict[int, int]:
        """Return for each table the fewest equal shards of at most `threshold` elements and `wanted` bytes, or D shards where no number suffices.

        All tables together get at least one shard for each worker, as far as columns allow. By load, none exceeds the workers' mean.
        """
        mean = sum(table.dim * table.reads for table in self.tables.values()) / self.num_workers if self.strategy == _LOAD else math.inf
        parts = {
            i: next(
                (
                    count
                    for count in _divisors(table.dim)
                    if self.tables[i].elements(count) <= threshold
                    and self.storage.bytes(table.held, table.dim // count) <= wanted
                    and table.dim // count * table.reads <= mean
                ),
                table.dim,
            )
            for i, table in self.tables.items()
        }
        self._cut_for_everyone(parts)
        return parts

    def _cut_for_everyone(self, parts: dict[int, int]) -> None:
        """Cut the largest shards until there is one for each worker, as far as columns allow."""
        heap = [(-self.tables[i].elements(count), i) for i, count in parts.items()]
        heapq.heapify(heap)
        total = sum(parts.values())
        while total < self.num_workers and heap:
            _, i = heapq.heappop(heap)
            if parts[i] == self.tables[i].dim:
                continue
            count = _next_divisor(self.tables[i].dim, parts[i])
            total += count - parts[i]
            parts[i] = count
            heapq.heappush(heap, (-self.tables[i].elements(count), i))

    def cut_until_it_fits(self, parts: dict[int, int]) -> tuple[tuple[Shard, ...], ...] | Shard:
        """Deal the shards. While some fit nowhere, cut their tables (or else the largest one that can still be cut) and deal again.

        Returns:
            the shards of each worker, or a shard that fits nowhere although no table can be cut any further.
        """
        while True:
            shards = [shard for i, count in parts.items() for shard in self.tables[i].shards(i, count)]
            dealt, stuck = self._deal(shards)
            if not stuck:
                return dealt
            largest = max(map(self._held, stuck))
            # Cut only the large ones, since small shards may fit once these are cut; and cut all of them, since one table at a time took minutes
            # for 2,000 tables on 1,024 workers.
            tables = {shard.table for shard in stuck if 2 * self._held(shard) >= largest and parts[shard.table] < self.tables[shard.table].dim}
            if not tables:
                table = max((i for i in parts if parts[i] < self.tables[i].dim), key=lambda i: self.tables[i].elements(parts[i]), default=None)
                if table is None:
                    return max(stuck, key=lambda shard: self.tables[shard.table].held)
                tables = {table}
            for table in tables:
                parts[table] = _next_divisor(self.tables[table].dim, parts[table])

    def _load(self, shard: Shard) -> int:
        """Return the number of the shard's columns that a sample reads, over all its ids."""
        return shard.width * self.tables[shard.table].reads

    def _held(self, shard: Shard) -> int:
        """Return the number of elements of a shard that memory holds."""
        return shard.width * self.tables[shard.table].held

    def _size(self, shard: Shard) -> int:
        """Return the bytes of these elements with their optimizer slots."""
        return self.storage.bytes(self.tables[shard.table].held, shard.width)

    def _deal(self, shards: Sequence[Shard]) -> tuple[tuple[tuple[Shard, ...], ...], list[Shard]]:
        """Assign shards to workers; return the shards of each worker, and the shards that fit nowhere."""
        if self.strategy == "basic":
            return self._deal_round_robin(shards)
        if self.strategy == _LOAD:
            return self._deal_by_load(shards)
        largest_first = sorted(shards, key=lambda shard: (-self._held(shard), shard.table, shard.first))
        load_limit: float = math.inf
        if self.strategy == "memory_balanced":
            heaviest = max(map(self._load, shards), default=1)
            load_limit = math.ceil(sum(map(self._load, shards)) / self.num_workers / heaviest) * heaviest
        dealt: list[list[Shard]] = [[] for _ in range(self.num_workers)]
        loads = [0] * self.num_workers
        heap: list[tuple[int, int, int]] = [(0, 0, worker) for worker in range(self.num_workers)]  # bytes, load, worker
        stuck = []
        for shard in largest_first:
            size, load = self._size(shard), self._load(shard)
            set_aside = []
            while heap:
                stored, _, worker = heapq.heappop(heap)
                if stored + size > self.capacity:  # the emptiest worker left is too full
                    set_aside.append((stored, loads[worker], worker))
                    stuck.append(shard)
                    break
                if loads[worker] + load <= load_limit:
                    dealt[worker].append(shard)
                    loads[worker] += load
                    heapq.heappush(heap, (stored + size, loads[worker], worker))
                    break
                if loads[worker] < load_limit:
                    set_aside.append((stored, loads[worker], worker))  # this shard is too heavy for the worker, a lighter one may not be
            else:
                stuck.append(shard)
            for entry in set_aside:
                heapq.heappush(heap, entry)
        return _in_order(dealt), stuck

    def _deal_by_load(self, shards: Sequence[Shard]) -> tuple[tuple[tuple[Shard, ...], ...], list[Shard]]:
        """Deal the heaviest shards first, each to the worker with the least load that has room for it."""
        dealt: list[list[Shard]] = [[] for _ in range(self.num_workers)]
        heap = [(0, 0, worker) for worker in range(self.num_workers)]  # load, bytes, worker
        stuck = []
        for shard in sorted(shards, key=lambda shard: (-self._load(shard), -self.tables[shard.table].held, shard.table, shard.first)):
            size, full = self._size(shard), []
            while heap and heap[0][1] + size > self.capacity:
                full.append(heapq.heappop(heap))
            if heap:
                load, stored, worker = heapq.heappop(heap)
                dealt[worker].append(shard)
                heapq.heappush(heap, (load + self._load(shard), stored + size, worker))
            else:
                stuck.append(shard)
            for entry in full:
                heapq.heappush(heap, entry)
        return _in_order(dealt), stuck

    def _deal_round_robin(self, shards: Sequence[Shard]) -> tuple[tuple[tuple[Shard, ...], ...], list[Shard]]:
        dealt: list[list[Shard]] = [[] for _ in range(self.num_workers)]
        stored = [0] * self.num_workers
        stuck = []
        for i, shard in enumerate(shards):
            size = self._size(shard)
            in_turn = (w % self.num_workers for w in range(i, i + self.num_workers))
            worker = next((w for w in in_turn if stored[w] + size <= self.capacity), None)
            if worker is None:
                stuck.append(shard)
                continue
            dealt[worker].append(shard)
            stored[worker] += size
        return _in_order(dealt), stuck


def _in_order(dealt: list[list[Shard]]) -> tuple[tuple[Shard, ...], ...]:
    return tuple(tuple(sorted(shards, key=lambda shard: (shard.table, shard.first))) for shards in dealt)


def _hosted(placement: Placement, worker: int, memory: float) -> frozenset[Shard]:
    """Return the largest shards of a worker, as many as its device cannot hold: these live in host memory."""
    excess = placement.stored(worker) - memory
    hosted = set()
    for shard in sorted(placement.workers[worker], key=lambda shard: (-placement.size(shard), shard.table, shard.first)):
        if excess <= 0:
            break
        hosted.add(shard)
        excess -= placement.size(shard)
    return frozenset(hosted)
