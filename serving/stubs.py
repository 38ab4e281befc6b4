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
_FILE, _REGION, _SHORTEST = 1, 2, 9  # of a command line: the version's model.py, its shared memory, and how many words there are
_END_S = 2.0


class Stub(NamedTuple):
    """A backend process, and the version that it serves."""

    version: Version
    process: psutil.Process


def stubs(server: int) -> Iterator[Stub]:
    """Those of a server that run."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(server).children(recursive=True):
            if words := _words(child):
                *_, model, number, _ = Path(words[_FILE]).parts
                yield Stub(Version(model, int(number)), child)


def end(server: int, version: Version, only_stopped: bool) -> None:
    """Kill those of a version, or those of them that stand still."""
    for stub in stubs(server):
        with contextlib.suppress(psutil.Error):
            if stub.version == version and (not only_stopped or stub.process.status() == psutil.STATUS_STOPPED):
                stub.process.kill()
    deadline = time.monotonic() + _END_S
    while not only_stopped and any(stub.version == version for stub in stubs(server)) and time.monotonic() < deadline:
        time.sleep(0.01)


def end_of(prefix: str) -> None:
    """Kill those whose shared memory has names that begin like this: of a server that is no more."""
    send(signal.SIGKILL, (process for process in psutil.process_iter() if (words := _words(process)) and words[_REGION].startswith(prefix)))


def _words(process: psutil.Process) -> list[str]:
    """The command line of a backend process; empty of another one, and of one that has ended."""
    words = words_of(process)
    return words if len(words) >= _SHORTEST and Path(words[0]).name == _NAME and Path(words[_FILE]).parent.name.isdigit() else []
