"""Output for the user: a progress bar on a terminal, plain lines in a file. Only the first worker prints."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

from utils import streams
from utils.flag_names import AS_HERE, spoken
from utils.launch import progressed

_MARKS = 30


class Console:
    """Lines on standard output, warnings on standard error.

    Args:
        program: the prefix of a warning, "dlrm.py" for instance.
        enabled: false on every worker but the first; a disabled console prints nothing.
        names: the user's names of flags, by their names here.

    Where a line cannot be printed (a pipe that nobody reads any more, a full disk), one warning says so, and the run goes on without output.
    """

    def __init__(self, program: str, enabled: bool = True, names: Mapping[str, str] = AS_HERE):
        self._program, self.enabled, self._names = program, enabled, names

    def say(self, text: str) -> None:
        """Print a line."""
        if self.enabled and (fault := _write(sys.stdout, spoken(text, self._names))):
            self.warn(f"{fault}; nothing more is printed there, the run continues")

    def warn(self, text: str) -> None:
        """Print a warning to standard error."""
        if self.enabled:
            _write(sys.stderr, f"{self._program}: warning: {spoken(text, self._names)}")

    def progress(self, total: int, what: str, unit: str) -> "Progress":
        """Return a progress display over `total` units, 'samples' for instance."""
        return Progress(total, what, unit, self.enabled)


def _write(stream: TextIO, text: str) -> str:
    """Write a line, above the progress bar where there is one; return what went wrong."""
    with contextlib.suppress(OSError, ValueError), tqdm.external_write_mode(file=stream):
        return streams.write(stream, f"{text}\n")
    return streams.write(stream, f"{text}\n")  # the progress bar could not be cleared first


class Progress:
    """Display of rate and time left: a bar on a terminal, otherwise nothing but the lines that `Console.say` prints.

    Use it as a context manager and call `advance` to count.
    """

    def __init__(self, total: int, what: str, unit: str, enabled: bool):
        self._total, self._done = total, 0
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MARKS)  # (time, units done) pairs, a second or more apart
        hidden = not (enabled and sys.stderr.isatty())
        # The first unit of a run includes compilation, so the bar's rate is an average in which the latest units weigh most.
        self._bar = tqdm(total=total, desc=what, unit=f" {unit}", smoothing=0.1, disable=hidden, dynamic_ncols=True, leave=False)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._bar.close()

    def advance(self, count: int, note: str = "") -> None:
        """Count units done; `note` is shown after the bar."""
        progressed()
        self._done += count
        now = time.perf_counter()
        if not self._marks or now - self._marks[-1][0] >= 1:
            self._marks.append((now, self._done))
        try:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
        except (OSError, ValueError):  # the terminal is gone
            self._bar.disable = True

    def time_left(self) -> str:
        """Estimate the time left as h:mm:ss, at the rate of about the last half minute without the first unit; "?" where there is no rate yet."""
        if self._done >= self._total:
            return "0:00:00"
        if not self._marks or self._done == self._marks[0][1]:
            return "?"
        then, done = self._marks[0]
        seconds = (time.perf_counter() - then) * (self._total - self._done) / (self._done - done)
        return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"
