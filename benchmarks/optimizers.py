"""Compare the training step by each optimizer with that of plain gradient descent, on the same ids.

  python -m benchmarks.optimizers
  python -m benchmarks.optimizers --optimizers sgd,adam --batch_size 8192 --precision bfloat16

Every round trains the steps of all optimizers in turn, each on a model of its own, in one process. An optimizer takes longer where it has slots: they
are read and written with every weight that is updated.
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.rounds import interleave, median, speedup, spread
from benchmarks.workload import EXPONENTS, Workload, check_words, options
from training.optimizers.table import RULES
from utils.config.option import option
from utils.memory import available_bytes, check_fits

PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """Optimizers benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {
        "num_rounds": 1,
        "batch_size": 64,
        "num_tables": 3,
        "cardinality": 50,
        "embedding_dim": 8,
        "optimizers": ("sgd", "adam", "ftrl"),
        "steps_per_round": 2,
    }

    num_rounds: int = option(11, "number of rounds; each measures all optimizers in turn, and medians over rounds are shown", unit="rounds")
    optimizers: tuple[str, ...] = option(("sgd", "adagrad", "rowwise_adagrad", "adam"), f"optimizers, the first for comparison: {', '.join(RULES)}")
    batch_size: int = option(128, "batch size", unit="samples")
    num_tables: int = option(26, "number of tables, of one size", unit="tables")
    cardinality: int = option(100_000, "rows of each table", unit="rows")
    embedding_dim: int = option(128, "columns of each table", unit="columns")
    precision: str = option("float32", "precision of the dense part, as by --amp in dlrm.py", choices=PRECISIONS)
    ids: str = option("power_law", "distribution of the ids", choices=tuple(EXPONENTS))
    steps_per_round: int = option(20, "training steps of one turn", unit="steps")
    num_batches: int = option(16, "number of different batches, used in turn", unit="batches")
    cpu: bool = option(False, "run on the CPU even where there is a GPU")

    def __post_init__(self):
        super().__post_init__()
        check_words("optimizers", self.optimizers, tuple(RULES))

    def workload(self, optimizer: str) -> Workload:
        """Return the workload of an optimizer."""
        flags: list[object] = ["--batch_size", self.batch_size, "--embedding_dim", self.embedding_dim, "--optimizer", optimizer]
        flags += ["--amp", "--amp_dtype", self.precision] if self.precision != "float32" else []
        return Workload((self.cardinality,) * self.num_tables, options(*flags, *(["--cpu"] if self.cpu else [])))


def main(chosen: OptimizerOptions, report: Report) -> None:
    """Measure and print."""
    from run.devices import compute_dtype, configure_tensorflow
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    import benchmarks.peers as peers
    from training.build import build_trainer
    from utils.distributed import World

    works = {name: chosen.workload(name) for name in chosen.optimizers}
    first = works[chosen.optimizers[0]]
    cells = chosen.cardinality * chosen.num_tables * chosen.embedding_dim
    slots = sum(1 + sum(not slot.per_row for slot in RULES[name](work.config.optimizer, work.dim).slots) for name, work in works.items())
    check_fits(4 * cells * slots, "the tables and slots of all optimizers", available_bytes())
    dtype = compute_dtype(first.config.device, configure_tensorflow(first.config.device, 0))
    feed, actions = peers.Feed(), {}
    feed.load(first, chosen.ids, chosen.num_batches)
    for name, work in works.items():
        trainer = build_trainer(work.config, work.build(dtype, World()), dtype)
        actions[name] = peers.steps(lambda i, trainer=trainer: trainer.step(feed.on_device(i), i, peers.LEARNING_RATE))
    seconds = interleave(actions, chosen.num_rounds, chosen.steps_per_round, warmup=3)
    figures = {
        name: {
            "samples_per_s": chosen.batch_size / median(seconds, name),
            "step_time_ms": 1000 * median(seconds, name),
            "of_first": speedup(seconds, name, chosen.optimizers[0]),
            "spread": spread(seconds, name),
        }
        for name in actions
    }
    report.figures |= {"seconds": seconds, "optimizers": figures}
    report.table(
        f"{chosen.precision}, {chosen.ids} ids, batch {chosen.batch_size}, {chosen.num_tables} tables of {chosen.cardinality:,} x "
        f"{chosen.embedding_dim}, medians of {chosen.num_rounds} rounds",
        ["optimizer", "samples/s", "ms a step", f"of {chosen.optimizers[0]}", "spread"],
        [(name, *facts.values()) for name, facts in figures.items()],
    )


if __name__ == "__main__":
    sys.exit(run(OptimizerOptions, main, __doc__))
