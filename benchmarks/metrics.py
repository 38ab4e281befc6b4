"""What the evaluation's metrics cost: the exact AUC and all metrics of many scores, in seconds and in memory.

  python -m benchmarks.metrics
  python -m benchmarks.metrics --num_scores 89000000

Each round is a new process. Memory is the most that was resident beyond what was before, when scores and labels were there.
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
from utils.flags import option

MODULE = "benchmarks.metrics"
AUC, ALL = "exact AUC", "all metrics"


@dataclass(frozen=True)
class MetricsOptions(Options):
    """Metrics benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "num_scores": 10_000}

    num_scores: int = option(10_000_000, "scores", unit="samples")


def main(chosen: MetricsOptions, report: Report) -> None:
    """Measure and print."""
    rounds: dict[str, list[dict[str, float]]] = {AUC: [], ALL: []}
    for _ in range(chosen.num_rounds):
        for name, answers in rounds.items():
            answers.append(last_answer(MODULE, what=name, num_scores=chosen.num_scores))
    figures = {name: {key: statistics.median(each[key] for each in answers) for key in answers[0]} for name, answers in rounds.items()}
    report.figures |= {"rounds": rounds, "medians": figures}
    rows = [(name, facts["seconds"], facts["peak_bytes"] / 2**20) for name, facts in figures.items()]
    report.table(f"{chosen.num_scores:,} scores, medians of {chosen.num_rounds} new processes", ["", "seconds", "MiB"], rows)


def child(what: str, num_scores: int) -> None:
    """Answer with the seconds and the memory."""
    import numpy as np

    from utils.metrics.binary import evaluate, exact_auc

    draw = np.random.default_rng(0)
    logits = draw.standard_normal(num_scores, dtype=np.float32)
    labels = (draw.random(num_scores, dtype=np.float32) < 1 / (1 + np.exp(-logits))).astype(np.uint8)
    before = resident_bytes()
    with PeakMemory() as memory:
        seconds = timed(lambda: exact_auc(logits, labels.astype(bool)) if what == AUC else evaluate(logits, labels))
    answer({"seconds": seconds, "peak_bytes": memory.peak_bytes - before})


if __name__ == "__main__":
    if (given := task()) is not None:
        child(**given)
    else:
        sys.exit(run(MetricsOptions, main, __doc__))
