"""The inference benchmark: latency and throughput of batches of one size."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from model.evaluator import Evaluator, Scores
from model.metrics import evaluate
from model.trainer import TensorBatch
from utils.timing import latency_summary


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
                collected.add(scores, batch.labels.numpy(), int(batch.num_samples))
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
