"""A log with the keys and steps that users of a model know from elsewhere, beside those of this application; see `LogForm`."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model.architectures import architecture_of
from model.architectures.architecture import LogForm
from training.device_batch import TensorBatch
from training.evaluator import Evaluator, Scores
from utils.config.config import Config
from utils.config.data import PARQUET
from utils.distributed import World
from utils.errors import UserError
from utils.logging import RunLog
from utils.metrics.binary import Metrics, evaluate
from utils.metrics.ranking import rank
from utils.metrics.ranking_metric import RankingMetric
from utils.metrics.running import RunningMetrics

_OF_STEP = "batch_samplesps"


def form_of(config: Config) -> LogForm | None:
    """Return the form of a run's log; None where its model has none."""
    form = architecture_of(config.model).log
    return form.of_parquet if form and form.of_parquet and config.data.dataset_type == PARQUET else form


def published(form: LogForm, metrics: Metrics) -> dict[str, float | None]:
    """Return an evaluation under the keys of a form; group metrics only where the dataset has a group column."""
    by_group = metrics.ranking.figures() if metrics.ranking else {}
    figures = {**vars(metrics), **by_group}
    return {key: figures[figure] for key, figure in form.evaluation.items() if figure in figures}


def batch_figures(form: LogForm, batch: TensorBatch, evaluator: Evaluator, ranked_by: Sequence[RankingMetric] = ()) -> dict[str, Any]:
    """Return a training batch's metrics under the keys of a form, as it writes them: exact, over all workers, without dropout.

    Every worker calls this; only the first gets figures.

    Args:
        form: form with the keys.
        batch: global batch, of which this worker has its part.
        evaluator: evaluator of the model.
        ranked_by: metrics by group that the run computes; without groups in the dataset there are none.
    """
    if batch.weight == 0:  # nothing is trained on it
        return {}
    wanted = [metric for metric in ranked_by if metric.key in form.batch.values()]
    scores = Scores(evaluator.world)
    scores.add(evaluator.logits(batch) - np.float32(evaluator.model.logit_shift), batch.host, groups=bool(wanted))  # as the loss of training
    if (merged := scores.merged()) is None:
        return {}
    by_group = rank(merged.logits, merged.labels, merged.groups, wanted, weights=merged.weights).figures() if wanted else {}
    return _written(form, {**vars(evaluate(merged.logits, merged.labels, weights=merged.weights)), **by_group})


def _written(form: LogForm, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures under the keys of a form, as it writes them; figures that are missing are left out."""
    return {key: form.written(figures[figure]) for key, figure in form.batch.items() if figure in figures}


class EvaluationLog:
    """A log of a split's evaluation under the keys of a form: one line every `form.every` batches, over all rows so far.

    Args:
        log: log to write, on the first worker.
        form: form with the keys.
        world: world of the workers; every worker adds its part of each batch.

    Attributes:
        seconds: time spent on these lines.
    """

    def __init__(self, log: RunLog, form: LogForm, world: World):
        self._log, self._form, self._world = log, form, world
        self._batches, self._scores, self.seconds = 0, Scores(world), 0.0  # the scores since the last line
        self._so_far = RunningMetrics()  # used on the first worker

    def add(self, batch: TensorBatch, logits: np.ndarray) -> None:
        """Add a batch of the split and this worker's logits for it."""
        self._batches += 1
        self._scores.add(logits, batch.host)
        if self._batches % self._form.every == 0:
            start = time.perf_counter()
            if merged := self._scores.merged():
                self._so_far.add(merged.logits, merged.labels, merged.weights)
                self._log.log((self._batches,), _written(self._form, self._so_far.figures()))
            self._scores = Scores(self._world)
            self.seconds += time.perf_counter() - start

    def end(self, metrics: Metrics) -> None:
        """Log the figures of the whole split."""
        self._log.log((self._batches,), published(self._form, metrics))


class FormedLog:
    """A wrapper of a log that adds the keys of a form.

    It logs a step as (step, steps of the whole run); an evaluation as (step,) where the form is plain. The speed of a single step, and every line of
    a run that only measures speed, has (1, step). The last line repeats the figures of the last evaluation.

    Args:
        log: log to write.
        form: form with the keys.
        steps: steps of the whole run; None in a run that only measures speed.
    """

    def __init__(self, log: RunLog, form: LogForm, steps: int | None):
        self._log, self._form, self._steps = log, form, steps
        self._evaluated: dict[str, Any] = {}
        self.flush: Callable[[], None] = log.flush
        self.close: Callable[[], None] = log.close

    def log(self, step: str | int | Sequence[int], data: Mapping[str, Any]) -> None:
        """Log data, see `RunLog.log`. A line whose step is a text is no part of the form."""
        if isinstance(step, str):
            self._log.log(step, data)
            return
        if isinstance(step, tuple) and len(step) == 2:
            evaluated = self._form.plain and not data.keys().isdisjoint(self._form.evaluation)
            step = (step[1],) if evaluated else (1, step[1]) if self._steps is None or _OF_STEP in data else (step[1], self._steps)
        found = {**(self._evaluated if step == () else {}), **data}
        self._evaluated |= {name: value for name, value in data.items() if name in self._form.evaluation}
        found |= {name: found[known] for known, name in self._form.also.items() if known in found}
        self._log.log(step, found)


def write_args(config: Config) -> None:
    """Write every flag and its value to `--args_path`. Raises UserError where it cannot be written."""
    path = Path(config.run.args_path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config.flat(), indent=1) + "\n")
    except OSError as error:
        raise UserError(f"--args_path {path}: {error.strerror}") from None
