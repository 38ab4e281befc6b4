"""Output for the user: on a terminal one live line, in a file plain lines. Only the first worker prints."""

import os
import stat
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TextIO

from utils import streams
from utils.flag_names import AS_HERE, spoken
from utils.launch import progressed

_MARKS = 30
_DRAW_S = 0.25  # the live line changes four times a second at most
_WIDTH = 80  # of a terminal that does not say
_CLEAR = "\r\x1b[K"


class Console:
    """Lines on standard output, warnings on standard error, and on a terminal a live line below them.

    Args:
        program: the prefix of a warning, "dlrm.py" for instance.
        enabled: false on every worker but the first; a disabled console prints nothing.
        names: the user's names of flags, by their names here.

    Where a line cannot be printed (a pipe that nobody reads any more, a full disk), one warning says so, and the run goes on without output.
    """

    def __init__(self, program: str, enabled: bool = True, names: Mapping[str, str] = AS_HERE):
        self.program, self.enabled, self._names = program, enabled, names
        self._live = LiveLine()

    def say(self, text: str) -> None:
        """Print a line."""
        if self.enabled and (fault := self._write(sys.stdout, spoken(text, self._names))):
            self.warn(f"{fault}; nothing more is printed there, the run continues")

    def say_progress(self, text: str) -> None:
        """Print a line of progress, unless standard output is a terminal with a live line, which shows the same."""
        if not (self._live.drawn_on_terminal and _is_terminal(sys.stdout)):
            self.say(text)

    def warn(self, text: str) -> None:
        """Print a warning to standard error."""
        if self.enabled:
            self._write(sys.stderr, f"{self.program}: warning: {spoken(text, self._names)}")

    def progress(self, total: int, what: str, unit: str, done: int = 0, samples: int = 0) -> "Progress":
        """Return a progress display over `total` units, 'steps' for instance.

        Args:
            total: the units in all.
            what: the work.
            unit: name of the units.
            done: the units that were done before, by the run that this one resumes.
            samples: the samples of a unit, for the rate; 0 for a rate in units.
        """
        return Progress(total, what, unit, self._live if self.enabled else None, done, samples)

    def _write(self, stream: TextIO, text: str) -> str:
        """Write a line above the live line; return what went wrong."""
        self._live.clear()
        fault = streams.write(stream, f"{text}\n")
        self._live.draw()
        return fault


class LiveLine:
    """The last line of a terminal, on standard error, which is drawn again and again; of several works it shows the one begun last.

    There is none where standard error is no terminal or one that cannot clear a line (`TERM=dumb`), nor where standard output is a pipe: its reader
    (`tee`) may print to the same terminal.
    """

    def __init__(self):
        self._works: list[Progress] = []
        self._drawn = False

    @property
    def drawn_on_terminal(self) -> bool:
        """True while the live line shows a work."""
        return bool(self._works)

    def begin(self, work: "Progress") -> None:
        """Show a work, if there is a terminal."""
        if _is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb" and not _is_pipe(sys.stdout):
            self.clear()
            self._works.append(work)
            self.draw()

    def end(self, work: "Progress") -> None:
        """Stop showing a work; the one begun before it is shown again."""
        if work in self._works:
            self.clear()
            self._works.remove(work)

    def clear(self) -> None:
        """Clear the line, before another is printed."""
        if self._drawn:
            self._drawn = False
            self._put(_CLEAR)

    def draw(self) -> None:
        """Draw the line, in the terminal's present width."""
        if self._works:
            self._drawn = True
            self._put(f"{_CLEAR}{fitted(self._works[-1].fields(), _width() - 1)}")

    def _put(self, text: str) -> None:
        if streams.write(sys.stderr, text):  # the terminal is gone
            self._works, self._drawn = [], False


class Progress:
    """Rate and time left of a work: shown in the live line, where there is one.

    Use it as a context manager and call `advance` to count.
    """

    def __init__(self, total: int, what: str, unit: str, live: LiveLine | None, done: int = 0, samples: int = 0):
        self._total, self._done, self._what, self._unit = total, done, what, unit
        self._live, self._samples, self._note = live, samples, ""
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MARKS)  # (time, units done) pairs, a second or more apart
        self._drawn_at = 0.0

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.end(self)

    def advance(self, count: int, note: str = "") -> None:
        """Count units done; `note` is shown with them."""
        progressed()
        self._done += count
        self._note = note or self._note
        now = time.perf_counter()
        if not self._marks or now - self._marks[-1][0] >= 1:
            self._marks.append((now, self._done))
        if self._live and now - self._drawn_at >= _DRAW_S:
            self._drawn_at = now
            self._live.draw()

    def time_left(self) -> str:
        """Estimate the time left as h:mm:ss, at the rate of about the last half minute without the first unit; "?" where there is no rate yet."""
        if self._done >= self._total:
            return "0:00:00"
        rate = self._rate()
        return clock((self._total - self._done) / rate) if rate else "?"

    def fields(self) -> list[tuple[str, int]]:
        """Return the live line's fields, each with its importance: a narrow terminal lacks the least important ones."""
        rate, left = self._rate(), self.time_left()  # both unknown until the second mark: the first step compiles
        shown = f"{rate * (self._samples or 1):,.0f} {'samples' if self._samples else self._unit}/s" if rate else ""
        notes = [(note, 5 - place) for place, note in enumerate(self._note.split(", ")) if note]
        return [
            (self._what, 1),
            (f"{self._done:,}/{self._total:,}", 7),
            (f"{100 * self._done // max(self._total, 1)}%", 2),
            *notes,
            *([(shown, 3)] if shown else []),
            *([(f"{left} left", 6)] if rate else []),
        ]

    def _rate(self) -> float:
        """Return units a second, 0 where it is unknown yet."""
        if not self._marks or self._done == self._marks[0][1]:
            return 0.0
        then, done = self._marks[0]
        return (self._done - done) / max(time.perf_counter() - then, 1e-9)


def fitted(fields: Sequence[tuple[str, int]], width: int) -> str:
    """Join fields, each with its importance, in at most `width` characters, without the least important ones where there are too many."""
    left = list(fields)
    while len(left) > 1 and len("  ".join(text for text, _ in left)) > width:
        left.remove(min(left, key=lambda field: field[1]))
    return "  ".join(text for text, _ in left)[: max(width, 0)]


def clock(seconds: float) -> str:
    """Format a time as h:mm:ss."""
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _WIDTH
    except (OSError, ValueError):
        return _WIDTH


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
