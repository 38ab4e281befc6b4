"""The evaluations of a training run: when, what they say of the best model, and whether training ends."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from training.position import Position, evaluates_after, reason_to_end
from training.report import NonFiniteLossError
from utils.config.config import Config
from utils.console import Console
from utils.logging import RunLog
from utils.metrics.binary import Metrics


def logged(split: str, metrics: Metrics) -> dict[str, Any]:
    """What the log has of an evaluation."""
    prefix = "" if split == "test" else f"{split}_"
    by_group = {f"{prefix}{name}": value for name, value in ranking_figures(metrics).items()}
    return {f"{prefix}auc": metrics.auc, f"{split}_loss": metrics.log_loss, "samples": metrics.samples, **by_group}


def ranking_figures(metrics: Metrics | None) -> dict[str, float | int | None]:
    """The metrics by group, by the keys of the log; empty where there are none."""
    return metrics.ranking.figures() if metrics and metrics.ranking else {}


class Evaluation(NamedTuple):
    """How the model is scored: on which split the best model is chosen, what scores it there, and what the log has of it."""

    split: str
    score: Callable[[], Metrics]
    logged: Callable[[str, Metrics], Mapping[str, Any]] = logged


class Evaluated(NamedTuple):
    """The model after a step, and how it scored."""

    step: int
    metrics: Metrics


class Evaluations:
    """Evaluates where the schedule says, and keeps account in the position.

    Args:
        evaluation: None where there is no split to evaluate on.
        config: of the run.
        position: of the run, changed here.
        batches: of an epoch.
        console, log: where to report.

    Attributes:
        last, best: of those of this process; None before the first.
    """

    def __init__(self, evaluation: Evaluation | None, config: Config, position: Position, batches: int, console: Console, log: RunLog):
        self._evaluation, self._config, self._position, self._batches = evaluation, config, position, batches
        self._options = config.training
        self._console, self._log = console, log
        self.last: Evaluated | None = None
        self.best: Evaluated | None = None
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
        metrics = self._evaluation.score()
        self.last = Evaluated(position.step, metrics)
        self._samples += metrics.samples
        self._seconds += time.perf_counter() - start
        if not math.isfinite(metrics.log_loss):  # the losses so far were those of the weights before the last step
            raise NonFiniteLossError(
                f"step {position.step - 1}: the {self._split} loss after it is {metrics.log_loss}; nothing is saved. Try a lower --learning_rate or "
                "a longer --warmup_steps"
            )
        self._log.log((position.epoch, position.step), self._evaluation.logged(self._split, metrics))
        position.evaluation_due, position.last_auc = False, metrics.auc
        if self._is_point():  # not where only --max_steps cut the run: one that was never cut has no evaluation there
            position.evals_without_gain += 1
        best = self._is_best(metrics)
        if metrics.auc is not None and metrics.auc > (position.best_auc or 0.0):
            position.best_auc = metrics.auc
        if best:
            position.evals_without_gain, position.best_epoch = 0, position.epoch + position.batch / self._batches
            self.best = self.last
        return best

    def _is_best(self, metrics: Metrics) -> bool:
        """Whether no model was better, which is kept in the position of a metric by group."""
        chosen_by, before = self._config.ranking.chosen_by, self._position.best(self._config.ranking)
        value = metrics.auc if chosen_by is None else metrics.ranking.values[chosen_by]
        best = value is not None and value > (before or 0.0)
        if best and chosen_by is not None:
            self._position.best_ranking = self._position.best_ranking | {chosen_by.key: value}
        return best

    def end_training(self) -> bool:
        """Whether what they found ends the run, which is said once."""
        reason = reason_to_end(self._config, self._position, self._split)
        if reason and not self._reason_said:
            self._reason_said = True
            self._console.say(f"{reason} at step {self._position.step}: training stops")
        return reason is not None

    def figures(self) -> Mapping[str, Any]:
        """The final ones: of the last evaluation, of the best model, and samples/s over all evaluations."""
        metrics, chosen_by = self.last and self.last.metrics, self._config.ranking.chosen_by
        best = {} if chosen_by is None else {f"best_{chosen_by.key}": self._position.best(self._config.ranking)}
        return {
            "auc": metrics.auc if metrics else None,
            "best_auc": self._position.best_auc,
            "best_epoch": self._position.best_epoch,
            "average_test_throughput": self._samples / self._seconds if self._seconds else None,
            "validation_loss": metrics.log_loss if metrics else None,
            **ranking_figures(metrics),
            **best,
        }

    def _is_point(self) -> bool:
        """Whether the schedule has an evaluation after the step just done."""
        options, position = self._options, self._position
        schedule = options.evals_per_epoch, options.test_freq, position.epoch, options.test_after
        return self._evaluation is not None and evaluates_after(position.batch - 1, self._batches, *schedule)
