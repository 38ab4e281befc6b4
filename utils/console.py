"""What a person sees: a progress bar on a terminal, plain lines in a file; nothing from any worker but the first."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

from utils.launcher import progressed


class Console:
    """Lines on standard output. Silent where `enabled` is false (every worker but the first)."""

    def __init__(self, enabled: bool = True):
        self.enabled = enabled

    def say(self, text: str) -> None:
        """Print a line."""
        if self.enabled:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    def warn(self, text: str) -> None:
        """Print a warning to standard error."""
        if self.enabled:
            tqdm.write(f"dlrm.py: warning: {text}", file=sys.stderr)

    def progress(self, total: int, what: str, unit: str) -> "Progress":
        """A progress display over `total` units, 'samples' for instance."""
        return Progress(total, what, unit, self.enabled)


class Progress:
    """Rate and time left: a bar on a terminal, otherwise nothing but the lines that `Console.say` prints.

    Use as a context manager; `advance` counts.
    """

    def __init__(self, total: int, what: str, unit: str, enabled: bool):
        self._start, self._total, self._done = time.perf_counter(), total, 0
        hidden = not (enabled and sys.stderr.isatty())
        self._bar = tqdm(total=total, desc=what, unit=f" {unit}", unit_scale=True, disable=hidden, dynamic_ncols=True, leave=False)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()

    def advance(self, count: int, note: str = "") -> None:
        """Count units done; `note` stands behind the bar."""
        progressed()
        self._done += count
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(count)

    def time_left(self) -> str:
        """Time until the end at the mean rate so far, as h:mm:ss."""
        if not self._done:
            return "?"
        seconds = (time.perf_counter() - self._start) * (self._total - self._done) / self._done
        return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"
