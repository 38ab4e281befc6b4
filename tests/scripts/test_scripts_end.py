"""Tests that background processes of a script end with it, also if a signal comes at the worst moment or the script is killed."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from children import dispositions

SCRIPTS = Path(__file__).parents[2] / "scripts"
# Every bash reads this through BASH_ENV. It ends the script between the start of a background program and the line that stores its process id.
SIGNAL = """trap '[[ $BASH_COMMAND != @(watch|server)=\\$! ]] || kill -TERM $$' DEBUG\n"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def code_of(words, folder, **environment):
    """Run a command, wait until no process holds its output any more, and return its exit code."""
    pipe = subprocess.PIPE
    with dispositions():
        process = subprocess.Popen(words, cwd=folder, env=os.environ | environment, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        process.communicate(timeout=20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return process.returncode


@pytest.fixture
def copied(tmp_path):
    """Return a folder with copies of scripts, and with the file SIGNAL for BASH_ENV."""
    (tmp_path / "scripts").mkdir()
    for name in ("preproc_benchmark.sh", "memscript.sh", "serving_demo", "keepalive.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    (tmp_path / "signal.sh").write_text(SIGNAL)
    return tmp_path


def test_a_signal_ends_the_memory_watch_at_once(copied):
    program(copied / "scripts/preproc.sh", "sleep 100")
    assert code_of(["scripts/preproc_benchmark.sh", "-m", "polars"], copied, BASH_ENV=str(copied / "signal.sh")) == -signal.SIGTERM


def test_a_killed_benchmark_leaves_no_memory_watch(copied):
    program(copied / "scripts/preproc.sh", "until [ -f mem_consumption.txt ]; do sleep 0.05; done; kill -KILL $PPID")
    assert code_of(["scripts/preproc_benchmark.sh", "-m", "polars"], copied, SLEEP="0.1") == -signal.SIGKILL


def test_memory_watch_ends_cleanly_on_sigterm(copied):
    """The memory watch ends cleanly on SIGTERM, even if started without a process to watch, as NVIDIA's benchmark starts it."""
    watch = subprocess.Popen(["scripts/memscript.sh"], cwd=copied, env=os.environ | {"SLEEP": "100"}, stdout=subprocess.PIPE)
    try:
        while not (copied / "mem_consumption.txt").exists():
            assert watch.poll() is None
    finally:
        watch.terminate()
    assert watch.communicate(timeout=20) == (b"", None) and watch.returncode == 0


def test_a_signal_ends_the_server_of_the_demo(copied):
    for name in ("scripts/install", ".venv/bin/python"):
        program(copied / name, "")
    program(copied / "scripts/serve", "exec sleep 100")
    assert code_of(["scripts/serving_demo"], copied, BASH_ENV=str(copied / "signal.sh")) == -signal.SIGTERM


def test_demo_fails_if_its_server_does_not_start(copied):
    for name in ("scripts/install", ".venv/bin/python"):
        program(copied / name, "")
    program(copied / "scripts/serve", "exit 3")
    assert code_of(["scripts/serving_demo"], copied) == 1
