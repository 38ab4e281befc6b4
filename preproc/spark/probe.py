"""A check, before anything is read, that executors start, see the driver's files and have its Python."""

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
    """Call a function in a daemon thread; when it has ended, the returned list holds its result and its error, one of which is None."""
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
    """Return the versions of the software on which the bytes of a dataset depend."""
    return {"Python": platform.python_version(), "NumPy": np.__version__, "Polars": pl.__version__}


def probe(item: int, folder: Path) -> tuple[str, str, dict[str, str]]:
    """Return the host, Python and versions of an executor; a task."""
    (folder / "seen").write_text(str(item))
    return socket.gethostname(), sys.executable, versions()


def check_executors(context, run_probes: Callable[[], tuple[list, Exception | None]], wait_s: float) -> None:
    """Run a task on each core, and compare its Python with the driver's.

    Args:
        context: SparkContext.
        run_probes: runs `probe` in tasks; returns their results, and an error or None.
        wait_s: longest time that the first task may wait for an executor, in seconds.

    Raises:
        UserError: no executor took a task in time, or one sees another file system, or has another Python or other packages.
    """
    done, gave_up, master = threading.Event(), threading.Event(), context.master
    in_thread(lambda: _give_up(context, wait_s, done, gave_up))
    try:
        found, error = run_probes()
    except UserError as error:
        if re.search("stopped SparkContext|SparkContext was shut down", str(error)):  # by Spark itself, if the master is silent
            advice = "is it a master of this version of Spark? --spark_log FILE keeps Spark's log"
            raise UserError(f"{master}: Spark gave up waiting for this master; {advice}") from None
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
            raise UserError(f"the executor on {host} has {'; '.join(other)} ({python}); set PYSPARK_PYTHON to one like the driver's")


def _give_up(context, wait_s: float, done: threading.Event, gave_up: threading.Event) -> None:
    """Cancel the job if none of its tasks has started in time."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if done.wait(_POLL_S):
            return
    tracker = context.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
    if not any(info.numActiveTasks + info.numCompletedTasks for info in stages) and not done.is_set():
        gave_up.set()
        context.cancelAllJobs()
