"""Which worker holds which table, or which columns of it: a pure function, no TensorFlow and no Horovod.

Tables are model parallel: each lies on one worker, or, where it is too large, its columns lie on several. Small ones may be
replicated instead. Letters as in the docstrings of the model: V rows, D columns, N workers.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from model.embedding.table import NO_SLOTS, Storage, Table

STRATEGIES = ("memory_balanced", "memory_optimized", "basic")
GIB = 1 << 30


class PlacementError(ValueError):
    """The tables do not fit the workers; the message says by how many GiB."""


@dataclass(frozen=True)
class Shard:
    """Columns first to last of one table, `[rows, last−first]`, on one worker."""

    table: int  # place in the model's order
    rows: int
    first: int
    last: int

    @property
    def width(self) -> int:
        """Columns."""
        return self.last - self.first


@dataclass(frozen=True)
class View:
    """The features, by their places in the model's order, that one worker reads."""

    global_features: tuple[int, ...]  # of which it needs the global batch's ids
    local_features: tuple[int, ...]  # of which it needs its own samples' ids
    # Of a table that is cut by columns, several workers read the ids; who has the first column counts those out of range.
    uncounted: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Placement:
    """Where every table is.

    `workers[r]` are the shards on worker r, in the model's order; `replicated` the tables that every worker holds whole; `hosted[r]`
    the shards of worker r that live in host memory because its device is full. `storage` counts the optimizer's slots.
    """

    tables: tuple[Table, ...]
    workers: tuple[tuple[Shard, ...], ...]
    replicated: tuple[int, ...] = ()
    hosted: tuple[frozenset[Shard], ...] = field(default=())
    storage: Storage = NO_SLOTS

    @property
    def rows(self) -> tuple[int, ...]:
        """V of each table."""
        return tuple(table.rows for table in self.tables)

    @property
    def dim(self) -> int:
        """D, the width of every table."""
        return self.tables[0].dim

    def size(self, shard: Shard) -> int:
        """Bytes of a shard with its optimizer slots."""
        return self.storage.bytes(shard.rows, shard.width)

    @property
    def replicated_bytes(self) -> int:
        """Bytes that every worker holds for the replicated tables."""
        return sum(self.storage.bytes(self.rows[table], self.dim) for table in self.replicated)

    def stored(self, worker: int) -> int:
        """Bytes on a worker, in device and host memory together."""
        return sum(self.size(shard) for shard in self.workers[worker]) + self.replicated_bytes

    def columns(self, worker: int) -> int:
        """Columns that a worker looks up for every sample of the global batch."""
        return sum(shard.width for shard in self.workers[worker])

    def view(self, worker: int) -> View:
        """What a worker reads."""
        shards = self.workers[worker]
        features = tuple(dict.fromkeys(shard.table for shard in shards))
        return View(features, self.replicated, frozenset(features) - {shard.table for shard in shards if shard.first == 0})


def single(tables: Sequence[Table]) -> Placement:
    """Every table whole on one worker."""
    shards = tuple(Shard(i, table.rows, 0, table.dim) for i, table in enumerate(tables))
    return Placement(tuple(tables), (shards,), hosted=(frozenset(),))


def place(
    tables: Sequence[Table],
    num_workers: int,
    *,
    strategy: str = "memory_balanced",
    memory: float = math.inf,
    host_memory: float = 0,
    storage: Storage = NO_SLOTS,
    column_slice_threshold: float = math.inf,
    data_parallel_threshold: int = 0,
) -> Placement:
    """Place tables on workers.

    Args:
        tables: `[F]`, all of one width D.
        num_workers: N.
        strategy: "memory_balanced" evens out what is looked up and then what is stored; "memory_optimized" puts the fewest bytes on the
            fullest worker; "basic" deals tables round robin.
        memory: bytes that one worker's device can hold.
        host_memory: further bytes a worker, in host memory, for its largest tables.
        storage: what the optimizer keeps beside them.
        column_slice_threshold: tables of more elements than this are cut into shards by columns.
        data_parallel_threshold: tables of at most so many elements are replicated.

    Raises:
        PlacementError: the tables do not fit however they are cut.
        ValueError: an unknown strategy, or tables of several widths.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
    if len({table.dim for table in tables}) != 1:
        raise ValueError(f"tables: expected one width, received {sorted({table.dim for table in tables})}")
    replicated = tuple(i for i, table in enumerate(tables) if table.rows * table.dim <= data_parallel_threshold)
    base = Placement(tuple(tables), ((),) * num_workers, replicated, (frozenset(),) * num_workers, storage)
    capacity = memory + host_memory - base.replicated_bytes
    rows = {i: table.rows for i, table in enumerate(tables) if i not in set(replicated)}
    needed = sum(storage.bytes(count, base.dim) for count in rows.values())
    if needed > capacity * num_workers:
        missing = needed - capacity * num_workers
        raise PlacementError(_shortfall(missing, needed + num_workers * base.replicated_bytes, num_workers, memory + host_memory))
    solutions, stuck = [], []
    for name in _tried(strategy):
        # The fullest worker can only come near the mean where shards are smaller than that.
        wanted = min(capacity, needed / num_workers / 2) if name == strategy == "memory_optimized" else capacity
        dealer = _Dealer(rows, base.dim, num_workers, name, capacity, storage)
        solution = dealer.cut_until_it_fits(dealer.first_parts(column_slice_threshold, wanted))
        (stuck if isinstance(solution, Shard) else solutions).append(solution)
    if not solutions:
        size = max(base.size(shard) for shard in stuck)
        raise PlacementError(_shortfall(size - capacity % size, needed, num_workers, memory + host_memory))
    best = min(solutions, key=lambda workers: _objective(workers, strategy))
    placement = replace(base, workers=best)
    return replace(placement, hosted=tuple(_hosted(placement, worker, memory) for worker in range(num_workers)))


def _shortfall(missing: float, needed: float, num_workers: int, memory: float) -> str:
    return (
        f"the embedding tables take {needed / GIB:.1f} GiB with their optimizer slots and do not fit {num_workers} worker{'s' * (num_workers > 1)} "
        f"of {memory / GIB:.1f} GiB: {max(missing, 1) / GIB:.1f} GiB short; use more workers, more memory (--worker_memory_gb), --optimizer sgd or a "
        "smaller --embedding_dim"
    )


def _divisors(dim: int) -> Iterator[int]:
    return (count for count in range(1, dim + 1) if dim % count == 0)


def _next_divisor(dim: int, parts: int) -> int:
    return next(count for count in _divisors(dim) if count > parts)


def _tried(strategy: str) -> tuple[str, ...]:
    """What is tried: the best under the strategy's objective wins, so nothing is worse than dealing round robin."""
    return {"memory_balanced": STRATEGIES, "memory_optimized": ("memory_optimized", "basic"), "basic": ("basic",)}[strategy]


def _objective(workers: tuple[tuple[Shard, ...], ...], strategy: str) -> tuple[int, ...]:
    columns = max(sum(shard.width for shard in shards) for shards in workers)
    stored = max(sum(shard.rows * shard.width for shard in shards) for shards in workers)
    return (stored, columns) if strategy == "memory_optimized" else (columns, stored)


@dataclass(frozen=True)
class _Dealer:
    """Cuts tables, by their place: V, into equal shards by columns, and deals these to N workers."""

    rows: Mapping[int, int]
    dim: int
    num_workers: int
    strategy: str
    capacity: float  # bytes a worker
    storage: Storage

    def first_parts(self, threshold: float, wanted: float) -> dict[int, int]:
        """For each table the fewest equal shards of at most `threshold` elements and `wanted` bytes, D where none is; one a worker at least."""
        parts = {
            i: next(
                (
                    count
                    for count in _divisors(self.dim)
                    if rows * (self.dim // count) <= threshold and self.storage.bytes(rows, self.dim // count) <= wanted
                ),
                self.dim,
            )
            for i, rows in self.rows.items()
        }
        self._cut_for_everyone(parts)
        return parts

    def _cut_for_everyone(self, parts: dict[int, int]) -> None:
        """Cut the largest shards until there is one a worker, as far as columns allow."""
        heap = [(-self.rows[i] / count, i) for i, count in parts.items()]
        heapq.heapify(heap)
        total = sum(parts.values())
        while total < self.num_workers and heap:
            _, i = heapq.heappop(heap)
            if parts[i] == self.dim:
                continue
            count = _next_divisor(self.dim, parts[i])
            total += count - parts[i]
            parts[i] = count
            heapq.heappush(heap, (-self.rows[i] / count, i))

    def cut_until_it_fits(self, parts: dict[int, int]) -> tuple[tuple[Shard, ...], ...] | Shard:
        """Deal the shards; while some fit nowhere, cut their tables (or else the largest that still can be cut) and deal again.

        Returns:
            the shards of each worker, or a shard that fits nowhere though nothing can be cut any further.
        """
        while True:
            shards = [shard for i, count in parts.items() for shard in self._shards(i, count)]
            dealt, stuck = self._deal(shards)
            if not stuck:
                return dealt
            largest = max(shard.rows * shard.width for shard in stuck)
            # The small ones may fit once the large ones are cut. Cutting one table a time took minutes for 2,000 tables on 1,024 workers.
            tables = {shard.table for shard in stuck if 2 * shard.rows * shard.width >= largest and parts[shard.table] < self.dim}
            if not tables:
                table = max((i for i in parts if parts[i] < self.dim), key=lambda i: self.rows[i] / parts[i], default=None)
                if table is None:
                    return stuck[0]
                tables = {table}
            for table in tables:
                parts[table] = _next_divisor(self.dim, parts[table])

    def _shards(self, table: int, parts: int) -> list[Shard]:
        width = self.dim // parts
        return [Shard(table, self.rows[table], i * width, (i + 1) * width) for i in range(parts)]

    def _deal(self, shards: Sequence[Shard]) -> tuple[tuple[tuple[Shard, ...], ...], list[Shard]]:
        """Assign shards to workers; returns the shards of each worker, and those that fit nowhere."""
        if self.strategy == "basic":
            return self._deal_round_robin(shards)
        largest_first = sorted(shards, key=lambda shard: (-shard.rows * shard.width, shard.table, shard.first))
        width_limit: float = math.inf
        if self.strategy == "memory_balanced":
            widest = max((shard.width for shard in shards), default=1)
            width_limit = math.ceil(sum(shard.width for shard in shards) / self.num_workers / widest) * widest
        dealt: list[list[Shard]] = [[] for _ in range(self.num_workers)]
        columns = [0] * self.num_workers
        heap: list[tuple[int, int, int]] = [(0, 0, worker) for worker in range(self.num_workers)]  # bytes, columns, worker
        stuck = []
        for shard in largest_first:
            size = self.storage.bytes(shard.rows, shard.width)
            set_aside = []
            while heap:
                stored, _, worker = heapq.heappop(heap)
                if stored + size > self.capacity:  # the emptiest of those left is too full
                    set_aside.append((stored, columns[worker], worker))
                    stuck.append(shard)
                    break
                if columns[worker] + shard.width <= width_limit:
                    dealt[worker].append(shard)
                    columns[worker] += shard.width
                    heapq.heappush(heap, (stored + size, columns[worker], worker))
                    break
                if columns[worker] < width_limit:
                    set_aside.append((stored, columns[worker], worker))  # full for this shard, not for a narrower one
            else:
                stuck.append(shard)
            for entry in set_aside:
                heapq.heappush(heap, entry)
        return _in_order(dealt), stuck

    def _deal_round_robin(self, shards: Sequence[Shard]) -> tuple[tuple[tuple[Shard, ...], ...], list[Shard]]:
        dealt: list[list[Shard]] = [[] for _ in range(self.num_workers)]
        stored = [0] * self.num_workers
        stuck = []
        for i, shard in enumerate(shards):
            size = self.storage.bytes(shard.rows, shard.width)
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
    """The largest shards of a worker, as many as its device cannot hold."""
    excess = placement.stored(worker) - memory
    hosted = set()
    for shard in sorted(placement.workers[worker], key=lambda shard: (-placement.size(shard), shard.table, shard.first)):
        if excess <= 0:
            break
        hosted.add(shard)
        excess -= placement.size(shard)
    return frozenset(hosted)
