"""Programs that end with this process (`utils.cluster.processes`): a signal while they are started is neither lost nor leaves them behind."""

import signal
import sys

import psutil
import pytest

from tests.children import ROOT, child

PROGRAM = """
import os, signal, sys
from utils.cluster import processes

number, moment = int(sys.argv[1]), sys.argv[2]
def send():
    signal.raise_signal(number)
os.register_at_fork(**{moment: send})
if number == signal.SIGTERM:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
processes.run(["sleep", "100.37"])
"""


@pytest.mark.parametrize("moment", ["before", "after_in_parent"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_during_the_fork_ends_both(number, code, moment):
    with child([sys.executable, "-c", PROGRAM, int(number), moment], cwd=ROOT) as process:
        below = psutil.Process(process.pid)
        assert process.wait(60) == code
        assert not below.is_running() or below.children() == []
        assert "Exception ignored" not in process.stderr.read()
        assert not [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "100.37"]]
