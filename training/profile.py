"""Profiling of some training steps by TensorFlow."""

import tensorflow as tf

from utils.config.run import RunConfig
from utils.console import Console

STEPS = 10


class Profile:
    """Records the profile that `--profiler_start_step` asks for, on the worker with rank `profiled_rank`.

    Args:
        options: the options of the run.
        rank: this worker's rank.
        console: prints the folder of the profile.
    """

    def __init__(self, options: RunConfig, rank: int, console: Console):
        self._start = options.profiler_start_step
        self._folder = options.profile_path
        self._mine = rank == options.profiled_rank
        self._console = console
        self._from: int | None = None  # first step of the profile being recorded

    def before_step(self, step: int) -> None:
        """Start the profile if step number `step` (from 0) is its first."""
        if self._mine and step == self._start:
            tf.profiler.experimental.start(self._folder)
            self._from = step

    def after_step(self, step: int) -> None:
        """End the profile if its last step is done; `step` steps are done in all."""
        if self._from is not None and step == self._from + STEPS:
            self.end(step)

    def end(self, step: int) -> None:
        """End the profile if one is being recorded, after `step` steps."""
        if self._from is not None:
            tf.profiler.experimental.stop()
            self._console.say(f"profile of steps {self._from} to {step - 1} written to {self._folder}")
            self._from = None

    def warn_if_none(self, step: int) -> None:
        """Warn if the run ended, after `step` steps, before the profile's first step."""
        if self._start is not None and self._start >= step:
            self._console.warn(f"--profiler_start_step {self._start}: no profile, training ended at step {step}")
