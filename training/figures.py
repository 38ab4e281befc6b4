"""Figures of a run for its log beside loss, speed and metrics: rates and norms by group, the parts of a step's time, memory, rows touched."""

import math
from collections.abc import Mapping
from typing import Any

from model.compilation import on_gpu
from training.norms import gradient_norms, weight_norms
from training.position import Position
from training.report import StepReport
from training.step import Trainer
from utils.config.config import Config
from utils.memory import peak_gib, resident_gib
from utils.timing import Spent


class Figures:
    """The figures of a run. Every worker calls each method after the same steps; the first worker's results go to the log.

    Args:
        trainer: runs the training steps.
        config: the configuration of the run.
        position: the position of the run.

    Attributes:
        spent: the time of the steps since the last line of the log, by purpose: `input`, `saving`; of warm-up steps only the last one's.
    """

    def __init__(self, trainer: Trainer, config: Config, position: Position):
        self._trainer, self._config, self._position = trainer, config, position
        self.spent, self._steps, self._taken, self._squares = Spent(), 0, 0, ()
        self._purposes = ("input", *(["exchange"] if trainer.world.size > 1 and not on_gpu() else []), "saving")

    @property
    def norms(self) -> bool:
        """True if the training lines have norms."""
        return self._config.run.log_norms

    def take_report(self, step: int, report: StepReport) -> None:
        """Take the report of step number `step`, see `Reports`."""
        self._taken, self._squares = self._taken + 1, report.squares
        if self._taken <= self._config.training.benchmark_warmup_steps:  # other workers compile; the speed leaves these steps out, too
            self.spent.means(0, ())
            self._steps = 0
        self._steps += 1
        self.spent.add("exchange", report.exchange_s)

    def of_step(self) -> dict[str, Any]:
        """Return the figures of a training line, after the reports of all steps were taken."""
        position, trainer = self._position, self._trainer
        own = {f"learning_rate/{name}": rate for name, rate in trainer.groups.own_rates(position.step - 1, position.rate_reductions).items()}
        found = {"samples": position.samples, **own, **self.spent.means(self._steps, self._purposes), "memory_gib": resident_gib()}
        self._steps = 0
        if self.norms:
            squares = self._squares or [math.nan] * len(trainer.groups.names)  # of a step without weight
            found |= gradient_norms(squares, trainer.groups.names, trainer.world) | weight_norms(trainer.model, trainer.groups)[0]
        return found | self.counted()

    def counted(self) -> dict[str, int]:
        """Return the skipped and the clipped steps of the run, if there may be any, those without weight, and ids out of range, unless errors."""
        position, trainer = self._position, self._trainer
        steps = {"skipped_steps": position.skipped_steps} if trainer.scaled else {}
        steps |= {"clipped_steps": position.clipped_steps} if trainer.groups.clip_norm else {}
        steps |= {"weightless_steps": position.weightless_steps} if position.weightless_steps else {}
        return steps | ({} if self._config.data.out_of_range == "error" else {"ids_out_of_range": position.ids_out_of_range})

    def of_tables(self, last: bool = False) -> Mapping[str, Any]:
        """Return the figures of the line about the tables; with `last`, also the peak memory of each worker."""
        position, trainer, touched = self._position, self._trainer, self._trainer.touched
        found: dict[str, Any] = {"epoch": position.epoch, "step": position.step, "touched": touched.shares()}
        if touched.since:
            found["touched_since"] = touched.since
        if self.norms:
            found["norms"] = weight_norms(trainer.model, trainer.groups)[1]
        return found | ({"memory_gib": trainer.world.everyone(peak_gib(), "peak_memory")} if last else {})
