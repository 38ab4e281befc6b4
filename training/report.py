"""Reports that the workers exchange in every step: one small vector, summed together with the dense gradients."""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from utils.errors import AgreedError

SKIPPED_IN_A_ROW = 30  # skipped steps that end a run with a loss scale; a dynamic scale settles in fewer


class NonFiniteLossError(AgreedError):
    """The loss or a gradient became infinite or NaN; both are summed over the workers, so every worker sees it."""


class WorkerReport(NamedTuple):
    """One worker's report; each number is summed over the workers."""

    stop: bool = False  # a signal asked it to stop
    out_of_range: int = 0  # ids out of range in its part of the batch
    save_due: bool = False  # a checkpoint is due by its clock
    writing: bool = False  # it is still writing a checkpoint

    def pack(self) -> tuple[float, ...]:
        """Return the report as numbers, as the step takes it."""
        return tuple(map(float, self))


class StepReport(NamedTuple):
    """The report of a step, the same on every worker."""

    loss: float
    finite: bool  # the summed gradients are finite
    stop: bool  # a signal asked some worker to stop
    out_of_range: int  # ids out of range in the global batch
    save_due: bool  # a checkpoint is due by some worker's clock
    writing: bool  # some worker is still writing a checkpoint

    @staticmethod
    def pack(loss: tf.Tensor, finite: tf.Tensor, summed: tf.Tensor) -> tf.Tensor:
        """Return float32 `[6]`: the loss, 1 if the gradients are finite and else 0, and the sum of the workers' reports, `[4]`."""
        return tf.concat([[loss], [finite], summed], axis=0)

    @classmethod
    def unpack(cls, values: np.ndarray) -> "StepReport":
        """Return the report that `pack` packed."""
        loss, finite, stop, out_of_range, save_due, writing = (float(value) for value in values)
        return cls(loss, bool(finite), stop > 0, int(out_of_range), save_due > 0, writing > 0)


class Reports:
    """The reports of a run's steps, read only after the device has finished them, so that reading does not wait.

    Args:
        on_report: called with every step's number (from 0) and report.
        skips: True with a loss scale: a step whose gradients are not finite was skipped and is no error.

    Attributes:
        stop, save_due: whether any report said so, `save_due` since the last checkpoint was begun.
        out_of_range: ids out of range in all steps of the run.
        skipped: skipped steps of the run.
        mean_loss: the mean loss of the steps since `start_again`; NaN before the first.
    """

    def __init__(self, on_report: Callable[[int, StepReport], None], skips: bool = False):
        self._on_report, self._skips = on_report, skips
        self._unread: deque[tuple[int, tf.Tensor]] = deque()
        self._losses: list[float] = []
        self._skipped_in_a_row, self._last_skipped = 0, ""
        self.stop = self.save_due = False
        self.out_of_range = self.skipped = 0
        self.mean_loss = math.nan

    def add(self, step: int, packed: tf.Tensor) -> None:
        """Add a step's report, which the device may still be computing."""
        self._unread.append((step, packed))

    def read(self, leave: int = 0) -> None:
        """Read all reports but the newest `leave`.

        Raises:
            NonFiniteLossError: the loss or a gradient of a step is not finite; the message names the step.
        """
        while len(self._unread) > leave:
            step, packed = self._unread.popleft()
            report = StepReport.unpack(packed.numpy())
            if math.isfinite(report.loss) and report.finite:
                self._skipped_in_a_row = 0
                self._losses.append(report.loss)
                self.mean_loss = float(np.mean(self._losses))
            else:
                self._skip(step, report)
            self.stop, self.save_due = self.stop or report.stop, self.save_due or report.save_due
            self.out_of_range += report.out_of_range
            self._on_report(step, report)

    def _skip(self, step: int, report: StepReport) -> None:
        what = "gradients are not finite" if math.isfinite(report.loss) else f"loss is {report.loss}"
        if not self._skips:
            raise NonFiniteLossError(f"step {step}: the {what}; nothing is saved. Try a lower --learning_rate or a longer --warmup_steps")
        self.skipped, self._skipped_in_a_row = self.skipped + 1, self._skipped_in_a_row + 1
        self._last_skipped = f"step {step}: the {what}"
        if self._skipped_in_a_row == SKIPPED_IN_A_ROW:
            self.end(SKIPPED_IN_A_ROW)

    def end(self, steps: int) -> None:
        """Raise NonFiniteLossError where the last `steps` steps (one or more) were all skipped, so the run has not trained."""
        if 0 < steps <= self._skipped_in_a_row:
            raise NonFiniteLossError(
                f"{self._last_skipped}, and {steps} steps in a row were skipped for this reason; nothing is saved. Try --loss_scale dynamic or "
                "smaller, --amp_dtype bfloat16, a lower --learning_rate or a longer --warmup_steps"
            )

    def start_again(self) -> None:
        """Begin a new mean of the losses."""
        self._losses.clear()
