"""The runs of a log file: which of its lines belong to a run, over all its resumes.

A file is read twice: here only for the beginnings of its lines, so that the second reading (`record`) knows for each stretch the step from which a
later stretch trained again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report.log.lines import Head, Line, head_of, parsed, raw_lines
from utils.errors import UserError

EPOCH_STEP, STEP_STEPS, ONE_STEP = "epoch,step", "step,steps", "1,step"
RESUMING = ("restore_checkpoint_path", "resume")


@dataclass
class Stretch:
    """Lines of one process: from its first line to the next process's.

    Attributes:
        start: its first byte in the file.
        end: the byte behind its last line; None for the end of the file.
        parameters: the flags; empty where the log has none.
        about: the data of the line "RUN"; empty in older logs.
        began: the timestamp of its first line, in seconds.
        until: the last step that counts, because a later stretch trained the following ones again; None where all do.
        first_step: the first step that it trained; None without a training line.
    """

    start: int
    end: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    began: float = 0.0
    until: int | None = None
    first_step: int | None = None
    _numbers: list[tuple[int, ...]] = field(default_factory=list)
    _first_varies: bool = False
    _second_varies: bool = False

    @property
    def resumed_step(self) -> int | None:
        """The step that this process resumed from; None where it began anew."""
        return whole(self.about.get("resumed_step"))

    def note(self, numbers: tuple[int, ...]) -> None:
        """Take note of a training step's numbers."""
        if len(numbers) != 2:
            return
        if not self._numbers:
            self._numbers.append(numbers)
        first = self._numbers[0]
        self._first_varies |= numbers[0] != first[0]
        self._second_varies |= numbers[1] != first[1]

    def form(self) -> str:
        """Return the form of its steps: the one that the line "RUN" names, else the one that the steps have."""
        named = self.about.get("step_form")
        if named in (EPOCH_STEP, STEP_STEPS, ONE_STEP):
            return named
        if not self._numbers:
            return EPOCH_STEP
        first, second = self._numbers[0]
        constant = not self._second_varies and (self._first_varies or "wide" in str(self.parameters.get("interaction", "")))
        return STEP_STEPS if constant and first <= second else EPOCH_STEP

    def close(self, end: int | None) -> None:
        """End the stretch at a byte, and find its first step."""
        self.end = end
        if self._numbers:
            self.first_step = self._numbers[0][0 if self.form() == STEP_STEPS else 1]


@dataclass
class RunSpan:
    """A run in a file.

    Attributes:
        path: the file.
        number: its place among the file's runs, from 1.
        stretches: its processes, by time.
    """

    path: Path
    number: int
    stretches: list[Stretch]

    @property
    def identity(self) -> str:
        """The run's id; empty in older logs."""
        return str(self.stretches[0].about.get("id") or "")


def runs_of(path: Path) -> list[RunSpan]:
    """Return the runs of a log file, by time.

    Raises:
        UserError: the file cannot be read or holds no line of a log.
    """
    stretches = list(_stretches(path))
    if not stretches:
        raise UserError(f"{path}: holds no line of a log; expected lines that begin with 'DLLL {{', as --log_path writes them")
    runs: list[RunSpan] = []
    for stretch in stretches:
        run = _continued(runs, stretch)
        if run is None:
            runs.append(RunSpan(path, len(runs) + 1, [stretch]))
            continue
        resumed = stretch.resumed_step if stretch.about else (stretch.first_step or 1) - 1
        for earlier in run.stretches:
            earlier.until = resumed if earlier.until is None else min(earlier.until, resumed)
        run.stretches.append(stretch)
    return runs


def _stretches(path: Path) -> Iterator[Stretch]:
    current: Stretch | None = None
    for raw in raw_lines(path):
        head = head_of(raw.text)
        if head is None:
            continue
        if _begins(current, head):
            if current is not None:
                current.close(raw.offset)
                yield current
            current = Stretch(raw.offset)
        if head.name in ("PARAMETER", "RUN") and (line := parsed(raw.text)):
            _take(current, line)
        elif not head.name:
            current.note(head.numbers)
    if current is not None:
        current.close(None)
        yield current


def _begins(current: Stretch | None, head: Head) -> bool:
    """Return whether a line is the first of a process: its flags, or the line "RUN" of a log without flags."""
    return current is None or head.name == "PARAMETER" or (head.name == "RUN" and bool(current.about))


def _take(stretch: Stretch, line: Line) -> None:
    stretch.began = stretch.began or line.seconds
    if line.name == "RUN":
        stretch.about = line.data
    else:
        stretch.parameters = line.data


def _continued(runs: Sequence[RunSpan], stretch: Stretch) -> RunSpan | None:
    """Return the run that a stretch resumes; None where it begins another."""
    if stretch.about:
        if stretch.resumed_step is None:
            return None
        return next((run for run in reversed(runs) if run.identity and run.identity == stretch.about.get("id")), None)
    if not runs or runs[-1].stretches[0].about or not any(_given(stretch.parameters.get(flag)) for flag in RESUMING):
        return None
    first = runs[-1].stretches[0].first_step
    return runs[-1] if first is not None and stretch.first_step is not None and stretch.first_step > first else None


def _given(value: Any) -> bool:
    return value not in (None, "", False, "none", "None", "no")


def whole(value: Any) -> int | None:
    """Return a whole number as it is, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
