"""Tests that a process that was stopped (SIGSTOP) ends as soon as it is continued (SIGCONT), whatever it is doing."""

import signal
import sys

import pytest
from children import ROOT, child

BEGIN = "import time; from served.stalls import ends_when_continued; ends_when_continued(); print(1, flush=True)"


WORK = ["time.sleep(600)", "[print(2, flush=True) for _ in iter(int, 1)]", "sum(range(10**12))"]


@pytest.mark.parametrize("then", WORK, ids=["waits", "answers", "computes"])
def test_stopped_process_ends_when_continued(then):
    with child([sys.executable, "-c", f"{BEGIN}; {then}"], cwd=ROOT) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        process.stdout.read()
        assert process.wait(60) == signal.SIGCONT


def test_process_that_was_not_stopped_keeps_running():
    with child([sys.executable, "-c", f"{BEGIN}; print(2)"], cwd=ROOT) as process:
        assert process.stdout.read() == "1\n2\n" and process.wait(60) == 0
