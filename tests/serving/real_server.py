"""A real Triton server for tests, which are skipped with a reason where it is not installed."""

import importlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from serving.server import Server, ServerConfig
from serving.stub_environment import numpy_folder
from serving.triton_install import server_folder
from tests.left_out import left_out, starts

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # as in serving/connection.py, whichever of both imports gRPC first

PORTS = ServerConfig(http_port=0, grpc_port=0, metrics_port=0, exit_seconds=2, ready_seconds=400)  # enough on a busy machine, too


def needed() -> None:
    """Skip the test where the server or its clients are not installed; fail it in continuous integration."""
    starts("a server")
    packages("tritonclient.grpc", "tritonclient.http")
    for folder in (server_folder(), numpy_folder()):
        if not folder.is_dir():
            left_out(f"{folder} does not exist; run ./scripts/install --serving")


def packages(*modules: str) -> None:
    """Skip the test where one of the modules cannot be imported; fail it in continuous integration."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, RuntimeError) as error:
            left_out(f"{module} cannot be imported ({error}); run ./scripts/install --serving")


def started(repository: Path, say: Callable[[str], None] = lambda text: None) -> Server:
    """Start a server, wait until it is ready and return it."""
    needed()
    server = Server(repository, PORTS, say)
    try:
        server.wait_until_ready()
    except BaseException:
        server.close()
        raise
    return server


def stubs(server: Server) -> list[psutil.Process]:
    """Return the processes of the server's Python backend."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if is_stub(child)]


def is_stub(process: psutil.Process) -> bool:
    """Return True for a process of the Python backend; False also where it has ended meanwhile."""
    try:
        return "triton_python_backend_stub" in " ".join(process.cmdline()[:1])
    except psutil.NoSuchProcess:
        return False


def running(process: psutil.Process) -> bool:
    """Return True unless the process has ended; a zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(condition, limit_s: float = 60.0):
    """Wait until the condition's value is true and return the value; fail after the limit."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"the condition did not become true within {limit_s:g} s"
        time.sleep(0.1)
    return found


def tracebacks(server: Server) -> list[str]:
    """Return the lines of the server's log at which a traceback starts."""
    return re.findall(r"^.*Traceback.*$", Path(server.log).read_text(errors="replace"), re.M)
