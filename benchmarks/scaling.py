"""Compare several workers with one on the same processors: speed, bytes moved relative to the least possible, and time in collectives.

  python -m benchmarks.scaling
  python -m benchmarks.scaling --workers 1,2 --precision bfloat16

Every round launches each number of workers in turn, by horovodrun if there are several. The workers share --threads: one worker has all of them, two
have half each. Efficiency is the speed relative to that of the first number of workers in the same round. The least bytes are those that any
placement of whole or sliced tables must send in the two exchanges of vectors, and those that a ring sends to sum the dense gradients.
"""

import os
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.children import answer, itself, start, task
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.rounds import interleave, median
from benchmarks.workload import EXPONENTS, Workload, check_words, options
from dataloading.batches import Share
from utils import launch
from utils.config.option import option
from utils.errors import UserError
from utils.memory import available_bytes, check_fits
from utils.pace import expected_step_ms, set_cycle_time

MODULE = "benchmarks.scaling"
PRECISIONS = ("float32", "bfloat16")
PROCESSORS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class ScalingOptions(Options):
    """Scaling benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {
        "workers": (1, 2),
        "batch_size": 64,
        "num_tables": 4,
        "cardinality": 50,
        "embedding_dim": 8,
        "bottom_mlp_dims": (16, 8),
        "top_mlp_dims": (16, 1),
        "steps_per_round": 2,
    }

    num_rounds: int = option(3, "number of rounds; each measures all contenders in turn, and medians over rounds are shown", unit="rounds")
    workers: tuple[int, ...] = option((1, 2, 4), "numbers of workers")
    batch_size: int = option(8192, "global batch", unit="samples")
    num_tables: int = option(26, "number of tables, of one size", unit="tables")
    cardinality: int = option(100_000, "rows of each table", unit="rows")
    embedding_dim: int = option(128, "columns of each table", unit="columns")
    bottom_mlp_dims: tuple[int, ...] = option((512, 256, 128), "layer widths of the bottom MLP")
    top_mlp_dims: tuple[int, ...] = option((1024, 1024, 512, 256, 1), "layer widths of the top MLP")
    batch_norm: bool = option(False, "batch normalisation of the MLPs, whose statistics are exchanged")
    precision: str = option("float32", "precision of the dense part, as by --amp in dlrm.py", choices=PRECISIONS)
    xla: bool = option(False, "compile the step by XLA, as in dlrm.py")
    ids: str = option("uniform", "distribution of the ids", choices=tuple(EXPONENTS))
    gradient_slices: int | None = option(None, "value of --gradient_slices for dlrm.py")
    steps_per_round: int = option(8, "training steps of one turn", unit="steps")
    threads: int = option(PROCESSORS, "threads inside operations, over all workers; the default is one a processor", unit="threads")

    def __post_init__(self):
        super().__post_init__()
        check_words("ids", (self.ids,), tuple(EXPONENTS))
        for count in self.workers:
            if count < 1 or self.batch_size % count:
                raise ValueError(f"--workers {count}: expected positive numbers that divide --batch_size {self.batch_size}")
        if not self.workers:
            raise ValueError("--workers: expected at least one number")

    def flags(self, workers: int) -> list[object]:
        """Return the flags for dlrm.py."""
        flags: list[object] = ["--cpu", "--intra_op_parallelism", max(self.threads // workers, 1)]
        for name in ("batch_size", "gradient_slices", "embedding_dim"):
            flags += [f"--{name}", getattr(self, name)] if getattr(self, name) else []
        for name in ("bottom_mlp_dims", "top_mlp_dims"):
            flags += [f"--{name}", ",".join(map(str, getattr(self, name)))]
        flags += ["--batch_norm"] if self.batch_norm else []
        return [*flags, *(["--amp", "--amp_dtype", self.precision] if self.precision != "float32" else []), *(["--xla"] if self.xla else [])]


def main(chosen: ScalingOptions, report: Report) -> None:
    """Measure and print."""
    if max(chosen.workers) > 1 and not shutil.which("horovodrun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"):
        raise UserError("horovodrun was not found; install it by ./scripts/install, or use --workers 1")
    check_fits(4 * chosen.embedding_dim * chosen.cardinality * chosen.num_tables, "the tables", available_bytes())
    rounds: dict[int, list[list[dict]]] = {count: [] for count in chosen.workers}
    for _ in range(chosen.num_rounds):
        for count in chosen.workers:
            rounds[count].append(_launch(chosen, count))
    figures = {count: _figures(chosen, count, launches) for count, launches in rounds.items()}
    first = chosen.workers[0]
    for facts in figures.values():
        facts["efficiency"] = statistics.median(
            before / now for now, before in zip(facts["step_seconds"], figures[first]["step_seconds"], strict=True)
        )
    report.figures["workers"] = {str(count): facts for count, facts in figures.items()}
    columns = ["workers", "threads each", "samples/s", "efficiency", "ms a step", "collectives alone, ms", "share"]
    columns += ["MB exchanged", "of the least", "MB summed", "of the least"]
    keys = ("threads", "samples_per_s", "efficiency", "step_time_ms", "collectives_ms", "collectives_share")
    keys += ("exchanged_mb", "exchanged_of_minimum", "summed_mb", "summed_of_minimum")
    report.table(
        f"{chosen.precision}{', --xla' if chosen.xla else ''}{', --batch_norm' if chosen.batch_norm else ''}, {chosen.ids} ids, "
        f"global batch {chosen.batch_size}, "
        f"{chosen.num_tables} tables of {chosen.cardinality:,} x {chosen.embedding_dim}, medians of {chosen.num_rounds} launches",
        columns,
        [(str(count), *(facts[key] for key in keys)) for count, facts in figures.items()],
    )
    report.say("bytes are those of one step, sent by all workers together; where collectives have a large share, it includes waits for other workers")


def _launch(chosen: ScalingOptions, workers: int) -> list[dict]:
    """Launch the workers and return the figures of each."""
    facts = {name: getattr(chosen, name) for name in ("precision", "ids", "num_tables", "cardinality", "steps_per_round")}
    command = itself(MODULE, facts | {"flags": list(map(str, chosen.flags(workers)))})
    if workers > 1:
        command = ["horovodrun", "-np", str(workers), "-H", f"localhost:{workers}", "--mpi-args=--oversubscribe", *command]
    return start(*command).answers()


def _figures(chosen: ScalingOptions, workers: int, launches: list[list[dict]]) -> dict[str, Any]:
    steps = [max(worker["step_seconds"] for worker in launch) for launch in launches]
    collectives = [max(worker["collective_seconds"] for worker in launch) for launch in launches]
    sent = {key: sum(worker[key] for worker in launches[0]) for key in ("exchanged", "summed")}
    least = launches[0][0]["least"]
    return {
        "threads": max(chosen.threads // workers, 1),
        "step_seconds": steps,
        "collective_seconds": collectives,
        "samples_per_s": chosen.batch_size / statistics.median(steps),
        "step_time_ms": 1000 * statistics.median(steps),
        "collectives_ms": 1000 * statistics.median(collectives) if workers > 1 else None,
        "collectives_share": statistics.median(part / step for part, step in zip(collectives, steps, strict=True)) if workers > 1 else None,
        "exchanged_mb": sent["exchanged"] / 1e6 if workers > 1 else None,
        "exchanged_of_minimum": sent["exchanged"] / least["exchanged"] if least["exchanged"] else None,
        "summed_mb": sent["summed"] / 1e6 if workers > 1 else None,
        "summed_of_minimum": sent["summed"] / least["summed"] if least["summed"] else None,
    }


# One worker ---------------------------------------------------------------------------------------------------------------


def worker(flags: list[str], precision: str, ids: str, num_tables: int, cardinality: int, steps_per_round: int) -> None:
    """Train, then run the step's collectives alone, and answer with the figures."""
    from run.devices import configure_tensorflow
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    from benchmarks.collectives import Recorder
    from benchmarks.peers import LEARNING_RATE, steps
    from model.architectures import architecture_of
    from model.embedding.plan import report
    from training.build import build_trainer
    from training.device_batch import to_device
    from utils.distributed import join

    work = Workload((cardinality,) * num_tables, options(*flags))
    model_options = work.config.model
    stacks = model_options.bottom_mlp_dims, model_options.top_mlp_dims
    norms = len(architecture_of(model_options).normalised(model_options, work.num_numerical))
    set_cycle_time(expected_step_ms(work.batch_size, stacks, launch.size(), precision != "float32"), norms=norms)
    world = join()
    configure_tensorflow(work.config.device, world.local_rank, world.local_size)
    model = work.build(precision, world)
    if world.horovod:
        world.horovod = Recorder(world.horovod)
    trainer = build_trainer(work.config, model, precision)
    view = model.embedding.view
    batches = [
        to_device(batch) for batch in work.batches(ids, 3, Share(view.global_features, view.local_features, rank=world.rank, num_workers=world.size))
    ]
    train = {"step": steps(lambda i: trainer.step(batches[i % len(batches)], i, LEARNING_RATE))}
    seconds = dict(interleave(train, 3, steps_per_round, warmup=3))
    calls = world.horovod.calls if world.horovod else {}
    if calls:
        seconds |= interleave({"collectives": world.horovod.alone()}, 3, steps_per_round, warmup=3)
    dense = architecture_of(model_options).dense_elements(model_options, work.num_numerical, work.widths)
    plan = report(model.embedding.placement, work.batch_size, 4 if precision == "float32" else 2, dense)
    sent = {call.name: call.sent_bytes(world.rank, world.size) for call in calls.values()}
    exchanged = sum(count for name, count in sent.items() if name.startswith("embedding"))
    answer(
        {
            "step_seconds": median(seconds, "step"),
            "collective_seconds": median(seconds, "collectives") if calls else 0.0,
            "exchanged": exchanged,
            "summed": sum(sent.values()) - exchanged,
            "least": {"exchanged": plan["minimum_alltoall_bytes"], "summed": 2 * (world.size - 1) * 4 * dense},
        }
    )


if __name__ == "__main__":
    if (given := task()) is not None:
        worker(**given)
    else:
        sys.exit(run(ScalingOptions, main, __doc__))
