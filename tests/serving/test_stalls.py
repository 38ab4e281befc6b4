"""A process that stood still ends before it answers; one that computes, however long, does not."""

import signal
import sys
import time

from children import ROOT, child

IDLE = "import time; from serving.stalls import Stalls; Stalls(); print(1, flush=True); time.sleep(600)"
ANSWERS = """
import time
from serving.stalls import Stalls
stalls = Stalls()
print(1, flush=True)
while True:
    stalls.check()
    print(1, flush=True)
    time.sleep(0.01)
"""
COMPUTES = """
from serving.stalls import Stalls
stalls = Stalls()
for _ in range(3):
    sum(range(40_000_000))  # no other thread of Python's has a turn
    stalls.check()
"""


def stopped(process):
    assert process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    return process.wait(60)


def test_one_that_was_stopped_ends():
    with child([sys.executable, "-c", IDLE], cwd=ROOT) as process:
        assert stopped(process) == 1


def test_one_that_was_stopped_answers_no_more():
    with child([sys.executable, "-c", ANSWERS], cwd=ROOT) as process:
        assert stopped(process) == 1


def test_one_that_computes_goes_on():
    with child([sys.executable, "-c", COMPUTES], cwd=ROOT) as process:
        assert process.wait(120) == 0
