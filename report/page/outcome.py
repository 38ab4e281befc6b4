"""The first screen of a report: how a run ended, its metrics with intervals, what ran."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from report.log.record import Record
from report.log.runs import whole
from report.log.thinning import finite
from report.page.html import Markup, described, element, interval, joined, number, section, size, table
from report.page.measures import auc_interval, normal_interval

_BY_GROUP = re.compile(r"(map|ndcg|recall|mrr|group_auc|gauc)(_at_\d+)?$")
# Names of a form, or of other programs, for the figures that this program names otherwise.
OTHER_NAMES = {"auc_val": "auc", "auc_roc": "auc", "loss_val": "log_loss", "validation_loss": "log_loss", "test_loss": "log_loss"}


@dataclass(frozen=True)
class Outcome:
    """The metrics of a run's last evaluation of a split.

    Attributes:
        split: the split.
        step: the step of the weights; None where the log does not tell.
        figures: auc, log_loss, normalized_entropy, calibration, samples, positives and the variances, those that the log has.
        final: True for the test at the end.
    """

    split: str
    step: int | None
    figures: Mapping[str, Any]
    final: bool


def outcomes(record: Record) -> list[Outcome]:
    """Return the last evaluation of each split, or that of the tested weights, the test split first."""
    found = {}
    tested = record.summaries.get("test", {}).get("step")
    for split, last in record.summaries.items():
        highest = record.highest.get(split, last)
        summary = highest if highest.get("step") == tested else last  # of the weights that were tested, where those were the best
        found[split] = Outcome(split, summary.get("step"), summary, bool(summary.get("final")))
    final = record.final or {}
    if "test" not in found:
        figures = {OTHER_NAMES.get(key, key): value for key, value in final.items() if key in OTHER_NAMES or key in ("auc", "samples")}
        if record.mode == "train":
            figures.pop("samples", None)  # those that were trained on
        if "auc" in figures or "log_loss" in figures:
            found["test"] = Outcome("test", whole(final.get("tested_step")) or record.last_step, figures, True)
    for split, key in record.metrics:
        if split not in found and (curve := record.metrics[split, key]).last:
            figures = {other: last.last.value for (of, other), last in record.metrics.items() if of == split and last.last}
            found[split] = Outcome(split, curve.last.step, figures, False)
    return sorted(found.values(), key=lambda outcome: (outcome.split != "test", not outcome.final, outcome.split))


def by_group(record: Record) -> list[tuple[str, float]]:
    """Return the metrics by group of the last line, or of the last evaluation."""
    final = record.final or {}
    found = [(key, value) for key, value in final.items() if _BY_GROUP.match(key) and finite(value) is not None]
    if found:
        return found
    return [(f"{split} {key}", curve.last.value) for (split, key), curve in record.metrics.items() if _BY_GROUP.match(key) and curve.last]


def status(record: Record) -> tuple[str, str]:
    """Return how a run ended: "good", "stopped" or "bad", and a sentence."""
    step = record.last_step
    reached = "" if step is None else f" at step {step:,}"
    planned = record.about.get("steps")
    if record.fault is not None:
        message = " ".join(str(record.fault.get("message")).split())
        if record.fault.get("stopped"):
            return "stopped", f"Stopped{reached} by a signal ({message}); it can be resumed."
        return "bad", f"Ended by an error{reached}: {message}"
    if record.final is not None:
        if record.mode != "train":
            return "good", "Ended well."
        if step is not None and planned is not None and step < planned:
            return "good", f"Ended well{reached}, before the {planned:,} steps that were planned."
        return "good", f"Ended well{reached}."
    return "bad", f"The log ends{reached} without final figures: the process was killed, or is still running."


def first_screen(record: Record) -> Markup:
    """Return the outcome, how sure it is, and what ran."""
    kind, sentence = status(record)
    found = outcomes(record)
    mark = {"good": "✓ ", "stopped": "■ ", "bad": "✗ "}[kind]
    parts = [element("p", element("span", mark, aria_hidden="true"), sentence, class_=f"status {kind}")]
    if record.cut:
        lines = "line was" if record.cut == 1 else "lines were"
        parts.append(element("p", f"{record.cut:,} {lines} cut or cannot be read, and left out.", class_="note"))
    if not found:
        parts.append(element("p", "The log has no evaluation: nothing is known about the metrics.", class_="note"))
    parts += [_cards(outcome, "" if place else "first") for place, outcome in enumerate(found)]
    if groups := by_group(record):
        rows = [(key.replace("_at_", "@").replace("_", " "), number(value, 6)) for key, value in groups]
        parts.append(table("metrics by group", ["metric", "value"], rows))
    return section("outcome", "Outcome", *parts, element("h3", "What ran"), described(_facts(record)))


def _cards(outcome: Outcome, kind: str) -> Markup:
    figures = outcome.figures
    samples, positives = finite(figures.get("samples")), finite(figures.get("positives"))
    cards = [
        _card("AUC", figures.get("auc"), auc_interval(figures.get("auc"), figures.get("auc_variance"))),
        _card("log loss", figures.get("log_loss"), normal_interval(figures.get("log_loss"), figures.get("log_loss_variance"))),
        _card("normalised entropy", figures.get("normalized_entropy"), None),
        _card("calibration", figures.get("calibration"), None),
        _card("samples", samples, None),
        _card("click rate", positives / samples if samples and positives is not None else None, None),
    ]
    when = "" if outcome.step is None else f", step {outcome.step:,}"
    title = f"{outcome.split} split{when}"
    return element("div", element("h3", title), element("dl", *(card for card in cards if card), class_=f"cards {kind}".strip()))


def _card(name: str, value: Any, limits: tuple | None) -> Markup | None:
    value = finite(value)
    if value is None:
        return None
    sure = None
    if limits and limits[0] is not None:
        sure = element("span", "95%: ", interval(*limits), class_="sure")
    return element("div", element("dt", name), element("dd", number(value), sure))


def _facts(record: Record) -> Iterator[tuple[str, Any]]:
    about, flags = record.about, record.parameters
    program = about.get("program")
    yield "program", f"{program or 'unknown'}, --mode {record.mode}"
    yield "model", about.get("model") or flags.get("interaction")
    parameters = about.get("parameters")
    if parameters:
        yield "parameters", joined(_separated(joined([number(count), f" {name}"]) for name, count in parameters.items()))
    yield "dataset", about.get("dataset") or flags.get("dataset_path")
    samples = about.get("samples")
    if samples:
        yield "rows", joined(_separated(joined([f"{split} ", number(count)]) for split, count in samples.items()))
    yield "batch", joined([number(batch), " samples"]) if (batch := finite(about.get("batch_size") or flags.get("batch_size"))) else None
    workers = about.get("workers")
    if workers is not None:
        yield "workers", joined([number(workers), f" on {about.get('device')}, {about.get('dtype')}, {about.get('operations')}"])
    yield "processor", about.get("processor")
    if record.began:
        yield "began", f"{datetime.fromtimestamp(record.began, UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield "ran for", joined([number(record.seconds, 4), " s"])
    starts = len(record.span.stretches)
    if starts > 1:
        yield "starts", joined([number(starts), " (it was resumed)"])
    throughput = finite((record.final or {}).get("throughput")) or _last(record, "samples_per_s")
    yield "throughput", joined([number(throughput), " samples/s"]) if throughput else None
    memory = record.tables.get("memory_gib")
    if memory:
        yield "memory", joined(_separated(size(one * 2**30) for one in memory if finite(one) is not None))
    skipped, out_of_range = _last(record, "skipped_steps"), _last(record, "ids_out_of_range")
    yield "skipped steps", number(skipped) if skipped else None
    yield "ids out of range", number(out_of_range) if out_of_range else None
    yield "log", str(record.span.path.absolute())
    yield "checkpoints", str(flags["save_checkpoint_path"]) if flags.get("save_checkpoint_path") else None
    yield "run id", record.span.identity or None


def _last(record: Record, key: str) -> float | None:
    curve = record.training.get(key)
    return curve.last.value if curve and curve.last else None


def _separated(parts: Any) -> list[Any]:
    found = list(parts)
    return [one for place, part in enumerate(found) for one in ((", ", part) if place else (part,))]
