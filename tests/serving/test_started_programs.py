"""Tests that programs started by serving's commands end with the command, whatever ends it; a stub that sleeps stands for the program."""

import contextlib
import os
import signal
import sys

import psutil
import pytest
from children import ROOT, child, wait_for
from fake_server import FakeServer
from real_server import eventually, running

# The commands start sys.executable, to export or to fetch the server; here it is replaced by the stub.
MODULE = "import runpy, sys; sys.executable = sys.argv.pop(1); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
ANALYZER = """
import sys, numpy
from serving.perf_analyzer import PerfAnalyzer
PerfAnalyzer(sys.argv[1], "grpc://127.0.0.1:1", "m").measured({"x": numpy.zeros((1, 1))}, 1, 1.0)
"""


@pytest.fixture
def sleeper(tmp_path):
    """Yield the path of a program that writes its process id to a file and sleeps."""
    path = tmp_path / "sleeper"
    path.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/new\nmv {tmp_path}/new {tmp_path}/pid\nexec sleep 300\n")
    path.chmod(0o755)
    yield path
    if (tmp_path / "pid").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def ended(words, sleeper, number, **options):
    """End the command by a signal as soon as the stub runs, and check that the stub ends, too; return the command's exit code and errors."""
    with child(words, cwd=ROOT, **options) as process:
        place = sleeper.with_name("pid")
        wait_for(place.exists, process)
        below = psutil.Process(int(place.read_text()))
        process.send_signal(number)
        code = process.wait(30)
        eventually(lambda: not running(below), 20)
        return code, process.stderr.read()


def publish(sleeper):
    version = sleeper.with_name("r") / "dlrm/1"
    version.mkdir(parents=True)
    (version / "flags.json").write_text("[]")
    return [sys.executable, "-c", MODULE, sleeper, "serving.publish", "--repository", version.parents[1], "--checkpoint", "c"]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_to_publish_ends_the_export(sleeper, number):
    name = signal.Signals(number).name
    assert ended(publish(sleeper), sleeper, number) == (128 + number, f"serving.publish: stopped by {name}\n")


def test_the_export_does_not_outlive_a_killed_publish(sleeper):
    assert ended(publish(sleeper), sleeper, signal.SIGKILL) == (-signal.SIGKILL, "")


def test_perf_analyzer_does_not_outlive_a_killed_load(sleeper):
    assert ended([sys.executable, "-c", ANALYZER, sleeper], sleeper, signal.SIGKILL) == (-signal.SIGKILL, "")


def test_stopped_download_leaves_nothing_and_removes_files_of_a_killed_one(sleeper, tmp_path):
    fake, cache = FakeServer(tmp_path / "fake"), tmp_path / "cache"
    words = [sys.executable, "-c", MODULE, sleeper, "serving.server", fake.repository, "--http_port", "0", "--grpc_port", "0", "--metrics_port", "0"]
    environment = fake.environment | {"DLRM_CACHE_DIR": str(cache)}
    assert ended(words, sleeper, signal.SIGTERM, env=environment) == (0, "")
    assert list(cache.iterdir()) == []
    (tmp_path / "pid").unlink()
    assert ended(words, sleeper, signal.SIGKILL, env=environment) == (-signal.SIGKILL, "")
    (left,) = cache.iterdir()
    (tmp_path / "pid").unlink()
    code, errors = ended(words, sleeper, signal.SIGTERM, env=environment)
    assert (code, errors) == (0, f"{left}: left by a run that was killed; removed\n")
    assert list(cache.iterdir()) == []
