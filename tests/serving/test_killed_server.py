"""Tests of the files left by a server that was killed with all its child processes."""

import re
import sys
from pathlib import Path

import psutil
import pytest
from children import child, found
from real_server import needed
from served_models import PLAIN, export, train, write

FREE = ("--http_port", "0", "--grpc_port", "0", "--metrics_port", "0")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    needed()
    folder = tmp_path_factory.mktemp("killed")
    export(train(write(folder / "data", PLAIN), folder / "c"), folder / "r")
    return folder / "r"


def serve(repository, folder):
    return child([sys.executable, "-m", "serving.server", repository, "--server_log", folder / "log", *FREE])


def address(process):
    """Wait until the server is ready and return its HTTP address."""
    return re.search(r"http://[\d.:]+", next(line for line in iter(process.stdout.readline, "") if line.startswith("ready")))[0]


def test_shared_memory_of_a_killed_server_is_removed_by_the_next(repository, tmp_path):
    with serve(repository, tmp_path) as process:
        address(process)
        below = psutil.Process(process.pid).children(recursive=True)
        for one in (process, *below):
            one.kill()
        psutil.wait_procs(below, 60)
    left = found(Path("/dev/shm"), f"dlrm_{process.pid}_*")
    assert left  # shared memory of Triton, which no process was left to remove
    try:
        with serve(repository, tmp_path) as process:
            address(process)
            assert [path for path in left if path.exists()] == []
            process.terminate()
            assert process.wait(60) == 0
        assert not found(Path("/dev/shm"), f"dlrm_{process.pid}_*")
    finally:
        for path in left:
            path.unlink(missing_ok=True)
