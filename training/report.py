"""What the workers tell each other with every step: one small vector, which travels with the dense gradients."""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from utils.errors import AgreedError

SKIPPED_IN_A_ROW = 30  # under a loss scale; a dynamic one has found its place in fewer


class NonFiniteLossError(AgreedError):
    """The loss or a gradient became infinite or not a number; both are summed over the workers, so every one of them sees it."""


class WorkerReport(NamedTuple):
    """What one worker brings; each number is summed over the workers."""

    stop: bool = False  # it was asked for an end
    out_of_range: int = 0  # ids of its part of the batch
    save_due: bool = False  # by its clock a checkpoint is due
    writing: bool = False  # it is still writing a checkpoint

    def pack(self) -> tuple[float, ...]:
        """As the step takes it."""
        return tuple(map(float, self))


class StepReport(NamedTuple):
    """What every worker hears of a step, all the same."""

    loss: float
    finite: bool  # the summed gradients are
    stop: bool  # some worker was asked for an end
    out_of_range: int  # ids of the global batch
    save_due: bool  # by some worker's clock
    writing: bool  # some worker is

    @staticmethod
    def pack(loss: tf.Tensor, finite: tf.Tensor, summed: tf.Tensor) -> tf.Tensor:
        """float32 `[6]` of the loss, 1 where the gradients are finite and else 0, and the sum over the workers of what they brought, `[4]`."""
        return tf.concat([[loss], [finite], summed], axis=0)

    @classmethod
    def unpack(cls, values: np.ndarray) -> "StepReport":
        """What `pack` made."""
        loss, finite, stop, out_of_range, save_due, writing = (float(value) for value in values)
        return cls(loss, bool(finite), stop > 0, int(out_of_range), save_due > 0, writing > 0)


class Reports:
    """The reports of a run's steps, read when the device has come to them anyway, so that nothing waits.

    Args:
        heard: called with every step's number (from 0) and report.
        skips: whether a step whose gradients are not finite was skipped, as under a loss scale, and is no error.

    Attributes:
        stop, save_due: whether a report said so since `start_again`, `save_due` since a checkpoint was begun.
        out_of_range: ids, of all steps of the run.
        skipped: steps of the run.
        mean_loss: of the steps since `start_again`; NaN before the first.
    """

    def __init__(self, heard: Callable[[int, StepReport], None], skips: bool = False):
        self._heard, self._skips = heard, skips
        self._unread: deque[tuple[int, tf.Tensor]] = deque()
        self._losses: list[float] = []
        self._skipped_in_a_row, self._last_skipped = 0, ""
        self.stop = self.save_due = False
        self.out_of_range = self.skipped = 0
        self.mean_loss = math.nan

    def add(self, step: int, packed: tf.Tensor) -> None:
        """Take a step's report, perhaps still being computed."""
        self._unread.append((step, packed))

    def read(self, leave: int = 0) -> None:
        """Look at all reports but the newest `leave`.

        Raises:
            NonFiniteLossError: with the step's number.
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
            self._heard(step, report)

    def _skip(self, step: int, report: StepReport) -> None:
        what = "gradients are not finite" if math.isfinite(report.loss) else f"loss is {report.loss}"
        if not self._skips:
            raise NonFiniteLossError(f"step {step}: the {what}; nothing is saved. Try a lower --learning_rate or a longer --warmup_steps")
        self.skipped, self._skipped_in_a_row = self.skipped + 1, self._skipped_in_a_row + 1
        self._last_skipped = f"step {step}: the {what}"
        if self._skipped_in_a_row == SKIPPED_IN_A_ROW:
            self.end(SKIPPED_IN_A_ROW)

    def end(self, steps: int) -> None:
        """Raise NonFiniteLossError where the last `steps` steps, at least one, were all skipped: the run has come to nothing."""
        if 0 < steps <= self._skipped_in_a_row:
            raise NonFiniteLossError(
                f"{self._last_skipped}, and {steps} steps in a row were skipped for it; nothing is saved. Try --loss_scale dynamic or a smaller one, "
                "--amp_dtype bfloat16, a lower --learning_rate or a longer --warmup_steps"
            )

    def start_again(self) -> None:
        """Begin a new mean of the losses."""
        self._losses.clear()
