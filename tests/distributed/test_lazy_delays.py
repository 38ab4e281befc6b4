"""Tests that no bit of a training with lazy tables depends on when its threads run: each of them is delayed at random."""

import random
import time

import pytest

import dlrm
from model.embedding.lazy_rows import LazyTables, Placed
from model.embedding.lazy_table import LazyShard, LazyTable
from run.command import do
from tests.distributed.lazy_runs import LAZY, assert_equal, command, figures
from training.snapshot import FrozenRows, Snapshot
from utils.checkpoint.writing import Saving

# What the threads do: that which reads ahead plans rows and draws them, the main one commits them, scores, keeps and saves rows.
DELAYED = (
    (LazyTables, "planned"),
    (LazyTables, "found"),
    (LazyTables, "begin"),
    (LazyTable, "plan"),
    (LazyTable, "find"),
    (LazyShard, "draw"),
    (Placed, "commit"),
    (Snapshot, "protect"),
    (FrozenRows, "read"),
    (Saving, "advance"),
)
MOST_S = 0.01
FLAGS = ("--optimizer", "adam", "--learning_rate", "0.01", "--epochs", "2", "--evals_per_epoch", "2", "--checkpoint_every_steps", "3")


def delayed(function, draw, called):
    """Return the function with a random delay before and after it; it adds itself to those that were called."""

    def call(*arguments, **options):
        called.add(function)
        time.sleep(draw.uniform(0, MOST_S))
        try:
            return function(*arguments, **options)
        finally:
            time.sleep(draw.uniform(0, MOST_S))

    return call


@pytest.fixture(scope="module")
def memory(dataset, tmp_path_factory):
    """Train with tables in memory; return the folder."""
    folder = tmp_path_factory.mktemp("memory")
    do(command(dataset / "of" / "partial", folder, "run", *FLAGS), dlrm.NAME, "")
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_no_bit_depends_on_when_threads_run(dataset, memory, tmp_path, monkeypatch, seed):
    draw, called = random.Random(seed), set()
    functions = [getattr(owner, name) for owner, name in DELAYED]
    for (owner, name), function in zip(DELAYED, functions, strict=True):
        monkeypatch.setattr(owner, name, delayed(function, draw, called))
    do(command(dataset / "of" / "partial", tmp_path, "run", *FLAGS, *LAZY), dlrm.NAME, "")
    assert called == set(functions)
    assert_equal(tmp_path / "run", memory / "run")
    assert figures(tmp_path / "run.log") == figures(memory / "run.log")
