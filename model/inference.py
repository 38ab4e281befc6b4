"""The inference benchmark: latency and throughput of batches of one size."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from model.evaluator import Evaluator
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
        `latency_summary`'s figures, and `auc` over the `samples` rows that were scored, each counted once.
    """
    seconds: list[float] = []
    logits: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    count, first_pass = 0, True
    while len(seconds) < steps:
        for batch in batches:
            start = time.perf_counter()
            scores = evaluator.logits(batch)
            elapsed = time.perf_counter() - start
            count += 1
            seen(1)
            if first_pass:
                real = int(batch.num_samples)
                logits.append(scores[:real])
                labels.append(batch.labels.numpy()[:real])
            if count > warmup:
                seconds.append(elapsed)
                if len(seconds) == steps:
                    break
        first_pass = False
    metrics = evaluate(np.concatenate(logits), np.concatenate(labels), auc_thresholds)
    return {**latency_summary(batch_size, seconds), "auc": metrics.auc, "samples": metrics.samples}
