"""Tests of `Job`: no process of a command is left behind, whenever the process that started it is killed."""

import fcntl
import signal
import sys

from tests.distributed.launching import launch, wait_for
from utils.cluster.processes import Job

# This program starts a job and is killed as soon as the job's command runs, before its own next line.
_KILLED = """
import os, signal, subprocess
from utils.cluster.processes import Job

class Popen(subprocess.Popen):
    def __init__(self, words, **options):
        super().__init__(words, **options)
        if words[0] == "sleep":
            os.kill(os.getpid(), signal.SIGKILL)

subprocess.Popen = Popen
with Job(["sleep", "1000"], os.environ, print):
    pass
"""


def test_a_job_does_not_outlive_a_process_killed_right_after_its_start():
    # `launch` fails if a process is left
    assert launch(1, sys.executable, "-c", _KILLED).code == -signal.SIGKILL


def test_a_discovery_script_does_not_outlive_a_process_that_is_killed():
    code = """
import os, signal
from run.elastic.discovery import HostScript
HostScript("sleep 1000 & sleep 1000").poll()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert launch(1, sys.executable, "-c", code).code == -signal.SIGKILL


def test_killed_process_holds_no_lock(tmp_path):
    """After `kill`, a process holds no lock. While the kernel frees its gigabyte, it no longer has an environment, but still has its locks."""
    code = f"import fcntl, time; held = open('{tmp_path}/lock', 'w'); fcntl.flock(held, fcntl.LOCK_EX)\n"
    code += f"memory = b'1' * (1 << 30); open('{tmp_path}/up', 'w'); time.sleep(1000)"
    with Job([sys.executable, "-c", code], {}, print) as job:
        wait_for((tmp_path / "up").exists, "it has its memory", 60)
        job.kill()
        with (tmp_path / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_command_that_cannot_be_run_leaves_no_guard():
    code = """
import os, pathlib
from utils.cluster.processes import Job
try:
    Job(["/nowhere/command"], os.environ, print).__enter__()
except FileNotFoundError:
    print(pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text())
"""
    result = launch(1, sys.executable, "-c", code)
    assert (result.code, result.out.strip()) == (0, "")


def test_job_ends_all_processes_that_it_started():
    with Job(["sh", "-c", "setsid sleep 1000 & sleep 1000 & sleep 1000"], {"PATH": "/usr/bin:/bin"}, print) as job:
        wait_for(lambda: len(job.find(lambda command, _: command[:1] == ["sleep"])) == 3, "all have started", 20)
    assert job.code == 128 + signal.SIGKILL
    assert job.find(lambda *_: True) == []
