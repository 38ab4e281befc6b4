"""Launches of workers as users start them, with a time limit; and the search for their processes."""

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
from tests.left_out import starts

ROOT = Path(__file__).parents[2]
_MARK = "DLRM_TEST_LAUNCH"
_TAG = re.compile(r"^\[1,(\d+)\]<std(out|err)>:", re.M)  # mpirun tags each line with the rank of its worker


@dataclass
class Launch:
    """The outcome of a launch: exit code, output and duration."""

    code: int
    out: str  # output of all workers, without mpirun's tags
    err: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        """The lines of standard error in which workers of dlrm.py report an error."""
        return [line for line in self.err.splitlines() if "dlrm.py: error: " in line]


def environment(mark: str) -> dict[str, str]:
    """Return this process's environment with the repository on PYTHONPATH, this Python's launcher on PATH, and the launch's mark."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"} | dict([mark.split("=")])


# The command that horovodrun runs. It is run directly, since horovodrun imports TensorFlow to check for MPI, which takes as long as a worker's start.
MPI = "mpirun --allow-run-as-root --tag-output --oversubscribe --bind-to none --map-by slot --mca pml ob1 --mca btl ^openib"


def launch(workers: int, *command, during: Callable[["Running"], None] | None = None, limit_s: float = 240, horovodrun: bool = False) -> Launch:
    """Run a command on N workers of this machine; one worker runs without a launcher.

    No process of the launch is left when the function returns; the test fails if one outlives the launcher.

    Args:
        workers: their number, N.
        command: the command that each of them runs.
        during: called once the launcher has started.
        limit_s: seconds after which all processes are killed and the test fails.
        horovodrun: start the workers with horovodrun, as users do, not with mpirun.
    """
    starts("workers")
    words = list(map(str, command))
    if workers > 1:
        launcher = ["horovodrun", "--mpi-args=--oversubscribe"] if horovodrun else MPI.split()
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
            while found := processes(mark):  # none, unless the test has failed already
                for number in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                process.wait()
        return Launch(code, _content(out), _content(err), time.monotonic() - start)


def _content(file) -> str:
    size = os.fstat(file.fileno()).st_size  # pread: the workers share the file position and write at it
    return _TAG.sub("", os.pread(file.fileno(), size, 0).decode())


@dataclass
class Running:
    """A launch whose workers still run."""

    mark: str
    process: subprocess.Popen
    file: IO[str]

    @property
    def out(self) -> str:
        """The workers' standard output so far."""
        return _content(self.file)

    def worker(self, rank: int) -> int:
        """Return the process id of a worker of dlrm.py."""
        found = [number for number, (other, command) in processes(self.mark).items() if other == rank and "python" in Path(command[0]).name]
        assert len(found) == 1, found
        return found[0]

    def end_within(self, limit_s: float) -> None:
        """Wait for the launcher to end; raise TimeoutExpired if it takes longer."""
        self.process.wait(limit_s)


def dlrm(workers: int, *flags, **options) -> Launch:
    """Run dlrm.py on N workers; `options` are those of `launch`."""
    return launch(workers, sys.executable, "-u", ROOT / "dlrm.py", *flags, **options)


def in_process(*flags) -> None:
    """Run dlrm.py on one worker in this process, which saves the start of another one; raise UserError where the run fails."""
    from run.command import do

    do(list(map(str, flags)), "dlrm.py", "")


def processes(mark: str) -> dict[int, tuple[int | None, list[str]]]:
    """Return the processes of a launch by id: the rank, None for a process that is no worker, and the command's words."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if mark.encode() in variables:
                rank = next((int(text.split(b"=")[1]) for text in variables if text.startswith(b"OMPI_COMM_WORLD_RANK=")), None)
                found[int(entry.name)] = rank, (entry / "cmdline").read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # the process has just ended, or belongs to another user
            continue
    return found


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 120):
    """Wait until the condition's value is true and return the value; fail after the limit."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)  # a condition that searches all processes takes 10 ms of CPU time
    raise AssertionError(f"waited {limit_s} s in vain: {what}")
