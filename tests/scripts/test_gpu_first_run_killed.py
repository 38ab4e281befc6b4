"""Tests that processes started by a part of scripts/gpu_first_run do not stay on the GPU after it is killed."""

import signal
import sys

import psutil
from children import ROOT, child, wait_for

STARTS = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True).wait()"
RUN = """
import sys
from pathlib import Path
from benchmarks.gpu.first_run import run
from benchmarks.gpu.parts import Command
run(Command("waits", (sys.executable, "-c", sys.argv[2]), 300), Path(sys.argv[1]), 0, {})
"""


def test_part_does_not_outlive_the_killed_script(tmp_path):
    with child([sys.executable, "-c", RUN, tmp_path, STARTS], cwd=ROOT) as process:
        me = psutil.Process(process.pid)
        below = []

        def started():
            below[:] = [one for one in me.children(recursive=True) if "sleep(300)" in " ".join(words(one))]
            return len(below) == 2  # the part, and its child in a session of its own

        wait_for(started, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            assert not [one for one in psutil.wait_procs(below, 60)[1] if words(one)]
        finally:
            for one in below:
                if one.is_running():
                    one.kill()


def words(process):
    """Return the words of a process's command; none if it has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
