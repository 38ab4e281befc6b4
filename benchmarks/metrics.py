"""Measure the cost of the evaluation's metrics: exact AUC, all metrics, those with a summary, and metrics by group, in seconds and in memory.

  python -m benchmarks.metrics
  python -m benchmarks.metrics --num_scores 89000000

Groups have 2 to 12 rows, which are consecutive ("together") or in random order ("anywhere").

Each round is a new process. Memory is the peak of resident memory minus that before the metrics, when scores and labels exist already.
"""

import statistics
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.children import answer, last_answer, task
from benchmarks.options import Options, run
from benchmarks.peak_memory import PeakMemory, resident_bytes
from benchmarks.report import Report
from benchmarks.rounds import timed
from utils.config.option import option

MODULE = "benchmarks.metrics"
AUC, ALL, FULL = "exact AUC", "all metrics", "all metrics and their summary"
RANKED, RANKED_ANYWHERE, ALL_RANKED = "MAP@12, rows of a group together", "MAP@12, rows anywhere", "six metrics by group, rows anywhere"
BY_GROUP = {RANKED: "map@12", RANKED_ANYWHERE: "map@12", ALL_RANKED: "map@12,ndcg@10,mrr,recall@5,group_auc,gauc"}


@dataclass(frozen=True)
class MetricsOptions(Options):
    """Metrics benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "num_scores": 10_000, "num_ranked": 10_000}

    num_scores: int = option(10_000_000, "number of scores", unit="samples")
    num_ranked: int = option(27_000_000, "number of scores in groups", unit="samples")


def main(chosen: MetricsOptions, report: Report) -> None:
    """Measure and print."""
    sizes = dict.fromkeys((AUC, ALL, FULL), chosen.num_scores) | dict.fromkeys(BY_GROUP, chosen.num_ranked)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sizes}
    for _ in range(chosen.num_rounds):
        for name, answers in rounds.items():
            answers.append(last_answer(MODULE, what=name, num_scores=sizes[name]))
    figures = {name: {key: statistics.median(each[key] for each in answers) for key in answers[0]} for name, answers in rounds.items()}
    report.figures |= {"rounds": rounds, "medians": figures}
    rows = [(name, f"{sizes[name]:,}", facts["seconds"], facts["peak_bytes"] / 2**20) for name, facts in figures.items()]
    report.table(f"Medians of {chosen.num_rounds} new processes", ["", "scores", "seconds", "MiB"], rows)


def child(what: str, num_scores: int) -> None:
    """Run one measurement and answer with its seconds and peak memory."""
    import numpy as np

    from utils.metrics.binary import evaluate, exact_auc
    from utils.metrics.ranking import rank
    from utils.metrics.ranking_metric import parse
    from utils.metrics.summary import evaluate_in_full

    draw = np.random.default_rng(0)
    logits = draw.standard_normal(num_scores, dtype=np.float32)
    labels = (draw.random(num_scores, dtype=np.float32) < 1 / (1 + np.exp(-logits))).astype(np.uint8)
    if what in BY_GROUP:
        sizes = draw.integers(2, 13, num_scores // 7 + 1000)
        groups = np.repeat(np.arange(len(sizes)), sizes)[:num_scores]
        groups = groups if what == RANKED else draw.permutation(groups)
        measured = lambda: rank(logits, labels, groups, parse(BY_GROUP[what].split(",")))  # noqa: E731 - one of three
    else:
        found = {AUC: lambda: exact_auc(logits, labels.astype(bool)), ALL: lambda: evaluate(logits, labels)}
        measured = found.get(what, lambda: evaluate_in_full(logits, labels))
    before = resident_bytes()
    with PeakMemory() as memory:
        seconds = timed(measured)
    answer({"seconds": seconds, "peak_bytes": memory.peak_bytes - before})


if __name__ == "__main__":
    if (given := task()) is not None:
        child(**given)
    else:
        sys.exit(run(MetricsOptions, main, __doc__))
