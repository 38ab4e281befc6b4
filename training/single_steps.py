"""What the log has of single steps: figures of a reported step's batch, and every step's speed. Nothing unless it is asked for."""

from collections.abc import Callable, Mapping
from typing import Any

from training.device_batch import TensorBatch
from utils.config.config import Config
from utils.logging import RunLog
from utils.timing import Throughput


class SingleSteps:
    """Looks at single steps for the log.

    Args:
        config: of the run.
        limit: steps of the run.
        log: where every step's speed goes, with `--log_steps`.
        meter: its clock stands still while a batch is measured.
        read_reports: waits for the steps before, so that the clock has counted them.

    Attributes:
        of_batch: figures of a batch, by the log's keys, on every worker together; None for none.
    """

    def __init__(self, config: Config, limit: int, log: RunLog, meter: Throughput, read_reports: Callable[[], None]):
        self._config, self._limit, self._log, self._meter, self._read_reports = config, limit, log, meter, read_reports
        self.of_batch: Callable[[TensorBatch], Mapping[str, Any]] | None = None
        self._figures: Mapping[str, Any] = {}

    def is_reported(self, step: int) -> bool:
        """Whether there is a line of the log after so many steps."""
        return step % self._config.run.print_freq == 0 or step >= self._limit

    def before_step(self, batch: TensorBatch, step: int) -> None:
        """Measure the batch of step number `step`, from 0, where that step is reported."""
        if self.of_batch is not None and not self._config.run.log_steps and self.is_reported(step + 1):
            self._read_reports()
            with self._meter.paused():
                self._figures = self.of_batch(batch)

    def figures(self, mean_loss: float) -> dict[str, Any]:
        """Of the last batch that was measured, before it was trained on; `loss` among them is the batch's, the mean has another key then."""
        return {"mean_loss": mean_loss, **self._figures} if self._figures else {}

    def after_step(self, step: int, samples: int, seconds: float) -> None:
        """Log the speed of step number `step`, from 1, where the log has it of every one."""
        if self._config.run.log_steps and step > self._config.training.benchmark_warmup_steps:
            self._log.log((1, step), {"batch_samplesps": samples / seconds})
