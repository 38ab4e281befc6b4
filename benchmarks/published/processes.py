"""Runs of programs in processes of their own: their output, and what they cost."""

import os
import resource
import subprocess
import time
from dataclasses import dataclass

from benchmarks.children import ROOT
from utils.cluster import processes
from utils.errors import UserError


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its standard output, and the figures of the whole process, start-up included."""

    out: str
    figures: dict[str, float]


def ended(*command: object) -> Ended:
    """Run a command in the repository's root until it ends; it is ended with this process.

    Raises:
        UserError: it cannot be started or fails; the message has the last line that it printed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": str(ROOT)}
    words, load = list(map(str, command)), os.getloadavg()[0]
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        result = processes.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise UserError(f"{words[0]}: {error.strerror or error}; it cannot be started") from None
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode:
        said = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()] or [f"exit code {result.returncode}"]
        raise UserError(f"{' '.join(words[:3])} … failed: {said[-1].strip()[:400]}")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ended(result.stdout, {"process_seconds": seconds, "cpu_seconds": spent, "load_before": load})
