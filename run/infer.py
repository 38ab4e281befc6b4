"""`--mode inference`: latency and throughput of a model for each batch size."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.compilation import compiled, on_gpu
from model.sharded_model import ShardedModel
from run.native_engine import native_precision
from run.prepare import Prepared
from run.scoring import Batches, reader_of, shown
from run.weights import model_of
from training.device_batch import TensorBatch
from training.evaluator import Evaluator, Scores
from training.native_evaluator import NativeEvaluator
from utils.distributed import World
from utils.metrics.binary import evaluate
from utils.timing import latency_summary

_ESTIMATED_FROM = 3  # batches measured before the time of all is estimated
STEPS = 1000  # batches measured of each size by default


def infer(run: Prepared) -> None:
    """Measure every batch size; print and log the figures."""
    options, model = run.config.training, model_of(run)
    evaluator = _evaluator(run, model)
    sizes = options.inference_benchmark_batch_sizes or (run.config.data.valid_batch_size,)
    steps = options.inference_benchmark_steps or (options.max_steps if options.max_steps != -1 else STEPS)
    figures: dict = {}
    for size in sizes:
        with run.console.progress(steps + options.benchmark_warmup_steps, f"inference, batch {size}", "batches") as progress:
            batches = Batches(reader_of(run, model, "test", size), model)
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
    """Return a callback for the number of a batch, from 1, and its seconds; it advances the progress bar and logs measured steps."""

    def after(number: int, seconds: float) -> None:
        advance(1)
        if run.config.run.log_steps and number > run.config.training.benchmark_warmup_steps:
            run.log.log((1, number), {"batch_samplesps": size / seconds})

    return after


def _evaluator(run: Prepared, model: ShardedModel) -> Evaluator:
    """Return the evaluator: the C++ scorer where it can replace TensorFlow, as it is faster at every size (docs/performance.md)."""
    whole = run.world.size == 1 and len({local.shard.table for local in model.embedding.shards}) == len(model.embedding.shards)
    precision = native_precision(run.config)
    if not whole or compiled(run.config.device.xla).dense or on_gpu() or precision is None:
        return Evaluator(model, run.config.device.xla)
    run.console.say(f"scored by the C++ scorer in {precision} (DLRM_NATIVE_OPS=0 for TensorFlow)")
    return NativeEvaluator(model, run.config.model, len(run.spec.numerical), precision)


@dataclass
class Limit:
    """A limit on the measured batches: a number of batches, reduced to what the time allows after the first ones. All workers agree on it.

    Args:
        steps: maximum number of batches.
        seconds: time for all of them.
        say: called with the estimate where the time is too short for all.
    """

    steps: int
    seconds: float
    say: Callable[[str], None]

    def settle(self, world: World, measured: Sequence[float]) -> None:
        """Reduce the limit where the seconds of the first batches predict too long a measurement."""
        each = max(world.everyone(sorted(measured)[len(measured) // 2], "inference_estimate"))
        allowed = max(int(self.seconds / each), len(measured))
        if allowed < self.steps:
            self.say(
                f"{self.steps:,} batches would take {each * self.steps:,.0f} s; only {allowed:,} are measured, in {each * allowed:,.0f} s "
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
    """Measure batches of one size, repeating the split where it has too few.

    The latency of a batch runs from the batch on the device to its logits on the host, so it includes all of the device's work.

    Args:
        evaluator: evaluator of the model.
        batches: batches of `batch_size` samples; the iterable can be iterated repeatedly.
        batch_size: samples in a batch.
        warmup: number of first batches that are not measured.
        limit: limit on the measured batches.
        auc_thresholds: see `metrics.evaluate`.
        after: called after every batch with its number, from 1, and its seconds.

    Returns:
        The figures of `latency_summary`, and on the first worker `auc` over the `samples` scored rows, each counted once.
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
                collected.add(scores, batch.host)
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
        metrics = evaluate(merged.logits, merged.labels, auc_thresholds, weights=merged.weights)
        quality = {"auc": metrics.auc, "samples": metrics.samples}
    return {**latency_summary(batch_size, seconds), "inference_batches": len(seconds), **quality}
