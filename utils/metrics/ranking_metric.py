"""Names of ranking metrics: `map@12` on the command line, `MAP@12` on the console, `map_at_12` in the log."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAP, NDCG, MRR, RECALL, GROUP_AUC, GAUC = "map", "ndcg", "mrr", "recall", "group_auc", "gauc"
EXPECTED = "map@K, ndcg@K, recall@K, mrr, mrr@K, group_auc, gauc, separated by commas, or none"
OFF = ("none",)
COUNTS = ("groups", "groups_with_positive")
MAX_CUT = 2**31 - 1  # more rows than any group has
_CUT = {MAP: (True,), NDCG: (True,), RECALL: (True,), MRR: (True, False), GROUP_AUC: (False,), GAUC: (False,)}  # whether "@K" follows
_LABELS = {MAP: "MAP", NDCG: "NDCG", RECALL: "recall", MRR: "MRR", GROUP_AUC: "group AUC", GAUC: "GAUC"}


@dataclass(frozen=True)
class RankingMetric:
    """A metric of `ranking.rank`."""

    name: str
    cut: int | None = None  # number of top ranks that count, the K of "map@K"; None for all

    @property
    def key(self) -> str:
        """The metric's key in logs and figures."""
        return self.name if self.cut is None else f"{self.name}_at_{self.cut}"

    def __str__(self) -> str:
        return _LABELS[self.name] + ("" if self.cut is None else f"@{self.cut}")


DEFAULT = RankingMetric(MAP, 12)  # the metric of the Outbrain competition, which NVIDIA's Wide & Deep reports


def figure_names(metrics: Iterable[RankingMetric]) -> list[str]:
    """Return the keys that the log has for the metrics and the counts of groups; an empty list without metrics."""
    names = [metric.key for metric in metrics]
    return [*names, *COUNTS] if names else []


def parse(words: Iterable[str]) -> tuple[RankingMetric, ...]:
    """Parse words such as `map@12` to metrics; `("none",)` gives none.

    Raises:
        ValueError: a word is no metric, or is given twice; the message names it.
    """
    words = tuple(word.strip().lower() for word in words)
    if words == OFF:
        return ()
    found = tuple(_metric(word) for word in words or ("",))
    for metric in found:
        if found.count(metric) > 1:
            raise ValueError(f"{metric} is given {found.count(metric)} times; give each metric once")
    return found


def _metric(word: str) -> RankingMetric:
    found = re.fullmatch(r"([a-z_]+)(?:@([1-9][0-9]{0,9}))?", word)
    if not found or (found[2] is not None) not in _CUT.get(found[1], ()) or int(found[2] or 1) > MAX_CUT:
        raise ValueError(f"{word[:60]!r} is not one of {EXPECTED}")
    return RankingMetric(found[1], int(found[2]) if found[2] else None)
