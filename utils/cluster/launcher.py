"""Detection of the end of the launcher (horovodrun, mpirun), so that no worker trains on without it and keeps the checkpoint folder locked."""

import contextlib
import ctypes
import os
import select
import sys
import threading
import time

from utils import launch, streams
from utils.cluster.ancestors import Process, ancestors, launchers, left_behind
from utils.signals import StopRequest

CODE = 143  # as after SIGTERM
POLL_S = 0.2  # mpirun gives a worker a second or two to end
# How long a worker may go without a step, a batch or a chunk of its own after the launcher has ended. After that, another worker has died, for which
# this one would wait for ever. A shorter time would interrupt a save in which another worker has much more to write, or the sort of a billion scores.
GRACE_S = 600.0


def watch(command: str) -> None:
    """Start a thread that ends this worker in an orderly way when its launcher has ended.

    Training finishes the step and saves, as after a signal; anything else ends at once, with code 143.

    Args:
        command: the prefix of the last line that it prints.
    """
    line = list(ancestors())
    watched = launchers(line, os.environ)
    if watched:
        threading.Thread(target=_watch, args=(watched, left_behind(watched, line), command), name="launcher", daemon=True).start()


def _watch(watched: list[Process], gone: bool, command: str) -> None:
    reason = "the launcher (horovodrun) is gone"
    while not gone:
        time.sleep(POLL_S)
        for process in reversed(watched):
            if process.ended:
                reason, gone = f"the launcher ({process.name}, process {process.number}) is gone", True
                break
    drop_broken_outputs()
    if launch.local_size() == launch.size():  # orted soon ends workers on other hosts, and nothing can be saved without them
        hold_off_abort()
    if not StopRequest.ask(reason):
        _end(command, f"{reason}, so this run ends" if launch.rank() == 0 else None)
    noticed = time.monotonic()
    while time.monotonic() - max(noticed, launch.progressed_at()) < GRACE_S:
        time.sleep(1)
    _end(command, f"worker {launch.rank()}: {reason}, and no progress was made for {GRACE_S:g} s: this worker ends without saving")


def drop_broken_outputs() -> None:
    """Redirect outputs that led to the ended launcher to /dev/null, so that a line that cannot be written does not prevent saving."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if poll.poll(0):  # poll always reports an error or a hang-up
                streams.silence(stream)


def hold_off_abort() -> None:
    """Make Open MPI wait before it ends a process that has lost mpirun, so that there is time to save; otherwise it ends it after a second."""
    with contextlib.suppress(OSError, ValueError):  # not loaded yet, or another version
        library = ctypes.CDLL("libopen-pal.so.40", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        ctypes.c_int.in_dll(library, "opal_abort_delay").value = int(2 * GRACE_S)


def _end(command: str, message: str | None) -> None:
    if message is not None and sys.stderr is not None:  # None where it was closed: its descriptor may be another file's now
        with contextlib.suppress(OSError, ValueError):  # nothing reads it any more
            os.write(sys.stderr.fileno(), f"{command}: error: {message}\n".encode())
    os._exit(CODE)
