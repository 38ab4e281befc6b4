"""Signals that end a command: where they raise at once, where they wait, and what becomes of the exceptions they raise."""

import signal
import time

import polars as pl
import pytest

from preproc.shared.in_order import in_order
from tests.children import dispositions
from utils import signals
from utils.commands import run_command
from utils.signals import EndedBySignals, uninterrupted


def test_uninterrupted_defers_signals(capsys):
    steps = []
    with dispositions(), pytest.raises(SystemExit) as ended, EndedBySignals("name"):
        with uninterrupted():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            steps.append("inside")
        steps.append("after")
    assert steps == ["inside"] and ended.value.code == 128 + signal.SIGHUP
    assert capsys.readouterr().err == "name: stopped by SIGHUP\n"


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with EndedBySignals("name"), uninterrupted():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def in_a_library(code, **names):
    """Run a piece of code as if it stood in a file of Python's own library."""
    exec(compile(code, "/usr/lib/python3.11/threading.py", "exec"), {"signal": signal, "time": time, **names})


def test_signal_is_deferred_inside_a_library():
    steps = []
    with dispositions(), pytest.raises(SystemExit) as ended, EndedBySignals("name"):
        in_a_library("signal.raise_signal(signal.SIGTERM); time.sleep(0.1); steps.append('with its lock')", steps=steps)
        time.sleep(60)
        steps.append("after")
    assert steps == ["with its lock"] and ended.value.code == 128 + signal.SIGTERM


def test_deferral_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(signals, "PATIENCE_S", 0.05)
    with dispositions(), pytest.raises(KeyboardInterrupt), EndedBySignals("name"):
        in_a_library("signal.raise_signal(signal.SIGINT)\nwhile True: time.sleep(0.01)")


def test_signal_does_not_wait_for_pending_results(monkeypatch):
    monkeypatch.setattr(signals, "PATIENCE_S", 1000)
    monkeypatch.setattr(signals, "REMINDER_S", 1000)

    def task():
        in_a_library("time.sleep(0.005)")

    taken = []
    with dispositions(), pytest.raises(SystemExit), EndedBySignals("name"):
        in_a_library("signal.raise_signal(signal.SIGTERM)\nfor _ in results: taken.append(0)", results=in_order([task] * 2000), taken=taken)
    assert len(taken) < 10


def test_later_signal_raises_if_the_first_was_swallowed(monkeypatch):
    steps = []
    with dispositions(), pytest.raises(SystemExit), EndedBySignals("name"):
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            steps.append("swallowed")
        signal.raise_signal(signal.SIGTERM)  # has no effect: the cleanup may be removing files by now
        steps.append("goes on")
        monkeypatch.setattr(signals, "AGAIN_S", 0)
        signal.raise_signal(signal.SIGTERM)
        steps.append("never")
    assert steps == ["swallowed", "goes on"]


def as_another_error(number):
    try:
        signal.raise_signal(number)
    except BaseException as error:
        raise OSError(str(error)) from None


def in_a_query(number):
    """Polars adds the expression to the text of an exception, which is the exit code of SystemExit."""
    pl.DataFrame({"a": [1]}).select(pl.col("a").map_batches(lambda values: signal.raise_signal(number), return_dtype=pl.Int64))


@pytest.mark.parametrize("library", [as_another_error, in_a_query])
@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGTERM, 143, "x: stopped by SIGTERM\n"), (signal.SIGINT, 130, "x: interrupted\n")])
def test_signal_exception_converted_by_a_library_is_restored(number, code, said, library, capsys):
    with dispositions(), pytest.raises(SystemExit) as ended, EndedBySignals("x"):
        raise SystemExit(run_command(lambda: library(number), "x"))
    assert ended.value.code == code and capsys.readouterr().err == said


def test_late_signal_has_no_effect(capsys):
    with dispositions(), EndedBySignals("name") as command:
        in_a_library("signal.raise_signal(signal.SIGTERM); command.__exit__(None, None, None)", command=command)
    assert capsys.readouterr().err == ""
