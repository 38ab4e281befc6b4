"""SIGTERM and SIGINT: the first asks for an orderly end, the second ends at once."""

import os
import signal
from types import FrameType, TracebackType

from utils.errors import AgreedError


class Stopped(AgreedError):
    """The run was asked to end and did, after a whole step; the exit code is the shell's for the signal."""

    def __init__(self, signum: int, message: str):
        super().__init__(f"stopped by {signal.Signals(signum).name} {message}")
        self.code = 128 + signum


class StopRequest:
    """While entered, remembers the first SIGTERM or SIGINT in `signum` (0 before); a second one ends the process."""

    def __init__(self):
        self.signum = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum:
            os._exit(128 + signum)
        self.signum = signum
