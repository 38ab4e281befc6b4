"""How far a run has come, when it evaluates, and when it is at its end."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from utils.config.config import Config
from utils.config.options import TrainingConfig
from utils.config.ranking import RankingConfig


@dataclass
class Position:
    """How far a run has come: what a checkpoint keeps so that a resumed run neither repeats nor skips a batch."""

    step: int = 0  # training steps done
    epoch: int = 0
    batch: int = 0  # batches of this epoch done
    samples: int = 0
    best_auc: float | None = None
    evals_without_gain: int = 0  # evaluations since the best model
    best_epoch: float | None = None  # of the best model: 1.5 is after half of the second epoch
    last_auc: float | None = None  # of the newest evaluation
    evaluation_due: bool = False  # after the last step there should have been an evaluation, and was none: a signal came before it
    best_ranking: dict[str, float] = field(default_factory=dict)  # by the keys of metrics by group that the best model was chosen by

    def best(self, ranking: RankingConfig) -> float | None:
        """The best value so far of the metric that the best model is chosen by."""
        return self.best_auc if ranking.chosen_by is None else self.best_ranking.get(ranking.chosen_by.key)

    @staticmethod
    def saved_best(position: Mapping[str, Any], ranking: RankingConfig) -> float | None:
        """The same of a position as a checkpoint keeps it."""
        return position.get("best_auc") if ranking.chosen_by is None else (position.get("best_ranking") or {}).get(ranking.chosen_by.key)

    def to_dict(self) -> dict[str, Any]:
        """As checkpoints keep it: with `best_ranking` only where there is one, so that nothing changes for runs without groups."""
        return {name: value for name, value in asdict(self).items() if name != "best_ranking" or value}


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


def steps_in_all(options: TrainingConfig, batches: int) -> int:
    """The step that a run ends with, where nothing ends it before.

    Args:
        options: of the run.
        batches: of an epoch.
    """
    steps = options.epochs * batches
    return steps if options.max_steps == -1 else min(steps, options.max_steps)


def reason_to_end(config: Config, position: Position, split: str) -> str | None:
    """Why training ends before its last step; None where it does not. `split` is what the model is chosen by."""
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
    """Why a run that stands at `position` has nothing left to do; None where it has."""
    options = config.training
    if position.evaluation_due:
        return None
    if position.step >= steps_in_all(options, batches):
        return f"{position.step} steps are done (--epochs {options.epochs}" + (
            f", --max_steps {options.max_steps})" if options.max_steps != -1 else ")"
        )
    return reason_to_end(config, position, split)
