"""The progress of a run, the schedule of its evaluations, and the conditions that end it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from utils.config.config import Config
from utils.config.options import TrainingConfig
from utils.config.ranking import RankingConfig

AUC = "auc"  # key of the AUC in `Position.best_on_schedule`


@dataclass
class Position:
    """The progress of a run, which checkpoints keep so that a resumed run neither repeats nor skips a batch."""

    step: int = 0  # training steps done
    epoch: int = 0
    batch: int = 0  # batches done in this epoch
    samples: int = 0
    best_auc: float | None = None
    evals_without_gain: int = 0  # scheduled evaluations since the best of them
    best_epoch: float | None = None  # epoch of the best model: 1.5 is after half of the second epoch
    last_auc: float | None = None  # AUC of the latest evaluation
    evaluation_due: bool = False  # the evaluation after the last step has not run yet, because a signal came before it
    best_ranking: dict[str, float] = field(default_factory=dict)  # best value of each metric by group that chose the best model, by its key
    rate_reductions: int = 0  # reductions of the learning rates by --lr_schedule plateau
    evals_on_plateau: int = 0  # scheduled evaluations since the best of them or the last reduction
    # Best value of each metric that chose the best model, over the scheduled evaluations: an evaluation where only --max_steps ended the run can find
    # the best model, but must not change when a longer run reduces its rates or ends.
    best_on_schedule: dict[str, float] = field(default_factory=dict)
    loss_sum: float = 0.0  # sum of the losses since the log's last line, in the order of the steps, and their number
    loss_count: int = 0
    mean_loss: float | None = None  # mean of the losses since the last line, or where there were none since then, of those before
    ids_out_of_range: int = 0  # in all steps of the run
    skipped_steps: int = 0
    clipped_steps: int = 0  # steps whose gradients --clip_norm reduced
    skipped_in_a_row: int = 0
    weightless_steps: int = 0  # steps whose batch had no weight, so nothing was trained

    def count_step(self, samples: int) -> None:
        """Count a step that has trained on so many samples."""
        self.step, self.batch, self.samples = self.step + 1, self.batch + 1, self.samples + samples

    def turn_epoch(self, batches: int) -> None:
        """Go to the next epoch, where all batches of this one are done."""
        if self.batch == batches:
            self.epoch, self.batch = self.epoch + 1, 0

    def add_loss(self, loss: float) -> None:
        """Add the loss of a step. A running sum has the same bits wherever a run was cut and resumed."""
        self.loss_sum, self.loss_count, self.skipped_in_a_row = self.loss_sum + loss, self.loss_count + 1, 0
        self.mean_loss = self.loss_sum / self.loss_count

    def begin_mean(self) -> None:
        """Begin a new mean of the losses; `mean_loss` stays until the next loss."""
        self.loss_sum, self.loss_count = 0.0, 0

    def best(self, ranking: RankingConfig) -> float | None:
        """Return the best value so far of the metric that chooses the best model."""
        return self.best_auc if ranking.chosen_by is None else self.best_ranking.get(ranking.chosen_by.key)

    @classmethod
    def saved(cls, position: Mapping[str, Any]) -> "Position":
        """Return the position that a checkpoint keeps; older ones do not tell scheduled evaluations from others."""
        found = cls(**position)
        if "best_on_schedule" not in position:
            found.best_on_schedule = dict(found.best_ranking) | ({} if found.best_auc is None else {AUC: found.best_auc})
        return found

    def improves(self, ranking: RankingConfig, value: float | None) -> bool:
        """Record the value of a scheduled evaluation; return whether it beats those before."""
        key = AUC if ranking.chosen_by is None else ranking.chosen_by.key
        if value is None or value <= self.best_on_schedule.get(key, 0.0):
            return False
        self.best_on_schedule = self.best_on_schedule | {key: value}
        return True

    @staticmethod
    def saved_best(position: Mapping[str, Any], ranking: RankingConfig) -> float | None:
        """Return the same as `best` for a position as a checkpoint keeps it."""
        return position.get("best_auc") if ranking.chosen_by is None else (position.get("best_ranking") or {}).get(ranking.chosen_by.key)

    @staticmethod
    def last_epoch(position: Mapping[str, Any]) -> int:
        """Return the epoch of the last step done, for a position as a checkpoint keeps it; after an epoch's last step `epoch` is the next one."""
        return max(0, position.get("epoch", 0) - (position.get("batch", 0) == 0))

    def to_dict(self) -> dict[str, Any]:
        """Return the position as checkpoints keep it, without the entries that only some runs have where they are empty."""
        return {name: value for name, value in asdict(self).items() if name not in ("best_ranking", "weightless_steps") or value}


def evaluates_after(step: int, batches: int, evals_per_epoch: int, test_freq: int | None, epoch: int, test_after: float) -> bool:
    """Return whether the model is evaluated after a step.

    Args:
        step: the number of the step in the epoch, 0 to batches−1.
        batches: the number of batches in an epoch.
        evals_per_epoch: evaluations in an epoch, evenly spread, the last one after the last step; at most one a step.
        test_freq: evaluate after every test_freq-th step of the whole run instead; None to use evals_per_epoch.
        epoch: the number of the epoch, from 0.
        test_after: the number of epochs before the first evaluation.
    """
    if epoch + (step + 1) / batches < test_after:
        return False
    if test_freq is not None:
        return (epoch * batches + step + 1) % test_freq == 0
    count = min(evals_per_epoch, batches)
    return (step + 1) * count // batches > step * count // batches


def steps_in_all(options: TrainingConfig, batches: int) -> int:
    """Return the number of steps of a run that nothing ends early.

    Args:
        options: the training options of the run.
        batches: the number of batches in an epoch.
    """
    steps = options.epochs * batches
    return steps if options.max_steps == -1 else min(steps, options.max_steps)


def reason_to_end(config: Config, position: Position, split: str) -> str | None:
    """Return the reason why training ends before its last step; None where it does not. `split` is the split that chooses the best model."""
    options = config.training
    threshold, patience, last = options.auc_threshold, options.early_stop_patience, position.last_auc
    if threshold is not None and last is not None and last >= threshold:
        return f"{split} AUC {last:.6f} reached --auc_threshold {threshold}"
    if patience is not None and position.evals_without_gain >= patience:
        count = position.evals_without_gain
        name, best = config.ranking.chosen_by or "AUC", position.best(config.ranking) or 0
        return f"{split} {name} has not improved on {best:.6f} for {count} evaluations (--early_stop_patience)"
    return None


def reason_finished(config: Config, position: Position, batches: int, split: str) -> str | None:
    """Return the reason why a run at `position` has nothing left to do; None where it has."""
    options = config.training
    if position.evaluation_due:
        return None
    if position.step >= steps_in_all(options, batches):
        return f"{position.step} steps are done (--epochs {options.epochs}" + (
            f", --max_steps {options.max_steps})" if options.max_steps != -1 else ")"
        )
    return reason_to_end(config, position, split)
