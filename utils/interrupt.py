"""Commands that write: a signal ends them like an error does, through their `with` blocks, so that nothing is left behind."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class EndedBySignals:
    """While entered, SIGHUP, SIGINT and SIGTERM raise in the main thread; one line says which, and the exit code is the shell's for it.

    What is ignored stays ignored: SIGHUP under `nohup`, SIGINT in a script's background. After the first signal others
    do nothing: they would interrupt the removal of what was written.

    Args:
        name: what the line starts with, "preproc.criteo" for instance.
    """

    def __init__(self, name: str):
        self._name, self._signum = name, 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> "EndedBySignals":
        for signum in _SIGNALS:
            ignored = signum != signal.SIGTERM and signal.getsignal(signum) == signal.SIG_IGN
            # Ignored again, too: importing Polars puts a handler of its own in the place of an ignored SIGINT.
            self._before[signum] = signal.signal(signum, signal.SIG_IGN if ignored else self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._signum not in (0, signal.SIGINT):  # of which `run_command` says that it interrupted
            with contextlib.suppress(OSError, AttributeError):  # standard error is closed
                sys.stderr.write(f"{self._name}: stopped by {signal.Signals(self._signum).name}\n")
                sys.stderr.flush()
        for signum, handler in self._before.items():
            if handler is not None:  # one that is not Python's cannot be put back
                signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._signum:
            return
        self._signum = signum
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signum)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, SIGHUP, SIGINT and SIGTERM wait: for steps that must not be left half done. Short ones, for nothing ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    before = {signum: handler for signum, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for signum in before:
            signal.signal(signum, lambda number, frame: came.append(number))
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        if came:
            signal.raise_signal(came[0])
