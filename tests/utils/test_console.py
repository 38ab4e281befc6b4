"""The progress of long work: whole numbers, the recent rate, and no live line where the output is a file."""

import io
import sys

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


@pytest.fixture
def terminal(monkeypatch):
    """Return a function that puts a terminal in place of standard output and error, and returns it; pytest sets them anew after the fixtures."""

    def take():
        terminal = Terminal()
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdout", terminal)
        return terminal

    return take


def test_terminal_gets_a_live_line_in_whole_numbers_and_a_file_none(monkeypatch, capsys):
    with Console("x").progress(155, "training", "steps") as progress:
        progress.advance(1, "loss 0.5")
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "dumb")
    with Console("x").progress(155, "training", "steps") as progress:
        progress.advance(1)
    assert terminal.getvalue() == ""
    monkeypatch.setenv("TERM", "xterm")
    with Console("x").progress(155, "training", "steps") as progress:
        progress.advance(1)
    shown = terminal.getvalue()
    assert "1/155" in shown and "1.00" not in shown and "nan" not in shown


def test_live_line_shows_rate_in_samples_and_the_steps_of_the_whole_run(terminal, clock):
    terminal = terminal()
    with Console("x").progress(1000, "training", "steps", done=600, samples=256) as progress:
        for _ in range(3):
            clock.now += 2
            progress.advance(1, "loss 0.51234, AUC 0.71234")
    assert "\r\x1b[K603/1,000  60%  loss 0.51234  AUC 0.71234  128 samples/s  0:13:14 left" in terminal.getvalue()  # in 80 columns


def test_lines_and_warnings_come_above_the_live_line(terminal, clock):
    terminal = terminal()
    console = Console("x")
    with console.progress(10, "training", "steps") as progress:
        progress.advance(1)
        console.say("a line")
        console.warn("careful")
        console.say_progress("is shown by the live line")
    console.say_progress("without a live line")
    first = "\r\x1b[Ktraining  1/10  10%"
    assert terminal.getvalue().endswith(f"{first}\r\x1b[Ka line\n{first}\r\x1b[Kx: warning: careful\n{first}\r\x1b[Kwithout a live line\n")


def test_the_work_begun_last_is_shown_and_then_the_one_before(terminal, clock):
    terminal = terminal()
    console = Console("x")
    with console.progress(10, "training", "steps") as outer:
        with console.progress(900, "evaluation", "samples") as inner:
            clock.now += 1
            inner.advance(512)
        clock.now += 1
        outer.advance(1)
    texts = [text.split("  ")[0] for text in terminal.getvalue().split("\r\x1b[K") if text]
    assert texts == ["training", "evaluation", "evaluation", "training"]


def test_live_line_changes_four_times_a_second_at_most(terminal, clock):
    terminal = terminal()
    with Console("x").progress(1000, "training", "steps") as progress:
        for _ in range(1000):
            clock.now += 0.01  # ten seconds in all
            progress.advance(1)
    assert 35 <= terminal.getvalue().count("training") <= 42


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (200, "training  92/752  12%  loss 0.5  AUC 0.8"),
        (39, "training  92/752  12%  loss 0.5"),
        (20, "92/752  loss 0.5"),
        (8, "92/752"),
        (3, "92/"),
        (-1, ""),
    ],
)
def test_a_narrow_terminal_lacks_the_least_important_fields(width, expected):
    fields = [("training", 2), ("92/752", 7), ("12%", 3), ("loss 0.5", 5), ("AUC 0.8", 1)]
    assert console.fitted(fields, width) == expected


def test_a_terminal_that_goes_away_costs_one_line_only(monkeypatch, clock, capsys):
    class Gone(Terminal):
        def write(self, text):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    display = Console("x")
    with display.progress(10, "training", "steps") as progress:
        for _ in range(10):
            clock.now += 1
            progress.advance(1)
        display.say("goes on")
    assert capsys.readouterr().out == "goes on\n"


def test_a_disabled_console_shows_nothing(terminal):
    terminal = terminal()
    silent = Console("x", enabled=False)
    with silent.progress(10, "training", "steps") as progress:
        progress.advance(5)
        silent.say("a")
        silent.say_progress("b")
        silent.warn("c")
    assert terminal.getvalue() == ""
