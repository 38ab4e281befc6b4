"""Notices that the launcher is gone (horovodrun, mpirun), so that no worker trains on for nobody and keeps the folder of its checkpoints locked."""

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
POLL_S = 0.2  # mpirun gives a worker that is to end a second or two
# How long a worker may be without a step, a batch or a chunk of its own when the launcher is gone; then another one has died, for which it would
# wait for ever. Less would cut short a save in which one worker has much more to write than this one, or the sort of a billion scores.
GRACE_S = 600.0


def watch(command: str) -> None:
    """From now on, end this worker in an orderly way when its launcher is gone.

    Training finishes the step and saves, as after a signal; anything else ends at once, with code 143.

    Args:
        command: what its last line starts with.
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
    if launch.local_size() == launch.size():  # orted ends those of other hosts soon; without them nothing can be saved
        hold_off_abort()
    if not StopRequest.ask(reason):
        _end(command, f"{reason}, so this run ends" if launch.rank() == 0 else None)
    noticed = time.monotonic()
    while time.monotonic() - max(noticed, launch.progressed_at()) < GRACE_S:
        time.sleep(1)
    _end(command, f"worker {launch.rank()}: {reason}, and nothing has moved for {GRACE_S:g} s: this worker ends without saving")


def drop_broken_outputs() -> None:
    """Write to nowhere what would have gone to a launcher that is gone: a line that cannot be written is no reason not to save."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if poll.poll(0):  # an error or the other side's end, of which it always tells
                streams.silence(stream)


def hold_off_abort() -> None:
    """Open MPI ends a process a second after it has lost mpirun; make it wait, so that there is time to save."""
    with contextlib.suppress(OSError, ValueError):  # not loaded yet, or another version
        library = ctypes.CDLL("libopen-pal.so.40", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        ctypes.c_int.in_dll(library, "opal_abort_delay").value = int(2 * GRACE_S)


def _end(command: str, message: str | None) -> None:
    if message is not None and sys.stderr is not None:  # None where it was closed: its number may be another file's now
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            os.write(sys.stderr.fileno(), f"{command}: error: {message}\n".encode())
    os._exit(CODE)
