"""Log entries of single steps: figures of a reported step's batch, and every step's speed. Nothing is logged unless requested."""

from collections.abc import Callable, Mapping
from typing import Any

from training.device_batch import TensorBatch
from utils.config.config import Config
from utils.logging import RunLog
from utils.timing import Throughput


class SingleSteps:
    """Measures single steps for the log.

    Args:
        config: the configuration of the run.
        limit: the number of steps of the run.
        log: receives every step's speed, with `--log_steps`.
        meter: the throughput meter, whose clock is paused while a batch is measured.
        read_reports: waits for the previous steps, so that the clock has counted them.

    Attributes:
        of_batch: returns figures of a batch under their log keys; every worker calls it together. None for no figures.
    """

    def __init__(self, config: Config, limit: int, log: RunLog, meter: Throughput, read_reports: Callable[[], None]):
        self._config, self._limit, self._log, self._meter, self._read_reports = config, limit, log, meter, read_reports
        self.of_batch: Callable[[TensorBatch], Mapping[str, Any]] | None = None
        self._figures: Mapping[str, Any] = {}

    def is_reported(self, step: int) -> bool:
        """Return whether the log has a line after `step` steps."""
        return step % self._config.run.print_freq == 0 or step >= self._limit

    def before_step(self, batch: TensorBatch, step: int) -> None:
        """Measure the batch of step number `step`, from 0, if that step is reported."""
        if self.of_batch is not None and not self._config.run.log_steps and self.is_reported(step + 1):
            self._read_reports()
            with self._meter.paused():
                self._figures = self.of_batch(batch)

    def figures(self, mean_loss: float) -> dict[str, Any]:
        """Return the figures of the last measured batch, computed before the step on it; empty where none was measured.

        Their `loss` is the batch's, so the mean loss is returned as `mean_loss`.
        """
        return {"mean_loss": mean_loss, **self._figures} if self._figures else {}

    def after_step(self, step: int, samples: int, seconds: float) -> None:
        """Log the speed of step number `step`, from 1, with `--log_steps`."""
        if self._config.run.log_steps and step > self._config.training.benchmark_warmup_steps:
            self._log.log((1, step), {"batch_samplesps": samples / seconds})
