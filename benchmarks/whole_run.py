"""Measure the time that dlrm.py adds to its training step: the same batches trained by `dlrm.py` from files, and by its step alone from memory.

  python -m benchmarks.whole_run
  python -m benchmarks.whole_run --precision bfloat16 --xla --batch_size 65536 --steps 20

Both run in turn, in new processes. dlrm.py reads a tf_raw dataset from the page cache, checks it, logs, and checks every loss; its throughput is
taken from its log. The step alone has its batches on the device beforehand.
"""

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.children import answer, last_answer, start, task
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.rounds import median, speedup, spread
from benchmarks.scratch import scratch, write_dataset
from benchmarks.workload import EXPONENTS, Workload, options
from utils.config.option import option

MODULE = "benchmarks.whole_run"
RUN, STEP = "dlrm.py", "its step alone"


@dataclass(frozen=True)
class WholeRunOptions(Options):
    """Whole run benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "batch_size": 64, "num_tables": 3, "cardinality": 50, "embedding_dim": 8, "steps": 4}

    batch_size: int = option(8192, "batch size", unit="samples")
    num_tables: int = option(26, "number of tables, of one size", unit="tables")
    cardinality: int = option(100_000, "rows of each table", unit="rows")
    embedding_dim: int = option(128, "columns of each table", unit="columns")
    ids: str = option("uniform", "distribution of the ids", choices=tuple(EXPONENTS))
    precision: str = option("float32", "precision of the dense part, as by --amp in dlrm.py", choices=("float32", "bfloat16", "float16"))
    xla: bool = option(False, "compile the step by XLA, as in dlrm.py")
    cpu: bool = option(False, "run on the CPU even where there is a GPU")
    steps: int = option(40, "measured steps", unit="steps")
    warmup_steps: int = option(5, "steps before the measured ones", unit="steps")
    print_freq: int = option(10, "steps between two lines of the log; dlrm.py's default of 100 logs less often than users do", unit="steps")
    folder: str | None = option(None, "folder for the dataset; the default is the system's temporary folder")

    def flags(self) -> list[str]:
        """Return the flags for dlrm.py."""
        flags: list[object] = ["--batch_size", self.batch_size, "--embedding_dim", self.embedding_dim]
        flags += ["--amp", "--amp_dtype", self.precision] if self.precision != "float32" else []
        flags += [f"--{name}" for name in ("xla", "cpu") if getattr(self, name)]
        return list(map(str, flags))


def main(chosen: WholeRunOptions, report: Report) -> None:
    """Measure and print."""
    count = chosen.steps + chosen.warmup_steps
    rows = (chosen.cardinality,) * chosen.num_tables
    with scratch(chosen.folder, 5 * (chosen.num_tables + 16) * count * chosen.batch_size, "the dataset") as work:
        write_dataset(work / "dataset", rows, count * chosen.batch_size, EXPONENTS[chosen.ids])
        facts = {"flags": chosen.flags(), "rows": rows, "ids": chosen.ids, "steps": chosen.steps, "warmup_steps": chosen.warmup_steps}
        seconds: dict[str, list[float]] = {RUN: [], STEP: []}
        for _ in range(chosen.num_rounds):
            seconds[RUN].append(_run(chosen, work, count))
            seconds[STEP].append(last_answer(MODULE, **facts))
    figures = {
        name: {
            "samples_per_s": chosen.batch_size / median(seconds, name),
            "step_time_ms": 1000 * median(seconds, name),
            "of_step_alone": speedup(seconds, name, STEP),
            "spread": spread(seconds, name),
        }
        for name in seconds
    }
    report.figures |= {"seconds": seconds, "runs": figures}
    report.table(
        f"{chosen.precision}{', --xla' if chosen.xla else ''}, {chosen.ids} ids, batch {chosen.batch_size}, medians of {chosen.num_rounds} rounds",
        ["", "samples/s", "ms a step", "of the step alone", "spread"],
        [(name, *facts.values()) for name, facts in figures.items()],
    )


def _run(chosen: WholeRunOptions, work: Path, steps: int) -> float:
    """Run dlrm.py and return the seconds of a step that its log reports."""
    log = work / "log.json"
    flags = ["--dataset_path", work / "dataset", "--log_path", log, "--max_steps", steps, "--benchmark_warmup_steps", chosen.warmup_steps]
    start(sys.executable, "dlrm.py", *flags, "--learning_rate", 0.01, "--warmup_steps", 0, "--print_freq", chosen.print_freq, *chosen.flags())
    lines = [json.loads(line.partition(" ")[2]) for line in log.read_text().splitlines()]
    return statistics.fmean(line["data"]["mean_step_time_ms"] for line in lines if line.get("step") == []) / 1000


# In a process of its own --------------------------------------------------------------------------------------------------


def child(flags: list[str], rows: list[int], ids: str, steps: int, warmup_steps: int) -> None:
    """Answer with the seconds of the step alone."""
    from run.devices import compute_dtype, configure_tensorflow
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    import benchmarks.peers as peers
    from benchmarks.rounds import interleave
    from training.build import build_trainer
    from utils.distributed import World

    work = Workload(tuple(rows), options(*flags))
    dtype = compute_dtype(work.config.device, configure_tensorflow(work.config.device, 0))
    trainer, feed = build_trainer(work.config, work.build(dtype, World()), dtype), peers.Feed()
    feed.load(work, ids, 4)
    action = peers.steps(lambda i: trainer.step(feed.on_device(i), i, peers.LEARNING_RATE))
    answer(median(interleave({STEP: action}, 1, steps, warmup_steps), STEP))


if __name__ == "__main__":
    if (given := task()) is not None:
        child(**given)
    else:
        sys.exit(run(WholeRunOptions, main, __doc__))
