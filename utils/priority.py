"""Low priority for work that shares a machine with a server."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import psutil

LAST = 19  # the niceness whose work waits for all other work
_T = TypeVar("_T")


def give_way() -> None:
    """Let the calling thread, and the threads and processes that it will start, wait for all other work, and have one processor."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        os.sched_setaffinity(thread, {max(os.sched_getaffinity(thread))})
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, LAST)
    with contextlib.suppress(OSError, psutil.Error, AttributeError):
        psutil.Process(thread).ionice(psutil.IOPRIO_CLASS_IDLE)


def giving_way(work: Callable[[], _T]) -> _T:
    """Return the result of work that a thread of low priority does, or raise its error; the calling thread keeps its priority."""
    found: list[_T] = []
    errors: list[BaseException] = []

    def runs() -> None:
        give_way()
        try:
            found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=runs, name="low priority")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]
