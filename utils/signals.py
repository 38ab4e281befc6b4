"""Signals that ask for an end: who hears them, when they may raise, and how the process ends.

Every handler is put in place here (`Handlers`), and what was there before comes back. Commands that write are ended by an exception
(`EndedBySignals`), a training run after a whole step (`StopRequest`), a server after its requests (`Once`), a supervisor by what it reads
(`Received`); `uninterrupted` lets signals wait.
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
_LIBRARIES = tuple(f"/site-packages/{name}/" for name in ("polars", "numpy", "pyarrow"))  # their Python holds no locks


class Handlers:
    """One handler for SIGTERM, SIGINT and SIGHUP, from `install` to `restore`.

    Python handles signals in its main thread only: in another one they stay what they were.

    Args:
        handle: called with the signal and the frame that it interrupts.
        stay_ignored: of these signals those that are ignored stay so: SIGHUP is under `nohup`, SIGINT in a script's background.
    """

    def __init__(self, handle: Callable[[int, FrameType | None], object], stay_ignored: Collection[int] = (signal.SIGHUP,)):
        self._handle, self._stay_ignored = handle, stay_ignored
        self._before: dict[int, object] = {}

    def install(self) -> None:
        """Put the handler in place."""
        for number in SIGNALS if threading.current_thread() is threading.main_thread() else ():
            if (before := signal.getsignal(number)) is None:  # it is not Python's, and could not be put back
                continue
            ignored = number in self._stay_ignored and before == signal.SIG_IGN
            # Ignored again, too: importing Polars puts a handler of its own in the place of an ignored SIGINT.
            self._before[number] = signal.signal(number, signal.SIG_IGN if ignored else self._handle)

    def restore(self) -> None:
        """Put back what was there."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


class EndedBySignals:
    """While entered, SIGHUP, SIGINT and SIGTERM raise in the main thread; one line says which, and the exit code is the shell's for it.

    They raise at once where this project's code runs. Elsewhere an exception between a lock that is taken and what gives it
    back would hang the end of the command (a pool of threads, the progress bar): there they wait until this project's code
    goes on, but two seconds at most.

    What is ignored stays ignored: SIGHUP under `nohup`, SIGINT in a script's background. For five seconds after they have raised others
    do nothing: they would interrupt the removal of what was written. Later ones raise again, for the first may have been swallowed.

    Args:
        name: what the line starts with, "preproc.criteo" for instance.
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
        # Of SIGINT `run_command` says that it interrupted. A signal that came too late to end anything is not told.
        if self._signum not in (0, signal.SIGINT) and isinstance(value, SystemExit) and value.code == 128 + self._signum:
            with contextlib.suppress(OSError, AttributeError):  # standard error is closed
                sys.stderr.write(f"{self._name}: stopped by {signal.Signals(self._signum).name}\n")
                sys.stderr.flush()
        self._handlers.restore()

    @property
    def end(self) -> BaseException | None:
        """What the signal that came raises; None before."""
        if not self._signum:
            return None
        return KeyboardInterrupt() if self._signum == signal.SIGINT else SystemExit(128 + self._signum)

    def check(self) -> None:
        """Raise what waits."""
        if self._waits and threading.current_thread() is threading.main_thread():
            self._raise()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._waits:
            if self._raised and now < self._raised + AGAIN_S:
                return
            self._signum, self._came, self._waits = self._signum or signum, now, True
        if _raises_well(frame) or now > self._came + PATIENCE_S:
            self._raise()
        if not self._reminds:
            self._reminds = True
            _thread.start_new_thread(self._remind, ())  # not threading's: its locks may be what the main thread holds

    def _raise(self) -> None:
        self._raised, self._waits = time.monotonic(), False
        raise self.end

    def _remind(self) -> None:
        """Send the signal again until it has raised."""
        main = threading.main_thread().ident
        while self._waits:
            time.sleep(REMINDER_S)
            with self._reminding:
                if self._waits:
                    signal.pthread_kill(main, self._signum)
        self._reminds = False


def _raises_well(frame: FrameType | None) -> bool:
    """Whether an exception may come out of this frame at any point."""
    if frame is None:
        return True
    path = frame.f_code.co_filename
    return any(name in path for name in _LIBRARIES) or (path.startswith(_PROJECT) and "/site-packages/" not in path)


def check_signals() -> None:
    """Raise what a signal that came wants raised: for loops that mostly wait in libraries."""
    if EndedBySignals._entered is not None:
        EndedBySignals._entered.check()


def end_by_signal() -> BaseException | None:
    """What the signal that came raises; None where none came. A library may have made another error of it."""
    return EndedBySignals._entered.end if EndedBySignals._entered is not None else None


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, SIGHUP, SIGINT and SIGTERM wait: for steps that must not be left half done. Short ones, for nothing ends them."""
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
    """A library that puts a handler of its own in the place of ours, PySpark for one, has it no longer than this."""
    main, before = threading.current_thread() is threading.main_thread(), signal.getsignal(number)
    try:
        yield
    finally:
        if main:
            signal.signal(number, before)


class Stopped(AgreedError):
    """The run was asked to end and did, after a whole step; the exit code is the shell's for the signal.

    Args:
        signum: the signal.
        message: what became of the run.
        reason: why, where it was no signal.
    """

    def __init__(self, signum: int, message: str, reason: str = ""):
        cause = f"stopped because {reason}," if reason else f"stopped by {signal.Signals(signum).name}"
        super().__init__(f"{cause} {message}")
        self.code = 128 + signum


class StopRequest:
    """While entered, remembers what asks for an end: `signum` of the first signal (0 before) and, where it is no signal, the `reason`.

    A second SIGTERM or SIGINT ends the process. SIGHUP is not counted: a closing terminal sends it several times, and SIGTERM with it.
    """

    _entered: "StopRequest | None" = None

    def __init__(self):
        self.signum = 0
        self.reason = ""
        self._counted = False  # a SIGTERM or SIGINT has come
        self._handlers = Handlers(self._handle)

    @classmethod
    def ask(cls, reason: str) -> bool:
        """Ask the one that is entered for an end, for another reason than a signal; False where none is."""
        request = cls._entered
        if request is not None and not request.signum:
            request.reason, request.signum = reason, signal.SIGTERM
        return request is not None

    def heard(self, everyone: Sequence[tuple[int, str]]) -> tuple[int, str]:
        """Signal and reason to end for: this worker's own or, of what all workers were asked by, the strongest.

        Args:
            everyone: signal (0 for none) and reason of every worker; one of them was asked.
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


class EndOnce(Exception):
    """A signal has ended a wait."""


class Once:
    """The first signal raises `EndOnce`; while `over`, which it sets, others do nothing, for they would interrupt the end."""

    def __init__(self):
        self.over = False
        Handlers(self._handle, (signal.SIGHUP, signal.SIGINT)).install()

    def close(self) -> None:
        """What ends now ends by itself."""
        self.over = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.over:
            self.over = True
            raise EndOnce


class Received(list[int]):
    """The signals that came, in their order."""

    def __init__(self):
        super().__init__()
        Handlers(lambda number, frame: self.append(number)).install()

    @property
    def at_once(self) -> bool:
        """Whether a second one has come that wants the end at once; a closing terminal sends SIGHUP several times, so that does not count."""
        return sum(number != signal.SIGHUP for number in self) > 1
