"""Lookup and update of embeddings with several ids a sample, alone: the project's, copying the rows, TensorFlow's, keras-rs's and torchrec's.

  python -m benchmarks.embedding_bags
  python -m benchmarks.embedding_bags --hotness 20 --optimizer sgd --precisions float32 --ids uniform
  python -m benchmarks.embedding_bags --torch_python /somewhere/torchenv/bin/python

Every round measures all embeddings in turn on the same tables and ids; ratios are taken within a round. All must give the same vectors, which is
checked. Lists are full, and the gradients `[B, C]` are fixed. With --id_weights all but copying multiply each row by its weight.
Everything runs on the CPU, with as many threads as there are processors.

Measured embeddings:
  the project   its embedding on one worker, as the training step calls it
  copying       the least work of any embedding: for the lookup the row of every id is read into a buffer in the cache; for the update the
                gradients are read once, and every distinct row is read and written once
  TensorFlow    tf.nn.embedding_lookup_sparse, and the rows of its gradient scattered into the tables by the same rule
  keras-rs      EmbedReduce, of which DistributedEmbedding consists on a CPU, if keras-rs is installed; its Adagrad is elementwise
  fbgemm        SplitTableBatchedEmbeddingBagsCodegen, torchrec's engine, if --torch_python names a Python that has it. With bfloat16 its vectors
                are float16, because on a CPU it has no bfloat16. Its wheel is built without OpenMP, so that an operator uses one thread: the tables
                are distributed over one operator for each processor, and these run in parallel. A virtual environment for it:
                  python -m venv torchenv
                  torchenv/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
                  torchenv/bin/pip install fbgemm-gpu-cpu==1.8.0
"""

import gc
import importlib.util
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.bag_values import BOTH, LOOKUP, UPDATE, weight_values
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.rounds import Seconds, median, speedup, spread
from benchmarks.scratch import scratch
from benchmarks.workload import EXPONENTS, HOTNESS_HELP, Workload, check_words, hotness_of_tables, options
from utils.config.option import option
from utils.errors import UserError
from utils.memory import available_bytes, check_fits

PRECISIONS = ("float32", "bfloat16")
OPTIMIZERS = ("rowwise_adagrad", "sgd")
PROJECT, COPYING, PLAIN, KERAS_RS, FBGEMM = "project", "copying", "TensorFlow", "keras-rs", "fbgemm"
PEERS = (PLAIN, KERAS_RS, FBGEMM)
MEASURES = (LOOKUP, UPDATE, BOTH)
_TOLERANCE = 0.02  # of probes, which are about 1 or more; bfloat16 changes them by 0.002
_COPIES = 10  # memory of all embeddings together, with accumulators and vectors, in multiples of the tables' size; measured


@dataclass(frozen=True)
class BagOptions(Options):
    """Benchmark of embeddings with several ids a sample."""

    QUICK: ClassVar[dict[str, Any]] = {
        "batch_size": 64,
        "num_tables": 3,
        "cardinality": 50,
        "embedding_dim": 8,
        "hotness": "3,1,5",
        "precisions": ("float32",),
        "ids": ("power_law",),
        "seconds_per_turn": 0.01,
    }

    batch_size: int = option(8192, "batch size", unit="samples")
    num_tables: int = option(26, "number of tables, of one size", unit="tables")
    cardinality: int = option(100_000, "rows of each table", unit="rows")
    embedding_dim: int = option(128, "width of the tables", unit="columns")
    hotness: str = option("mlperf", HOTNESS_HELP)
    id_weights: bool = option(False, "weights of the ids, from 0.5 to 1.5: weighted sums")
    optimizer: str = option(OPTIMIZERS[0], "optimizer of the update", choices=OPTIMIZERS)
    precisions: tuple[str, ...] = option(PRECISIONS, f"dtypes of vectors and gradients, tables being float32: {', '.join(PRECISIONS)}")
    ids: tuple[str, ...] = option(tuple(EXPONENTS), f"distributions of the ids: {', '.join(EXPONENTS)}")
    torch_python: str | None = option(None, "Python with torch and fbgemm-gpu-cpu; without it fbgemm is not measured")
    num_batches: int = option(4, "number of different batches, used in turn", unit="batches")
    seconds_per_turn: float = option(0.5, "time for which lookup, update and both are each repeated in a turn, at least once", unit="s")

    def __post_init__(self):
        super().__post_init__()
        check_words("precisions", self.precisions, PRECISIONS)
        check_words("ids", self.ids, tuple(EXPONENTS))
        hotness_of_tables(self.hotness, self.rows)
        if self.torch_python and not shutil.which(self.torch_python):
            raise UserError(f"--torch_python {self.torch_python}: no such program; expected a Python with torch and fbgemm-gpu-cpu")

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows V of each table."""
        return (self.cardinality,) * self.num_tables

    def workload(self) -> Workload:
        """Return the workload of the lookups."""
        flags = "--cpu", "--batch_size", self.batch_size, "--embedding_dim", self.embedding_dim, "--optimizer", self.optimizer
        return Workload(
            self.rows, options(*flags, "--interaction", "cat"), hotness=hotness_of_tables(self.hotness, self.rows), id_weights=self.id_weights
        )


def main(chosen: BagOptions, report: Report) -> None:
    """Measure and print."""
    from run.devices import configure_tensorflow
    from utils.runtime import prepare_tensorflow

    work = chosen.workload()
    check_fits(_COPIES * 4 * work.dim * sum(work.rows), "the tables of all measured embeddings", available_bytes())
    prepare_tensorflow()
    configure_tensorflow(work.config.device, 0)
    if importlib.util.find_spec("keras_rs") is None:
        report.say("keras-rs is not measured: it is not installed")
    if not chosen.torch_python:
        report.say("fbgemm is not measured: set --torch_python to a Python that has it")
    report.figures["results"] = []
    for dtype in chosen.precisions:
        with scratch(None, 8 * chosen.num_batches * work.batch_size * work.id_rows[-1].stop, "the ids") as folder, ExitStack() as stack:
            contenders = _contenders(chosen, work, dtype, folder, report)
            for one in contenders.values():
                stack.callback(one.close)
            for ids in chosen.ids:
                report.figures["results"].append(_measure(chosen, work, dtype, ids, contenders, report))
            del contenders
        gc.collect()


def _contenders(chosen: BagOptions, work: Workload, dtype: str, folder: Path, report: Report) -> dict[str, Any]:
    """Return the measured embeddings by name: objects with `load`, `turn` and `close`."""
    from benchmarks import bags, copied_rows
    from benchmarks.bag_values import table_values
    from benchmarks.torch_bags import TorchBags

    found: dict[str, Any] = {}
    if chosen.torch_python:  # first, so that an unsuitable Python fails early
        found[FBGEMM] = TorchBags(chosen.torch_python, work, chosen.optimizer, dtype, folder)
    found[PROJECT] = bags.project(work, dtype)
    library = copied_rows.compiled(folder)
    if library is None:
        report.say("copying is not measured: no C++ compiler was found; install g++, or name another one in CXX")
    else:
        tables = [table_values(number, rows, work.dim) for number, rows in enumerate(work.rows)]
        size = work.batch_size * work.dim * len(work.rows) * (4 if dtype == "float32" else 2)
        found[COPYING] = copied_rows.Copying(library, tables, work.id_rows, size)
    found[PLAIN] = bags.plain(work, dtype)
    if importlib.util.find_spec("keras_rs"):
        found[KERAS_RS] = bags.keras_rs(work, dtype)
    return {name: found[name] for name in (PROJECT, COPYING, *PEERS) if name in found}


def _measure(chosen: BagOptions, work: Workload, dtype: str, ids: str, contenders: Mapping[str, Any], report: Report) -> dict[str, Any]:
    batches = [batch.ids for batch in work.batches(ids, chosen.num_batches)]
    weights = [weight_values(number, *some.shape) if chosen.id_weights else None for number, some in enumerate(batches)]
    for one in contenders.values():
        one.load(batches, weights)
    if ids == chosen.ids[0]:
        check_same(contenders)
    seconds: dict[str, dict[str, list[float]]] = {measure: {name: [] for name in contenders} for measure in MEASURES}
    for one in contenders.values():
        one.turn(0)
    for _ in range(chosen.num_rounds):
        for name, one in contenders.items():
            for measure, value in one.turn(chosen.seconds_per_turn).items():
                seconds[measure][name].append(value)
    lists = f"{work.id_rows[-1].stop} a sample{' with weights' if chosen.id_weights else ''}"
    title = f"{dtype} vectors, {ids} ids, {lists}, batch {work.batch_size}, {chosen.optimizer}"
    return {"precision": dtype, "ids": ids, "seconds": seconds} | _show(report, title, seconds)


def check_same(contenders: Mapping[str, Any]) -> None:
    """Raise RuntimeError where vectors differ: between all before an update, and between those of the same rule after it."""
    known: dict[str, tuple[str, float]] = {}
    for name, one in contenders.items():
        if name == COPYING:
            continue
        for group, value in zip(("before an update", f"after an update by {one.rule}"), one.probes(), strict=True):
            other, expected = known.setdefault(group, (name, value))
            if not abs(value - expected) <= _TOLERANCE * max(1, abs(expected)):
                raise RuntimeError(f"vectors of {name} and {other} differ {group}: probes {value} and {expected}")


def _show(report: Report, title: str, seconds: Mapping[str, Seconds]) -> dict[str, Any]:
    """Print a row for each contender: milliseconds, time relative to copying, and speed relative to the best peer; return the figures."""
    figures: dict[str, Any] = {name: {} for name in seconds[BOTH]}
    best = {measure: min((name for name in PEERS if name in times), key=lambda name: median(times, name)) for measure, times in seconds.items()}
    for measure, times in seconds.items():
        for name, facts in figures.items():
            facts[measure] = {
                "ms": 1000 * median(times, name),
                "of_copying": speedup(times, COPYING, name) if COPYING in times else None,
                "of_best_peer": speedup(times, name, best[measure]),
            }
    for name, facts in figures.items():
        facts["spread"] = spread(seconds[BOTH], name)
    columns = ["", *(word for measure in MEASURES for word in (f"{measure}: ms", "/ copying", "of best peer")), "spread"]
    cells = [[name, *(value for measure in MEASURES for value in facts[measure].values()), facts["spread"]] for name, facts in figures.items()]
    report.table(title, columns, cells)
    return {"figures": figures, "best_peer": best}


if __name__ == "__main__":
    sys.exit(run(BagOptions, main, __doc__))
