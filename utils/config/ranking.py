"""The options of the ranking metrics by group."""

from dataclasses import dataclass

from utils.config.option import INHERIT, check, check_options, option
from utils.config.options import EVAL, TRAIN
from utils.metrics.ranking_metric import DEFAULT, EXPECTED, RankingMetric, parse

AUC = "auc"


@dataclass(frozen=True)
class RankingConfig:
    """Metrics of the order of each group's rows."""

    ranking_metrics: tuple[str, ...] | None = option(
        None,
        f"metrics by group: {EXPECTED}; the default is {DEFAULT.name}@{DEFAULT.cut} where the dataset has a group column",
        modes=(TRAIN, EVAL),
        resume=INHERIT,
    )
    best_metric: str = option(
        AUC,
        "metric by which --keep_best_checkpoint and --early_stop_patience choose: auc, or one of the metrics of --ranking_metrics",
        modes=(TRAIN,),
        resume=INHERIT,
    )

    def __post_init__(self):
        check_options(self)
        words = self.ranking_metrics
        try:
            off = words is not None and not parse(words)
        except ValueError as error:
            raise ValueError(f"--ranking_metrics {','.join(words)}: {error}") from None
        try:
            best = self.chosen_by
        except ValueError:
            check(False, "best_metric", self.best_metric, f"{AUC}, or one of {EXPECTED.removesuffix(', separated by commas, or none')}")
        if off and best:
            raise ValueError(f"--best_metric {self.best_metric} and --ranking_metrics none exclude each other; drop one of them")

    @property
    def chosen_by(self) -> RankingMetric | None:
        """The metric by which the best model is chosen; None for the AUC."""
        if self.best_metric.strip().lower() == AUC:
            return None
        (metric,) = parse((self.best_metric,))
        return metric

    def metrics(self, mode: str, grouped: bool) -> tuple[RankingMetric, ...]:
        """Return the metrics that an evaluation computes in a mode; `grouped`: the dataset has a group column, without which there are none."""
        if not grouped or mode not in (TRAIN, EVAL):
            return ()
        found = (DEFAULT,) if self.ranking_metrics is None else parse(self.ranking_metrics)
        best = self.chosen_by if mode == TRAIN else None
        return found if best is None or best in found else (*found, best)

    def need_groups(self, mode: str) -> list[str]:
        """Return the flags in use in a mode that need a group column."""
        needing = []
        if mode in (TRAIN, EVAL) and self.ranking_metrics is not None and parse(self.ranking_metrics):
            needing.append(f"--ranking_metrics {','.join(self.ranking_metrics)}")
        if mode == TRAIN and self.chosen_by:
            needing.append(f"--best_metric {self.best_metric}")
        return needing
