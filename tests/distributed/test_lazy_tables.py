"""Tests that lazy tables, and checkpoints of touched rows, train to the bits of tables in memory. `./scripts/faults --only lazy` runs every case."""

import numpy as np
import pytest

from tests.distributed.lazy_cases import (
    ALL_FIRST,
    AT_ONCE,
    CUT,
    GROWN,
    LAZY_FIRST,
    LAZY_TO_TOUCHED,
    MEMORY_FIRST,
    PAIRS,
    TOUCHED,
    TOUCHED_FIRST,
    TOUCHED_GROWN,
    TOUCHED_TO_LAZY,
    Case,
    check,
    train_all,
    write_all,
)
from tests.distributed.lazy_runs import LAZY, assert_equal, command
from tests.distributed.resident import do_in_turn
from tests.distributed.small_data import DIM
from utils.checkpoint.reading import Checkpoint

CASES = [
    *(Case(name, 1, AT_ONCE) for name in PAIRS),
    *(Case(name, 2, AT_ONCE) for name in ("adam lists", "rowwise shapes", "rmsprop weights")),
    *(Case("sgd", 1, way) for way in (LAZY_FIRST, MEMORY_FIRST)),
    Case("ftrl wide", 1, LAZY_FIRST),
    Case("adagrad normal", 2, MEMORY_FIRST),
    Case("adam lists", 2, LAZY_FIRST),
    Case("adam lists", 2, GROWN),
    *(Case(name, 1, TOUCHED) for name in ("sgd", "frozen")),
    Case("rmsprop weights", 2, TOUCHED),
    Case("ftrl wide", 1, TOUCHED_FIRST),
    Case("adagrad normal", 2, ALL_FIRST),
    Case("adam lists", 2, TOUCHED_GROWN),
    Case("sgd", 1, TOUCHED_TO_LAZY),
    Case("rowwise shapes", 2, LAZY_TO_TOUCHED),
]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Write the datasets of the cases; return their folder."""
    return write_all(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(scope="module")
def trained(datasets, tmp_path_factory):
    """Return the folder of the runs of CASES, and of runs with frozen tables cut by columns."""
    folder = tmp_path_factory.mktemp("lazy")
    train_all(datasets, folder, CASES)
    flags = ("--optimizer", "sgd", "--embedding_trainable", "false", *CUT)

    def steps(name, count, *more):
        return command(datasets / "of" / "partial", folder, name, *flags, *more, "--max_steps", str(count))

    result = do_in_turn(2, [steps("cut-memory", 5), steps("cut-lazy", 4), steps("cut-lazy", 5, *LAZY, "--resume", "auto")])
    assert result.code == 0, result.err
    return folder


@pytest.mark.costly("the first of the file runs all its trainings")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder)
def test_training_ends_with_the_bits_of_tables_in_memory(trained, case):
    check(trained, case)


def test_touched_rows_that_never_changed_exist_on_every_worker_that_holds_columns_of_them(trained):
    assert_equal(trained / "cut-lazy", trained / "cut-memory")


def test_checkpoint_holds_only_rows_that_batches_have_named(trained):
    lazy, memory = Checkpoint(trained / "sgd-lazy-1"), Checkpoint(trained / "sgd-memory")
    saved = lazy.touched_table("cat_0")
    assert memory.touched_table("cat_0") is None
    assert 0 < saved.count < saved.rows == 200 and lazy.shape("tables/cat_0/weights") == (200, DIM)
    assert lazy.manifest["format"] == 4 and memory.manifest["format"] == 3


def test_checkpoints_of_touched_rows_are_those_of_lazy_tables(trained):
    """The same rows are stored, and described alike, whether the tables are in memory or lazy."""
    lazy, touched = Checkpoint(trained / "sgd-lazy-1"), Checkpoint(trained / "sgd-touched-1")
    assert touched.manifest["touched_rows"] == lazy.manifest["touched_rows"]
    for name in touched.manifest["touched_rows"]:
        np.testing.assert_array_equal(touched.touched_table(name).numbers, lazy.touched_table(name).numbers)


def test_rows_of_a_whole_checkpoint_that_never_changed_are_not_stored(trained):
    checkpoint = Checkpoint(trained / "adagrad-normal-all-first-2")
    stored = [checkpoint.touched_table(name) for name in checkpoint.manifest["touched_rows"]]
    assert stored and all(0 < table.count <= table.rows for table in stored) and any(table.count < table.rows for table in stored)
