"""`--mode inference`: latency and throughput of a model, by batch size."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.compilation import compiled, on_gpu
from model.sharded_model import ShardedModel
from run.native_engine import computes_alike
from run.prepare import Prepared
from run.scoring import Batches, reader_of, shown
from run.weights import model_of
from training.device_batch import TensorBatch
from training.evaluator import Evaluator, Scores
from training.native_evaluator import NativeEvaluator
from utils.distributed import World
from utils.metrics.binary import evaluate
from utils.timing import latency_summary

_ESTIMATED_FROM = 3  # batches
STEPS = 1000  # batches measured of each size where --max_steps says nothing


def infer(run: Prepared) -> None:
    """Measure every batch size; say and log the figures."""
    options, model = run.config.training, model_of(run)
    evaluator = _evaluator(run, model)
    sizes = options.inference_benchmark_batch_sizes or (run.config.data.valid_batch_size,)
    steps = options.inference_benchmark_steps or (options.max_steps if options.max_steps != -1 else STEPS)
    figures: dict = {}
    for size in sizes:
        with run.console.progress(steps + options.benchmark_warmup_steps, f"inference, batch {size}", "batches") as progress:
            batches = Batches(reader_of(run, model, "test", size))
            limit = Limit(steps, options.inference_seconds, lambda text: run.console.say(f"batch {size}: {text}"))  # noqa: B023 - called in this turn
            warmup, after = options.benchmark_warmup_steps, _logging_steps(run, size, progress.advance)
            result = benchmark(evaluator, batches, size, warmup, limit, options.auc_thresholds, after)
        if not run.world.first:
            continue
        figures |= result
        if len(sizes) > 1:
            figures |= {f"{name}_batch_{size}": value for name, value in result.items()}
        run.console.say(
            f"batch {size}: {result['mean_inference_throughput']:,.0f} samples/s, latency mean {1e3 * result['mean_inference_latency']:.3f} ms, "
            + ", ".join(f"p{q} {1e3 * result[f'p{q}_inference_latency']:.3f} ms" for q in (90, 95, 99))
            + f" over {result['inference_batches']:,} batches; AUC {shown(result['auc'])} over {result['samples']:,} samples"
        )
    run.log.log((), figures)


def _logging_steps(run: Prepared, size: int, advance: Callable[[int], None]) -> Callable[[int, float], None]:
    """Called with the number of a batch, from 1, and its seconds."""

    def after(number: int, seconds: float) -> None:
        advance(1)
        if run.config.run.log_steps and number > run.config.training.benchmark_warmup_steps:
            run.log.log((1, number), {"batch_samplesps": size / seconds})

    return after


def _evaluator(run: Prepared, model: ShardedModel) -> Evaluator:
    """The C++ scorer where it can stand for TensorFlow: it is the faster at every size (docs/performance.md)."""
    whole = run.world.size == 1 and len({local.shard.table for local in model.embedding.shards}) == len(model.embedding.shards)
    if not whole or compiled(run.config.device.xla).dense or on_gpu() or not computes_alike(run.config):
        return Evaluator(model, run.config.device.xla)
    run.console.say("scored by the C++ scorer (DLRM_NATIVE_OPS=0 for TensorFlow)")
    return NativeEvaluator(model, run.config.model, len(run.spec.numerical))


@dataclass
class Limit:
    """How many batches are measured: so many, or as many as the seconds allow. It is settled, alike on all workers, after the first ones.

    Args:
        steps: at most.
        seconds: for all of them.
        say: is told the estimate, where it is long.
    """

    steps: int
    seconds: float
    say: Callable[[str], None]

    def settle(self, world: World, measured: Sequence[float]) -> None:
        """Look at the seconds of the first batches."""
        each = max(world.everyone(sorted(measured)[len(measured) // 2], "inference_estimate"))
        allowed = max(int(self.seconds / each), len(measured))
        if allowed < self.steps:
            self.say(
                f"{self.steps:,} batches would take {each * self.steps:,.0f} s; {allowed:,} are measured, which take {each * allowed:,.0f} s "
                "(--inference_seconds, --max_steps)"
            )
            self.steps = allowed


def benchmark(
    evaluator: Evaluator,
    batches: Iterable[TensorBatch],
    batch_size: int,
    warmup: int,
    limit: Limit,
    auc_thresholds: int | None,
    after: Callable[[int, float], None] = lambda number, seconds: None,
) -> Mapping[str, Any]:
    """Measure batches of one size, repeating the split where it is short.

    A batch's latency runs from the batch on the device to its logits on the host, so the device has finished.

    Args:
        evaluator: of the model.
        batches: of `batch_size` samples; an iterable that can be started again.
        warmup: first batches, not measured.
        limit: of the batches to measure.
        auc_thresholds: see `metrics.evaluate`.
        after: called after every batch with its number, from 1, and its seconds.

    Returns:
        `latency_summary`'s figures, and on the first worker `auc` over the `samples` rows that were scored, each counted once.
    """
    seconds: list[float] = []
    collected = Scores(evaluator.world)
    count, first_pass = 0, True
    while len(seconds) < limit.steps:
        for batch in batches:
            start = time.perf_counter()
            scores = evaluator.logits(batch)
            elapsed = time.perf_counter() - start
            count += 1
            after(count, elapsed)
            if first_pass:
                collected.add(scores, batch.host.labels, batch.host.num_samples)
            if count > warmup:
                seconds.append(elapsed)
                if len(seconds) == min(_ESTIMATED_FROM, limit.steps):
                    limit.settle(evaluator.world, seconds)
                if len(seconds) == limit.steps:
                    break
        first_pass = False
    merged = collected.merged()
    quality = {}
    if merged is not None:
        metrics = evaluate(merged.logits, merged.labels, auc_thresholds)
        quality = {"auc": metrics.auc, "samples": metrics.samples}
    return {**latency_summary(batch_size, seconds), "inference_batches": len(seconds), **quality}
