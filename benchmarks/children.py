"""Benchmarks that measure new processes: a module starts itself again and hears one JSON object from what it started."""

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
CHILD = "--child"  # the first argument of a process that a benchmark started; not a flag for people
ANSWER = "benchmark-child: "
_LIMIT_S = 1800


@dataclass(frozen=True)
class Ended:
    """How a process ended: seconds of wall-clock time, and what it said."""

    seconds: float
    out: str

    def answers(self) -> list[Any]:
        """What its `answer` calls said, of all workers where there were several."""
        lines = [line.partition(ANSWER)[2] for line in self.out.splitlines() if ANSWER in line]
        return [json.loads(line) for line in lines]


def start(*command: object) -> Ended:
    """Run a command in the repository's root until it ends; what it starts ends with it.

    Raises:
        RuntimeError: it failed, with its last lines.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # horovodrun stands beside this Python
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
    """The command by which a benchmark starts itself for a task."""
    return [sys.executable, "-m", module, CHILD, json.dumps(task)]


def task() -> dict[str, Any] | None:
    """The task of this process; None where a person started it."""
    return json.loads(sys.argv[2]) if sys.argv[1:2] == [CHILD] else None


def answer(value: Any) -> None:
    """Tell the process that started this one; one write, so that workers' lines do not mix."""
    sys.stdout.write(f"{ANSWER}{json.dumps(value)}\n")
    sys.stdout.flush()


def last_answer(module: str, **task: Any) -> Any:
    """Start a benchmark for a task and give what it answered."""
    return start(*itself(module, task)).answers()[-1]
