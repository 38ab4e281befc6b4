"""Child processes for benchmarks that measure new processes: a module starts itself as a child and receives one JSON object from it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.cluster.processes import of_group, send

ROOT = Path(__file__).parents[1]
CHILD = "--child"  # first argument of a process that a benchmark started; not a flag for users
ANSWER = "benchmark-child: "
_LIMIT_S = 1800


@dataclass(frozen=True)
class Ended:
    """The result of a process: its wall-clock seconds and its standard output."""

    seconds: float
    out: str

    def answers(self) -> list[Any]:
        """Return the values of its `answer` calls, of all workers where there were several."""
        lines = [line.partition(ANSWER)[2] for line in self.out.splitlines() if ANSWER in line]
        return [json.loads(line) for line in lines]


def start(*command: object) -> Ended:
    """Run a command in the repository's root until it ends. On an interrupt or timeout its process group is terminated.

    Raises:
        RuntimeError: the command failed; the message holds its last lines of output.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # horovodrun is installed beside this Python
    modules = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PATH": path, "PYTHONPATH": modules}
    begun = time.perf_counter()
    process = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=_LIMIT_S)
    except BaseException:
        send(signal.SIGTERM, of_group(process.pid))
        raise
    seconds = time.perf_counter() - begun
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with code {process.returncode}:\n" + "\n".join((out + err).splitlines()[-20:]))
    return Ended(seconds, out)


def itself(module: str, task: dict[str, Any]) -> list[str]:
    """Return the command by which a benchmark starts itself for a task."""
    return [sys.executable, "-m", module, CHILD, json.dumps(task)]


def task() -> dict[str, Any] | None:
    """Return the task of this process; None where a user started it."""
    return json.loads(sys.argv[2]) if sys.argv[1:2] == [CHILD] else None


def answer(value: Any) -> None:
    """Send a value to the parent process, in one write, so that lines of several workers do not mix."""
    sys.stdout.write(f"{ANSWER}{json.dumps(value)}\n")
    sys.stdout.flush()


def last_answer(module: str, **task: Any) -> Any:
    """Start a benchmark for a task and return its last answer."""
    return start(*itself(module, task)).answers()[-1]
