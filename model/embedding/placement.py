"""Which worker holds which table, or which columns of it: a pure function, no TensorFlow and no Horovod.

Tables are model parallel: each lies on one worker, or, where it is too large, its columns lie on several. Small ones may be
replicated instead. Letters as in the docstrings of the model: V rows, D columns, N workers.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

STRATEGIES = ("memory_balanced", "memory_optimized", "basic")
GIB = 1 << 30
_FLOAT_BYTES = 4


class PlacementError(ValueError):
    """The tables do not fit the workers; the message says by how many GiB."""


@dataclass(frozen=True)
class Slice:
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
class Placement:
    """Where every table is.

    `workers[r]` are the slices on worker r, in the model's order; `replicated` the tables that every worker holds whole; `hosted[r]`
    the slices of worker r that live in host memory because its device is full. `bytes_per_element` counts the optimizer's slots.
    """

    rows: tuple[int, ...]
    dim: int
    workers: tuple[tuple[Slice, ...], ...]
    replicated: tuple[int, ...] = ()
    hosted: tuple[frozenset[Slice], ...] = field(default=())
    bytes_per_element: int = _FLOAT_BYTES

    def size(self, piece: Slice) -> int:
        """Bytes of a slice with its optimizer slots."""
        return piece.rows * piece.width * self.bytes_per_element

    @property
    def replicated_bytes(self) -> int:
        """Bytes that every worker holds for the replicated tables."""
        return sum(self.rows[table] for table in self.replicated) * self.dim * self.bytes_per_element

    def stored(self, worker: int) -> int:
        """Bytes on a worker, in device and host memory together."""
        return sum(self.size(piece) for piece in self.workers[worker]) + self.replicated_bytes

    def columns(self, worker: int) -> int:
        """Columns that a worker looks up for every sample of the global batch."""
        return sum(piece.width for piece in self.workers[worker])


def single(rows: Sequence[int], dim: int) -> Placement:
    """Every table whole on one worker."""
    return Placement(tuple(rows), dim, (tuple(Slice(i, count, 0, dim) for i, count in enumerate(rows)),), hosted=(frozenset(),))


def place(
    rows: Sequence[int],
    dim: int,
    num_workers: int,
    *,
    strategy: str = "memory_balanced",
    memory: float = math.inf,
    host_memory: float = 0,
    slots: int = 0,
    column_slice_threshold: float = math.inf,
    data_parallel_threshold: int = 0,
) -> Placement:
    """Place tables on workers.

    Args:
        rows: V of each table, `[F]`.
        dim: D, the width of every table.
        num_workers: N.
        strategy: "memory_balanced" evens out what is looked up and then what is stored; "memory_optimized" puts the fewest bytes on the
            fullest worker; "basic" deals tables round robin.
        memory: bytes that one worker's device can hold.
        host_memory: further bytes a worker, in host memory, for its largest tables.
        slots: arrays of a table's size that the optimizer keeps.
        column_slice_threshold: tables of more elements than this are sliced.
        data_parallel_threshold: tables of at most so many elements are replicated.

    Raises:
        PlacementError: the tables do not fit however they are sliced.
        ValueError: an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
    cost = _FLOAT_BYTES * (1 + slots)
    replicated = tuple(i for i, count in enumerate(rows) if count * dim <= data_parallel_threshold)
    base = Placement(tuple(rows), dim, ((),) * num_workers, replicated, (frozenset(),) * num_workers, cost)
    capacity = memory + host_memory - base.replicated_bytes
    sharded = [i for i in range(len(rows)) if i not in set(replicated)]
    needed = sum(rows[i] for i in sharded) * dim * cost
    if needed > capacity * num_workers:
        missing = needed - capacity * num_workers
        raise PlacementError(_shortfall(missing, needed + num_workers * base.replicated_bytes, num_workers, memory + host_memory))
    solutions, stuck = [], []
    for name in _tried(strategy):
        # The fullest worker can only come near the mean where slices are smaller than that.
        wanted = min(capacity, needed / num_workers / 2) if name == strategy == "memory_optimized" else capacity
        first = {i: _first_parts(rows[i], dim, column_slice_threshold, wanted / cost) for i in sharded}
        _slice_for_everyone(first, rows, dim, num_workers)
        solution = _slice_until_it_fits(first, rows, dim, num_workers, name, capacity, cost)
        (stuck if isinstance(solution, Slice) else solutions).append(solution)
    if not solutions:
        size = max(piece.rows * piece.width * cost for piece in stuck)
        raise PlacementError(_shortfall(size - capacity % size, needed, num_workers, memory + host_memory))
    best = min(solutions, key=lambda workers: _objective(workers, strategy, cost))
    placement = Placement(tuple(rows), dim, best, replicated, base.hosted, cost)
    hosted = tuple(_hosted(placement, worker, memory) for worker in range(num_workers))
    return Placement(tuple(rows), dim, best, replicated, hosted, cost)


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


def _first_parts(rows: int, dim: int, threshold: float, capacity: float) -> int:
    """Fewest equal slices of a table that keep the threshold and fit one worker (in elements); D where none does."""
    limit = min(threshold, capacity)
    return next((count for count in _divisors(dim) if rows * (dim // count) <= limit), dim)


def _slice_for_everyone(parts: dict[int, int], rows: Sequence[int], dim: int, num_workers: int) -> None:
    """Cut the largest slices until there is one a worker, as far as columns allow."""
    heap = [(-rows[i] / count, i) for i, count in parts.items()]
    heapq.heapify(heap)
    total = sum(parts.values())
    while total < num_workers and heap:
        _, i = heapq.heappop(heap)
        if parts[i] == dim:
            continue
        count = _next_divisor(dim, parts[i])
        total += count - parts[i]
        parts[i] = count
        heapq.heappush(heap, (-rows[i] / count, i))


def _slices(table: int, rows: int, dim: int, parts: int) -> list[Slice]:
    width = dim // parts
    return [Slice(table, rows, i * width, (i + 1) * width) for i in range(parts)]


def _tried(strategy: str) -> tuple[str, ...]:
    """What is tried: the best under the strategy's objective wins, so nothing is worse than dealing round robin."""
    return {"memory_balanced": STRATEGIES, "memory_optimized": ("memory_optimized", "basic"), "basic": ("basic",)}[strategy]


def _slice_until_it_fits(
    parts: dict[int, int], rows: Sequence[int], dim: int, num_workers: int, strategy: str, capacity: float, cost: int
) -> tuple[tuple[Slice, ...], ...] | Slice:
    """Deal the slices; while some fit nowhere, cut their tables (or else the largest that still can be cut) and deal again.

    Returns:
        the slices of each worker, or a slice that fits nowhere though nothing can be cut any further.
    """
    while True:
        pieces = [piece for i, count in parts.items() for piece in _slices(i, rows[i], dim, count)]
        dealt, stuck = _deal(pieces, num_workers, strategy, capacity, cost)
        if not stuck:
            return dealt
        largest = max(piece.rows * piece.width for piece in stuck)
        # The small ones may fit once the large ones are cut. Cutting one table a time took minutes for 2,000 tables on 1,024 workers.
        tables = {piece.table for piece in stuck if 2 * piece.rows * piece.width >= largest and parts[piece.table] < dim}
        if not tables:
            table = max((i for i in parts if parts[i] < dim), key=lambda i: rows[i] / parts[i], default=None)
            if table is None:
                return stuck[0]
            tables = {table}
        for table in tables:
            parts[table] = _next_divisor(dim, parts[table])


def _objective(workers: tuple[tuple[Slice, ...], ...], strategy: str, cost: int) -> tuple[int, ...]:
    columns = max(sum(piece.width for piece in pieces) for pieces in workers)
    stored = max(sum(piece.rows * piece.width for piece in pieces) for pieces in workers) * cost
    return (stored, columns) if strategy == "memory_optimized" else (columns, stored)


def _deal(pieces: Sequence[Slice], num_workers: int, strategy: str, capacity: float, cost: int) -> tuple[tuple[tuple[Slice, ...], ...], list[Slice]]:
    """Assign slices to workers; returns the slices of each worker, and those that fit nowhere."""
    if strategy == "basic":
        return _deal_round_robin(pieces, num_workers, capacity, cost)
    largest_first = sorted(pieces, key=lambda piece: (-piece.rows * piece.width, piece.table, piece.first))
    width_limit: float = math.inf
    if strategy == "memory_balanced":
        widest = max((piece.width for piece in pieces), default=1)
        width_limit = math.ceil(sum(piece.width for piece in pieces) / num_workers / widest) * widest
    held: list[list[Slice]] = [[] for _ in range(num_workers)]
    columns = [0] * num_workers
    heap: list[tuple[int, int, int]] = [(0, 0, worker) for worker in range(num_workers)]  # bytes, columns, worker
    stuck = []
    for piece in largest_first:
        size = piece.rows * piece.width * cost
        set_aside = []
        while heap:
            stored, _, worker = heapq.heappop(heap)
            if stored + size > capacity:  # the emptiest of those left is too full
                set_aside.append((stored, columns[worker], worker))
                stuck.append(piece)
                break
            if columns[worker] + piece.width <= width_limit:
                held[worker].append(piece)
                columns[worker] += piece.width
                heapq.heappush(heap, (stored + size, columns[worker], worker))
                break
            if columns[worker] < width_limit:
                set_aside.append((stored, columns[worker], worker))  # full for this slice, not for a narrower one
        else:
            stuck.append(piece)
        for entry in set_aside:
            heapq.heappush(heap, entry)
    return _in_order(held), stuck


def _deal_round_robin(pieces: Sequence[Slice], num_workers: int, capacity: float, cost: int) -> tuple[tuple[tuple[Slice, ...], ...], list[Slice]]:
    held: list[list[Slice]] = [[] for _ in range(num_workers)]
    stored = [0] * num_workers
    stuck = []
    for i, piece in enumerate(pieces):
        size = piece.rows * piece.width * cost
        worker = next((w % num_workers for w in range(i, i + num_workers) if stored[w % num_workers] + size <= capacity), None)
        if worker is None:
            stuck.append(piece)
            continue
        held[worker].append(piece)
        stored[worker] += size
    return _in_order(held), stuck


def _in_order(held: list[list[Slice]]) -> tuple[tuple[Slice, ...], ...]:
    return tuple(tuple(sorted(pieces, key=lambda piece: (piece.table, piece.first))) for pieces in held)


def _hosted(placement: Placement, worker: int, memory: float) -> frozenset[Slice]:
    """The largest slices of a worker, as many as its device cannot hold."""
    excess = placement.stored(worker) - memory
    hosted = set()
    for piece in sorted(placement.workers[worker], key=lambda piece: (-placement.size(piece), piece.table, piece.first)):
        if excess <= 0:
            break
        hosted.add(piece)
        excess -= placement.size(piece)
    return frozenset(hosted)
