"""Tests of the placement of lazy tables: they weigh what memory may come to hold of them, and nothing else differs from tables in memory."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.embedding.placement import GIB, STRATEGIES, Memory, Placement, PlacementError, Shard, place, single
from model.embedding.plan import as_table, lazy_report, report, rounded_up
from model.embedding.table import Feature, Storage, Table

T0 = [int(rows) for rows in """227605432 39061 3067956 405283 11 2209 11939 155 4 977 15 292775614 17296 40790948 187188510 590152 12974 109 37 7425
    20266 4 7123 1544 64 130229467""".split()]  # fmt: skip


def table(number, rows, dim=4, held=None, lazy=True):
    return Table(f"cat_{number}", rows, dim, lazy=lazy, held=held)


def tables_of(sizes, dim):
    """Return tables from pairs of V and of the rows held, which is None for a table in memory."""
    return [table(i, rows, dim, held if held is not None and held < rows else None, held is not None) for i, (rows, held) in enumerate(sizes)]


sizes = st.lists(st.tuples(st.integers(1, 10**8), st.none() | st.integers(1, 10**4)), min_size=1, max_size=20)
dims = st.sampled_from([1, 2, 8, 12])
workers = st.integers(1, 9)


def test_a_table_holds_all_rows_unless_it_says_fewer():
    assert Table("user", 9, 4).held_rows == Table("user", 9, 4, lazy=True).held_rows == 9
    assert Table("user", 9, 4, lazy=True, held=3).held_rows == 3


@pytest.mark.parametrize(("held", "lazy"), [(0, True), (10, True), (3, False)])
def test_rows_held_that_cannot_be_are_an_error(held, lazy):
    with pytest.raises(ValueError, match=f"table user: {held} rows held, expected 1 to 9 of a lazy table, or None"):
        Table("user", 9, 4, lazy=lazy, held=held)


@given(sizes, dims, workers, st.sampled_from(STRATEGIES))
@settings(max_examples=60)
def test_a_lazy_table_that_may_hold_all_is_placed_as_one_in_memory(pairs, dim, num_workers, strategy):
    plain = [table(i, rows, dim, lazy=False) for i, (rows, _) in enumerate(pairs)]
    found, expected = (place(some, num_workers, strategy=strategy) for some in ([replace(one, lazy=True) for one in plain], plain))
    assert (found.workers, found.hosted) == (expected.workers, expected.hosted)
    assert [found.stored(worker) for worker in range(num_workers)] == [expected.stored(worker) for worker in range(num_workers)]


@given(sizes, dims, workers, st.sampled_from(STRATEGIES), st.integers(0, 2), st.floats(0.5, 3))
def test_memory_counts_held_rows(pairs, dim, num_workers, strategy, slots, share):
    tables, storage = tables_of(pairs, dim), Storage(slots, 1)
    limit = share * sum(storage.bytes(one.held_rows, dim) for one in tables) / num_workers
    try:
        found = place(tables, num_workers, strategy=strategy, memory=Memory(limit), storage=storage)
    except PlacementError as error:
        assert ("--table_memory_gb" in str(error)) == any(one.lazy for one in tables)
        return
    columns = [0] * len(tables)
    for worker, shards in enumerate(found.workers):
        assert found.stored(worker) <= limit * (1 + 1e-9)
        assert found.stored(worker) == sum(storage.bytes(tables[shard.table].held_rows, shard.width) for shard in shards)
        for shard in shards:
            assert shard.rows == tables[shard.table].rows and found.held_rows(shard) == tables[shard.table].held_rows
            columns[shard.table] += shard.width
    assert columns == [dim] * len(tables)


def test_tables_of_421_gib_fit_a_worker_of_8_gib():
    with pytest.raises(PlacementError, match=r"take 420\.9 GiB"):
        place([table(i, rows, 128, lazy=False) for i, rows in enumerate(T0)], 1, memory=Memory(8 * GIB))
    tables = [table(i, rows, 128, 2_000_000 if rows > 2_000_000 else None, rows > 2_000_000) for i, rows in enumerate(T0)]
    found = place(tables, 1, memory=Memory(8 * GIB))
    assert found.stored(0) < 8 * GIB and [shard.rows for shard in found.workers[0]] == T0
    assert found.lazy == (0, 2, 11, 13, 14, 25)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_looked_up_columns_stay_balanced(num_workers):
    """Lazy tables of very different V hold about the same number of rows, and are dealt like as many tables of that size."""
    lazy = [table(i, rows, 128, min(rows, 1_000_000) if rows > 1_000_000 else None) for i, rows in enumerate(T0)]
    found, plain = place(lazy, num_workers), place([replace(one, lazy=False, held=None) for one in lazy], num_workers)
    most = max(found.columns(worker) for worker in range(num_workers))
    assert most == max(plain.columns(worker) for worker in range(num_workers))


def test_memory_is_balanced_by_held_rows():
    """Of four lazy tables with one column each, the two that may hold many rows lie on different workers, whatever V is."""
    tables = [table(0, 10**9, 1, 10), table(1, 10**9, 1, 10), table(2, 10**5, 1, 10**4), table(3, 10**5, 1, 10**4)]
    for strategy in ("memory_balanced", "memory_optimized"):
        found = place(tables, 2, strategy=strategy)
        assert sorted(found.stored(worker) for worker in range(2)) == [4 * (10**4 + 10)] * 2


def test_thresholds():
    """A table is cut where memory holds more elements than the threshold; a lazy table is not replicated."""
    assert [shard.width for shard in place([table(0, 10**9, 8, 100)], 1, column_slice_threshold=800).workers[0]] == [8]
    assert [shard.width for shard in place([table(0, 10**9, 8, 100)], 1, column_slice_threshold=799).workers[0]] == [4, 4]
    found = place([table(0, 5), table(1, 5, lazy=False)], 2, data_parallel_threshold=20)
    assert found.replicated == (1,) and sum(shard.width for shards in found.workers for shard in shards) == 4


@pytest.mark.parametrize(
    ("dim", "memory", "words"),
    [(128, 0.1 * GIB, "take 1.0 GiB .* do not fit 4 workers of 0.1 GiB: 0.6 GiB short"), (1, 0.003 * GIB, "one column takes 0.0 GiB .* short")],
)
def test_shortfall_is_of_the_held_rows(dim, memory, words):
    with pytest.raises(PlacementError, match=f"{words}.*; or give lazy tables less \\(--table_memory_gb\\)$"):
        place([Table("user", 10**9, dim, lazy=True, held=GIB // 512)], 4, memory=Memory(memory))


# Two lazy tables of [1000, 4] and [50, 2], and one in memory, with one slot; the first is cut.
TABLES = (Table("a", 1000, 4, lazy=True, held=100), Table("b", 50, 2, lazy=True), Table("c", 7, 4))
SHARDS = ((Shard(0, 1000, 0, 2), Shard(1, 50, 0, 2)), (Shard(0, 1000, 2, 4), Shard(2, 7, 0, 4)))
CUT = Placement(TABLES, SHARDS, (), (frozenset(),) * 2, Storage(1))


def test_report_by_hand():
    found = lazy_report(CUT, 5000.0, {0: 30, 1: 10})
    assert found == {
        "memory_bytes": 5000,
        "touched_bytes_on_fullest": 2 * 4 * (2 * 30 + 2 * 10),
        "total": {"rows": 1050, "bytes": 32_800, "held_rows": 150, "held_bytes": 4000, "touched_rows": 40, "touched_bytes": 1120},
        "tables": [
            {"table": "a", "rows": 1000, "bytes": 32_000, "held_rows": 100, "held_bytes": 3200, "touched_rows": 30, "touched_bytes": 960},
            {"table": "b", "rows": 50, "bytes": 800, "held_rows": 50, "held_bytes": 800, "touched_rows": 10, "touched_bytes": 160},
        ],
    }
    whole = report(CUT, 8, 4, 0)
    assert [worker["stored_bytes"] for worker in whole["workers"]] == [2400, 1600 + 224] and whole["embedding_parameters"] == 4128
    assert [shard["rows"] for shard in whole["workers"][0]["slices"]] == [1000, 50]


def test_unknown_rows_have_no_totals():
    found = lazy_report(CUT, math.inf, {1: 10})
    assert found["memory_bytes"] is found["touched_bytes_on_fullest"] is found["total"]["touched_rows"] is found["tables"][0]["touched_bytes"] is None
    assert found["tables"][1]["touched_bytes"] == 160 and found["total"]["bytes"] == 32_800


@pytest.mark.parametrize(
    ("memory", "touched", "how", "lines"),
    [
        (
            3 * GIB,
            {0: 30, 1: 10},
            {"touched": "expected", "advice": None},
            [
                "lazy tables: rows of at most 3.00 GiB a worker",
                "lazy table          rows       GiB share GiB  touched rows       GiB",
                "a                  1,000      0.00      0.00            30     0.000",
                "b                     50      0.00      0.00            10     0.000",
                "all                1,050      0.00      0.00            40     0.000",
                "rows touched by 2,000 steps over 16,000 samples: expected from the power law of their ids",
                "touched rows take 0.000 GiB on the fullest worker",
            ],
        ),
        (
            600.0,
            {0: 30, 1: 10},
            {"touched": "counted", "advice": None},
            [
                "rows touched by 2,000 steps over 16,000 samples: counted in the train split",
                "touched rows take 0.000 GiB on the fullest worker, more than its memory, so training would end early: give --table_memory_gb "
                "6.4e-07",
            ],
        ),
        (
            math.inf,
            {1: 10},
            {"touched": "expected", "advice": "--plan_touched counts them in the dataset"},
            [
                "lazy tables: no --table_memory_gb limits their rows",
                "a                  1,000      0.00      0.00       unknown   unknown",
                "rows touched by 2,000 steps over 16,000 samples that are unknown: --plan_touched counts them in the dataset",
            ],
        ),
    ],
    ids=["fits", "too little memory", "unknown"],
)
def test_lines_by_hand(memory, touched, how, lines):
    plan = report(CUT, 8, 4, 0)
    before = as_table(plan).splitlines()
    found = as_table(plan | {"lazy": {"steps": 2000, "samples": 16_000, **how, **lazy_report(CUT, memory, touched)}}).splitlines()
    assert found[: len(before)] == before
    assert [line for line in found[len(before) :] if line in lines] == lines
    assert len(lines) < 7 or found[len(before) :] == lines


def test_plans_without_lazy_tables_have_no_such_entry():
    placement = single((Table("a", 5, 4),), (Feature("a", "a", "a"),))
    assert placement.lazy == () and "lazy" not in report(placement, 8, 4, 0)


@pytest.mark.parametrize(("size", "text"), [(8e9, "8"), (8.01e9, "8.1"), (123e9, "130"), (0.896e9, "0.9"), (2.04e6, "0.0021"), (1, "1e-09")])
def test_memory_is_rounded_up_to_two_digits(size, text):
    assert rounded_up(size) == text and float(text) * 1e9 >= size * (1 - 1e-12)
