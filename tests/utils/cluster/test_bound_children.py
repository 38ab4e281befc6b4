"""Programs that end with this process (`utils.cluster.processes`): a signal while they are started is neither lost nor leaves them behind."""

import os
import signal
import subprocess
import sys

import pytest

from tests.children import ROOT, child
from utils.cluster import processes

PROGRAM = """
import os, signal, sys
import psutil
from utils.cluster import processes

number, moment = int(sys.argv[1]), sys.argv[2]
def send():
    signal.raise_signal(number)
os.register_at_fork(**{moment: send})
if number == signal.SIGTERM:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
try:
    processes.run(["sleep", "100"])
finally:
    print(len(psutil.Process().children()), flush=True)
"""


@pytest.mark.parametrize("moment", ["before", "after_in_parent"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_during_the_fork_ends_both(number, code, moment):
    with child([sys.executable, "-c", PROGRAM, int(number), moment], cwd=ROOT) as process:
        assert process.wait(60) == code
        assert process.stdout.read() == "0\n"  # children that still run
        assert "Exception ignored" not in process.stderr.read()


def test_a_program_that_gives_way_and_all_that_it_starts_have_low_priority_and_one_processor():
    asked = "import os, psutil, sys; print(os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0)), psutil.Process().ionice().ioclass.name)"
    code = f"import subprocess, sys, time; time.sleep(0.2); subprocess.run([sys.executable, '-c', {asked!r}])"
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    found = processes.run([sys.executable, "-c", code], gives_way=True, stdout=subprocess.PIPE).stdout
    assert found == "19 1 IOPRIO_CLASS_IDLE\n"
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)) == before
