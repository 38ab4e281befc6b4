"""The processes of Triton's Python backend, one for each instance of a version."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from serving.questions import Version
from utils.cluster.processes import send
from utils.cluster.processes import words as words_of

_NAME = "triton_python_backend_stub"
_FILE, _REGION, _SHORTEST = 1, 2, 9  # indices in a command line: the version's model.py and its shared memory; and the minimum number of words
_END_S = 2.0


class Stub(NamedTuple):
    """A backend process and the version that it serves."""

    version: Version
    process: psutil.Process


def stubs(server: int) -> Iterator[Stub]:
    """Yield the running backend processes of a server."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(server).children(recursive=True):
            if words := _words(child):
                *_, model, number, _ = Path(words[_FILE]).parts
                yield Stub(Version(model, int(number)), child)


def end(server: int, version: Version, only_stopped: bool) -> None:
    """Kill the backend processes of a version, or only those that are stopped."""
    for stub in stubs(server):
        with contextlib.suppress(psutil.Error):
            if stub.version == version and (not only_stopped or stub.process.status() == psutil.STATUS_STOPPED):
                stub.process.kill()
    deadline = time.monotonic() + _END_S
    while not only_stopped and any(stub.version == version for stub in stubs(server)) and time.monotonic() < deadline:
        time.sleep(0.01)


def end_of(prefix: str) -> None:
    """Kill the backend processes whose shared memory has this prefix: those of a server that has ended."""
    send(signal.SIGKILL, (process for process in psutil.process_iter() if (words := _words(process)) and words[_REGION].startswith(prefix)))


def _words(process: psutil.Process) -> list[str]:
    """Return the command line of a backend process; an empty list for other processes and ended ones."""
    words = words_of(process)
    return words if len(words) >= _SHORTEST and Path(words[0]).name == _NAME and Path(words[_FILE]).parent.name.isdigit() else []
