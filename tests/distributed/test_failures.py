"""Tests of a failing worker: the whole job ends soon, reports the cause and the worker once, and leaves no process behind."""

import os
import signal
import sys

import numpy as np
import pytest
from launching import ROOT, dlrm, launch, wait_for
from small_data import FLAGS, write_dataset

LIMIT_S = 60  # limit from the failure to the end of the last process
START_S = 240  # limit for the start and ten steps, on a busy machine, too


def run(*flags, during=None, **options):
    """Run dlrm.py on two workers and check that it fails without a traceback. `launch` checks that no process is left."""
    result = dlrm(2, *flags, during=during, limit_s=START_S + LIMIT_S, **options)
    assert result.code != 0
    assert "Traceback" not in result.out + result.err, result.err
    return result


def after_some_steps(action):
    """Return a `during` of `launch` that runs the action after ten steps and waits for the launcher to end."""

    def during(running):
        wait_for(lambda: "step 10/" in running.out, "ten steps", START_S)
        action(running)
        running.end_within(LIMIT_S)

    return during


@pytest.fixture
def training(tmp_path):
    """Write a dataset that a test may damage; return its folder, and the flags of a run on it that takes hours."""
    folder = write_dataset(tmp_path / "dataset", {"train": 4800, "test": 100})
    return folder, ("--dataset_path", folder, *FLAGS, "--epochs", "100000", "--print_freq", "10", "--log_path", tmp_path / "log.json")


@pytest.mark.costly("two workers are started as users do, and end by a fault")
def test_an_id_out_of_range_in_one_workers_file_names_that_worker(training):
    folder, flags = training
    ids = np.fromfile(folder / "train/cat_1.bin", np.int16)  # ids of the second table, which only worker 1 reads
    ids[4000] = 200
    ids.tofile(folder / "train/cat_1.bin")
    result = run(*flags)
    assert result.errors == ["dlrm.py: error: worker 1: " + result.errors[0].partition("worker 1: ")[2]]
    assert "feature cat_1, row 4000: id 200 is not in [0, 200)" in result.errors[0]


@pytest.mark.costly("two workers are started as users do, and end by a fault")
def test_file_truncated_during_the_run_names_its_worker(training):
    folder, flags = training
    result = run(*flags, during=after_some_steps(lambda running: os.truncate(folder / "train/cat_1.bin", 200)))
    assert len(result.errors) == 1, result.err
    assert result.errors[0].startswith("dlrm.py: error: worker 1: ") and "cut short after this run started" in result.errors[0]


@pytest.mark.costly("two workers are started as users do, and end by a fault")
def test_a_killed_worker_ends_the_job(training):
    _, flags = training
    result = run(*flags, during=after_some_steps(lambda running: os.kill(running.worker(1), signal.SIGKILL)), horovodrun=True)
    assert "process rank 1" in result.err and "signal 9" in result.err, result.err
    assert result.errors == []


def test_nonfinite_loss_is_reported_once(training):
    folder, flags = training
    result = run(*flags, "--optimizer", "sgd", "--learning_rate", "3e38", "--save_checkpoint_path", folder.parent / "checkpoint")
    assert len(result.errors) == 1, result.err
    assert result.errors[0].startswith("dlrm.py: error: step ") and "the loss is" in result.errors[0]
    assert not list(folder.parent.glob("checkpoint/step-*"))


def test_batch_size_that_workers_cannot_share_is_reported_once_with_the_nearest_sizes(training):
    _, flags = training
    result = run(*flags, "--batch_size", "47")
    assert result.errors == ["dlrm.py: error: --batch_size 47: 2 workers cannot share it evenly; the nearest sizes that work: 46 and 48"]


@pytest.mark.costly("two workers are started as users do, and end by a fault")
def test_out_of_memory_names_the_worker(tmp_path):
    """A table of 102 GB exceeds a limit of 40 GB of address space; --worker_memory_gb overrides the check that would refuse the table before."""
    table = ("--synthetic_dataset_cardinalities", "200000000,10", "--embedding_dim", "128", "--column_slice_threshold", "100000000000")
    table += ("--dataset_type", "synthetic", "--cpu", "--dist_strategy", "basic")  # the large table is on worker 0, the small one on worker 1
    small = ("--bottom_mlp_dims", "128", "--top_mlp_dims", "1", "--batch_size", "48", "--valid_batch_size", "48", "--worker_memory_gb", "1000")
    command = (sys.executable, ROOT / "dlrm.py", *table, *small, "--log_path", tmp_path / "log.json")
    result = launch(2, "sh", "-c", 'ulimit -v 40000000 && exec "$@"', "sh", *command, limit_s=START_S + LIMIT_S)
    assert result.code != 0 and "Traceback" not in result.err
    assert len(result.errors) == 1, result.err
    assert result.errors[0].startswith("dlrm.py: error: worker 0: out of memory"), result.err
