"""The TensorFlow profile of some steps."""

import tensorflow as tf

from utils.config.options import RunConfig
from utils.console import Console

STEPS = 10
FOLDER = "profile"


class Profile:
    """Takes the profile that `--profiler_start_step` asks for, on the worker that it asks for.

    Args:
        options: of the run.
        rank: this worker's.
        console: is told where it is.
    """

    def __init__(self, options: RunConfig, rank: int, console: Console):
        self._start = options.profiler_start_step
        self._mine = rank == options.profiled_rank
        self._console = console
        self._from: int | None = None  # where the one being taken began

    def before_step(self, step: int) -> None:
        """Begin, where step number `step` (from 0) is the first."""
        if self._mine and step == self._start:
            tf.profiler.experimental.start(FOLDER)
            self._from = step

    def after_step(self, step: int) -> None:
        """End, where that was the last of them; `step` steps are done."""
        if self._from is not None and step == self._from + STEPS:
            self.end(step)

    def end(self, step: int) -> None:
        """End with the run, after `step` steps."""
        if self._from is not None:
            tf.profiler.experimental.stop()
            self._console.say(f"profile of steps {self._from} to {step - 1} written to ./{FOLDER}")
            self._from = None

    def warn_if_none(self, step: int) -> None:
        """Say so where the run ended, after `step` steps, before the first of them."""
        if self._start is not None and self._start >= step:
            self._console.warn(f"--profiler_start_step {self._start}: no profile, training ended at step {step}")
