"""Runs of `dlrm.train` that share one model and its traced graphs, because tracing takes most of a short run's time."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import dlrm
from model.build import build_model
from training.build import build_trainer
from training.evaluator import Evaluator, SplitScores
from training.touched import Touched
from utils.signals import Stopped

SHARED = ("model", "optimizer", "schedule", "regularisation", "device")  # the configuration that a model and its trainer are built from
LOGGED = ("loss", "learning_rate", "embedding_learning_rate", "valid_auc", "valid_loss", "skipped_steps", "clipped_steps")
GROWTH_STEPS = 1  # a dynamic loss scale grows until steps are skipped


class OneTrace:
    """Runs of one configuration, one after another, in one process.

    The first run builds the model, the trainer and the evaluator, the others take them. Before each of the others every variable is overwritten with
    NaN, so a run has the right bits only if all that it goes on from was in its checkpoint.

    Attributes:
        scores: the last scores of a split, by TensorFlow.
    """

    def __init__(self):
        self._model = self._trainer = self._evaluator = self._config = None
        self._signal_in = -1
        self.scores: SplitScores | None = None

    def train(self, signal_in: int = -1, **flags: Any) -> Any:
        """Train as `dlrm.train` does; return its result, or None where a signal ended the run.

        Args:
            signal_in: the number of the step, from 0, that a SIGTERM comes in the midst of; -1 for none.
            flags: flags of `dlrm.train`.
        """
        self._signal_in = signal_in
        built = patch("run.weights.build_model", self._model_of), patch("run.train.build_trainer", self._trainer_of)
        with contextlib.ExitStack() as patches:
            for one in (*built, patch("run.train.Evaluator", self._evaluator_of), patch("training.loss_scale.GROWTH_STEPS", GROWTH_STEPS)):
                patches.enter_context(one)
            try:
                return dlrm.train(**flags)
            except Stopped:
                assert signal_in >= 0
                return None

    def _model_of(self, *arguments):
        if self._model is None:
            self._model = build_model(*arguments)
        else:
            self._spoil()
        return self._model

    def _trainer_of(self, config, *arguments):
        if self._trainer is None:
            self._config, self._trainer = config, build_trainer(config, *arguments)
            self._step, self._trainer.reporting_step = self._trainer.reporting_step, self._reporting_step
        for part in SHARED:  # a resumed run is given no flag of these, so they come from its checkpoint
            assert getattr(config, part) == getattr(self._config, part), part
        self._trainer.touched = Touched(self._model.embedding)
        return self._trainer

    def _evaluator_of(self, *arguments):
        if self._evaluator is None:
            self._evaluator = Evaluator(*arguments)
            score = self._evaluator.score

            def recorded(*given, **named):
                self.scores = score(*given, **named)
                return self.scores

            self._evaluator.score = recorded
        return self._evaluator

    def _reporting_step(self, batch, step, *arguments, **named):
        if step == self._signal_in:
            signal.raise_signal(signal.SIGTERM)
        return self._step(batch, step, *arguments, **named)

    def _spoil(self) -> None:
        for variable in self._variables():
            variable.assign(np.full(variable.shape, np.nan, np.float32))
        for local in self._model.embedding.shards:
            for rows in local.kinds().values():
                rows.write(0, np.full_like(rows.read(0, rows.count), np.nan))
            if local.lazy:
                local.lazy.begin_with(np.empty(0, np.int32))

    def _variables(self) -> Iterator[Any]:
        yield from (weight.value for weight in (self._model.dense_weights() | self._model.statistics()).values())
        yield from self._trainer.groups.slots().values()


def log_lines(path: Path) -> dict[str, Any]:
    """Return what a log says of training steps and evaluations, by kind and step, without times; NaN is its text."""
    from tests.cli.runs import read_log

    found = {}
    for line in read_log(path):
        step, data = line.get("step"), line.get("data")
        if isinstance(step, list) and len(step) == 2:
            kept = {
                name: repr(data[name]) for name in ("loss", "learning_rate", "embedding_learning_rate", "valid_auc", "valid_loss") if name in data
            }
            found |= {f"{name} {step[1]}": value for name, value in kept.items()}
    return found
