"""Safety after a fork: libraries whose threads the child lacks, and locks that a thread of the parent held.

A library's threads live in the process that started them. A fork copies the memory but not the threads, so a call of the library in the child waits
for them for ever. Import this module before a fork: it records the threads that run at that moment.
"""

import contextlib
import os
import threading
import weakref
from pathlib import Path

from utils.errors import UserError

TENSORFLOW, POLARS, TENSORSTORE = "TensorFlow", "Polars", "TensorStore"
_THREADS = {TENSORFLOW: "tf_", POLARS: "polars-", TENSORSTORE: "ts_pool"}  # prefixes of the threads' names in the kernel; Polars' end in a number
_began: set[str] = set()  # libraries whose threads this project started in this process; recorded because idle threads may have ended by the fork
_running: set[str] = set()  # libraries whose threads run when the process forks
_lost: set[str] = set()  # libraries whose threads were started in a parent process, before the fork
_locks: "weakref.WeakSet[RenewedLock]" = weakref.WeakSet()


def check_threads(library: str) -> None:
    """Check that a library can be used in this process, and record that it starts its threads.

    Raises:
        UserError: the process was forked after the library had started its threads.
    """
    if library in _lost:
        raise UserError(
            f"this process was forked after {library} had started its threads, which the fork lacks, so it would wait for ever; start processes by "
            'multiprocessing\'s "spawn" or "forkserver", or fork before a model is loaded or scores'
        )
    _began.add(library)


class RenewedLock:
    """A lock that is free again in a child process after a fork."""

    def __init__(self):
        self._lock = threading.Lock()
        _locks.add(self)

    def renew(self) -> None:
        """Replace the lock by a free one."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


def _record_threads() -> None:
    """Record, before a fork, the libraries whose threads run."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            names.append(path.read_text())
    _running.clear()
    _running.update(library for library, start in _THREADS.items() for name in names if _is_of(library, name.strip(), start))


def _is_of(library: str, name: str, start: str) -> bool:
    return name.startswith(start) and (library != POLARS or name.removeprefix(start).isdigit())


def _reset_in_child() -> None:
    """Mark the parent's libraries as lost and renew all locks, in the child after a fork."""
    _lost.update(_running | _began)
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(before=_record_threads, after_in_child=_reset_in_child)
