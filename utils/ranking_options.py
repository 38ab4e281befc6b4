"""The options of the metrics by group."""

from dataclasses import dataclass

from utils.flags import check, check_types, option
from utils.metrics.ranking_metric import DEFAULT, EXPECTED, RankingMetric, parse
from utils.options import EVAL, TRAIN

AUC = "auc"


@dataclass(frozen=True)
class RankingConfig:
    """Metrics of the order of each group's rows."""

    ranking_metrics: tuple[str, ...] | None = option(
        None, f"{EXPECTED}; the default is {DEFAULT.name}@{DEFAULT.cut} where the dataset has a group column", modes=(TRAIN, EVAL)
    )
    best_metric: str = option(
        AUC, "what --keep_best_checkpoint and --early_stop_patience go by: auc, or a metric such as those of --ranking_metrics", modes=(TRAIN,)
    )

    def __post_init__(self):
        check_types(self)
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
        """The metric that the best model is chosen by; None where it is the AUC."""
        if self.best_metric == AUC:
            return None
        (metric,) = parse((self.best_metric,))
        return metric

    def metrics(self, grouped: bool) -> tuple[RankingMetric, ...]:
        """What an evaluation gives; `grouped`: the dataset has a group column, without which there are none."""
        if not grouped:
            return ()
        found = (DEFAULT,) if self.ranking_metrics is None else parse(self.ranking_metrics)
        return found if self.chosen_by is None or self.chosen_by in found else (*found, self.chosen_by)

    @property
    def need_groups(self) -> list[str]:
        """The flags in use that need a group column."""
        asked = self.ranking_metrics is not None and parse(self.ranking_metrics)
        named = f"--ranking_metrics {','.join(self.ranking_metrics)}" if asked else ""
        return [flag for flag in (named, f"--best_metric {self.best_metric}" if self.chosen_by else "") if flag]
