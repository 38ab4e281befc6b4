"""The training loop: epochs, evaluations, the log, and when to stop."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from model.checkpoints import Checkpoints
from model.metrics import Metrics
from model.schedule import LearningRateSchedule
from model.snapshot import Snapshot
from model.trainer import TensorBatch, Trainer
from utils.checkpoint import Saving
from utils.config import Config, TrainingConfig
from utils.console import Console
from utils.errors import AgreedError
from utils.logging import RunLog
from utils.signals import Stopped, StopRequest
from utils.timing import Throughput

PROFILED_STEPS = 10


class NonFiniteLossError(AgreedError):
    """The loss or a gradient became infinite or not a number; both are summed over the workers, so every one of them sees it."""


def evaluates_after(step: int, batches: int, evals_per_epoch: int, test_freq: int | None, epoch: int, test_after: float) -> bool:
    """Whether the model is evaluated after a step.

    Args:
        step: of the epoch, 0 to batches−1.
        batches: of an epoch.
        evals_per_epoch: so many evaluations, evenly spread, the last after the last step; at most one a step.
        test_freq: instead, one after every test_freq-th step of the whole run; None to leave it to evals_per_epoch.
        epoch: number of the epoch, from 0.
        test_after: none before so many epochs have passed.
    """
    if epoch + (step + 1) / batches < test_after:
        return False
    if test_freq is not None:
        return (epoch * batches + step + 1) % test_freq == 0
    count = min(evals_per_epoch, batches)
    return (step + 1) * count // batches > step * count // batches


@dataclass
class Position:
    """How far a run has come: what a checkpoint keeps so that a resumed run neither repeats nor skips a batch."""

    step: int = 0  # training steps done
    epoch: int = 0
    batch: int = 0  # batches of this epoch done
    samples: int = 0
    best_auc: float | None = None
    evals_without_gain: int = 0  # evaluations since the best AUC
    last_auc: float | None = None  # of the newest evaluation
    evaluation_due: bool = False  # after the last step there should have been an evaluation, and was none: a signal came before it


def steps_in_all(options: TrainingConfig, batches: int) -> int:
    """The step that a run ends with, where nothing ends it before.

    Args:
        options: of the run.
        batches: of an epoch.
    """
    steps = options.epochs * batches
    return steps if options.max_steps == -1 else min(steps, options.max_steps)


def reason_to_end(options: TrainingConfig, position: Position, split: str) -> str | None:
    """Why training ends before its last step; None where it does not. `split` is what the model is chosen by."""
    threshold, patience, last = options.auc_threshold, options.early_stop_patience, position.last_auc
    if threshold is not None and last is not None and last >= threshold:
        return f"{split} AUC {last:.6f} reached --auc_threshold {threshold}"
    if patience is not None and position.evals_without_gain >= patience:
        count = position.evals_without_gain
        return f"{split} AUC has not improved on {position.best_auc or 0:.6f} for {count} evaluations (--early_stop_patience)"
    return None


def reason_finished(options: TrainingConfig, position: Position, batches: int, split: str) -> str | None:
    """Why a run that stands at `position` has nothing left to do; None where it has."""
    if position.evaluation_due:
        return None
    if position.step >= steps_in_all(options, batches):
        return f"{position.step} steps are done (--epochs {options.epochs}" + (
            f", --max_steps {options.max_steps})" if options.max_steps != -1 else ")"
        )
    return reason_to_end(options, position, split)


class Training:
    """A training run.

    Args:
        trainer, schedule: the step and its learning rate.
        config: of the run.
        batches_per_epoch: how many `epoch` yields.
        epoch: the batches of epoch number i from its j-th on, on the device.
        evaluate: scores the model on the split that the best model is chosen by; None where there is none.
        check: called at the end of every epoch.
        begin_save: begins to write a checkpoint of the given position, the best so far or not; None for no checkpoints.
        split: name of the split that `evaluate` scores.
        stop: whether a signal asked for an end.
        position: where to start.
        console, log: where to report.
    """

    def __init__(
        self,
        trainer: Trainer,
        schedule: LearningRateSchedule,
        config: Config,
        batches_per_epoch: int,
        epoch: Callable[[int, int], Iterable[TensorBatch]],
        evaluate: Callable[[], Metrics] | None,
        check: Callable[[], None],
        console: Console,
        log: RunLog,
        *,
        begin_save: Callable[[Position, bool], tuple[Saving, Snapshot]] | None = None,
        split: str = "test",
        stop: StopRequest | None = None,
        position: Position | None = None,
    ):
        self._trainer, self._schedule, self._config = trainer, schedule, config
        self._batches, self._epoch, self._evaluate, self._check = batches_per_epoch, epoch, evaluate, check
        self._console, self._log = console, log
        self._stop, self._split = stop or StopRequest(), split
        self.position = position = position or Position()
        begin = functools.partial(begin_save, position) if begin_save else None
        self._checkpoints = Checkpoints(begin, config.training, position.step, console.say)
        self._metrics: Metrics | None = None
        self._pending: list[tf.Tensor] = []  # what steps since the last report told, the newest perhaps still being computed
        self._train_loss = math.nan
        self._profiled_from: int | None = None  # where the profile being taken began
        self._reason_said = False
        self._told_stop = self._told_save = 0.0  # the workers' wishes, as every worker heard them at the same step
        self._mended = 0  # ids that were out of range, of all workers

    @property
    def step(self) -> int:
        """Training steps done."""
        return self.position.step

    def run(self) -> Mapping[str, Any]:
        """Train; returns the run's final figures.

        Raises:
            NonFiniteLossError: with the step's number.
            Stopped: a signal asked for it; the step was finished and a checkpoint written.
        """
        try:
            return self._run()
        except AgreedError:  # on every worker after the same step: what was begun before it is worth keeping
            self._checkpoints.finish()
            raise
        finally:
            self._checkpoints.abandon()

    def _run(self) -> Mapping[str, Any]:
        options, position = self._config.training, self.position
        limit = steps_in_all(options, self._batches)
        meter = Throughput(options.benchmark_warmup_steps)
        with self._console.progress(limit - position.step, "training", "steps") as progress:
            if position.evaluation_due and self._evaluate:
                self._test()
            self._turn_epoch()
            while position.step < limit and not self._reached():
                for batch in self._epoch(position.epoch, position.batch):
                    self._train(batch)
                    meter.step(int(batch.num_samples))
                    position.evaluation_due = self._is_point() or (position.step >= limit and self._evaluates)
                    progress.advance(1, f"loss {self._train_loss:.5f}")
                    if position.step % self._config.run.print_freq == 0 or position.step >= limit:
                        self._report(limit, meter, progress.time_left())
                    if self._told_stop:
                        self._end_early()
                    if position.evaluation_due:
                        self._test()
                        meter.resume()
                    if position.step < limit and self._checkpoints.is_due(position.step, self._told_save):
                        self._write(best=False)
                        meter.resume()
                    if position.step >= limit or self._reached():
                        break
                self._check()
                self._turn_epoch()
        self._check_finite()
        self._stop_profile()
        if self._config.run.profiler_start_step is not None and self._config.run.profiler_start_step >= position.step:
            self._console.warn(f"--profiler_start_step {self._config.run.profiler_start_step}: no profile, training ended at step {position.step}")
        if self._checkpoints.wanted:
            self._write(best=False, wait=True)
        metrics = self._metrics
        return {
            **meter.summary(),
            "auc": metrics.auc if metrics else None,
            "best_auc": position.best_auc,
            "validation_loss": metrics.log_loss if metrics else None,
            "train_loss": self._train_loss,
            "samples": position.samples,
            "steps": position.step,
            **self._counted(),
        }

    def _turn_epoch(self) -> None:
        if self.position.batch == self._batches:
            self.position.epoch, self.position.batch = self.position.epoch + 1, 0

    @property
    def _evaluates(self) -> bool:
        """Whether the run evaluates at all: then its last model, too, for the final figures."""
        options = self._config.training
        return self._evaluate is not None and bool(options.evals_per_epoch or options.test_freq)

    def _is_point(self) -> bool:
        """Whether the schedule has an evaluation after the step just done."""
        options, position = self._config.training, self.position
        schedule = options.evals_per_epoch, options.test_freq, position.epoch, options.test_after
        return self._evaluate is not None and evaluates_after(position.batch - 1, self._batches, *schedule)

    def _train(self, batch: TensorBatch) -> None:
        position = self.position
        if position.step == self._config.run.profiler_start_step and self._trainer.rank == self._config.run.profiled_rank:
            tf.profiler.experimental.start("profile")
            self._profiled_from = position.step
        wishes = (self._stop.wish, float(batch.out_of_range), *self._checkpoints.wishes())
        self._checkpoints.before_step(batch)
        self._pending.append(self._trainer.telling_step(batch, position.step, self._schedule(position.step), wishes))
        position.step += 1
        position.batch += 1
        position.samples += int(batch.num_samples)
        self._checkpoints.after_step()
        if self._profiled_from is not None and position.step == self._profiled_from + PROFILED_STEPS:
            self._stop_profile()
        if len(self._pending) > 1:  # the step before has certainly finished: looking at what it told makes nothing wait
            self._check_finite(len(self._pending) - 1)

    # Checkpoints --------------------------------------------------------------------------------------------------------

    def _write(self, best: bool, wait: bool = False) -> None:
        self._check_finite()
        self._checkpoints.write(self.position.step, best, wait)
        self._told_save = 0.0

    def _end_early(self) -> None:
        """Write a checkpoint and end as the signal asked. Every worker comes here after the same step."""
        signum, reason = self._stop.heard(self._told_stop)
        if not self._checkpoints.wanted:
            raise Stopped(signum, f"after step {self.position.step}; nothing is saved, there is no --save_checkpoint_path", reason)
        self._write(best=False, wait=True)
        again = "" if self._config.training.resume == "auto" else " with --resume auto"
        raise Stopped(signum, f"after step {self.position.step}, which is saved; to go on, run the same command{again}", reason)

    def _stop_profile(self) -> None:
        if self._profiled_from is not None:
            tf.profiler.experimental.stop()
            self._console.say(f"profile of steps {self._profiled_from} to {self.position.step - 1} written to ./profile")
            self._profiled_from = None

    def _check_finite(self, count: int | None = None) -> None:
        """Look at what the first `count` pending steps told that nobody looked at yet (default all)."""
        for i, told in enumerate(self._pending[:count]):
            if isinstance(told, float):
                continue
            loss, finite, stop, mended, save, writing = (float(value) for value in told.numpy())
            self._pending[i] = loss
            self._told_stop, self._told_save = max(self._told_stop, stop), max(self._told_save, save)
            self._mended += int(mended)
            step = self.position.step - len(self._pending) + i
            if not (math.isfinite(loss) and finite):
                what = "gradients are not finite" if math.isfinite(loss) else f"loss is {loss}"
                scale = "; try --amp_dtype bfloat16 or a smaller --loss_scale" if self._trainer.scaled else ""
                raise NonFiniteLossError(f"step {step}: the {what}; nothing is saved. Try a lower --learning_rate or a longer --warmup_steps{scale}")
            self._checkpoints.told(step, writing)
        known = [loss for loss in self._pending if isinstance(loss, float)]
        if known:
            self._train_loss = float(np.mean(known))

    def _report(self, limit: int, meter: Throughput, time_left: str) -> None:
        self._check_finite()
        rates, step, epoch = meter.summary(), self.position.step, self.position.epoch
        rate = self._schedule(step - 1)
        self._console.say(
            f"epoch {epoch} step {step}/{limit}: loss {self._train_loss:.6f}, {rates['throughput']:,.0f} samples/s, "
            f"{rates['mean_step_time_ms']:.1f} ms/step, learning rate {rate:.6g}, "
            + (f"{self._mended:,} ids out of range, " if self._mended else "")
            + f"{time_left} left"
        )
        data = {"loss": self._train_loss, "samples_per_s": rates["throughput"], "step_time_ms": rates["mean_step_time_ms"], "learning_rate": rate}
        data |= self._counted()
        self._log.log((epoch, step), data)
        self._pending.clear()

    def _test(self) -> None:
        self._check_finite()
        position = self.position
        self._metrics = metrics = self._evaluate()
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
        if metrics.auc is not None and metrics.auc > (position.best_auc or 0.0):
            position.best_auc, position.evals_without_gain = metrics.auc, 0
            if self._checkpoints.wanted and self._config.training.keep_best_checkpoint:
                self._write(best=True)

    def _counted(self) -> dict[str, int]:
        return {} if self._config.data.out_of_range == "error" else {"ids_out_of_range": self._mended}

    def _reached(self) -> bool:
        reason = reason_to_end(self._config.training, self.position, self._split)
        if reason and not self._reason_said:
            self._reason_said = True
            self._console.say(f"{reason} at step {self.position.step}: training stops")
        return reason is not None
