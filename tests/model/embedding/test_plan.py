"""Tests of `--mode plan`: its output, and that its figures are those of the placement."""

import json
import re
import sys

import pytest

import dlrm
from dataloading.generate_feature_spec import VARIANTS, variant_spec, write_spec
from model.embedding.placement import GIB, Placement, Shard, single
from model.embedding.plan import Traffic, as_table, report, traffic
from model.embedding.table import Table
from model.shapes import dense_elements
from utils.commands import run_command


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """Return a function that runs `dlrm.py --mode plan` on a variant and returns its exit code, standard output and standard error."""

    def call(variant, *flags):
        write_spec(variant_spec(variant), tmp_path / "feature_spec.yaml")
        flags = ("--mode", "plan", "--dataset_path", str(tmp_path), *flags)
        monkeypatch.setattr(sys, "argv", ["dlrm.py", *flags])
        return run_command(dlrm.main, "dlrm.py"), *capsys.readouterr()

    return call


def test_mlps_of_the_published_model():
    assert dense_elements(13, (512, 256, 128), (), [128] * 26) == 171_392
    assert dense_elements(13, (512, 256, 128), (1024, 1024, 512, 256, 1), [128] * 26) == 171_392 + 2_197_505
    assert dense_elements(0, (512, 256, 128), (5, 1), [128] * 4) == (6 + 1) * 5 + (5 + 1)


def test_json_holds_the_totals(plan):
    code, out, err = plan("criteo_t15_synthetic", "--plan_format", "json", "--plan_workers", "8")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["num_workers"] == len(found["workers"]) == 8
    assert found["batch_size"] == 65536
    assert found["embedding_parameters"] == 4_186_769_664
    assert found["embedding_bytes"] == found["stored_bytes"] == sum(worker["stored_bytes"] for worker in found["workers"]) == 4 * 4_186_769_664
    rows = {piece["table"]: piece["rows"] for worker in found["workers"] for piece in worker["slices"]}
    assert sum(rows.values()) == 32_709_138
    assert [rows[f"cat_{i}"] for i in range(26)] == list(VARIANTS["criteo_t15_synthetic"])
    assert sum(worker["looked_up_bytes"] for worker in found["workers"]) == 65536 * 26 * 128 * 4
    for name in ("alltoall_bytes", "dense_bytes"):
        assert found[name] == sum(worker[name] for worker in found["workers"])
    # Each worker sends 7 of 8 vectors, those whose table is elsewhere, and their gradients.
    assert found["alltoall_bytes"] == found["minimum_alltoall_bytes"] == 2 * 65536 * 26 * 128 * 4 * 7 // 8
    share = -(-(171_392 + 2_197_505 + 5) // 8)  # 5: the loss and the workers' reports to each other are summed with the gradients
    assert [worker["dense_bytes"] for worker in found["workers"]] == [2 * 7 * share * 4] * 8


def test_table_has_a_line_a_worker_and_the_totals(plan):
    code, out, err = plan("criteo_t0_synthetic", "--plan_workers", "16", "--worker_memory_gb", "32")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "112,995,145,600 embedding parameters, 420.94 GiB; 16 workers, global batch 65536"
    workers = [line.split() for line in lines if re.match(r"\s*\d+\s", line)]
    assert [int(words[0]) for words in workers] == list(range(16))
    assert all(float(words[4]) * GIB <= 32e9 for words in workers)
    assert sum(float(words[4]) for words in workers) == pytest.approx(420.94, abs=0.01 * 16)
    assert sum(float(words[7]) for words in workers) == pytest.approx(2 * 65536 * 26 * 128 * 4 * 15 / 16 / 1e6, rel=1e-3)


def test_a_worker_s_largest_tables_are_named_first():
    tables = tuple(Table(name, rows, 4) for name, rows in (("a", 7), ("b", 9000), ("c", 80), ("d", 5), ("e", 600), ("f", 70_000)))
    text = as_table(report(single(tables), 8, 4, 0))
    (line,) = [line for line in text.splitlines() if re.match(r"\s*0\s", line)]
    assert re.findall(r"(\w)\[0:4\]", line) == ["f", "b", "e", "c"] and line.endswith(" +2")


def test_half_precision_halves_the_alltoalls(plan):
    full, half = (json.loads(plan("criteo_t3_synthetic", "--plan_format", "json", *flags)[1]) for flags in ((), ("--amp",)))
    assert full["alltoall_bytes"] == 2 * half["alltoall_bytes"]
    assert full["dense_bytes"] == half["dense_bytes"]


def test_optimizer_slots_count(plan):
    sgd, adam = (json.loads(plan("criteo_t3_synthetic", "--plan_format", "json", "--optimizer", name)[1]) for name in ("sgd", "adam"))
    assert adam["stored_bytes"] == 3 * sgd["stored_bytes"]


@pytest.mark.parametrize("shape", ["table", "json"])
def test_shortfall_of_memory_is_an_error_without_a_plan(plan, shape):
    code, out, err = plan("criteo_t0_synthetic", "--plan_workers", "5", "--worker_memory_gb", "80", "--batch_size", "50", "--plan_format", shape)
    assert (code, out) == (1, "")
    assert err.startswith("dlrm.py: error: the embedding tables take 420.9 GiB") and err.count("\n") == 1
    assert "do not fit 5 workers of 74.5 GiB: 48.4 GiB short" in err


def test_indivisible_batch_is_an_error(plan):
    code, out, err = plan("criteo_t15_synthetic", "--plan_workers", "3")
    assert (code, out) == (1, "")
    assert err == "dlrm.py: error: --batch_size 65536: 3 workers cannot share it evenly; the nearest sizes that work: 65535 and 65538\n"


def test_host_memory_takes_tables_beyond_the_device(plan):
    flags = ("--plan_workers", "2", "--cpu_offloading_threshold_gb", "2", "--plan_format", "json")
    found = json.loads(plan("criteo_t15_synthetic", *flags)[1])
    for worker in found["workers"]:
        assert worker["stored_bytes"] - worker["host_bytes"] <= 2e9 < worker["stored_bytes"]


# Two tables of [3, 4] and [5, 4], batch 8. The first table is whole on worker 0; the second is sliced or replicated, depending on the case.
WHOLE = Shard(0, 3, 0, 4)
LEFT, RIGHT = Shard(1, 5, 0, 2), Shard(1, 5, 2, 4)


@pytest.mark.parametrize(
    ("workers", "replicated", "sent"),
    [
        # Worker 0 sends 4 + 2 columns for the other's 4 samples, and its own 4 samples' gradients of the other's 2 columns; both send half of 5 + 10
        # numbers, rounded up, twice.
        (((WHOLE, LEFT), (RIGHT,)), (), (Traffic(4 * 6 * 4, 4 * 2 * 4, 2 * 8 * 4), Traffic(4 * 2 * 4, 4 * 6 * 4, 2 * 8 * 4))),
        # The replica's 5 rows of 4 columns and a count each join the sum: 5 + 10 + 25 numbers.
        (((WHOLE,), ()), (1,), (Traffic(4 * 4 * 4, 0, 2 * 20 * 4), Traffic(0, 4 * 4 * 4, 2 * 20 * 4))),
        (((WHOLE, LEFT, RIGHT),), (), (Traffic(0, 0, 0),)),
    ],
    ids=["sliced", "replicated", "alone"],
)
def test_traffic_by_hand(workers, replicated, sent):
    placement = Placement((Table("a", 3, 4), Table("b", 5, 4)), workers, replicated, (frozenset(),) * len(workers))
    for rank, expected in enumerate(sent):
        assert traffic(placement, rank, 8, 4, 10) == expected
    found = report(placement, 8, 4, 10)
    assert [worker["alltoall_bytes"] + worker["dense_bytes"] for worker in found["workers"]] == [one.total for one in sent]
    assert found["replicated"] == [["a", "b"][table] for table in replicated]


def test_tables_beyond_32_bits_are_named():
    tables = Table("edge", 1 << 24, 128), Table("beyond", (1 << 24) + 1, 128), Table("cut", 1 << 25, 128)
    shards = [(Shard(0, 1 << 24, 0, 128), Shard(1, (1 << 24) + 1, 0, 128), Shard(2, 1 << 25, 0, 64)), (Shard(2, 1 << 25, 64, 128),)]
    found = report(Placement(tables, tuple(shards), (), (frozenset(),) * 2), 8, 4, 0)
    assert found["beyond_32_bits"] == ["beyond"]
    assert as_table(found).splitlines()[-1].endswith("indexes by 64 bits: beyond")
