"""Tests of the placement of tables: each column is placed once, no memory limit is exceeded, and the result is no worse than round robin."""

import itertools
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.embedding import placement as placements
from model.embedding.placement import GIB, STRATEGIES, Placement, PlacementError
from model.embedding.table import Feature, Storage, Table

ROOT = Path(__file__).parents[3]
T15 = [int(rows) for rows in """7912889 33823 17139 7339 20046 4 7105 1382 63 5554114 582469 245828 11 2209 10667 104 4 968 15 8165896 2675940 7156453
    302516 12022 97 35""".split()]  # fmt: skip
T0 = [int(rows) for rows in """227605432 39061 3067956 405283 11 2209 11939 155 4 977 15 292775614 17296 40790948 187188510 590152 12974 109 37 7425
    20266 4 7123 1544 64 130229467""".split()]  # fmt: skip

tables = st.lists(st.integers(1, 10**9) | st.integers(1, 100), min_size=1, max_size=40)
dims = st.sampled_from([1, 2, 3, 8, 12, 128])
workers = st.integers(1, 20)
strategies = st.sampled_from(STRATEGIES)


def tables_of(rows, dim):
    return [Table(f"cat_{i}", count, dim) for i, count in enumerate(rows)]


def place(rows, dim, num_workers, slots=0, row_slots=0, memory=math.inf, host_memory=0, **options):
    memory = placements.Memory(memory, host_memory)
    return placements.place(tables_of(rows, dim), num_workers, storage=Storage(slots, row_slots), memory=memory, **options)


def single(rows, dim):
    return placements.single(tables_of(rows, dim))


options = st.fixed_dictionaries(
    {
        "slots": st.integers(0, 2),
        "row_slots": st.integers(0, 1),
        "column_slice_threshold": st.just(math.inf) | st.integers(1, 10**10),
        "data_parallel_threshold": st.just(0) | st.integers(0, 10**6),
    }
)


def check_whole(placement: Placement, rows, dim, num_workers):
    """Check that every (row, column) of a table is on exactly one worker, or that the table is replicated."""
    assert len(placement.workers) == len(placement.hosted) == num_workers
    spans = {table: [] for table in range(len(rows))}
    for pieces, hosted in zip(placement.workers, placement.hosted, strict=True):
        assert hosted <= set(pieces)
        assert list(pieces) == sorted(pieces, key=lambda piece: (piece.table, piece.first))
        for piece in pieces:
            assert piece.rows == rows[piece.table]
            spans[piece.table].append((piece.first, piece.last))
    for table, found in spans.items():
        if table in placement.replicated:
            assert not found
        else:
            edges = sorted(found)
            assert edges[0][0] == 0 and edges[-1][1] == dim
            assert all(left[1] == right[0] for left, right in itertools.pairwise(edges)), edges
            assert len({last - first for first, last in edges}) == 1, "a checkpoint needs equal slices"


def elements(placement: Placement) -> list[int]:
    return [sum(piece.rows * piece.width for piece in pieces) for pieces in placement.workers]


def columns(placement: Placement) -> list[int]:
    return [placement.columns(worker) for worker in range(len(placement.workers))]


def objective(placement: Placement, strategy: str):
    """Return the value that a strategy minimises."""
    most = max(elements(placement)), max(columns(placement))
    return most[0] if strategy == "memory_optimized" else (most[1], most[0])


@given(tables, dims, workers, strategies, options)
def test_everything_is_placed_once(rows, dim, num_workers, strategy, more):
    placement = place(rows, dim, num_workers, strategy=strategy, **more)
    check_whole(placement, rows, dim, num_workers)
    assert placement == place(tuple(rows), dim, num_workers, strategy=strategy, **more), "not the same twice"
    assert placement.replicated == tuple(i for i, count in enumerate(rows) if count * dim <= more["data_parallel_threshold"])
    for pieces in placement.workers:
        for piece in pieces:
            assert piece.rows * piece.width <= more["column_slice_threshold"] or piece.width == 1


@given(tables, dims, workers, strategies, options, st.floats(0.5, 4), st.floats(0, 2))
def test_memory_is_never_exceeded(rows, dim, num_workers, strategy, more, share, host_share):
    """With limits around the memory needed, the placement keeps to them or raises an error that says how much is missing."""
    storage = Storage(more["slots"], more["row_slots"])
    mean = sum(storage.bytes(count, dim) for count in rows) / num_workers
    limits = {"memory": share * mean, "host_memory": host_share * mean}
    try:
        placement = place(rows, dim, num_workers, strategy=strategy, **limits, **more)
    except PlacementError as error:
        assert float(re.search(r"([\d.]+) GiB short", str(error))[1]) >= 0
        return
    check_whole(placement, rows, dim, num_workers)
    for worker in range(num_workers):
        stored = placement.stored(worker)
        hosted = sum(map(placement.size, placement.hosted[worker]))
        slack = 1 + 1e-9
        assert stored <= (limits["memory"] + limits["host_memory"]) * slack
        if stored <= limits["memory"]:
            assert not hosted
        if placement.replicated_bytes <= limits["memory"]:
            assert stored - hosted <= limits["memory"] * slack
        assert stored == placement.replicated_bytes + sum(storage.bytes(shard.rows, shard.width) for shard in placement.workers[worker])


@given(tables, dims, workers, st.sampled_from(["memory_balanced", "memory_optimized"]), options)
def test_nothing_is_worse_than_dealing_round_robin(rows, dim, num_workers, strategy, more):
    found, basic = (place(rows, dim, num_workers, strategy=name, **more) for name in (strategy, "basic"))
    assert objective(found, strategy) <= objective(basic, strategy)


@given(tables, dims, workers)
@settings(max_examples=50)
def test_columns_are_cut_until_no_worker_is_idle(rows, dim, num_workers):
    """No worker is idle while another holds columns that could be split, even with more workers than tables or columns."""
    for strategy in STRATEGIES:
        placement = place(rows, dim, num_workers, strategy=strategy)
        busy = sum(count > 0 for count in columns(placement))
        assert busy == min(num_workers, busy if len(rows) >= num_workers else len(rows) * dim)


def test_more_workers_than_columns_leaves_some_idle():
    placement = place([5, 3], 2, 7)
    check_whole(placement, [5, 3], 2, 7)
    assert sorted(columns(placement)) == [0, 0, 0, 1, 1, 1, 1]


def test_one_worker_holds_everything_whole():
    assert place([5, 3], 8, 1) == single([5, 3], 8)
    assert [piece.width for piece in single([5, 3], 8).workers[0]] == [8, 8]


def test_basic_deals_round_robin():
    placement = place([10, 20, 30, 40, 50], 4, 2, strategy="basic")
    assert [[piece.table for piece in pieces] for pieces in placement.workers] == [[0, 2, 4], [1, 3]]


def test_memory_optimized_puts_fewest_bytes_on_the_fullest():
    # 60 + 10 + 10 and 50 + 30 is the only even division of [60, 50, 30, 10, 10].
    assert elements(place([60, 50, 30, 10, 10], 1, 2, strategy="memory_optimized")) == [80, 80]


@pytest.mark.parametrize("size", [(0, 4), (4, 0), (0, 0), (-1, 4)])
def test_table_without_rows_or_columns_is_an_error(size):
    with pytest.raises(ValueError, match=rf"table user: expected at least one row and one column, received {size[0]} x {size[1]}"):
        Table("user", *size)


@pytest.mark.parametrize("of_feature", [(0, "sum"), (1, "max"), (-1, "mean"), (3, "")])
def test_invalid_hotness_or_pooling_is_an_error(of_feature):
    with pytest.raises(ValueError, match="feature user: expected a hotness of at least 1 and pooling sum or mean, received"):
        Feature("user", "user", "user", *of_feature)


def test_a_shard_as_heavy_as_a_worker_s_share_is_not_cut_further():
    """6 columns for 3 workers are 2 for each, so the table of 4 columns is cut into halves and not further."""
    tables = [Table("a", 10**6, 1), Table("b", 10**6, 1), Table("c", 10**6, 4)]
    placement = placements.place(tables, 3, storage=Storage(0, 0), memory=placements.Memory(math.inf, 0), strategy="memory_balanced")
    assert sorted(sorted(shard.width for shard in pieces) for pieces in placement.workers) == [[1, 1], [2], [2]]


def test_memory_balanced_evens_out_lookups_first():
    placement = place([1000, 10, 10, 10], 4, 2, strategy="memory_balanced")
    assert columns(placement) == [8, 8]
    assert columns(place([1000, 10, 10, 10], 4, 2, strategy="memory_optimized")) != [4, 12]  # this strategy cuts the large table


def test_an_unknown_strategy_names_the_known_ones():
    with pytest.raises(ValueError, match="strategy 'best': expected one of memory_balanced, memory_optimized, basic"):
        place([1], 1, 1, strategy="best")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shortfall_of_memory_is_an_error_that_states_it(strategy):
    rows, limit = [GIB // 512], 0.1 * GIB  # 128 columns of four bytes take 1 GiB; four workers hold 0.4 GiB
    with pytest.raises(PlacementError, match=r"take 1\.0 GiB .* do not fit 4 workers of 0\.1 GiB: 0\.6 GiB short"):
        place(rows, 128, 4, strategy=strategy, memory=limit)
    with pytest.raises(PlacementError, match=r"take 3\.0 GiB .*: 2\.6 GiB short"):
        place(rows, 128, 4, strategy=strategy, memory=limit, slots=2)
    assert place(rows, 128, 4, strategy=strategy, memory=limit, host_memory=0.15 * GIB).hosted != (frozenset(),) * 4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_column_too_large_for_any_worker_is_an_error(strategy):
    with pytest.raises(PlacementError, match="GiB short"):
        place([GIB], 2, 3, strategy=strategy, memory=3.9 * GIB)  # a column takes 4 GiB; the workers' total memory would be enough


def test_replicas_that_fill_the_memory_are_an_error():
    with pytest.raises(PlacementError, match="GiB short"):
        place([GIB // 4], 1, 8, memory=0.5 * GIB, data_parallel_threshold=GIB)


# Placements of the published cardinalities ------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_workers", [1, 2, 8, 64])
def test_totals_of_criteo_t15(strategy, num_workers):
    placement = place(T15, 128, num_workers, strategy=strategy)
    check_whole(placement, T15, 128, num_workers)
    assert sum(placement.rows) == 32_709_138
    assert sum(elements(placement)) == 4_186_769_664
    assert round(sum(map(placement.stored, range(num_workers))) / GIB, 3) == 15.597


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("num_workers", "memory"), [(8, 80e9), (16, 32e9)])
def test_criteo_t0_fits(strategy, num_workers, memory):
    placement = place(T0, 128, num_workers, strategy=strategy, memory=memory)
    check_whole(placement, T0, 128, num_workers)
    stored = [placement.stored(worker) for worker in range(num_workers)]
    assert sum(stored) == 4 * 112_995_145_600 and max(stored) <= memory


def test_criteo_t0_does_not_fit_five_workers_of_80():
    with pytest.raises(PlacementError, match=r"take 420\.9 GiB .* 5 workers of 74\.5 GiB: 48\.4 GiB short"):
        place(T0, 128, 5, memory=80e9)


def test_ten_trillion_parameters_on_1024_workers_take_seconds():
    draw = np.random.default_rng(0)
    shares = draw.pareto(1.0, 2000) + 1e-3
    rows = [int(rows) + 1 for rows in shares / shares.sum() * 10e12 / 256]
    start = time.process_time()  # CPU time, which other programs do not lengthen
    placement = place(rows, 256, 1024, memory=64e9)
    assert time.process_time() - start < 30
    check_whole(placement, rows, 256, 1024)
    assert max(map(placement.stored, range(1024))) <= 64e9


@pytest.mark.parametrize("module", ["model.embedding.placement", "model.embedding.plan"])
def test_importing_it_loads_no_tensorflow(module):
    code = f"import sys, {module}; print([name for name in ('tensorflow', 'keras', 'horovod') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.stdout == "[]\n", result.stdout + result.stderr
