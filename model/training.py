"""The training loop: epochs, evaluations, the log, and when to stop."""

import math
from collections.abc import Callable, Iterable, Mapping
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


class Training:
    """A training run.

    Args:
        trainer, schedule: the step and its learning rate.
        config: of the run.
        batches_per_epoch: how many `epoch` yields.
        epoch: the batches of epoch number i, on the device.
        evaluate: scores the model on the test split; None where there is none.
        check: called at the end of every epoch.
        console, log: where to report.
    """

    def __init__(
        self,
        trainer: Trainer,
        schedule: LearningRateSchedule,
        config: Config,
        batches_per_epoch: int,
        epoch: Callable[[int], Iterable[TensorBatch]],
        evaluate: Callable[[], Metrics] | None,
        check: Callable[[], None],
        console: Console,
        log: RunLog,
    ):
        self._trainer, self._schedule, self._config = trainer, schedule, config
        self._batches, self._epoch, self._evaluate, self._check = batches_per_epoch, epoch, evaluate, check
        self._console, self._log = console, log
        self.step = 0  # training steps done
        self._samples = 0
        self._metrics: Metrics | None = None
        self._best_auc: float | None = None
        self._pending: list[tf.Tensor] = []  # losses since the last report, the newest perhaps still being computed
        self._train_loss = math.nan
        self._profiled_from: int | None = None  # where the profile being taken began

    def run(self) -> Mapping[str, Any]:
        """Train; returns the run's final figures.

        Raises:
            NonFiniteLossError: with the step's number.
        """
        options = self._config.training
        limit = options.epochs * self._batches
        if options.max_steps != -1:
            limit = min(limit, options.max_steps)
        meter = Throughput(options.benchmark_warmup_steps)
        evaluated_at = -1
        with self._console.progress(limit, "training", "steps") as progress:
            for epoch in range(options.epochs):
                points = evaluation_steps(self._batches, options.evals_per_epoch, options.test_freq, epoch, options.test_after)
                stop = False
                for place, batch in enumerate(self._epoch(epoch)):
                    self._train(batch)
                    self._samples += int(batch.num_samples)
                    meter.step(int(batch.num_samples))
                    progress.advance(1, f"loss {self._train_loss:.5f}")
                    last = self.step >= limit
                    if self.step % self._config.run.print_freq == 0 or last:
                        self._report(epoch, limit, meter, progress.time_left())
                    if place in points and self._evaluate:
                        self._test(epoch)
                        evaluated_at = self.step
                        stop = self._reached()
                        meter.resume()
                    if stop or last:
                        break
                self._check()
                if stop or self.step >= limit:
                    break
        self._check_finite()
        self._stop_profile()
        if self._config.run.profiler_start_step is not None and self._config.run.profiler_start_step >= self.step:
            self._console.warn(f"--profiler_start_step {self._config.run.profiler_start_step}: no profile, training ended at step {self.step}")
        if self._evaluate and evaluated_at != self.step and (options.evals_per_epoch or options.test_freq):
            self._test(epoch)  # stopped by --max_steps, or --test_freq fell between: the final figures need the final model
        metrics = self._metrics
        return {
            **meter.summary(),
            "auc": metrics.auc if metrics else None,
            "best_auc": self._best_auc,
            "validation_loss": metrics.log_loss if metrics else None,
            "train_loss": self._train_loss,
            "samples": self._samples,
            "steps": self.step,
        }

    def _train(self, batch: TensorBatch) -> None:
        if self.step == self._config.run.profiler_start_step and self._trainer.rank == self._config.run.profiled_rank:
            tf.profiler.experimental.start("profile")
            self._profiled_from = self.step
        self._pending.append(self._trainer.step(batch, self.step, self._schedule(self.step)))
        self.step += 1
        if self._profiled_from is not None and self.step == self._profiled_from + PROFILED_STEPS:
            self._stop_profile()
        if len(self._pending) > 1:  # the step before has certainly finished: looking at its loss makes nothing wait
            self._check_finite(len(self._pending) - 1)

    def _stop_profile(self) -> None:
        if self._profiled_from is not None:
            tf.profiler.experimental.stop()
            self._console.say(f"profile of steps {self._profiled_from} to {self.step - 1} written to ./profile")
            self._profiled_from = None

    def _check_finite(self, count: int | None = None) -> None:
        """Look at the first `count` pending losses that are still tensors (default all)."""
        for i, loss in enumerate(self._pending[:count]):
            if isinstance(loss, float):
                continue
            value = self._pending[i] = float(loss)
            if not math.isfinite(value):
                step = self.step - len(self._pending) + i
                scale = "; try --amp_dtype bfloat16 or a smaller --loss_scale" if self._trainer.scaled else ""
                raise NonFiniteLossError(
                    f"step {step}: the loss is {value}; nothing is saved. Try a lower --learning_rate or a longer --warmup_steps{scale}"
                )
        known = [loss for loss in self._pending if isinstance(loss, float)]
        if known:
            self._train_loss = float(np.mean(known))

    def _report(self, epoch: int, limit: int, meter: Throughput, time_left: str) -> None:
        self._check_finite()
        rates = meter.summary()
        rate = self._schedule(self.step - 1)
        self._console.say(
            f"epoch {epoch} step {self.step}/{limit}: loss {self._train_loss:.6f}, {rates['throughput']:,.0f} samples/s, "
            f"{rates['mean_step_time_ms']:.1f} ms/step, learning rate {rate:.6g}, {time_left} left"
        )
        data = {"loss": self._train_loss, "samples_per_s": rates["throughput"], "step_time_ms": rates["mean_step_time_ms"], "learning_rate": rate}
        self._log.log((epoch, self.step), data)
        self._pending.clear()

    def _test(self, epoch: int) -> None:
        self._check_finite()
        self._metrics = metrics = self._evaluate()
        if not math.isfinite(metrics.log_loss):  # the losses so far were those of the weights before the last step
            raise NonFiniteLossError(
                f"step {self.step - 1}: the test loss after it is {metrics.log_loss}; nothing is saved. Try a lower --learning_rate or a longer "
                "--warmup_steps"
            )
        if metrics.auc is not None:
            self._best_auc = max(metrics.auc, self._best_auc or 0.0)
        self._log.log((epoch, self.step), {"auc": metrics.auc, "test_loss": metrics.log_loss, "samples": metrics.samples})

    def _reached(self) -> bool:
        threshold = self._config.training.auc_threshold
        reached = threshold is not None and self._metrics.auc is not None and self._metrics.auc >= threshold
        if reached:
            self._console.say(f"test AUC {self._metrics.auc:.6f} reached --auc_threshold {threshold} at step {self.step}: training stops")
        return reached
