"""The training loop: epochs, evaluations, checkpoints, the log, and the end of training."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from training.device_batch import TensorBatch
from training.evaluations import Evaluation, Evaluations
from training.figures import Figures
from training.lazy_state import full_error
from training.position import Position, steps_in_all
from training.profile import Profile
from training.report import Reports, WorkerReport
from training.saving import Checkpoints, Saver
from training.single_steps import SingleSteps
from training.step import Trainer
from utils.config.config import Config
from utils.console import Console
from utils.errors import AgreedError
from utils.logging import RunLog
from utils.signals import Stopped, StopRequest
from utils.timing import Throughput


class TrainingData(Protocol):
    """The training split, epoch by epoch."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def batches(self, epoch: int, first: int) -> Iterable[TensorBatch]:
        """Yield the batches of epoch number `epoch`, from batch number `first` on, on the device."""


class Training:
    """A training run.

    Args:
        trainer: runs the training steps.
        data: the training data.
        config: the configuration of the run.
        console, log: outputs for progress and figures.
        evaluation: the evaluation of the model; None for no evaluations.
        saver: writes checkpoints; None for no checkpoints.
        position: the position to start from.

    Attributes:
        position, evaluations: the progress of the run, and the model's evaluations.
        single_steps: logs figures of single steps.
    """

    def __init__(
        self,
        trainer: Trainer,
        data: TrainingData,
        config: Config,
        console: Console,
        log: RunLog,
        *,
        evaluation: Evaluation | None = None,
        saver: Saver | None = None,
        position: Position | None = None,
    ):
        self._trainer, self._data, self._config, self._console, self._log = trainer, data, config, console, log
        self.position = position = position or Position()
        self.evaluations = Evaluations(evaluation, config, position, len(data), console, log)
        self._figures = Figures(trainer, config, position)
        self._checkpoints = Checkpoints(saver, config.training, position, console.say, partial(log.log, "CHECKPOINT"), self._figures.spent)
        self._reports = Reports(position, (self._figures.take_report, self._checkpoints.take_report), trainer.scaled)
        self._stop, self._began_at, self._profile = StopRequest(), position.step, Profile(config.run, trainer.rank, console)
        self._meter, self._limit = Throughput(config.training.benchmark_warmup_steps), steps_in_all(config.training, len(data))
        self.single_steps = SingleSteps(config, self._limit, log, self._meter, self._reports.read)

    def run(self) -> Mapping[str, Any]:
        """Train, and return the run's final figures.

        Raises:
            NonFiniteLossError: the loss or a gradient is not finite; the message names the step.
            Stopped: a signal asked to stop; the step was finished, and a checkpoint written if the run writes any.
        """
        try:
            with self._stop, self._console.progress(self._limit, "training", "steps", self.position.step, self._config.data.batch_size) as progress:
                self._run_epochs(progress)
        except AgreedError:  # all workers are here after the same step, so the checkpoint begun before it can be completed
            self._checkpoints.finish()
            raise
        finally:
            self._checkpoints.abandon()
        steps = {"train_loss": self._reports.mean_loss, "samples": self.position.samples, "steps": self.position.step}
        self._log.log("TABLES", self._figures.of_tables(last=True))
        return {**self._meter.summary(), **self.evaluations.figures(), **steps, **self._figures.counted()}

    def _run_epochs(self, progress) -> None:
        position = self.position
        self._evaluate_if_due()
        position.turn_epoch(len(self._data))
        while not self._ended():
            for batch in self._figures.spent.waiting("input", self._data.batches(position.epoch, position.batch)):
                self._train(batch)
                progress.advance(1, _live_figures(self._reports.mean_loss, self.position.last_auc))
                if self.single_steps.is_reported(position.step):
                    self._report(progress.time_left())
                if self._reports.stop:
                    self._end_early()
                self._evaluate_if_due()
                if position.step < self._limit and self._checkpoints.is_due(self._reports.save_due, position.batch == len(self._data)):
                    self._save(best=False)
                if self._ended():
                    break
            self._trainer.check_copies()
            position.turn_epoch(len(self._data))
        self._reports.read()
        if position.step > self._began_at:
            # not the steps of this process: a resumed run ends as it would have unbroken
            self._reports.end(position.step - position.weightless_steps)
        self._profile.end(position.step)
        self._profile.warn_if_none(position.step)
        if self._checkpoints.wanted:
            self._save(best=False, wait=True)

    def _train(self, batch: TensorBatch) -> None:
        position, samples = self.position, batch.host.num_samples
        self.single_steps.before_step(batch, position.step)
        self._profile.before_step(position.step)
        save_due, writing = self._checkpoints.state()
        mine = WorkerReport(bool(self._stop.signum) or batch.full, batch.host.out_of_range, save_due, writing)
        self._checkpoints.before_step(batch)
        measured = {"measured": self.single_steps.is_reported(position.step + 1)} if self._figures.norms else {}
        rates = self._trainer.learning_rates(position.step, position.rate_reductions)
        if batch.host.total_weight == 0:
            batch.begin_step()
            self._reports.skip_weightless(position.step, self._trainer.world.everyone(mine, "weightless"))
        else:
            self._reports.add(position.step, self._trainer.reporting_step(batch, position.step, rates, mine, **measured))
        position.count_step(samples)
        self._checkpoints.after_step()
        self._profile.after_step(position.step)
        self._reports.read(leave=1)  # the previous step has certainly finished, so reading its report does not wait
        self.single_steps.after_step(position.step, samples, self._meter.step(samples))
        self.evaluations.after_step(last=position.step >= self._limit)

    def _ended(self) -> bool:
        return self.position.step >= self._limit or self.evaluations.end_training()

    def _evaluate_if_due(self) -> None:
        if not self.evaluations.is_due():
            return
        self._reports.read()
        best = self.evaluations.run()
        self._log.log("TABLES", self._figures.of_tables())
        if best and self._checkpoints.wanted and self._config.training.keeps_best:
            self._save(best=True)
        self._meter.resume()

    def _save(self, best: bool, wait: bool = False) -> None:
        self._reports.read()
        self._log.flush()  # a run that resumes from this checkpoint does not log these steps again
        self._checkpoints.write(best, wait)
        self._reports.save_due = False
        self._meter.resume()

    def _end_early(self) -> None:
        """Write a checkpoint and raise an error: a signal asked for it, or lazy tables are full. Every worker comes here after the same step."""
        world, saves, after = self._trainer.world, self._checkpoints.wanted, f"after step {self.position.step}"
        full = full_error(self._trainer.model, after, saves, self._config.training.resume)
        if saves:
            self._save(best=False, wait=True)
        if full:
            raise full
        signum, reason = self._stop.heard(world.everyone((self._stop.signum, self._stop.reason), "stop"))
        again = "" if self._config.training.resume == "auto" else " with --resume auto"
        saved = f", which is saved; to resume, run the same command{again}" if saves else "; nothing is saved, there is no --save_checkpoint_path"
        raise Stopped(signum, f"{after}{saved}", reason)

    def _report(self, time_left: str) -> None:
        self._reports.read()
        position, speed, loss = self.position, self._meter.summary(), self._reports.mean_loss
        rates = self._trainer.learning_rates(position.step - 1, position.rate_reductions)
        self._console.say_progress(f"{_progress_line(position, self._limit, speed, rates, loss)}, {time_left} left")
        data = {"loss": loss, "samples_per_s": speed["throughput"], "step_time_ms": speed["mean_step_time_ms"], "learning_rate": rates[0]}
        data |= {"embedding_learning_rate": rates[-1]} if rates[-1] != rates[0] else {}
        self._log.log((position.epoch, position.step), data | self._figures.of_step() | self.single_steps.figures(loss))
        if position.step % self._config.run.print_freq == 0:  # not where the run ends in between: a longer run has no line there
            position.begin_mean()


def _progress_line(position: Position, limit: int, speed: Mapping[str, float], rates: Sequence[float], loss: float) -> str:
    """Return the console's line of a training step, without the time left."""
    of_tables = f" (tables {rates[-1]:.6g})" if rates[-1] != rates[0] else ""
    return (
        f"epoch {position.epoch} step {position.step}/{limit}: loss {loss:.6f}, {speed['throughput']:,.0f} samples/s, "
        f"{speed['mean_step_time_ms']:.1f} ms/step, learning rate {rates[0]:.6g}{of_tables}"
        + (f", {position.ids_out_of_range:,} ids out of range" if position.ids_out_of_range else "")
        + (f", {position.skipped_steps:,} steps skipped" if position.skipped_steps else "")
        + (f", {position.clipped_steps:,} steps clipped" if position.clipped_steps else "")
        + (f", {position.weightless_steps:,} steps without weight" if position.weightless_steps else "")
    )


def _live_figures(loss: float, auc: float | None) -> str:
    """Return the figures for the live line: the mean loss, and the AUC of the last evaluation."""
    return ("" if math.isnan(loss) else f"loss {loss:.5f}") + (f", AUC {auc:.5f}" if auc is not None else "")
