"""A training run with scripted steps and evaluations, for tests of the loop."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import tensorflow as tf

from tests.model.tiny_model import config
from training.build import build_schedules, plateau_of
from training.device_batch import TensorBatch
from training.evaluations import Evaluation
from training.groups import DenseGroup, Groups
from training.loop import Training
from training.optimizers.sgd import Sgd
from utils.console import Console
from utils.distributed import World
from utils.logging import RunLog
from utils.metrics.binary import Metrics
from utils.metrics.ranking import Ranking
from utils.metrics.ranking_metric import RankingMetric


class Loop:
    """A training run with scripted steps and evaluations."""

    def __init__(
        self,
        tmp_path,
        *flags,
        batches=5,
        losses=lambda step: 0.5,
        finite=lambda step: 1.0,
        auc=lambda step: 0.6,
        evaluate=True,
        position=None,
        signal_at=None,
        scaled=False,
        log_loss=0.4,
        mrr=None,
        saves=False,
    ):
        self.steps, self.rates, self.epochs, self.evaluated, self.checked = [], [], [], [], []
        self.scaled, self.rank, self.world, self.touched = scaled, 0, World(), SimpleNamespace(shares=dict, since=0)
        self.model = SimpleNamespace(embedding=SimpleNamespace(lazy=None, world=self.world))
        self._losses, self._finite, self._auc, self._batches = losses, finite, auc, batches
        self.log_path = tmp_path / "log.json"
        self.log = RunLog(str(self.log_path), {})
        self._signal_at, self._log_loss, self._mrr = signal_at, log_loss, mrr
        evaluation = Evaluation("test", self._evaluate) if evaluate else None
        options = config("--learning_rate", "1", "--warmup_steps", "2", "--decay_start_step", "100", "--decay_steps", "10", *flags)
        self.groups = Groups((DenseGroup({}, Sgd(), build_schedules(options.schedule)[0]),), (), plateau=plateau_of(options.schedule))
        self.training = Training(
            self, self, options, Console("dlrm.py"), self.log, evaluation=evaluation, position=position, saver=self if saves else None
        )

    def begin(self, position, best):
        """Save the position."""
        self.saved = json.dumps(position.to_dict())
        return SimpleNamespace(finish=lambda: Path("saved"), abandon=lambda: None), None

    def __len__(self):
        return self._batches

    def run(self):
        try:
            return self.training.run()
        finally:
            self.log.close()

    def learning_rates(self, step, reductions):
        return self.groups.learning_rates(step, reductions)

    def reporting_step(self, batch, step, rates, mine):
        self.steps.append(step)
        self.rates.append(rates[0])
        if step + 2 == self._signal_at:  # the workers' reports to each other arrive a step later
            signal.raise_signal(signal.SIGTERM)
        return tf.constant([self._losses(step), self._finite(step), *mine.pack()])

    def batches(self, epoch, first):
        self.epochs.append(epoch)
        for i in range(first, self._batches):
            real = 3 if i == self._batches - 1 else 4
            yield TensorBatch(None, SimpleNamespace(num_samples=real, out_of_range=0, total_weight=None))

    def check_copies(self):
        self.checked.append(self.training.position.step)

    def _evaluate(self):
        self.evaluated.append(self.training.position.step)
        step = self.training.position.step
        ranking = Ranking({RankingMetric("mrr"): self._mrr(step)}, 4, 3) if self._mrr else None
        return Metrics(self._auc(step), self._log_loss, 0.9, 1.0, 10, ranking)

    def lines(self, keys):
        entries = [json.loads(line.removeprefix("DLLL ")) for line in self.log_path.read_text().splitlines()]
        return [entry for entry in entries if entry["type"] == "LOG" and keys <= entry["data"].keys()]
