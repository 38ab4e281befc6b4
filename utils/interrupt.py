"""Commands that write: a signal ends them like an error does, through their `with` blocks, so that nothing is left behind."""

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
PATIENCE_S, REMINDER_S = 2.0, 0.01
AGAIN_S = 5.0
_PROJECT = str(Path(__file__).parents[1])
_LIBRARIES = tuple(f"/site-packages/{name}/" for name in ("polars", "numpy", "pyarrow"))  # their Python holds no locks


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
        self._before: dict[int, object] = {}
        self._came = self._raised = 0.0
        self._waits = self._reminds = False
        self._reminding = threading.Lock()

    def __enter__(self) -> "EndedBySignals":
        for signum in _SIGNALS:
            ignored = signum != signal.SIGTERM and signal.getsignal(signum) == signal.SIG_IGN
            # Ignored again, too: importing Polars puts a handler of its own in the place of an ignored SIGINT.
            self._before[signum] = signal.signal(signum, signal.SIG_IGN if ignored else self._handle)
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
        for signum, handler in self._before.items():
            if handler is not None:  # one that is not Python's cannot be put back
                signal.signal(signum, handler)

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
