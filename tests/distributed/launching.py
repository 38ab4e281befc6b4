"""Starts workers as users do, with a time limit, and finds their processes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def environment() -> dict[str, str]:
    """This process's, with the repository's modules and the launcher of this Python in reach."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}


def launch(workers: int, *command, during: Callable[[Callable[[], str]], None] | None = None, limit_s: float = 240) -> Launch:
    """Run a command on so many workers of this machine, or without a launcher on one.

    Args:
        workers: how many.
        command: what each of them runs.
        during: called once they run, with a function that gives what they have written to standard output so far.
        limit_s: seconds after which all are ended and the test fails.
    """
    words = list(map(str, command))
    if workers > 1:
        words = ["horovodrun", "-np", str(workers), "-H", f"localhost:{workers}", "--mpi-args=--oversubscribe", *words]
    start = time.monotonic()
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    stem = folder / f"launch-{os.getpid()}-{time.monotonic_ns()}"
    files = [stem.with_suffix(suffix) for suffix in (".out", ".err")]
    try:
        with files[0].open("w") as out, files[1].open("w") as err:
            process = subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=out, stderr=err, start_new_session=True)
            try:
                if during:
                    during(files[0].read_text)
                code = process.wait(limit_s - (time.monotonic() - start))
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return Launch(code, *(_TAG.sub("", file.read_text()) for file in files), time.monotonic() - start)
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def dlrm(workers: int, *flags, **options) -> Launch:
    """Run dlrm.py."""
    return launch(workers, sys.executable, "-u", ROOT / "dlrm.py", *flags, **options)


def processes(words: Sequence[str | Path]) -> dict[int, int | None]:
    """Processes whose command line holds all of the words: their rank by process id, None for those that are no workers."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if all(any(os.fsencode(str(word)) in part for part in line) for word in words) and line:
                rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", (entry / "environ").read_bytes())
                found[int(entry.name)] = int(rank[1]) if rank else None
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has just ended, or is not ours
            continue
    return found


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 120):
    """The condition's value as soon as it is true."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {limit_s} s in vain: {what}")
