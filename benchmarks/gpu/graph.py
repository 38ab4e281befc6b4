"""Checks of a step's graph for a GPU, without a GPU.

    ./scripts/gpu_graph [CASE ...]

It traces the training step of the 4.2-billion-parameter model (its tables cut to a few rows) at batch 65,536 as it is built for a GPU, for every
optimizer and precision, and the graph of scores; on one worker and on two. It fails where an operation has no GPU kernel, where a tensor of more than
1 KB is copied between host and device, or where more operations are launched outside the compiled parts than `LIMITS` allows. CASE selects cases by
name ("sgd, float16").
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from run.devices import configure_tensorflow
from utils import distributed
from utils.commands import run_command
from utils.config.device import DeviceConfig
from utils.errors import UserError
from utils.runtime import prepare_tensorflow

if TYPE_CHECKING:
    from benchmarks.gpu.operations import Findings

LIMITS = {"sgd": 80, "adam": 110}  # operations outside the compiled parts
TABLES, BATCH, NUMERICAL = 26, 65536, 13
ROWS = 64
LISTS = (*(2 if i % 3 else 3 for i in range(TABLES - 2)), 1, 1)  # ids a sample of each feature; lists of two are averaged


class Case(NamedTuple):
    """A model and its training flags; `limit` is a key of LIMITS, `hosted` the number of tables in host memory."""

    name: str
    flags: tuple[str, ...]
    limit: str | None = None
    hosted: int = 0
    scores: bool = False  # trace the graph of scores instead of the step
    lists: bool = False  # LISTS ids a sample instead of one


AMP = ("--xla", "--amp")
BFLOAT16 = ("--xla", "--amp", "--amp_dtype", "bfloat16")
SLICED = ("--column_slice_threshold", str(64 * ROWS))
REPLICATED = ("--data_parallel_threshold", str(128 * ROWS))


def cases(workers: int) -> Iterator[Case]:
    """Yield the cases that are traced on this number of workers."""
    for name, flags in (("float16", AMP), ("bfloat16", BFLOAT16), ("float32", ("--xla",))):
        for optimizer in ("sgd", "adam"):
            yield Case(f"{optimizer}, {name}", (*flags, "--optimizer", optimizer), limit=optimizer)
        yield Case(f"scores, {name}", flags, scores=True)
    for optimizer in ("adagrad", "rowwise_adagrad", "ftrl", "rmsprop"):
        yield Case(f"{optimizer}, bfloat16", (*BFLOAT16, "--optimizer", optimizer))
    yield Case("sgd with momentum, bfloat16", (*BFLOAT16, "--momentum", "0.9"))
    yield Case("sgd, float16, a scale that finds itself", (*AMP, "--loss_scale", "dynamic"))
    regularised = ("--dropout", "0.1", "--embedding_l2", "0.01", "--mlp_l2", "0.01")
    yield Case("adam, float16, regularised", (*AMP, "--optimizer", "adam", *regularised), limit="adam")
    yield Case("sgd, float32, regularised, without XLA", regularised)
    for kind in ("cross", "cat"):
        yield Case(f"adam, float16, --interaction {kind}", (*AMP, "--optimizer", "adam", "--interaction", kind), limit="adam")
    yield Case("sgd, float32, --interaction cross, without XLA", ("--interaction", "cross"))
    parallel = ("--interaction", "cross", "--structure", "parallel", "--cross_layer_projection_dim", "0")
    yield Case("adam, float16, parallel cross layers of full rank", (*AMP, "--optimizer", "adam", *parallel), limit="adam")
    factored = ("--interaction", "fm", "--linear_optimizer", "adam", "--top_mlp_dims", "64,1")
    yield Case("adam, float16, DeepFM", (*AMP, "--optimizer", "adam", *factored))
    streams = ("--interaction", "finalmlp", "--stream1_dims", "64,32", "--stream2_dims", "32", "--gate_dims", "16", "--num_heads", "4")
    yield Case("adam, float16, FinalMLP", (*AMP, "--optimizer", "adam", *streams))
    yield Case("sgd, float32, FinalMLP, without XLA", streams)
    whole = ("--dense_update_rows", str(ROWS), "--table_l2", "0.01")
    for optimizer in ("sgd", "adam"):
        yield Case(f"{optimizer}, float16, whole tables with decay", (*AMP, "--optimizer", optimizer, *whole))
    yield Case("adam, float16, batch normalisation", (*AMP, "--optimizer", "adam", "--batch_norm"), limit="adam" if workers == 1 else None)
    yield Case("sgd, float32, batch normalisation, without XLA", ("--batch_norm", "--dropout", "0.1", "--clip_norm", "1"))
    yield Case("sgd, float32, without XLA", ())
    yield Case("adam, bfloat16, without XLA", ("--amp", "--amp_dtype", "bfloat16", "--optimizer", "adam"))
    yield Case("adam, bfloat16, 8 slices", (*BFLOAT16, "--optimizer", "adam", "--gradient_slices", "8"))
    yield Case("sgd, bfloat16, 5 tables in host memory", BFLOAT16, hosted=5)
    yield Case("adam, bfloat16, 5 tables in host memory", (*BFLOAT16, "--optimizer", "adam"), hosted=5)
    yield Case("sgd, bfloat16, lists of ids", BFLOAT16, lists=True)
    yield Case("adam, float16, lists of ids", (*AMP, "--optimizer", "adam"), lists=True)
    yield Case("rowwise_adagrad, bfloat16, lists of ids", (*BFLOAT16, "--optimizer", "rowwise_adagrad"), lists=True)
    yield Case("scores, float16, lists of ids", AMP, scores=True, lists=True)
    if workers > 1:
        yield Case("sgd, bfloat16, lists of ids, all tables replicated", (*BFLOAT16, *REPLICATED), lists=True)
        for optimizer in ("sgd", "adam", "rowwise_adagrad"):
            yield Case(f"{optimizer}, bfloat16, tables cut by columns", (*BFLOAT16, "--optimizer", optimizer, *SLICED))
            yield Case(f"{optimizer}, bfloat16, all tables replicated", (*BFLOAT16, "--optimizer", optimizer, *REPLICATED))


def main() -> None:
    """Trace and check every case. Raises SystemExit with 1 where a case has problems."""
    os.environ |= {"DLRM_BUILD_FOR": "GPU"}
    prepare_tensorflow()
    world = distributed.join()
    chosen = [case for case in cases(world.size) if not sys.argv[1:] or case.name in sys.argv[1:]]
    if unknown := set(sys.argv[1:]) - {case.name for case in cases(2)}:
        raise UserError(f"{', '.join(sorted(unknown))}: no such case; expected some of {'; '.join(case.name for case in cases(2))}")
    configure_tensorflow(DeviceConfig(cpu=True), 0)
    from benchmarks.gpu.kernels import load
    from benchmarks.gpu.operations import findings

    version, kernels = load()
    say = print if world.first else lambda *_: None
    say(f"{world.size} worker{'s' * (world.size > 1)}, batch {BATCH:,}, {TABLES} tables; kernels of TensorFlow {version}\n")
    say("| case | operations | compiled parts | without a kernel | over 1 KB through host memory |\n|---|---|---|---|---|")
    wrong = []
    for case in chosen:
        found = findings(traced(case, world), kernels)
        say(f"| {case.name} | {found.count} | {found.compiled} | {len(found.without_kernel)} | {len(found.transfers)} |")
        wrong += [f"{case.name}: {line}" for line in problems(case, found)]
    say("\n".join(["", *wrong]) if wrong else "\nno problems were found")
    if wrong:
        raise SystemExit(1)


def problems(case: Case, found: "Findings") -> Iterator[str]:
    """Yield the problems of a case's graph."""
    yield from (f"no GPU kernel for {line}" for line in found.without_kernel)
    yield from (f"copies {line}" for line in found.transfers)
    if found.hosted and not case.hosted:
        yield f"on the host: {found.hosted[0]}"
    if case.limit and found.count > LIMITS[case.limit]:
        yield f"{found.count} operations, expected at most {LIMITS[case.limit]}: {dict(found.operations.most_common())}"


def traced(case: Case, world: distributed.World):
    """Return the graph of a case."""
    import numpy as np

    from model.build import Precision, build_model
    from model.embedding.table import MEAN, SUM, Feature
    from run.devices import compute_dtype
    from run.placing import place_tables
    from run.tables import tables_of
    from training.build import build_trainer
    from training.device_batch import to_device
    from training.evaluator import Evaluator
    from utils.dialects.command_line import parse

    config = parse(["--dataset_type", "synthetic", "--batch_size", str(BATCH), *case.flags], "")
    names = [f"cat_{i}" for i in range(TABLES)]
    features = [Feature(name, name, name, h, MEAN if h == 2 else SUM) for name, h in zip(names, LISTS, strict=True)] if case.lists else ()
    placement = place_tables(config, tables_of(config, names, [ROWS] * TABLES), world.size, 1 << 30, features=features)
    placement = replace(placement, hosted=tuple(frozenset(shards[: case.hosted]) for shards in placement.workers))
    dtype = compute_dtype(config.device, "GPU")
    model = build_model(config.model, placement, world, NUMERICAL, 0, Precision(dtype, config.device.xla))
    view, local = model.embedding.view, BATCH // world.size
    read, own = (sum(placement.features[place].hotness for place in some) for some in (view.global_features, view.local_features))

    class Blank(NamedTuple):
        numerical: np.ndarray = np.zeros((local, NUMERICAL), np.float16)
        ids: np.ndarray = np.zeros((read, BATCH), np.int32)
        local_ids: np.ndarray = np.zeros((own, local), np.int32)
        labels: np.ndarray = np.zeros(local, np.uint8)
        weights: np.ndarray = np.ones(local, np.float32)
        num_samples: int = BATCH
        out_of_range: int = 0

    inputs = to_device(Blank()).inputs
    return (Evaluator(model, config.device.xla) if case.scores else build_trainer(config, model, dtype)).graph(inputs)


if __name__ == "__main__":
    sys.exit(run_command(main, "gpu_graph"))
