"""`--mode eval`: the metrics of the test split for a restored model."""

import math
import time

from run.formed_log import EvaluationLog, form_of, published
from run.prepare import Prepared
from run.scoring import metrics_of
from run.weights import model_of
from training.evaluations import other_figures
from training.evaluator import Evaluator
from training.position import Position
from utils.metrics.summary import EVALUATION, entry


def evaluate(run: Prepared) -> None:
    """Score the test split; print and log its metrics."""
    model = model_of(run)
    form = form_of(run.config)
    as_published = EvaluationLog(run.log, form, run.world) if form and not form.plain else None
    start = time.perf_counter()
    metrics = metrics_of(run, model, Evaluator(model, run.config.device.xla), "test", as_published and as_published.add)
    # The time spent on the extra log lines is no part of the throughput.
    seconds = time.perf_counter() - start - (as_published.seconds if as_published else 0)
    figures = {"auc": metrics.auc, "test_loss": metrics.log_loss, "samples": metrics.samples, "average_test_throughput": metrics.scored / seconds}
    figures["avg_inference_latency"] = seconds / math.ceil(metrics.scored / run.config.data.valid_batch_size)  # of a batch
    step, position = (run.checkpoint.step, run.checkpoint.manifest.get("position") or {}) if run.checkpoint else (0, {})
    if as_published:
        as_published.end(metrics)
    elif form:
        run.log.log((step,), published(form, metrics))
    run.log.log(EVALUATION, entry("test", metrics, (Position.last_epoch(position), step), final=True))
    run.log.log((), figures | other_figures(metrics) | (published(form, metrics) if form else {}))
