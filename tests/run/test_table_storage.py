"""Tests of `--table_storage lazy` before anything is built: the tables that are lazy, their memory, and what is refused in one line."""

import math
from types import SimpleNamespace

import pytest

from dataloading.features import Categorical
from dataloading.synthetic.touched_ids import Draws
from model import native as operations
from model.embedding.placement import place
from model.embedding.table import NORMAL, UNIFORM, ZEROS, Storage, Table
from run.prepare import prepared
from run.table_storage import (
    batches_note,
    check_lazy,
    check_table_memory,
    held_described,
    stored_tables,
    table_memory,
    with_held,
    without_lazy,
    worker_note,
)
from run.tables import tables_and_features
from tests.cli.runs import CARDINALITIES, SMALL, TRAIN, here, write_dataset
from tests.model.native_library import built_operations
from utils.checkpoint.save_folder import claim
from utils.dialects.command_line import parse
from utils.distributed import meet
from utils.errors import AgreedError, UserError

LAZY = ("--table_storage", "lazy")
CATEGORICAL = tuple(Categorical(f"cat_{i}", rows, "int32") for i, rows in enumerate((1000, 300, 7)))


def configure(*flags):
    return parse(["--dataset_path", "data", *SMALL, *map(str, flags)], "")


def restored_from(*touched):
    """Return a checkpoint that stores of these tables the touched rows."""
    return SimpleNamespace(touched_table=lambda table: table if table in touched else None)


def tables_of(*flags, restored=None):
    config = configure(*flags)
    return stored_tables(config, tables_and_features(config, CATEGORICAL, [1000, 300, 7], 2)[0], restored)


def lazy_of(*flags):
    return [table.name for table in tables_of(*flags) if table.lazy]


@pytest.mark.parametrize(
    ("flags", "lazy"),
    [
        ((), ""),
        ((*LAZY,), ""),  # a table of 32,000 bytes is small
        (("--table_storage_above", 0), ""),
        ((*LAZY, "--table_storage_above", 32_001), ""),
        ((*LAZY, "--table_storage_above", 32_000), "cat_0"),
        ((*LAZY, "--table_storage_above", 9600), "cat_0 cat_1"),
        ((*LAZY, "--table_storage_above", 0), "cat_0 cat_1 cat_2"),
        ((*LAZY, "--table_storage_above", 3 * 9600, "--optimizer", "adam"), "cat_0 cat_1"),  # with the slots
        ((*LAZY, "--table_storage_above", 3 * 9600, "--optimizer", "adam", "--noembedding_trainable"), "cat_0"),
        ((*LAZY, "--table_storage_above", 9600, "--optimizer", "adam", "--mode", "eval"), "cat_0 cat_1"),
        ((*LAZY, "--table_storage_above", 0, "--dense_update_rows", 300), "cat_0"),  # updated whole
        ((*LAZY, "--table_storage_above", 0, "--dense_update_rows", 300, "--mode", "plan"), "cat_0"),
        ((*LAZY, "--table_storage_above", 0, "--dense_update_rows", 300, "--mode", "eval"), "cat_0 cat_1 cat_2"),
        ((*LAZY, "--table_storage_above", 0, "--data_parallel_threshold", 2400), "cat_0"),  # replicated
    ],
    ids=str,
)
def test_large_tables_are_lazy(flags, lazy):
    assert lazy_of(*flags) == lazy.split()


def test_linear_parts_have_lazy_tables_too():
    flags = ("--interaction", "fm", *LAZY, "--table_storage_above", 4000)
    assert lazy_of(*flags) == ["cat_0", "cat_1", "cat_0_wide"]


@pytest.mark.parametrize("interaction", ["dot", "cross", "fm"])
@pytest.mark.parametrize("initializer", [(), ("--embedding_initializer", "normal"), ("--embedding_zeros_initializer",)], ids=str)
def test_restored_tables_in_memory_start_at_zero(interaction, initializer):
    """As the second argument of `tables_and_features` does it, which callers without lazy tables use."""
    config = configure("--interaction", interaction, *initializer)
    described = config, CATEGORICAL, [1000, 300, 7], 2
    assert stored_tables(config, tables_and_features(*described)[0], restored_from()) == tables_and_features(*described, zeros=True)[0]
    assert stored_tables(config, tables_and_features(*described)[0]) == tables_and_features(*described)[0]


@pytest.mark.parametrize("initializer", [(), ("--embedding_initializer", "normal")], ids=str)
def test_restored_lazy_tables_keep_their_initializer(initializer):
    found = tables_of(*LAZY, "--table_storage_above", 9600, *initializer, restored=restored_from())
    assert [table.initializer for table in found] == [NORMAL if initializer else UNIFORM] * 2 + [ZEROS]
    assert found[:2] == tables_of(*LAZY, "--table_storage_above", 9600, *initializer)[:2] and found[2].scale is None


# Memory -----------------------------------------------------------------------------------------------------------------


def test_memory_is_a_share_of_the_worker_s():
    assert table_memory(configure(*LAZY, "--table_memory_gb", 3), 8e9) == 3e9
    assert table_memory(configure(*LAZY), 8e9) == 4e9
    assert table_memory(configure(*LAZY, "--worker_memory_gb", 6), 8e9) == 3e9
    assert table_memory(configure(*LAZY), math.inf) == math.inf


def rows_held(memory, rows, flags=("--optimizer", "adagrad"), dim=4):
    tables = [Table(f"cat_{i}", abs(count), dim, lazy=count > 0) for i, count in enumerate(rows)]
    found = with_held(configure(*flags), tables, memory)
    assert [(one.name, one.rows, one.lazy) for one in found] == [(one.name, one.rows, one.lazy) for one in tables]
    return [one.held for one in found]


def test_lazy_tables_share_the_memory():
    """A row of 4 columns takes 32 bytes with Adagrad's slot; negative sizes here are tables in memory."""
    assert rows_held(6400, [10**9, 10**6]) == [100, 100]
    assert rows_held(6400, [10**9, -(10**6), 10**6]) == [100, None, 100]
    assert rows_held(6400, [10**9, 20, 10**6]) == [90, None, 90]  # what a small table leaves is for the others
    assert rows_held(6400, [150, 50]) == [None, None] == rows_held(math.inf, [10**9, 50])
    assert rows_held(64, [10**9, 10**6]) == [1, 1]
    assert rows_held(100, [10**9, 10**6], ("--optimizer", "sgd")) == [3, 3]
    assert rows_held(100, [-5]) == [None] and rows_held(1, []) == []


def test_memory_for_less_than_a_row_of_each_table_is_an_error():
    expected = (
        "--table_memory_gb: 63 bytes cannot hold one row of each of the 2 lazy tables, which take 64 bytes with their optimizer slots; give more"
    )
    with pytest.raises(AgreedError) as raised:
        rows_held(63, [10**9, 10**6, -(10**6)])
    assert str(raised.value) == expected


def test_more_than_the_available_memory_is_an_error(monkeypatch):
    monkeypatch.setattr("utils.memory.limit_note", lambda: " (limited by a test)")
    config, lazy = configure(*LAZY, "--table_memory_gb", 20), [Table("user", 9, 4, lazy=True)]
    with pytest.raises(AgreedError) as raised:
        check_table_memory(config, lazy, 8 << 30)
    words = "--table_memory_gb 20: the rows of a worker's lazy tables need 18.6 GiB, 8.0 GiB are free: 10.6 GiB short (limited by a test)"
    assert str(raised.value) == words
    check_table_memory(config, lazy, 20_000_000_000)
    check_table_memory(config, [Table("user", 9, 4)], 8 << 30)  # no lazy table: the flag has no effect
    check_table_memory(configure(*LAZY), lazy, 8 << 30)


def placed(rows, workers=1, dim=4, slots=0):
    """Return the placement of tables, all lazy."""
    return place([Table(f"cat_{i}", count, dim, lazy=True) for i, count in enumerate(rows)], workers, storage=Storage(slots))


BATCH = ("--batch_size", 100)  # 200 samples in two batches: 3,200 bytes of rows of 16 bytes


def test_two_batches_that_fit_are_no_matter():
    assert batches_note(configure(*LAZY, *BATCH), placed([10**9, 50]), 4000, {}) is None
    assert batches_note(configure(*LAZY, *BATCH), placed([10**9, 50]), math.inf, {}) is None
    assert batches_note(configure(*LAZY, *BATCH, "--mode", "eval"), placed([10**9, 50]), 10, {}) is None
    assert batches_note(configure(*LAZY, *BATCH), place([Table("user", 10**9, 4)], 1), 10, {}) is None


@pytest.mark.parametrize("laws", [{}, {"cat_0": Draws(0, 10**9, 3.0)}], ids=["unknown ids", "few different ids"])
def test_two_batches_that_may_exceed_the_memory_are_a_warning(laws):
    note = batches_note(configure(*LAZY, *BATCH), placed([10**9, 50]), 3999, laws)
    words = (
        "--batch_size 100: the rows of two batches may take up to 4e-06 GB with their optimizer slots, and a worker has 4e-06 GB for its lazy tables"
    )
    assert note == f"{words} (--table_memory_gb)"
    # Each of two workers holds half of the columns, and counts its own.
    assert batches_note(configure(*LAZY, *BATCH), placed([10**9], 2), 1600, laws) is None
    assert batches_note(configure(*LAZY, *BATCH), placed([10**9], 2), 1599, laws) is not None


def test_two_batches_that_are_expected_to_exceed_the_memory_are_an_error():
    with pytest.raises(AgreedError) as raised:
        batches_note(configure(*LAZY, *BATCH), placed([10**9], slots=1), 5000, {"cat_0": Draws(0, 10**9, 0.0)})
    assert str(raised.value) == (
        "--batch_size 100: the rows of two batches take some 6.4e-06 GB with their optimizer slots, and a worker has 5e-06 GB for its lazy tables; "
        "give a smaller batch, or at least --table_memory_gb 6.4e-06"
    )


def test_a_worker_whose_tables_in_memory_leave_too_little_is_warned_of():
    tables = [Table("a", 1 << 28, 4, lazy=True, held=1 << 26), Table("b", 1 << 28, 4, lazy=True, held=1 << 26), Table("c", 1 << 26, 4)]
    placement = place(tables, 1)  # 1 GiB each, and each lazy one 4 GiB with all rows
    assert worker_note(placement, 2 << 30, 3 << 30) is None and worker_note(place(tables[2:], 1), 2 << 30, 1) is None
    assert worker_note(placement, 3 << 30, 3 << 30) == (
        "--table_memory_gb: the rows of lazy tables may take 3.0 GiB on worker 0 beside 1.0 GiB of other tables, and it has 3.0 GiB; give less, or "
        "use more workers"
    )
    assert worker_note(placement, 99 << 30, 9 << 30) is None and "may take 8.0 GiB" in worker_note(placement, 99 << 30, 8 << 30)


def test_lazy_tables_are_announced():
    assert held_described(place([Table("user", 9, 4)], 1), 1e9) == ""
    assert held_described(placed([10**9]), 4 << 30) == "1 lazy table, of whose rows a worker holds at most 4.0 GiB"
    assert held_described(placed([1 << 27, 1 << 27]), math.inf) == "2 lazy tables, of whose rows a worker holds at most 4.0 GiB"
    assert held_described(placed([1 << 27, 1 << 27], 2), 3 << 30) == "2 lazy tables, of whose rows a worker holds at most 2.0 GiB"


# What is refused --------------------------------------------------------------------------------------------------------


def test_gpus_are_refused():
    lazy = [Table("user", 9, 4, lazy=True)]
    expected = "--table_storage lazy needs a CPU, and this run computes on a GPU; add --cpu, or give --table_storage memory"
    with pytest.raises(UserError) as raised:
        check_lazy(configure(*LAZY), lazy, "GPU")
    assert str(raised.value) == expected
    check_lazy(configure(*LAZY), [Table("user", 9, 4)], "GPU")


def test_code_built_for_gpus_is_refused(monkeypatch):
    monkeypatch.setenv("DLRM_BUILD_FOR", "GPU")
    with pytest.raises(UserError, match="--table_storage lazy needs a CPU"):
        check_lazy(configure(*LAZY), [Table("user", 9, 4, lazy=True)], "CPU")


def test_norms_of_all_rows_are_refused():
    with pytest.raises(UserError, match="--log_norms reads all rows of all tables, of which --table_storage lazy has only some; drop it, or"):
        check_lazy(configure(*LAZY, "--log_norms"), [Table("user", 9, 4, lazy=True)], "CPU")


def test_missing_operations_are_refused(monkeypatch, tmp_path):
    lazy = [Table("user", 9, 4, lazy=True)]
    monkeypatch.setattr(operations, "library_path", lambda: tmp_path / "missing.so")
    with pytest.raises(UserError, match=r"operations, which are not built for these sources; run ops/build, or give --table_storage memory$"):
        check_lazy(configure(*LAZY), lazy, "CPU")
    monkeypatch.setenv("DLRM_NATIVE_OPS", "0")
    with pytest.raises(UserError, match=r"operations, which are turned off by DLRM_NATIVE_OPS=0; unset it, or give --table_storage memory$"):
        check_lazy(configure(*LAZY), lazy, "CPU")
    check_lazy(configure(*LAZY), [Table("user", 9, 4)], "CPU")


def test_no_lazy_table_is_a_warning_where_the_flag_is_given():
    config, tables = configure(*LAZY), tables_of(*LAZY)
    assert without_lazy(config, tables) == (
        "--table_storage lazy has no effect: no table takes at least --table_storage_above 67,108,864 bytes with its optimizer slots and is neither "
        "updated whole (--dense_update_rows) nor replicated (--data_parallel_threshold); the largest, cat_0, takes 32,000"
    )
    flags = (*LAZY, "--table_storage_above", 32_000)
    assert without_lazy(configure(*flags), tables_of(*flags)) is None and without_lazy(configure(), tables) is None


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture
def native():
    return built_operations()


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--table_memory_gb", "1e6"), "--table_memory_gb 1e+06: the rows of a worker's lazy tables need 931322.6 GiB"),
        (("--table_memory_gb", "1e-7"), "--table_memory_gb: 100 bytes cannot hold one row of each of the 3 lazy tables"),
        (("--table_memory_gb", "1e-4", "--worker_memory_gb", "1e-5"), "or give lazy tables less (--table_memory_gb)"),
        (("--table_memory_gb", "0"), "--table_memory_gb 0.0: expected a positive number"),
        (("--table_storage_above", "-1"), "--table_storage_above -1: expected 0 or more"),
        (("--table_storage", "disk"), "memory"),
    ],
    ids=str,
)
def test_a_run_is_refused_in_one_line(dataset, tmp_path, flags, words):
    lazy = (*LAZY, "--table_storage_above", 0)
    result = here(tmp_path, "--dataset_path", dataset, *TRAIN, "--save_checkpoint_path", tmp_path / "c", *lazy, *flags)
    assert result.code and words in result.err and result.err.count("error: ") == 1 and "Traceback" not in result.err, result.err
    assert not (tmp_path / "c").exists() and "train on 1 worker" not in result.out  # the line before anything is built


def test_switched_off_operations_are_refused_in_one_line(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("DLRM_NATIVE_OPS", "0")
    result = here(tmp_path, "--dataset_path", dataset, *TRAIN, *LAZY, "--table_storage_above", 0)
    assert result.code == 1 and result.err.count("\n") == 1
    assert result.err.startswith("dlrm.py: error: --table_storage lazy needs the C++ operations, which are turned off")


def test_options_of_lazy_tables_have_no_effect_without_them(dataset, tmp_path):
    few = ("--max_steps", "1", "--evals_per_epoch", "0")
    result = here(tmp_path, "--dataset_path", dataset, *TRAIN, *few, "--table_memory_gb", "1", "--table_storage_above", "5")
    assert result.code == 0
    for flag in ("table_memory_gb", "table_storage_above"):
        assert f"warning: --{flag} has no effect without --table_storage lazy" in result.err


# Runs -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    """Train with tables in memory, whose configuration says lazy, so that no lazy storage is needed here; return the folder of checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    flags = (*LAZY, "--table_storage_above", 10**9, "--max_steps", "2", "--evals_per_epoch", "0")
    result = here(folder, "--dataset_path", dataset, *TRAIN, *flags, "--save_checkpoint_path", folder / "c")
    assert result.code == 0, result.err
    return folder / "c"


def prepare(dataset, *flags):
    """Return the tables, the placement and the memory of lazy tables of a prepared run."""
    flags = ["--dataset_path", str(dataset), "--log_path", "", *map(str, flags)]
    with prepared(parse(flags, ""), meet(), "dlrm.py") as run:
        assert run.tables == run.placement.tables
        return run.tables, run.placement, run.table_memory


@pytest.mark.usefixtures("native")
def test_a_new_run_places_lazy_tables(dataset):
    tables, placement, memory = prepare(dataset, *TRAIN, *LAZY, "--table_storage_above", 1000, "--table_memory_gb", "1e-5")
    assert [(table.rows, table.lazy) for table in tables] == [(rows, rows > 7) for rows in CARDINALITIES] and memory == 10_000
    assert [table.held for table in tables] == [None, (10_000 - 50 * 96) // 96, None]  # Adam: 96 bytes a row of 8 columns
    assert placement.stored(0) == 96 * (50 + tables[1].held + 7) and [shard.rows for shard in placement.workers[0]] == list(CARDINALITIES)


@pytest.mark.usefixtures("native")
def test_evaluation_and_resumed_runs_take_the_storage_from_the_checkpoint(dataset, trained, capfd):
    mode = ("--cpu", "--mode", "eval", "--restore_checkpoint_path", trained)
    assert [table.lazy for table in prepare(dataset, *mode)[0]] == [False] * 3
    found = prepare(dataset, *mode, "--table_storage_above", 1000)[0]  # given: but the storage is the checkpoint's
    assert [(table.lazy, table.initializer) for table in found] == [(True, UNIFORM), (True, UNIFORM), (False, ZEROS)]
    assert [table.lazy for table in prepare(dataset, *mode, "--table_storage_above", 0, "--table_storage", "memory")[0]] == [False] * 3
    capfd.readouterr()
    resumed = ("--cpu", "--restore_checkpoint_path", trained, "--max_steps", "3", "--table_storage_above", 1000, "--table_memory_gb", 0.01)
    assert [table.lazy for table in prepare(dataset, *resumed)[0]] == [True, True, False]
    said = capfd.readouterr()
    assert "--table_storage_above 1000 from here on; the checkpoint's run had 1000000000" in said.out
    assert "no effect" not in said.err
    assert not any(table.lazy for table in prepare(dataset, *resumed, "--table_storage", "memory")[0])
    assert "--table_storage memory from here on; the checkpoint's run had lazy" in capfd.readouterr().out


@pytest.mark.usefixtures("native")
def test_new_runs_from_weights_do_not_inherit_the_storage(dataset, trained):
    flags = ("--cpu", "--restore_checkpoint_path", trained, "--resume", "weights", "--table_storage_above", 0)
    assert not any(table.lazy for table in prepare(dataset, *flags)[0])


@pytest.mark.usefixtures("native")
def test_disk_is_checked_for_held_rows(dataset, tmp_path, monkeypatch):
    """A table of V rows whose memory holds fewer needs disk for these."""
    needed = []
    monkeypatch.setattr("run.prepare.claim", lambda *facts: needed.append(facts[3:5]) or claim(*facts))
    for flags in ((), (*LAZY, "--table_storage_above", 0, "--table_memory_gb", "1e-5")):
        prepare(dataset, *TRAIN, "--save_checkpoint_path", tmp_path / "c", *flags)
    assert needed[0] == (96 * sum(CARDINALITIES),) * 2
    assert 10_000 - 96 <= needed[1][0] == needed[1][1] <= 10_000


@pytest.mark.usefixtures("native")
def test_lazy_tables_are_in_the_first_line(dataset, capfd):
    prepare(dataset, *TRAIN, *LAZY, "--table_storage_above", 1000)
    assert "embedding parameters (0.0 GiB), 2 lazy tables, of whose rows a worker holds at most 0.0 GiB; " in capfd.readouterr().out
    prepare(dataset, *TRAIN)
    assert "embedding parameters (0.0 GiB); train" in capfd.readouterr().out
