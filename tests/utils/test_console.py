"""The progress of long work: whole numbers, the recent rate, and no bar where the output is a file."""

import io
import sys
import time

import pytest

from utils import console
from utils.console import Console


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    return clock


def test_time_left_skips_the_first_unit_and_follows_the_recent_rate(clock):
    with Console("x").progress(100, "training", "steps") as progress:
        assert progress.time_left() == "?"
        clock.now += 60  # the first step compiles
        progress.advance(1)
        assert progress.time_left() == "?"
        for _ in range(9):
            clock.now += 2
            progress.advance(1)
        assert progress.time_left() == "0:03:00"
        for _ in range(60):
            clock.now += 1
            progress.advance(1)
        assert progress.time_left() == "0:00:30"
        for _ in range(30):
            progress.advance(1)
        assert progress.time_left() == "0:00:00"


def test_terminal_gets_a_bar_in_whole_numbers_and_a_file_none(monkeypatch, capsys):
    with Console("x").progress(155, "training", "steps") as progress:
        progress.advance(1, "loss 0.5")
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Console("x").progress(155, "training", "steps") as progress:
        time.sleep(0.2)  # the bar is drawn ten times a second at most
        progress.advance(1)
    shown = terminal.getvalue()
    assert "1/155" in shown and "1.00" not in shown and "nan" not in shown
