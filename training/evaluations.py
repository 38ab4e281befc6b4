"""The evaluations of a training run: their schedule, the choice of the best model, and early ends of training."""

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
from utils.metrics.summary import EVALUATION, entry


def logged(split: str, metrics: Metrics) -> dict[str, Any]:
    """Return the log entry of an evaluation."""
    prefix = "" if split == "test" else f"{split}_"
    by_group = {f"{prefix}{name}": value for name, value in other_figures(metrics).items()}
    return {f"{prefix}auc": metrics.auc, f"{split}_loss": metrics.log_loss, "samples": metrics.samples, **by_group}


def other_figures(metrics: Metrics | None) -> dict[str, float | int | None]:
    """Return the metrics by group, those that count every row once, and those as logged, under their log keys; empty where there are none."""
    if metrics is None:
        return {}
    return (metrics.ranking.figures() if metrics.ranking else {}) | metrics.other_figures()


class Evaluation(NamedTuple):
    """The evaluation of a model: the split that the best model is chosen on, a function that scores it there, and one that makes the log entry."""

    split: str
    score: Callable[[], Metrics]
    logged: Callable[[str, Metrics], Mapping[str, Any]] = logged


class Evaluated(NamedTuple):
    """The metrics of the model after a step."""

    step: int
    metrics: Metrics
    epoch: int


class Evaluations:
    """Evaluates the model on schedule, and records results in the position.

    Args:
        evaluation: the evaluation to run; None where there is no split to evaluate on.
        config: the configuration of the run.
        position: the position of the run, updated here.
        batches: the number of batches in an epoch.
        console, log: outputs for messages and figures.

    Attributes:
        last, best: the last and the best evaluation in this process; None before the first.
    """

    def __init__(self, evaluation: Evaluation | None, config: Config, position: Position, batches: int, console: Console, log: RunLog):
        self._evaluation, self._config, self._position, self._batches = evaluation, config, position, batches
        self._options = config.training
        self._console, self._log = console, log
        self.last: Evaluated | None = None
        self.best: Evaluated | None = None
        self._reason_reported, self._nonexistent_said = False, False
        self._samples, self._seconds = 0, 0.0  # totals over all evaluations

    @property
    def _split(self) -> str:
        return self._evaluation.split if self._evaluation else "test"

    def after_step(self, last: bool) -> None:
        """Record whether an evaluation is due. If the run evaluates at all, its last model is always evaluated, for the final figures."""
        wanted = self._evaluation is not None and bool(self._options.evals_per_epoch or self._options.test_freq)
        self._position.evaluation_due = self._is_point() or (last and wanted)

    def is_due(self) -> bool:
        """Return whether the model is to be evaluated now."""
        return self._position.evaluation_due and self._evaluation is not None

    def run(self) -> bool:
        """Evaluate the model; return whether it is the best so far.

        Raises:
            NonFiniteLossError: the split's loss is not finite.
        """
        position = self._position
        start = time.perf_counter()
        metrics = self._evaluation.score()
        self.last = Evaluated(position.step, metrics, position.epoch)
        self._samples += metrics.scored
        self._seconds += time.perf_counter() - start
        if not math.isfinite(metrics.log_loss):  # the training losses so far do not cover the last step's update
            raise NonFiniteLossError(
                f"step {position.step - 1}: the {self._split} loss after this step is {metrics.log_loss}; nothing is saved. Try a lower "
                "--learning_rate or a longer --warmup_steps"
            )
        self._log.log((position.epoch, position.step), self._evaluation.logged(self._split, metrics))
        self._log.log(EVALUATION, entry(self._split, metrics, (position.epoch, position.step)))
        position.evaluation_due, position.last_auc = False, metrics.auc
        if self._is_point() and self._chosen(metrics) is None:
            self._say_nonexistent()
        elif self._is_point():  # not where only --max_steps ended the run: a longer run has no evaluation there
            gains = position.improves(self._config.ranking, self._chosen(metrics))
            position.evals_without_gain = 0 if gains else position.evals_without_gain + 1
            position.evals_on_plateau = 0 if gains else position.evals_on_plateau + 1
        best = self._is_best(metrics)
        if metrics.auc is not None and metrics.auc > (position.best_auc or 0.0):
            position.best_auc = metrics.auc
        if best:
            position.best_epoch, self.best = position.epoch + position.batch / self._batches, self.last
        rates = self._config.schedule
        if rates.reduces_on_plateau and position.evals_on_plateau >= rates.plateau_patience:
            position.rate_reductions, position.evals_on_plateau = position.rate_reductions + 1, 0
            name, factor = self._config.ranking.chosen_by or "AUC", rates.plateau_factor**position.rate_reductions
            self._console.say(f"no better {self._split} {name} at step {position.step}: learning rates reduced to {factor:g} of the schedule's")
        return best

    def _say_nonexistent(self) -> None:
        """Say once that evaluations do not count."""
        if not self._nonexistent_said:
            self._nonexistent_said = True
            name = self._config.ranking.chosen_by or "AUC"
            self._console.warn(
                f"the {self._split} split has no {name} at step {self._position.step}: it needs rows of both classes, with weights; such evaluations "
                "neither choose weights, reduce learning rates nor end training"
            )

    def _is_best(self, metrics: Metrics) -> bool:
        """Return whether the model beats all earlier ones; record a metric by group in the position if it does."""
        chosen_by, before, value = self._config.ranking.chosen_by, self._position.best(self._config.ranking), self._chosen(metrics)
        best = value is not None and value > (before or 0.0)
        if best and chosen_by is not None:
            self._position.best_ranking = self._position.best_ranking | {chosen_by.key: value}
        return best

    def _chosen(self, metrics: Metrics) -> float | None:
        """Return the value of the metric that chooses the best model."""
        chosen_by = self._config.ranking.chosen_by
        return metrics.auc if chosen_by is None else metrics.ranking.values[chosen_by]

    def end_training(self) -> bool:
        """Return whether the results end the run, and report the reason once."""
        reason = reason_to_end(self._config, self._position, self._split)
        if reason and not self._reason_reported:
            self._reason_reported = True
            self._console.say(f"{reason} at step {self._position.step}: training stops")
        return reason is not None

    def figures(self) -> Mapping[str, Any]:
        """Return the final figures: of the last evaluation, of the best model, and samples/s over all evaluations."""
        metrics, chosen_by = self.last and self.last.metrics, self._config.ranking.chosen_by
        best = {} if chosen_by is None else {f"best_{chosen_by.key}": self._position.best(self._config.ranking)}
        return {
            "auc": metrics.auc if metrics else None,
            "best_auc": self._position.best_auc,
            "best_epoch": self._position.best_epoch,
            "average_test_throughput": self._samples / self._seconds if self._seconds else None,
            "validation_loss": metrics.log_loss if metrics else None,
            **other_figures(metrics),
            **best,
        }

    def _is_point(self) -> bool:
        """Return whether the schedule has an evaluation after the last step done."""
        options, position = self._options, self._position
        schedule = options.evals_per_epoch, options.test_freq, position.epoch, options.test_after
        return self._evaluation is not None and evaluates_after(position.batch - 1, self._batches, *schedule)
