"""Whether executors come, see the driver's files and have its Python: found out before anything is read."""

import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from utils.errors import UserError

_POLL_S = 0.1


def in_thread(action: Callable[[], Any]) -> tuple[threading.Thread, list[tuple[Any, BaseException | None]]]:
    """Call something in a thread that a process does not wait for; when it has ended, the list has its result, or its error."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def call() -> None:
        try:
            outcome.append((action(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread, outcome


def versions() -> dict[str, str]:
    """Of what the bytes of a dataset depend on."""
    return {"Python": platform.python_version(), "NumPy": np.__version__, "Polars": pl.__version__}


def probe(item: int, folder: Path) -> tuple[str, str, dict[str, str]]:
    """Who runs tasks: host, Python, versions."""
    (folder / "seen").write_text(str(item))
    return socket.gethostname(), sys.executable, versions()


def check_executors(context, run_probes: Callable[[], tuple[list, Exception | None]], wait_s: float) -> None:
    """Run a task on each core, and compare its Python with the driver's.

    Args:
        context: SparkContext.
        run_probes: runs `probe` in tasks; gives their results and an error, or None.
        wait_s: how long the first may wait for an executor, in seconds.

    Raises:
        UserError: no executor took a task in time, one sees another file system, or has another Python or other packages.
    """
    done, gave_up, master = threading.Event(), threading.Event(), context.master
    in_thread(lambda: _give_up(context, wait_s, done, gave_up))
    try:
        found, error = run_probes()
    except UserError as error:
        if re.search("stopped SparkContext|SparkContext was shut down", str(error)):  # by Spark itself, which gives up a master that is silent
            mend = "is it a master of this version of Spark? --spark_log FILE keeps what Spark says"
            raise UserError(f"{master}: Spark gave up waiting for it; {mend}") from None
        if not gave_up.is_set():
            raise
        raise UserError(
            f"{master}: no executor took a task in {wait_s:g} s; are there workers with free cores and memory? (--spark_wait waits longer)"
        ) from None
    finally:
        done.set()
    if error is not None:
        raise error
    for host, python, theirs in found:
        other = [f"{name} {version}, expected {versions()[name]}" for name, version in theirs.items() if version != versions()[name]]
        if other:
            raise UserError(f"the executor on {host} has {'; '.join(other)} ({python}); name the driver's Python and packages in PYSPARK_PYTHON")


def _give_up(context, wait_s: float, done: threading.Event, gave_up: threading.Event) -> None:
    """End the job where none of its tasks has begun in time."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if done.wait(_POLL_S):
            return
    tracker = context.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
    if not any(info.numActiveTasks + info.numCompletedTasks for info in stages) and not done.is_set():
        gave_up.set()
        context.cancelAllJobs()
