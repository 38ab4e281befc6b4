"""Processes that were forked: libraries whose threads they lack, and locks that a thread of the parent held.

The threads of a library live in the process that began them. A fork copies what they left in memory, not the threads: whoever asks the library for
something then waits for them, and for ever. Import this before a fork: what ran at that moment is known afterwards.
"""

import contextlib
import os
import threading
import weakref
from pathlib import Path

from utils.errors import UserError

TENSORFLOW, POLARS, TENSORSTORE = "TensorFlow", "Polars", "TensorStore"
_THREADS = {TENSORFLOW: "tf_", POLARS: "polars-", TENSORSTORE: "ts_pool"}  # how the kernel calls them: this, and for Polars a number
_began: set[str] = set()  # in this process, as far as this project began them: idle threads may end
_running: set[str] = set()  # when the process forks
_lost: set[str] = set()  # begun by a process that this one was forked from
_locks: "weakref.WeakSet[RenewedLock]" = weakref.WeakSet()


def check_threads(library: str) -> None:
    """See that a library can be used here, which begins its threads.

    Raises:
        UserError: the process was forked after they had begun.
    """
    if library in _lost:
        raise UserError(
            f"this process was forked after {library} had begun its threads, which it lacks: it would wait for ever. Start processes by "
            'multiprocessing\'s "spawn" or "forkserver", or fork before a model is loaded or scores'
        )
    _began.add(library)


class RenewedLock:
    """A lock that nobody holds in a process that has just been forked."""

    def __init__(self):
        self._lock = threading.Lock()
        _locks.add(self)

    def renew(self) -> None:
        """Be free."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


def _look() -> None:
    """Before a fork."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            names.append(path.read_text())
    _running.clear()
    _running.update(library for library, start in _THREADS.items() for name in names if _is_of(library, name.strip(), start))


def _is_of(library: str, name: str, start: str) -> bool:
    return name.startswith(start) and (library != POLARS or name.removeprefix(start).isdigit())


def _begin_anew() -> None:
    """After a fork, in the child."""
    _lost.update(_running | _began)
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(before=_look, after_in_child=_begin_anew)
