"""A run's lines of the log, as TensorBoard's event files: scalars, curves, text and hyper-parameters."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from report.tensorboard.events import EventFile, event_files
from report.tensorboard.plots import end_of_session, hyper_parameters, plots_of, text_of
from report.tensorboard.scalars import is_final, scalars_of
from utils.config.options import TRAIN
from utils.errors import UserError
from utils.urls import is_url

Line = str | int | list[int]


class TensorBoard:
    """An observer of a log that writes an event file; see `opened` for how to make one.

    Args:
        folder: the run's folder.
        run: the run's id.
        resumed_step: step of the checkpoint that the process resumes: readers forget later steps of earlier files. None for a new run.
        started: the time of the start in seconds.

    Attributes:
        folder: the run's folder.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, folder: Path, run: str, resumed_step: int | None, started: float | None = None):
        self.folder = folder
        self._file = EventFile(folder, run)
        self._flags: Mapping[str, Any] = {}
        self._run: Mapping[str, Any] = {}
        self._described, self._empty = False, True
        started = started or time.time()
        self._file.start(0 if resumed_step is None else resumed_step + 1, started)
        self.start(resumed_step or 0, started)

    @property
    def path(self) -> Path:
        """The event file."""
        return self._file.path

    def start(self, step: int, started: float, form: str = "epoch,step", until: int | None = None) -> None:
        """Begin the lines of a process.

        Args:
            step: the step before its first one.
            started: the time of its start in seconds.
            form: the form of its steps, see `scalars_of`; the line "RUN" may name another one.
            until: lines of later steps are left out, because a later process has trained these steps again.
        """
        self._form, self._training, self._started, self._until = form, True, started, until
        self._behind = False
        self._step = step
        self._written: dict[str, int] = {}  # the last step of each tag: an evaluation's figures stand in two lines of the log

    def line(self, step: Line, data: Mapping[str, Any], wall_time: float | None = None) -> None:
        """Write a line of the log; its time is now if none is given. Raises OSError."""
        wall_time = time.time() if wall_time is None else wall_time
        if step == "PARAMETER":
            self._flags = data
            return
        if step == "RUN" or not self._described:
            self._describe(data if step == "RUN" else {}, wall_time)
        if isinstance(step, int):
            step = [step]
        found = scalars_of(step, data, self._form, self._training)
        if self._until is not None:
            self._behind |= found.step is not None and found.step > self._until
            if self._behind:
                return
        self._step = self._step if found.step is None else found.step
        values = {tag: value for tag, value in found.values.items() if self._step > self._written.get(tag, -1)}
        self._written |= dict.fromkeys(values, self._step)
        self._file.scalars(self._step, wall_time, values)
        self._empty = self._empty and not values
        if step == "EVALUATION":
            self._file.summaries(self._step, wall_time, plots_of(data))
        elif step == "FAULT":
            self._file.summaries(self._step, wall_time, [text_of("fault", data)])
        elif not step:
            self._file.summaries(self._step, wall_time, end_of_session(self._flags, self._run, sorted(filter(is_final, self._written)), wall_time))

    def close(self) -> None:
        """Close the file; remove it where the run ended before its first figures. Raises OSError."""
        self._file.close()
        if self._empty:
            with contextlib.suppress(OSError):
                self._file.path.unlink()

    def _describe(self, run: Mapping[str, Any], wall_time: float) -> None:
        self._described, self._run = True, run
        self._form, self._training = run.get("step_form", self._form), run.get("mode", TRAIN) == TRAIN
        summaries = [hyper_parameters(self._flags, run, self._started)]
        self._file.summaries(self._step, wall_time, [*summaries, *([text_of("run", run)] if run else [])])


def opened(given: str, run: str, resumed_step: int | None, flag: str = "--tensorboard_path") -> TensorBoard:
    """Open an event file in the folder that a user gave, or in a sub-folder where it holds another run.

    Args:
        given: the folder.
        run, resumed_step: see `TensorBoard`.
        flag: flag that gave the folder, for messages.

    Raises:
        UserError: the folder cannot be written.
    """
    if is_url(given):
        raise UserError(f"{flag} {given}: is a URL; expected a local folder, which can be copied to the store later")
    folder = Path(given)
    try:
        board = TensorBoard(folder_of(folder, run), run, resumed_step)
        if board.folder == folder and holds_another(folder, run):  # which began at the same moment
            board.close()
            board = TensorBoard(folder / _name(run), run, resumed_step)
    except FileExistsError:
        raise UserError(f"{flag} {given}: exists and is no folder; expected a folder, or a path where none exists yet") from None
    except OSError as error:
        raise UserError(f"{flag} {given}: {error.strerror}; expected a folder that can be written to") from None
    return board


def folder_of(given: Path, run: str, started: float | None = None) -> Path:
    """Return the folder of a run's files: the given one, or a sub-folder of it where it holds another run. Raises OSError."""
    if not holds_another(given, run):
        return given
    return next(iter(sorted(given.glob(f"*-{run}"))), given / _name(run, started))


def holds_another(folder: Path, run: str) -> bool:
    """Return whether a folder holds event files that are not a run's. Raises OSError."""
    return not all(path.name.endswith(f".{run}") for path in event_files(folder))


def _name(run: str, started: float | None = None) -> str:
    """Return the name of a run's sub-folder, by the time at which it began."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(started))}-{run}"
