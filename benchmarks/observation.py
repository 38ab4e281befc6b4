"""Measure the processor time that dlrm.py spends on observing itself: the log, TensorBoard's files, times, rows touched, sums of losses.

  python -m benchmarks.observation
  python -m benchmarks.observation --batch_size 128 --print_freq 1

`dlrm.py` trains in a new process; the calls that observe are wrapped, and the processor time inside them is added up. Norms (`--log_norms`) are left
out, because they are computed only where they are asked for.
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.children import answer, last_answer, task
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.scratch import scratch, write_dataset
from benchmarks.workload import EXPONENTS
from utils.config.option import option

MODULE = "benchmarks.observation"


@dataclass(frozen=True)
class ObservationOptions(Options):
    """Observation benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "batch_size": 64, "num_tables": 3, "cardinality": 50, "embedding_dim": 8, "steps": 6}

    batch_size: int = option(8192, "batch size", unit="samples")
    num_tables: int = option(26, "number of tables, of one size", unit="tables")
    cardinality: int = option(100_000, "rows of each table", unit="rows")
    embedding_dim: int = option(128, "columns of each table", unit="columns")
    ids: str = option("power_law", "distribution of the ids", choices=tuple(EXPONENTS))
    steps: int = option(30, "steps", unit="steps")
    print_freq: int = option(100, "steps between two lines of the log", unit="steps")
    folder: str | None = option(None, "folder for the dataset; the default is the system's temporary folder")


def main(chosen: ObservationOptions, report: Report) -> None:
    """Measure and print."""
    with scratch(chosen.folder, 5 * (chosen.num_tables + 16) * chosen.steps * chosen.batch_size, "the dataset") as work:
        write_dataset(work / "dataset", (chosen.cardinality,) * chosen.num_tables, chosen.steps * chosen.batch_size, EXPONENTS[chosen.ids])
        flags = {
            "dataset_path": str(work / "dataset"),
            "log_path": str(work / "log.json"),
            "tensorboard_path": str(work / "tensorboard"),
            "batch_size": chosen.batch_size,
            "embedding_dim": chosen.embedding_dim,
            "print_freq": chosen.print_freq,
            "cpu": True,
            "warmup_steps": 0,
            "learning_rate": 0.01,
            "evals_per_epoch": 0,
            "benchmark_warmup_steps": 0,
        }
        rounds = [last_answer(MODULE, flags=flags) for _ in range(chosen.num_rounds)]
    middle = sorted(rounds, key=lambda found: found["share"])[len(rounds) // 2]
    report.figures |= {"rounds": rounds, "share": middle["share"]}
    rows = [(name, 1000 * seconds / chosen.steps, seconds / middle["step_s"]) for name, seconds in middle["inside"].items()]
    rows.append(("all", 1000 * sum(middle["inside"].values()) / chosen.steps, middle["share"]))
    title = f"batch {chosen.batch_size}, {chosen.steps} steps of {1000 * middle['step_s'] / chosen.steps:,.1f} ms, a line every {chosen.print_freq}"
    report.table(f"{title}, the middle of {chosen.num_rounds} rounds", ["processor time inside", "ms a step", "of a step"], rows)


# In a process of its own --------------------------------------------------------------------------------------------------


def child(flags: dict[str, Any]) -> None:
    """Train, and answer with the processor seconds inside the calls of all steps, and the seconds of all steps."""
    import time

    import dlrm
    from training.figures import Figures
    from training.position import Position
    from training.touched import Touched
    from utils.logging import RunLog
    from utils.timing import Spent

    inside: dict[str, float] = {}

    def wrapped(kind: type, name: str, what: str) -> None:
        original = getattr(kind, name)

        def measured(*args: Any, **options: Any) -> Any:
            begun = time.thread_time()
            try:
                return original(*args, **options)
            finally:
                inside[what] = inside.get(what, 0.0) + time.thread_time() - begun

        setattr(kind, name, measured)

    wrapped(Touched, "add", "rows touched")
    wrapped(Position, "add_loss", "sums of losses")
    wrapped(Spent, "add", "times")
    wrapped(Figures, "of_step", "figures of a line")
    training = RunLog.log

    def of_training(log: RunLog, step: Any, data: Any) -> None:
        """Count lines of steps only: those of the start and of the end are written once, whatever the number of steps."""
        begun = time.thread_time()
        training(log, step, data)
        if isinstance(step, tuple) and len(step) == 2:
            inside["log and TensorBoard"] = inside.get("log and TensorBoard", 0.0) + time.thread_time() - begun

    RunLog.log = of_training
    figures = dlrm.train(**flags).figures
    step_s = figures["mean_step_time_ms"] / 1000 * figures["steps"]
    answer({"inside": inside, "step_s": step_s, "share": sum(inside.values()) / step_s})


if __name__ == "__main__":
    if (given := task()) is not None:
        child(**given)
    else:
        sys.exit(run(ObservationOptions, main, __doc__))
