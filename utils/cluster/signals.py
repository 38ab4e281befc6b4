"""What asks a run for an orderly end: SIGTERM, SIGINT, SIGHUP, a launcher that is gone. A second SIGTERM or SIGINT ends it at once."""

import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType

from utils.errors import AgreedError

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the strongest first


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
    Python handles signals in its main thread only: in another one they stay what they were.
    """

    _entered: "StopRequest | None" = None

    def __init__(self):
        self.signum = 0
        self.reason = ""
        self._counted = False  # a SIGTERM or SIGINT has come
        self._before: dict[int, object] = {}

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
        signum = next(signum for signum in _SIGNALS if any(signum == other for other, _ in everyone))
        return signum, "the launcher is gone" if any(reason for _, reason in everyone) else ""

    def __enter__(self) -> "StopRequest":
        for signum in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # nohup
                self._before[signum] = signal.signal(signum, self._handle)
        StopRequest._entered = self
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        StopRequest._entered = None
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum != signal.SIGHUP:
            if self._counted:
                os._exit(128 + signum)
            self._counted = True
        if not self.signum:
            self.signum = signum
