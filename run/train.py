"""`--mode train`: train, evaluate, save."""

import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dataloading.batches import Batch, BatchReader
from dataloading.training_only import served_values
from dataloading.vocabulary import RECORD
from model.embedding.lazy_rows import LazyTables
from run.ahead import on_device
from run.closing import closing
from run.continuing import metadata
from run.final_test import FinalTest, best_before
from run.formed_log import batch_figures, form_of, published
from run.prepare import Prepared
from run.scoring import metrics_of, reader_of
from run.weights import go_on, model_of
from training.build import build_trainer
from training.device_batch import TensorBatch
from training.evaluations import Evaluation, logged
from training.evaluator import Evaluator
from training.features import ModelFeatures
from training.loop import Training
from training.saving import Saver


class TrainingBatches:
    """The training split on the device; see `training.loop.TrainingData`.

    Args:
        reader: reader of the split.
        lazy: the model's lazy tables, whose places the batches have; None where there are none.
        steps: steps of an epoch where it is not one pass over all rows; the next epoch then continues where the last one ended.
    """

    def __init__(self, reader: BatchReader, lazy: LazyTables | None, steps: int | None = None):
        self._reader, self._lazy, self._steps = reader, lazy, steps

    def __len__(self) -> int:
        return self._steps or len(self._reader)

    def batches(self, epoch: int, first: int) -> Iterable[TensorBatch]:
        """Yield the batches of an epoch, starting with number `first`."""
        if self._steps is None:
            return on_device(self._reader.epoch(epoch, first), self._lazy)
        return on_device(itertools.islice(self._onwards(epoch * self._steps + first), self._steps - first), self._lazy)

    def _onwards(self, number: int) -> Iterator[Batch]:
        """Yield batches from this number on, in endless passes over the rows."""
        passed, first = divmod(number, len(self._reader))
        for turn in itertools.count(passed):
            yield from self._reader.epoch(turn, first if turn == passed else 0)


class Trained(NamedTuple):
    """The result of a training run."""

    figures: dict[str, Any]  # the figures of the log's last line
    checkpoint: Path | None  # folder of the run's checkpoints


def train(run: Prepared) -> Trained:
    """Train, evaluate and save as the options ask; print and log the final figures.

    Raises:
        UserError: the weights cannot be restored, the loss is not finite, a checkpoint cannot be written, or a signal asks for the end.
    """
    start = time.monotonic()
    config, model = run.config, model_of(run)
    data = TrainingBatches(reader_of(run, model, "train", config.data.batch_size), model.embedding.lazy, config.training.steps_per_epoch)
    trainer, evaluator = build_trainer(config, model, run.dtype, len(data)), Evaluator(model, config.device.xla)
    go_on(run, model, trainer)
    evaluation = saver = None
    form = form_of(config)
    before = best_before(run)
    if split := run.chosen_by:
        figures_of = (lambda name, metrics: logged(name, metrics) | published(form, metrics)) if form else logged
        evaluation = Evaluation(split, lambda: metrics_of(run, model, evaluator, split), figures_of)
    if config.training.save_checkpoint_path:
        about = metadata(config, run.spec) | {
            "features": ModelFeatures.of(run.tables, run.features, run.spec.numerical, run.spec.numerical_dtype, served_values(run.spec)).to_dict(),
            "run": run.training_invariants,
            RECORD: run.vocabularies,
            "log": run.in_log,
        }
        saver = Saver(
            model, trainer.groups, config.training, about, alone=not run.goes_on, files=run.vocabulary_files, best=before, touched=trainer.touched
        )
    options = {"evaluation": evaluation, "saver": saver, "position": run.progress}
    training = Training(trainer, data, config, run.console, run.log, **options)
    if form:
        training.single_steps.of_batch = lambda batch: batch_figures(form, batch, evaluator, run.ranked_by)
    figures = dict(training.run())
    figures |= FinalTest(run, model, evaluator, training.evaluations, training.position, before).figures()
    figures["average_train_throughput"] = figures["throughput"]  # the name in NVIDIA's DLRM for PyTorch
    run.log.log((), figures)
    for line in closing(run, figures, time.monotonic() - start) if run.world.first else ():
        run.console.say(line)
    path = config.training.save_checkpoint_path
    return Trained(figures, Path(path) if path else None)
