"""Reports that the workers exchange in every step: one small vector, summed together with the dense gradients."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from training.position import Position
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
    """The report of a step: the same on every worker, but for this worker's measures."""

    loss: float
    finite: bool  # the summed gradients are finite
    stop: bool  # a signal asked some worker to stop
    out_of_range: int  # ids out of range in the global batch
    save_due: bool  # a checkpoint is due by some worker's clock
    writing: bool  # some worker is still writing a checkpoint
    exchange_s: float = 0.0  # seconds that this worker spent in the exchanges of the step
    divisor: float = 1.0  # what divided all gradients: above 1 where --clip_norm reduced them
    squares: tuple[float, ...] = ()  # sums of the squares of this worker's gradients by group of weights, where they were asked for

    @staticmethod
    def pack(loss: tf.Tensor, finite: tf.Tensor, summed: tf.Tensor, measures: tf.Tensor | None = None) -> tf.Tensor:
        """Return a vector: the loss, 1 if the gradients are finite and else 0, the sum of the workers' reports, `[4]`, and this worker's measures.

        It is float32 `[6]` without measures. With them, it has their dtype, and further elements: see `norms.measures`.
        """
        values = tf.concat([[loss], [finite], summed], axis=0)
        return values if measures is None else tf.concat([tf.cast(values, measures.dtype), measures], axis=0)

    @classmethod
    def unpack(cls, values: np.ndarray) -> "StepReport":
        """Return the report that `pack` packed."""
        loss, finite, stop, out_of_range, save_due, writing, *measures = (float(value) for value in values)
        exchange_s, divisor, *squares = (*measures, *(0.0, 1.0)[len(measures) :])
        return cls(loss, bool(finite), stop > 0, int(out_of_range), save_due > 0, writing > 0, exchange_s, divisor, tuple(squares))


class Reports:
    """The reports of a run's steps, read only after the device has finished them, so that reading does not wait.

    Args:
        position: the position of the run, which counts losses, skipped steps and ids out of range; a report that was not read is not in it.
        on_report: functions that are called with every step's number (from 0) and report.
        skips: True with a loss scale: a step whose gradients are not finite was skipped and is no error.

    Attributes:
        stop, save_due: whether any report said so, `save_due` since the last checkpoint was begun.
    """

    def __init__(self, position: Position, on_report: Sequence[Callable[[int, StepReport], None]], skips: bool = False):
        self._position, self._on_report, self._skips = position, on_report, skips
        self._unread: deque[tuple[int, tf.Tensor]] = deque()
        self._last_skipped = ""
        self.stop = self.save_due = False

    @property
    def mean_loss(self) -> float:
        """The mean loss of the steps since the log's last line; NaN before the first step."""
        return math.nan if self._position.mean_loss is None else self._position.mean_loss

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
                self._position.add_loss(report.loss)
            else:
                self._skip(step, report)
            self.stop, self.save_due = self.stop or report.stop, self.save_due or report.save_due
            self._position.ids_out_of_range += report.out_of_range
            self._position.clipped_steps += report.finite and report.divisor > 1
            for take in self._on_report:
                take(step, report)

    def skip_weightless(self, step: int, everyone: Sequence[WorkerReport]) -> None:
        """Count a step whose batch has no weight, and which no worker runs; `everyone` is the reports of all workers."""
        self.read()
        stop, out_of_range, save_due, writing = (sum(values) for values in zip(*everyone, strict=True))
        self.stop, self.save_due = self.stop or stop > 0, self.save_due or save_due > 0
        self._position.weightless_steps += 1
        self._position.ids_out_of_range += out_of_range
        for take in self._on_report:
            take(step, StepReport(0.0, True, stop > 0, out_of_range, save_due > 0, writing > 0))

    def _skip(self, step: int, report: StepReport) -> None:
        what = "gradients are not finite" if math.isfinite(report.loss) else f"loss is {report.loss}"
        if not self._skips:
            raise NonFiniteLossError(f"step {step}: the {what}; nothing is saved. Try a lower --learning_rate or a longer --warmup_steps")
        position = self._position
        position.skipped_steps, position.skipped_in_a_row = position.skipped_steps + 1, position.skipped_in_a_row + 1
        self._last_skipped = f"step {step}: the {what}"
        if position.skipped_in_a_row >= SKIPPED_IN_A_ROW:
            self.end(position.skipped_in_a_row)

    def end(self, steps: int) -> None:
        """Raise NonFiniteLossError where the last `steps` steps (one or more) were all skipped, so the run has not trained."""
        if 0 < steps <= self._position.skipped_in_a_row:
            raise NonFiniteLossError(
                f"{self._last_skipped}, and {steps} steps in a row were skipped for this reason; nothing is saved. Try --loss_scale dynamic or "
                "smaller, --amp_dtype bfloat16, a lower --learning_rate or a longer --warmup_steps"
            )
