"""The training loop: epochs, evaluations, the log, and when to stop."""

import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from model.metrics import Metrics
from model.schedule import LearningRateSchedule
from model.trainer import TensorBatch, Trainer
from utils.config import Config
from utils.console import Console
from utils.errors import AgreedError
from utils.logging import RunLog
from utils.signals import Stopped, StopRequest
from utils.timing import Throughput

PROFILED_STEPS = 10


class NonFiniteLossError(AgreedError):
    """The loss became infinite or not a number; it is summed over the workers, so every one of them sees it."""


def evaluation_steps(batches: int, evals_per_epoch: int, test_freq: int | None, epoch: int, test_after: float) -> set[int]:
    """The steps of an epoch (0 to batches−1) after which the model is evaluated.

    Args:
        batches: of an epoch.
        evals_per_epoch: so many, evenly spread, the last after the last step.
        test_freq: instead, after every test_freq-th step of the whole run; None to leave it to evals_per_epoch.
        epoch: number of the epoch, from 0.
        test_after: none before so many epochs have passed.
    """
    if test_freq is not None:
        steps = {step for step in range(batches) if (epoch * batches + step + 1) % test_freq == 0}
    else:
        count = min(evals_per_epoch, batches)
        steps = {math.ceil((i + 1) * batches / count) - 1 for i in range(count)}
    return {step for step in steps if epoch + (step + 1) / batches >= test_after}


@dataclass
class Position:
    """How far a run has come: what a checkpoint keeps so that a resumed run neither repeats nor skips a batch."""

    step: int = 0  # training steps done
    epoch: int = 0
    batch: int = 0  # batches of this epoch done
    samples: int = 0
    best_auc: float | None = None


class Training:
    """A training run.

    Args:
        trainer, schedule: the step and its learning rate.
        config: of the run.
        batches_per_epoch: how many `epoch` yields.
        epoch: the batches of epoch number i from its j-th on, on the device.
        evaluate: scores the model on the test split; None where there is none.
        check: called at the end of every epoch.
        save: writes a checkpoint of the given position and says whether it is the best so far; None for no checkpoints.
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
        save: Callable[[Position, bool], None] | None = None,
        stop: StopRequest | None = None,
        position: Position | None = None,
    ):
        self._trainer, self._schedule, self._config = trainer, schedule, config
        self._batches, self._epoch, self._evaluate, self._check = batches_per_epoch, epoch, evaluate, check
        self._console, self._log = console, log
        self._save, self._stop = save, stop or StopRequest()
        self.position = position or Position()
        self._metrics: Metrics | None = None
        self._pending: list[tf.Tensor] = []  # what steps since the last report told, the newest perhaps still being computed
        self._train_loss = math.nan
        self._profiled_from: int | None = None  # where the profile being taken began
        self._saved_at, self._saved_time = self.position.step, time.monotonic()
        self._evaluated_at = -1
        self._threshold_said = False
        self._told_stop = self._told_save = 0.0  # the workers' wishes, as every worker heard them at the same step

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
        options, position = self._config.training, self.position
        limit = options.epochs * self._batches
        if options.max_steps != -1:
            limit = min(limit, options.max_steps)
        meter = Throughput(options.benchmark_warmup_steps)
        with self._console.progress(limit - position.step, "training", "steps") as progress:
            while position.step < limit and not self._reached():
                points = evaluation_steps(self._batches, options.evals_per_epoch, options.test_freq, position.epoch, options.test_after)
                for batch in self._epoch(position.epoch, position.batch):
                    self._train(batch)
                    meter.step(int(batch.num_samples))
                    progress.advance(1, f"loss {self._train_loss:.5f}")
                    if position.step % self._config.run.print_freq == 0 or position.step >= limit:
                        self._report(limit, meter, progress.time_left())
                    if self._told_stop:
                        self._end_early()
                    if position.batch - 1 in points and self._evaluate:
                        self._test()
                        meter.resume()
                    if self._save_is_due() and position.step < limit:
                        self._write(best=False)
                        meter.resume()
                    if position.step >= limit or self._reached():
                        break
                self._check()
                if position.batch == self._batches:
                    position.epoch, position.batch = position.epoch + 1, 0
        self._check_finite()
        self._stop_profile()
        if self._config.run.profiler_start_step is not None and self._config.run.profiler_start_step >= position.step:
            self._console.warn(f"--profiler_start_step {self._config.run.profiler_start_step}: no profile, training ended at step {position.step}")
        if self._evaluate and self._evaluated_at != position.step and (options.evals_per_epoch or options.test_freq):
            self._test()  # stopped by --max_steps, or --test_freq fell between: the final figures need the final model
        if self._save:
            self._write(best=False)
        metrics = self._metrics
        return {
            **meter.summary(),
            "auc": metrics.auc if metrics else None,
            "best_auc": position.best_auc,
            "validation_loss": metrics.log_loss if metrics else None,
            "train_loss": self._train_loss,
            "samples": position.samples,
            "steps": position.step,
        }

    def _train(self, batch: TensorBatch) -> None:
        position = self.position
        if position.step == self._config.run.profiler_start_step and self._trainer.rank == self._config.run.profiled_rank:
            tf.profiler.experimental.start("profile")
            self._profiled_from = position.step
        wishes = (float(self._stop.signum), float(self._trainer.rank == 0 and self._minutes_have_passed()))
        self._pending.append(self._trainer.telling_step(batch, position.step, self._schedule(position.step), wishes))
        position.step += 1
        position.batch += 1
        position.samples += int(batch.num_samples)
        if self._profiled_from is not None and position.step == self._profiled_from + PROFILED_STEPS:
            self._stop_profile()
        if len(self._pending) > 1:  # the step before has certainly finished: looking at what it told makes nothing wait
            self._check_finite(len(self._pending) - 1)

    # Checkpoints --------------------------------------------------------------------------------------------------------

    def _minutes_have_passed(self) -> bool:
        minutes = self._config.training.checkpoint_every_minutes
        return minutes is not None and time.monotonic() - self._saved_time >= 60 * minutes

    def _save_is_due(self) -> bool:
        if self._save is None or self._saved_at == self.position.step:
            return False
        steps = self._config.training.checkpoint_every_steps
        return bool(self._told_save) or (steps is not None and self.position.step % steps == 0)

    def _write(self, best: bool) -> None:
        self._check_finite()
        self._save(self.position, best)
        self._saved_at, self._saved_time = self.position.step, time.monotonic()
        self._told_save = 0.0

    def _end_early(self) -> None:
        """Write a checkpoint and end as the signal asked. Every worker comes here after the same step."""
        signum = int(self._told_stop) if self._stop.signum == 0 else self._stop.signum
        signum = signum if signum in (signal.SIGINT, signal.SIGTERM) else signal.SIGTERM  # a sum of several workers' signals
        if self._save is None:
            raise Stopped(signum, f"after step {self.position.step}; nothing is saved, there is no --save_checkpoint_path")
        self._write(best=False)
        path = self._config.training.save_checkpoint_path
        raise Stopped(
            signum, f"after step {self.position.step}, which is saved; to go on, run the same command with --restore_checkpoint_path {path}"
        )

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
            loss, stop, save = (float(value) for value in told.numpy())
            self._pending[i] = loss
            self._told_stop, self._told_save = max(self._told_stop, stop), max(self._told_save, save)
            if not math.isfinite(loss):
                step = self.position.step - len(self._pending) + i
                scale = "; try --amp_dtype bfloat16 or a smaller --loss_scale" if self._trainer.scaled else ""
                raise NonFiniteLossError(
                    f"step {step}: the loss is {loss}; nothing is saved. Try a lower --learning_rate or a longer --warmup_steps{scale}"
                )
        known = [loss for loss in self._pending if isinstance(loss, float)]
        if known:
            self._train_loss = float(np.mean(known))

    def _report(self, limit: int, meter: Throughput, time_left: str) -> None:
        self._check_finite()
        rates, step, epoch = meter.summary(), self.position.step, self.position.epoch
        rate = self._schedule(step - 1)
        self._console.say(
            f"epoch {epoch} step {step}/{limit}: loss {self._train_loss:.6f}, {rates['throughput']:,.0f} samples/s, "
            f"{rates['mean_step_time_ms']:.1f} ms/step, learning rate {rate:.6g}, {time_left} left"
        )
        data = {"loss": self._train_loss, "samples_per_s": rates["throughput"], "step_time_ms": rates["mean_step_time_ms"], "learning_rate": rate}
        self._log.log((epoch, step), data)
        self._pending.clear()

    def _test(self) -> None:
        self._check_finite()
        position = self.position
        self._metrics = metrics = self._evaluate()
        self._evaluated_at = position.step
        if not math.isfinite(metrics.log_loss):  # the losses so far were those of the weights before the last step
            raise NonFiniteLossError(
                f"step {position.step - 1}: the test loss after it is {metrics.log_loss}; nothing is saved. Try a lower --learning_rate or a "
                "longer --warmup_steps"
            )
        self._log.log((position.epoch, position.step), {"auc": metrics.auc, "test_loss": metrics.log_loss, "samples": metrics.samples})
        if metrics.auc is not None and metrics.auc > (position.best_auc or 0.0):
            position.best_auc = metrics.auc
            if self._save and self._config.training.keep_best_checkpoint:
                self._write(best=True)

    def _reached(self) -> bool:
        threshold = self._config.training.auc_threshold
        reached = threshold is not None and self._metrics is not None and self._metrics.auc is not None and self._metrics.auc >= threshold
        if reached and not self._threshold_said:
            self._threshold_said = True
            self._console.say(f"test AUC {self._metrics.auc:.6f} reached --auc_threshold {threshold} at step {self.position.step}: training stops")
        return reached
