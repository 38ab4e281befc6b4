"""`--mode inference`: latency and throughput of a model, by batch size."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from run.prepare import Prepared
from run.scoring import Batches, reader_of, shown
from run.weights import model_of
from training.device_batch import TensorBatch
from training.evaluator import Evaluator, Scores
from utils.metrics.binary import evaluate
from utils.timing import latency_summary

STEPS = 1000  # batches measured of each size where --max_steps says nothing


def infer(run: Prepared) -> None:
    """Measure every batch size; say and log the figures."""
    options, model = run.config.training, model_of(run)
    evaluator = Evaluator(model, run.config.device.xla)
    sizes = options.inference_benchmark_batch_sizes or (run.config.data.valid_batch_size,)
    steps = options.max_steps if options.max_steps != -1 else STEPS
    figures: dict = {}
    for size in sizes:
        with run.console.progress(steps + options.benchmark_warmup_steps, f"inference, batch {size}", "batches") as progress:
            batches = Batches(reader_of(run, model, "test", size))
            result = benchmark(evaluator, batches, size, options.benchmark_warmup_steps, steps, options.auc_thresholds, progress.advance)
        if not run.world.first:
            continue
        figures |= result
        if len(sizes) > 1:
            figures |= {f"{name}_batch_{size}": value for name, value in result.items()}
        run.console.say(
            f"batch {size}: {result['mean_inference_throughput']:,.0f} samples/s, latency mean {1e3 * result['mean_inference_latency']:.3f} ms, "
            + ", ".join(f"p{q} {1e3 * result[f'p{q}_inference_latency']:.3f} ms" for q in (90, 95, 99))
            + f"; AUC {shown(result['auc'])} over {result['samples']:,} samples"
        )
    run.log.log((), figures)


def benchmark(
    evaluator: Evaluator,
    batches: Iterable[TensorBatch],
    batch_size: int,
    warmup: int,
    steps: int,
    auc_thresholds: int | None,
    seen: Callable[[int], None] = lambda count: None,
) -> Mapping[str, Any]:
    """Measure batches of one size, repeating the split where it is short.

    A batch's latency runs from the batch on the device to its logits on the host, so the device has finished.

    Args:
        evaluator: of the model.
        batches: of `batch_size` samples; an iterable that can be started again.
        warmup: first batches, not measured.
        steps: batches to measure.
        auc_thresholds: see `metrics.evaluate`.
        seen: called with 1 after every batch.

    Returns:
        `latency_summary`'s figures, and on the first worker `auc` over the `samples` rows that were scored, each counted once.
    """
    seconds: list[float] = []
    collected = Scores(evaluator.world)
    count, first_pass = 0, True
    while len(seconds) < steps:
        for batch in batches:
            start = time.perf_counter()
            scores = evaluator.logits(batch)
            elapsed = time.perf_counter() - start
            count += 1
            seen(1)
            if first_pass:
                collected.add(scores, batch.host.labels, batch.host.num_samples)
            if count > warmup:
                seconds.append(elapsed)
                if len(seconds) == steps:
                    break
        first_pass = False
    merged = collected.merged()
    quality = {}
    if merged is not None:
        metrics = evaluate(*merged, auc_thresholds)
        quality = {"auc": metrics.auc, "samples": metrics.samples}
    return {**latency_summary(batch_size, seconds), **quality}
