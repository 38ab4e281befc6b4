"""Programs that are started for a while: they end with the process that started them, whatever ends it."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

_LIBC = ctypes.CDLL(None)  # here: a child between fork and exec should open no library
_PDEATHSIG = 1  # of prctl
_PATIENCE_S = 5.0


def ends_with_this_process() -> Callable[[], None]:
    """For `preexec_fn` of a child: SIGTERM comes to it when this process is no more, or the thread that starts it; Linux only."""
    parent = os.getpid()

    def arm() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler of ours would take the signal and be forgotten by exec
        _LIBC.prctl(_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before: no signal comes any more
            os._exit(1)

    return arm


def run(words: Sequence[str], **options: object) -> subprocess.CompletedProcess:
    """`subprocess.run` of a program with text for output; what ends the wait, a signal for instance, ends the program first.

    Args:
        words: the command.
        options: of `subprocess.Popen`.
    """
    with subprocess.Popen(words, text=True, preexec_fn=ends_with_this_process(), **options) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            _end(process)
            raise
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def _end(process: subprocess.Popen) -> None:
    """Gently at first: Python's programs, pip for one, tidy up after SIGINT and not after SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_PATIENCE_S)
            return
