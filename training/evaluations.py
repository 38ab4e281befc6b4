"""The evaluations of a training run: when, what they say of the best model, and whether training ends."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from training.position import Position, evaluates_after, reason_to_end
from training.report import NonFiniteLossError
from utils.console import Console
from utils.logging import RunLog
from utils.metrics.binary import Metrics
from utils.options import TrainingConfig


class Evaluation(NamedTuple):
    """How the model is scored: on which split the best model is chosen, and what scores it there."""

    split: str
    score: Callable[[], Metrics]


class Evaluations:
    """Evaluates where the schedule says, and keeps account in the position.

    Args:
        evaluation: None where there is no split to evaluate on.
        options: of the run.
        position: of the run, changed here.
        batches: of an epoch.
        console, log: where to report.
    """

    def __init__(self, evaluation: Evaluation | None, options: TrainingConfig, position: Position, batches: int, console: Console, log: RunLog):
        self._evaluation, self._options, self._position, self._batches = evaluation, options, position, batches
        self._console, self._log = console, log
        self._metrics: Metrics | None = None
        self._reason_said = False
        self._samples, self._seconds = 0, 0.0  # of all evaluations

    @property
    def _split(self) -> str:
        return self._evaluation.split if self._evaluation else "test"

    def after_step(self, last: bool) -> None:
        """Note whether an evaluation is due; the run's last model is always evaluated, for the final figures, where any is."""
        wanted = self._evaluation is not None and bool(self._options.evals_per_epoch or self._options.test_freq)
        self._position.evaluation_due = self._is_point() or (last and wanted)

    def is_due(self) -> bool:
        """Whether the model is to be evaluated now."""
        return self._position.evaluation_due and self._evaluation is not None

    def run(self) -> bool:
        """Evaluate; returns whether the model is the best so far.

        Raises:
            NonFiniteLossError: the split's loss is not finite.
        """
        position = self._position
        start = time.perf_counter()
        self._metrics = metrics = self._evaluation.score()
        self._samples += metrics.samples
        self._seconds += time.perf_counter() - start
        if not math.isfinite(metrics.log_loss):  # the losses so far were those of the weights before the last step
            raise NonFiniteLossError(
                f"step {position.step - 1}: the {self._split} loss after it is {metrics.log_loss}; nothing is saved. Try a lower --learning_rate or "
                "a longer --warmup_steps"
            )
        auc = "auc" if self._split == "test" else f"{self._split}_auc"
        self._log.log((position.epoch, position.step), {auc: metrics.auc, f"{self._split}_loss": metrics.log_loss, "samples": metrics.samples})
        position.evaluation_due, position.last_auc = False, metrics.auc
        if self._is_point():  # not where only --max_steps cut the run: one that was never cut has no evaluation there
            position.evals_without_gain += 1
        if metrics.auc is None or metrics.auc <= (position.best_auc or 0.0):
            return False
        position.best_auc, position.evals_without_gain = metrics.auc, 0
        position.best_epoch = position.epoch + position.batch / self._batches
        return True

    def end_training(self) -> bool:
        """Whether what they found ends the run, which is said once."""
        reason = reason_to_end(self._options, self._position, self._split)
        if reason and not self._reason_said:
            self._reason_said = True
            self._console.say(f"{reason} at step {self._position.step}: training stops")
        return reason is not None

    def figures(self) -> Mapping[str, Any]:
        """The final ones: of the last evaluation, of the best AUC, and samples/s over all evaluations."""
        metrics = self._metrics
        return {
            "auc": metrics.auc if metrics else None,
            "best_auc": self._position.best_auc,
            "best_epoch": self._position.best_epoch,
            "average_test_throughput": self._samples / self._seconds if self._seconds else None,
            "validation_loss": metrics.log_loss if metrics else None,
        }

    def _is_point(self) -> bool:
        """Whether the schedule has an evaluation after the step just done."""
        options, position = self._options, self._position
        schedule = options.evals_per_epoch, options.test_freq, position.epoch, options.test_after
        return self._evaluation is not None and evaluates_after(position.batch - 1, self._batches, *schedule)
