"""The test at the end of a training run: figures of the best weights where these are kept, beside those of the last weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model.sharded_model import ShardedModel
from run.formed_log import form_of, published
from run.prepare import Prepared
from run.restoring import restoring
from run.scoring import metrics_of, shown
from training.evaluations import Evaluations, other_figures
from training.evaluator import Evaluator
from training.position import Position
from training.state import restore
from utils.checkpoint.best import best_of
from utils.checkpoint.reading import Checkpoint
from utils.errors import UserError
from utils.metrics.binary import Metrics
from utils.metrics.ranking_metric import COUNTS, figure_names
from utils.metrics.summary import EVALUATION, entry

VALID, TEST = "valid", "test"


class Tested(NamedTuple):
    """Tested weights: the epoch and step they were trained to, and their metrics on the split that selects the best weights and on the test split."""

    epoch: int
    step: int
    chosen: Metrics | None
    test: Metrics | None


def best_before(run: Prepared) -> Path | None:
    """Return the folder of a resumed run's best weights so far, on the first worker; None where it keeps none or has none."""
    if not (run.goes_on and run.config.training.keeps_best and run.world.first):
        return None
    ranking = run.config.ranking
    return best_of(run.checkpoint.folder.parent, run.position.best(ranking), lambda saved: Position.saved_best(saved, ranking))


class FinalTest:
    """The test at the end of training. The last weights have been saved by then: the best weights replace them in the model.

    Args:
        run: the run that has ended.
        model: model with its last weights.
        evaluator: evaluator of the model.
        evaluations: evaluations of the run.
        position: position at the end of the run.
        before: result of `best_before` at the start of the run.
    """

    def __init__(self, run: Prepared, model: ShardedModel, evaluator: Evaluator, evaluations: Evaluations, position: Position, before: Path | None):
        self._run, self._model, self._evaluator, self._evaluations = run, model, evaluator, evaluations
        self._position, self._before = position, before

    def figures(self) -> dict[str, Any]:
        """Run the tests that are missing; return the figures for the log's last line. Every worker calls this."""
        run, evaluated = self._run, self._evaluations.last
        metrics = evaluated and evaluated.metrics
        last = Tested(Position.last_epoch(self._position.to_dict()), self._position.step, metrics, metrics if run.chosen_by == TEST else self._test())
        if not run.config.training.keeps_best or metrics is None:
            self._log(last, final=True)
            return self._by_name(last)
        best = self._best(last)
        if best is not last and run.chosen_by != TEST:
            self._log(last, final=False)
        self._log(best, final=True)
        of_last = {f"last_{name}": value for name, value in self._by_name(last).items() if name.removeprefix("valid_") not in COUNTS}
        self._tell(best, last)
        form = form_of(run.config)
        return self._by_name(best) | {"tested_step": best.step} | of_last | (published(form, best.chosen) if form else {})

    def _test(self, split: str = TEST) -> Metrics | None:
        return metrics_of(self._run, self._model, self._evaluator, split) if split in self._run.splits else None

    def _best(self, last: Tested) -> Tested:
        """Return the best weights, tested. Return `last` where the best are the last ones, or warn and return `last` where they are unavailable."""
        run, found = self._run, self._evaluations.best
        if found and found.step == last.step:
            return last
        if found and (run.chosen_by == TEST or TEST not in run.splits):
            return Tested(found.epoch, found.step, found.metrics, found.metrics if run.chosen_by == TEST else None)
        if self._position.best(run.config.ranking) is None:  # the selecting metric is undefined in all evaluations
            return last
        try:
            checkpoint = self._restored()
        except UserError as error:
            run.console.warn(f"{error}; the test figures are of the last weights")
            return last
        if checkpoint is None:
            where = "there is no --save_checkpoint_path" if not run.config.training.save_checkpoint_path else "no checkpoint has them"
            run.console.warn(f"the best weights are not kept ({where}): the test figures are of the last weights")
            return last
        chosen = found.metrics if found else self._test(run.chosen_by)
        return Tested(
            Position.last_epoch(checkpoint.manifest.get("position") or {}), checkpoint.step, chosen, chosen if run.chosen_by == TEST else self._test()
        )

    def _restored(self) -> Checkpoint | None:
        """Restore the best weights into the model and return their checkpoint; None where there is none.

        Raises:
            UserError: the checkpoint cannot be read; raised on every worker.
        """
        run = self._run
        path = run.world.from_first(str(self._kept() or ""), "best_kept")
        if not path:
            return None

        def read() -> Checkpoint:
            checkpoint = Checkpoint(path)
            restore(self._model, checkpoint)
            return checkpoint

        checkpoint = run.world.together(lambda: restoring(read), "best_restored")
        run.console.say(f"testing the best weights: {checkpoint.folder} (step {checkpoint.step})")
        return checkpoint

    def _kept(self) -> Path | None:
        """Return, on the first worker, the folder where this run has kept the best weights, or where they were when it began."""
        path, ranking = self._run.config.training.save_checkpoint_path, self._run.config.ranking
        value = self._position.best(ranking)
        kept = best_of(Path(path), value, lambda saved: Position.saved_best(saved, ranking)) if path else None
        unchanged = self._run.goes_on and self._run.position.best(ranking) == value
        return kept or (self._before if unchanged else None)

    def _log(self, tested: Tested, final: bool) -> None:
        """Log the summary of a test; of the split that selects the best weights where there is no test."""
        split, metrics = (TEST, tested.test) if tested.test else (self._run.chosen_by, tested.chosen)
        if metrics:
            self._run.log.log(EVALUATION, entry(split, metrics, (tested.epoch, tested.step), final))

    def _by_name(self, tested: Tested) -> Mapping[str, Any]:
        """Return the metrics by their log keys."""
        test, chosen = tested.test, tested.chosen
        found = {"auc": test and test.auc, "validation_loss": test and test.log_loss}
        if self._run.chosen_by != VALID:
            return found | other_figures(test)
        by_group = dict.fromkeys(figure_names(self._run.ranked_by))
        of_valid = {"auc": chosen and chosen.auc, "loss": chosen and chosen.log_loss} | by_group | other_figures(chosen)
        return found | by_group | other_figures(test) | {f"valid_{name}": value for name, value in of_valid.items()}

    def _tell(self, best: Tested, last: Tested) -> None:
        split = TEST if best.test else VALID
        one, other = ((tested.test or tested.chosen) for tested in (best, last))
        figures = f"{split} AUC {shown(one.auc)}, log loss {one.log_loss:.6f}"
        same = f"the last weights are the best, step {best.step}: {figures}"
        if self._position.best(self._run.config.ranking) is None:
            same = f"no weights are the best, as no evaluation has the metric; of the last, step {best.step}: {figures}"
        differ = (
            f"{figures}, of the best weights, step {best.step}; of the last, step {last.step}: AUC {shown(other.auc)}, log loss {other.log_loss:.6f}"
        )
        self._run.console.say(same if best is last else differ)
