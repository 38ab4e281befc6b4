"""Starts workers as users do, with a time limit, and finds their processes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.children import dispositions

ROOT = Path(__file__).parents[2]
_MARK = "DLRM_TEST_LAUNCH"
_TAG = re.compile(r"^\[1,(\d+)\]<std(out|err)>:", re.M)  # mpirun says whose line it is


@dataclass
class Launch:
    """How a launch ended."""

    code: int
    out: str  # of all workers, without mpirun's tags
    err: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        """Lines in which a worker of dlrm.py says what is wrong."""
        return [line for line in self.err.splitlines() if "dlrm.py: error: " in line]


def environment(mark: str) -> dict[str, str]:
    """This process's, with the repository's modules and the launcher of this Python in reach, and a mark to know the launch by."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"} | dict([mark.split("=")])


# What horovodrun runs in the end; it imports TensorFlow to know that there is MPI, which takes as long as a worker's start.
_MPI = "mpirun --allow-run-as-root --tag-output --oversubscribe --bind-to none --map-by slot --mca pml ob1 --mca btl ^openib"


def launch(workers: int, *command, during: Callable[["Running"], None] | None = None, limit_s: float = 240, horovodrun: bool = False) -> Launch:
    """Run a command on so many workers of this machine, or without a launcher on one.

    Args:
        workers: how many.
        command: what each of them runs.
        during: called once they run.
        limit_s: seconds after which all are ended and the test fails.
        horovodrun: start the workers by it, as users do.

    No process is left when this returns: where one was, the test has failed.
    """
    words = list(map(str, command))
    if workers > 1:
        launcher = ["horovodrun", "--mpi-args=--oversubscribe"] if horovodrun else _MPI.split()
        words = [*launcher, "-np", str(workers), "-H", f"localhost:{workers}", *words]
    start = time.monotonic()
    mark = f"{_MARK}={os.getpid()}-{time.monotonic_ns()}"
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with dispositions():
            process = subprocess.Popen(words, cwd=ROOT, env=environment(mark), stdout=out, stderr=err)
        try:
            if during:
                during(Running(mark, process, out))
            code = process.wait(limit_s - (time.monotonic() - start))
            wait_for(lambda: not processes(mark), "a process is left behind", 30)
        finally:
            while found := processes(mark):  # nothing, unless the test has failed already
                for number in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                process.wait()
        return Launch(code, _content(out), _content(err), time.monotonic() - start)


def _content(file) -> str:
    size = os.fstat(file.fileno()).st_size  # pread: the position is the writers', too
    return _TAG.sub("", os.pread(file.fileno(), size, 0).decode())


@dataclass
class Running:
    """Workers at work."""

    mark: str
    process: subprocess.Popen
    file: IO[str]

    @property
    def out(self) -> str:
        """What they have written to standard output so far."""
        return _content(self.file)

    def worker(self, rank: int) -> int:
        """Process id of a worker of dlrm.py."""
        found = [number for number, (other, command) in processes(self.mark).items() if other == rank and "python" in Path(command[0]).name]
        assert len(found) == 1, found
        return found[0]

    def end_within(self, limit_s: float) -> None:
        """Wait for the launcher to end; raises TimeoutExpired."""
        self.process.wait(limit_s)


def dlrm(workers: int, *flags, **options) -> Launch:
    """Run dlrm.py."""
    return launch(workers, sys.executable, "-u", ROOT / "dlrm.py", *flags, **options)


def processes(mark: str) -> dict[int, tuple[int | None, list[str]]]:
    """Processes of a launch by id: their rank, None where they are no workers, and their command."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if mark.encode() in variables:
                rank = next((int(text.split(b"=")[1]) for text in variables if text.startswith(b"OMPI_COMM_WORLD_RANK=")), None)
                found[int(entry.name)] = rank, (entry / "cmdline").read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has just ended, or is not ours
            continue
    return found


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 120):
    """The condition's value as soon as it is true."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)  # a look at all processes takes 10 ms of a processor
    raise AssertionError(f"waited {limit_s} s in vain: {what}")
