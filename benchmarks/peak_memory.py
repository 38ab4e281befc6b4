"""Measurement of this process's peak memory."""

import os
import threading
from pathlib import Path
from types import TracebackType

_INTERVAL_S = 0.005


def resident_bytes() -> int:
    """Return the resident memory of this process (VmRSS)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """A sampler of the resident memory, by a thread during a `with` block; `peak_bytes` is the largest sample of all its blocks."""

    def __init__(self):
        self.peak_bytes = 0

    def __enter__(self) -> "PeakMemory":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak_memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, resident_bytes())
            if self._stop.wait(_INTERVAL_S):
                return
