"""What a script has started in the background ends with it: where a signal comes in the worst moment, and where it is killed."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from children import dispositions

SCRIPTS = Path(__file__).parents[2] / "scripts"
# To be read by every bash: ends it between the start of the program in the background and the line that remembers it.
SIGNAL = """trap '[[ $BASH_COMMAND != @(watch|server)=\\$! ]] || kill -TERM $$' DEBUG\n"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def code_of(words, folder, **environment):
    """Its exit code as soon as nobody holds its output any more."""
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
    """A folder with copies of scripts, and BASH_ENV for a signal."""
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


def test_the_memory_watch_ends_well_when_it_is_told_to(copied):
    """As NVIDIA's benchmark does, which does not say what is watched."""
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


def test_a_server_of_the_demo_that_does_not_come_up_is_an_error(copied):
    for name in ("scripts/install", ".venv/bin/python"):
        program(copied / name, "")
    program(copied / "scripts/serve", "exit 3")
    assert code_of(["scripts/serving_demo"], copied) == 1
