"""Tests that a closed terminal (SIGHUP) ends training as SIGTERM does, unless the run was started to ignore it."""

import contextlib
import signal
import subprocess
import sys

import pytest
from runs import ROOT, TRAIN

from tests.children import dispositions
from utils.checkpoint.reading import Checkpoint
from utils.signals import StopRequest


@pytest.fixture
def training(dataset, tmp_path):
    """Return a context manager that starts a run of 8,000 steps, which prints each one, and waits for the twentieth."""
    flags = ("--epochs", "500", "--evals_per_epoch", "0", "--print_freq", "1", "--log_path", "", "--save_checkpoint_path", tmp_path / "c")
    command = [sys.executable, "-u", ROOT / "dlrm.py", "--dataset_path", dataset, *TRAIN, *flags]

    @contextlib.contextmanager
    def start(hangup):
        before = signal.signal(signal.SIGHUP, hangup)  # a process inherits the disposition SIG_IGN
        try:
            process = subprocess.Popen(list(map(str, command)), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        finally:
            signal.signal(signal.SIGHUP, before)
        with process:
            try:
                wait_for_step(process, 20)
                yield process
            finally:
                process.kill()

    return start


def wait_for_step(process, step):
    assert any(f"step {step}/" in line for line in process.stdout), process.stderr.read()


def test_closed_terminal_ends_training_and_saves(training, tmp_path):
    with training(signal.SIG_DFL) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)  # the first comes from the kernel, the second from the shell to its jobs
        process.send_signal(signal.SIGTERM)  # and this one from whoever ends the session
        _, err = process.communicate(timeout=60)
    assert process.returncode == 129, err
    step = Checkpoint(tmp_path / "c").step
    assert step >= 20
    assert f"stopped by SIGHUP after step {step}, which is saved; to resume, run the same command with" in err
    assert "Traceback" not in err


def test_a_run_under_nohup_outlives_its_terminal(training, tmp_path):
    with training(signal.SIG_IGN) as process:
        process.send_signal(signal.SIGHUP)
        wait_for_step(process, 100)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert Checkpoint(tmp_path / "c").step >= 100


# StopRequest by itself -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signals", "strongest"),
    [
        ([signal.SIGHUP], signal.SIGHUP),
        ([signal.SIGHUP] * 2, signal.SIGHUP),  # the two numbers (1 + 1) add up to SIGINT's
        ([signal.SIGHUP] * 15, signal.SIGHUP),
        ([signal.SIGINT] * 8, signal.SIGINT),
        ([signal.SIGTERM] * 3, signal.SIGTERM),
        ([signal.SIGHUP, 0, signal.SIGINT], signal.SIGINT),
        ([signal.SIGINT, signal.SIGTERM, 0], signal.SIGTERM),
    ],
)
def test_strongest_signal_of_several_workers_counts(signals, strongest):
    everyone = [(signum, "") for signum in signals]
    assert StopRequest().heard(everyone) == (strongest, "")
    gone = StopRequest()
    gone.signum, gone.reason = signal.SIGTERM, "a reason"
    assert StopRequest().heard([*everyone, (gone.signum, gone.reason)]) == (signal.SIGTERM, "the launcher is gone")
    assert gone.heard(everyone) == (signal.SIGTERM, "a reason")


def test_a_second_sigterm_ends_at_once_but_not_one_after_sighup(monkeypatch):
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    with dispositions(), StopRequest() as stop:
        for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(signum)
        assert (stop.signum, ended) == (signal.SIGHUP, [])
        signal.raise_signal(signal.SIGTERM)
    assert ended == [143]


def test_reason_does_not_count_as_a_signal(monkeypatch):
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    assert not StopRequest.ask("nobody is asked")
    with StopRequest() as stop:
        assert StopRequest.ask("the launcher is gone")
        signal.raise_signal(signal.SIGTERM)  # mpirun sends it a second later
    assert (stop.signum, stop.reason, ended) == (signal.SIGTERM, "the launcher is gone", [])
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert StopRequest.ask("the launcher is gone")
    assert (stop.signum, stop.reason) == (signal.SIGINT, "")
