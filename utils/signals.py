"""Handling of the signals that end a process: their handlers, when they may raise, and how the process ends.

This module installs all handlers (`Handlers`) and restores the previous ones. Commands that write are ended by an exception (`EndedBySignals`), a
training run after a whole step (`StopRequest`), a server after its requests (`Once`); a supervisor reads the signals received (`Received`).
`uninterrupted` defers signals.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from utils.errors import AgreedError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the strongest first
PATIENCE_S, REMINDER_S = 2.0, 0.01
AGAIN_S = 5.0
_PROJECT = str(Path(__file__).parents[1])
_LIBRARIES = tuple(f"/site-packages/{name}/" for name in ("polars", "numpy", "pyarrow"))  # their Python code holds no locks


class Handlers:
    """One handler for SIGTERM, SIGINT and SIGHUP, from `install` to `restore`.

    Python handles signals in its main thread only; in other threads `install` has no effect.

    Args:
        handle: called with the signal and the frame that it interrupts.
        stay_ignored: signals that stay ignored if they are ignored already: SIGHUP is under `nohup`, SIGINT in a script's background jobs.
    """

    def __init__(self, handle: Callable[[int, FrameType | None], object], stay_ignored: Collection[int] = (signal.SIGHUP,)):
        self._handle, self._stay_ignored = handle, stay_ignored
        self._before: dict[int, object] = {}

    def install(self) -> None:
        """Install the handler."""
        for number in SIGNALS if threading.current_thread() is threading.main_thread() else ():
            if (before := signal.getsignal(number)) is None:  # not installed by Python, so it could not be restored
                continue
            ignored = number in self._stay_ignored and before == signal.SIG_IGN
            # Ignored signals are set as well: importing Polars replaces an ignored SIGINT by its own handler, and `restore` undoes that.
            self._before[number] = signal.signal(number, signal.SIG_IGN if ignored else self._handle)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


class EndedBySignals:
    """A context in which SIGHUP, SIGINT and SIGTERM raise in the main thread; one line names the signal, and the exit code is the shell's for it.

    They raise at once while this project's code runs. In other code, an exception between taking and releasing a lock could hang the exit of the
    command (a thread pool, the progress bar): there they wait until this project's code goes on, but at most two seconds.

    Ignored signals stay ignored: SIGHUP under `nohup`, SIGINT in a script's background jobs. For five seconds after a signal has raised, others have
    no effect: they would interrupt the removal of partial output. Later ones raise again, for the first exception may have been swallowed.

    Args:
        name: the prefix of the line, "preproc.criteo" for instance.
    """

    _entered: "EndedBySignals | None" = None

    def __init__(self, name: str):
        self._name, self._signum = name, 0
        self._handlers = Handlers(self._handle, (signal.SIGHUP, signal.SIGINT))
        self._came = self._raised = 0.0
        self._waits = self._reminds = False
        self._reminding = threading.Lock()

    def __enter__(self) -> "EndedBySignals":
        self._handlers.install()
        EndedBySignals._entered = self
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        EndedBySignals._entered = None
        with self._reminding:
            self._waits = False
        # `run_command` reports SIGINT. A signal that came too late to end anything is not reported.
        if self._signum not in (0, signal.SIGINT) and isinstance(value, SystemExit) and value.code == 128 + self._signum:
            with contextlib.suppress(OSError, AttributeError):  # standard error is closed
                sys.stderr.write(f"{self._name}: stopped by {signal.Signals(self._signum).name}\n")
                sys.stderr.flush()
        self._handlers.restore()

    @property
    def end(self) -> BaseException | None:
        """The exception of the signal received; None before one is."""
        if not self._signum:
            return None
        return KeyboardInterrupt() if self._signum == signal.SIGINT else SystemExit(128 + self._signum)

    def check(self) -> None:
        """Raise the exception of a deferred signal."""
        if self._waits and threading.current_thread() is threading.main_thread():
            self._raise()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._waits:
            if self._raised and now < self._raised + AGAIN_S:
                return
            self._signum, self._came, self._waits = self._signum or signum, now, True
        if _may_raise(frame) or now > self._came + PATIENCE_S:
            self._raise()
        if not self._reminds:
            self._reminds = True
            _thread.start_new_thread(self._remind, ())  # not `threading`: the main thread may hold its locks

    def _raise(self) -> None:
        self._raised, self._waits = time.monotonic(), False
        raise self.end

    def _remind(self) -> None:
        """Send the signal to the main thread again and again until it has raised."""
        main = threading.main_thread().ident
        while self._waits:
            time.sleep(REMINDER_S)
            with self._reminding:
                if self._waits:
                    signal.pthread_kill(main, self._signum)
        self._reminds = False


def _may_raise(frame: FrameType | None) -> bool:
    """Return whether an exception may be raised in this frame at any point."""
    if frame is None:
        return True
    path = frame.f_code.co_filename
    return any(name in path for name in _LIBRARIES) or (path.startswith(_PROJECT) and "/site-packages/" not in path)


def check_signals() -> None:
    """Raise the exception of a signal received, inside `EndedBySignals`; for loops that mostly wait in libraries."""
    if EndedBySignals._entered is not None:
        EndedBySignals._entered.check()


def end_by_signal() -> BaseException | None:
    """Return the exception of the signal received, None where there is none. A library may have converted the exception to another error."""
    return EndedBySignals._entered.end if EndedBySignals._entered is not None else None


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer SIGHUP, SIGINT and SIGTERM inside the block, for steps that must not be left half done. Keep them short: no signal ends them."""
    came: list[int] = []
    handlers = Handlers(lambda number, frame: came.append(number), SIGNALS)
    try:
        handlers.install()
        yield
    finally:
        handlers.restore()
        if came:
            signal.raise_signal(came[0])


@contextlib.contextmanager
def handler_kept(number: int) -> Iterator[None]:
    """Restore a signal's handler at the end of the block, in which a library (PySpark, for instance) may replace it."""
    main, before = threading.current_thread() is threading.main_thread(), signal.getsignal(number)
    try:
        yield
    finally:
        if main:
            signal.signal(number, before)


class Stopped(AgreedError):
    """The end of a run on request, after a whole step; the exit code is the shell's for the signal.

    Args:
        signum: the signal.
        message: the state in which the run ended.
        reason: the reason, where it was not a signal.
    """

    def __init__(self, signum: int, message: str, reason: str = ""):
        cause = f"stopped because {reason}," if reason else f"stopped by {signal.Signals(signum).name}"
        super().__init__(f"{cause} {message}")
        self.code = 128 + signum


class StopRequest:
    """A context that records a request to end the run: `signum` of the first signal (0 before) and the `reason` where it is not a signal.

    A second SIGTERM or SIGINT ends the process. SIGHUP is not counted: a closing terminal sends it several times, and SIGTERM with it.
    """

    _entered: "StopRequest | None" = None

    def __init__(self):
        self.signum = 0
        self.reason = ""
        self._counted = False  # true after a SIGTERM or SIGINT
        self._handlers = Handlers(self._handle)

    @classmethod
    def ask(cls, reason: str) -> bool:
        """Request the end of the run for a reason other than a signal; return False where no `StopRequest` is entered."""
        request = cls._entered
        if request is not None and not request.signum:
            request.reason, request.signum = reason, signal.SIGTERM
        return request is not None

    def heard(self, everyone: Sequence[tuple[int, str]]) -> tuple[int, str]:
        """Return the signal and the reason to end for: this worker's own or, where it has none, the strongest of all workers'.

        Args:
            everyone: signal (0 for none) and reason of every worker; at least one has a signal.
        """
        if self.signum:
            return self.signum, self.reason
        signum = next(signum for signum in SIGNALS if any(signum == other for other, _ in everyone))
        return signum, "the launcher is gone" if any(reason for _, reason in everyone) else ""

    def __enter__(self) -> "StopRequest":
        self._handlers.install()
        StopRequest._entered = self
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        StopRequest._entered = None
        self._handlers.restore()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum != signal.SIGHUP:
            if self._counted:
                os._exit(128 + signum)
            self._counted = True
        if not self.signum:
            self.signum = signum


class LastWords:
    """A context in which SIGTERM and SIGHUP, where they end the process by default, first call a function. They still end it.

    Args:
        say: called with the signal, between two instructions of Python; its errors are ignored.
    """

    def __init__(self, say: Callable[[signal.Signals], object]):
        self._say, self._mine = say, []

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._mine = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
        for number in self._mine:
            signal.signal(number, self._handle)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for number in self._mine:
            signal.signal(number, signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(Exception):  # the signal may have interrupted the very write of a line
            self._say(signal.Signals(number))
        signal.raise_signal(number)


class EndOnce(Exception):
    """The exception that a signal raises to end a wait."""


class Once:
    """A handler whose first signal raises `EndOnce` and sets `over`; later ones have no effect, for they would interrupt the shutdown."""

    def __init__(self):
        self.over = False
        Handlers(self._handle, (signal.SIGHUP, signal.SIGINT)).install()

    def close(self) -> None:
        """Ignore signals from now on: the process is ending without one."""
        self.over = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.over:
            self.over = True
            raise EndOnce


class Received(list[int]):
    """The list of the signals received, in their order."""

    def __init__(self):
        super().__init__()
        Handlers(lambda number, frame: self.append(number)).install()

    @property
    def at_once(self) -> bool:
        """True after a second signal, which asks to end at once; SIGHUP does not count, for a closing terminal sends it several times."""
        return sum(number != signal.SIGHUP for number in self) > 1
