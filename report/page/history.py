"""Sections about a run's course: the time line, its options, what to type next."""

from collections.abc import Iterator
from typing import Any

from report.log.record import Record
from report.page.commands import PREDICTIONS, dataset_of, mode_command, report_command, resume_command
from report.page.html import Markup, code, element, note, number, section, table
from report.page.plots import Plot, Series, figure

_KINDS = {"start": "start", "resume": "resume", "checkpoint": "checkpoint", "fault": "fault", "stopped": "stopped", "end": "end"}
_MOST_ROWS = 200


def time_line(record: Record) -> tuple[Markup, list[Plot]]:
    """Return the section about saves, faults and resumes."""
    found = [kind for kind in _KINDS if any(event.kind == kind for event in record.events)]
    series = []
    for row, kind in enumerate(found):
        seconds = [event.seconds for event in record.events if event.kind == kind]
        series.append(Series(kind, seconds, [row] * len(seconds), points=True))
    plot = Plot(
        "time-line",
        "Saves, faults and resumes",
        "",
        series,
        "seconds since the run began",
        "events",
        note="Pauses between its processes are included.",
    )
    shown = record.events if len(record.events) <= _MOST_ROWS else [event for event in record.events if event.kind != "checkpoint"][:_MOST_ROWS]
    rows = [(_KINDS[event.kind], number(event.seconds, 6), number(event.step), event.text) for event in shown]
    left = len(record.events) - len(shown) + record.events_left_out
    parts = [figure(plot), table("events", ["event", "seconds", "step", "what happened"], rows)]
    if left:
        parts.append(note(f"{left:,} more events are in the log."))
    return section("time-line", "Time line", *parts), [plot]


def options(record: Record) -> Markup | None:
    """Return the section with all flags, folded; None where the log has none."""
    if not record.parameters:
        return None
    rows = [(key, _shown(value)) for key, value in sorted(record.parameters.items())]
    folded = element(
        "details", element("summary", f"{len(rows)} flags of the last start"), table("flags", ["flag", "value"], rows, hidden_caption=True)
    )
    return section("options", "Options", folded)


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def next_steps(record: Record) -> Markup:
    """Return the section with the commands that follow."""
    parts = [one for text, command in _advice(record) for one in (element("p", text), code(command) if command else None)]
    return section("next", "What to type next", *parts)


def _advice(record: Record) -> Iterator[tuple[str, str]]:
    trained = record.mode == "train"
    if trained and record.final is None:
        yield "Resume the run from its newest checkpoint, where it wrote one:", resume_command(record)
    if any(curve.undefined for key, curve in record.training.items() if key == "loss"):
        yield "The loss was not finite: lower --learning_rate, and look at docs/worse_than_expected.md.", ""
    loss = record.metrics.get(("valid", "auc"))
    if trained and record.final is not None and loss is not None and loss.count > 2 and loss.last:
        best = max(loss.points(), key=lambda point: point.value)
        if best.step == loss.last.step:
            yield "The last evaluation is the best so far: more steps may raise the AUC. Train with more --epochs.", ""
    if "test" not in record.summaries:
        yield "Score every row of the test split; its log has what calibration and ROC need:", mode_command(record, "eval")
    if not record.importance:
        yield "Rank the features by importance:", mode_command(record, "explain")
    yield "Write the predictions of the test split:", mode_command(record, "predict", "--predictions_path", PREDICTIONS)
    with_rows = report_command(record, "--predictions", PREDICTIONS, "--dataset_path", dataset_of(record), "--by", feature_of(record))
    yield "Make this report with what needs rows: metrics by value of a feature, the data, drift:", with_rows
    yield "Export the model for a server:", mode_command(record, "export", "--export_path", "repository")


def feature_of(record: Record) -> str:
    """Return the name of a feature, for the example of a command."""
    names = [feature["name"] for feature in record.about.get("features") or ()]
    return next(iter([*names, *(record.about.get("numerical") or ())]), "FEATURE")
