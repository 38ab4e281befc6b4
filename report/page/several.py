"""The report of several runs: outcomes side by side, curves overlaid, what differs, differences of metrics."""

from collections.abc import Iterator, Sequence
from typing import Any

from report.log.record import Record
from report.log.thinning import POINTS, finite
from report.page.commands import PREDICTIONS, mode_command, typed
from report.page.curves import loss_key, metric
from report.page.file import page
from report.page.html import NONE, Markup, code, element, interval, note, number, section, table
from report.page.measures import auc_interval, normal_interval
from report.page.outcome import Outcome, outcomes, status
from report.page.plots import Plot, Series, of_curve, plotted
from report.page.row_sections import Rows, data_section, paired_tables

_PATHS = ("log_path", "args_path", "save_checkpoint_path", "restore_checkpoint_path", "tensorboard_path", "predictions_path", "export_path")
_CURVES = (
    ("loss", "Training loss", "log loss"),
    ("samples_per_s", "Throughput", "samples/s"),
    ("step_time_ms", "Time of a step", "ms"),
    ("learning_rate", "Learning rate", "learning rate"),
    ("memory_gib", "Memory of the first worker", "GiB"),
)
_METRICS = (("auc", "AUC"), ("log_loss", "log loss"), ("normalized_entropy", "normalised entropy"), ("calibration", "calibration"))


def report_several(records: Sequence[Record], rows: Rows, most: int = POINTS) -> str:
    """Return the page about several runs; see `single.report_one`."""
    plots = list(_overlaid(records, most))
    shown, data = plots, []
    if rows.dataset:
        body, of_data = data_section(records[0], rows)
        data, plots = [("Data", body)], [*plots, *of_data]
    inside = plotted(shown)
    sections = [
        ("Outcomes", _outcomes(records)),
        ("Curves", section("curves", "Curves", inside if shown else note("None of the runs has a training line."))),
        ("Differences of metrics", _differences(records, rows)),
        ("What differs", _configuration(records)),
        *data,
        ("Next", _next(records, rows)),
    ]
    return page(f"{len(records)} runs", ", ".join(record.name for record in records), sections, plots)


def _outcomes(records: Sequence[Record]) -> Markup:
    splits = list(dict.fromkeys(outcome.split for record in records for outcome in outcomes(record)))
    parts: list[Any] = [table("runs", ["run", "how it ended", "step", "seconds"], [_ending(record) for record in records])]
    columns = ["run", "step", "AUC", "AUC, 95%", "log loss", "log loss, 95%", "normalised entropy", "calibration", "samples"]
    for split in splits:
        found = [(record, _of(record, split)) for record in records]
        parts.append(table(f"{split} split", columns, [_metrics(record.name, outcome) for record, outcome in found if outcome]))
    if not splits:
        parts.append(note("None of the logs has an evaluation: nothing is known about the metrics."))
    return section("outcome", "Outcomes", *parts)


def _ending(record: Record) -> tuple:
    return record.name, status(record)[1], number(record.last_step), number(record.seconds, 6)


def _of(record: Record, split: str) -> Outcome | None:
    return next((outcome for outcome in outcomes(record) if outcome.split == split), None)


def _metrics(name: str, outcome: Outcome) -> tuple:
    figures = outcome.figures
    auc, loss = finite(figures.get("auc")), finite(figures.get("log_loss"))
    return (
        name,
        number(outcome.step),
        number(auc, 6),
        interval(*auc_interval(auc, figures.get("auc_variance"))),
        number(loss, 6),
        interval(*normal_interval(loss, figures.get("log_loss_variance"))),
        number(finite(figures.get("normalized_entropy")), 6),
        number(finite(figures.get("calibration")), 6),
        number(finite(figures.get("samples"))),
    )


def _overlaid(records: Sequence[Record], most: int) -> Iterator[Plot]:
    for key, title, unit in _CURVES:
        series = [
            of_curve(record.name, curve, most, colour=place, dashed=place)
            for place, record in enumerate(records)
            if (curve := record.training.get(loss_key(record) if key == "loss" else key)) is not None and curve.last
        ]
        if series:
            yield Plot(f"runs-{key}".replace("_", "-"), title, unit, series, whole=key != "loss")
        if key == "loss":
            yield from _metric_plots(records, most)


def _metric_plots(records: Sequence[Record], most: int) -> Iterator[Plot]:
    for split in ("valid", "test"):
        for key, label in _METRICS:
            found = [metric(record, split, key, record.name, most, colour=place, dashed=place) for place, record in enumerate(records)]
            series = [Series(one.label, one.x, one.values, colour=one.colour, dashed=one.dashed) for one in found if one]
            if series:
                yield Plot(f"runs-{split}-{key}".replace("_", "-"), f"{split} {label}", label, series)


def _differences(records: Sequence[Record], rows: Rows) -> Markup:
    first = records[0]
    if len(rows.predictions) == len(records):
        return section("differences", "Differences of metrics", *paired_tables([record.name for record in records], rows.predictions))
    command = typed("python", "-m", "report", *(record.span.path.absolute() for record in records), "-o", "report.html")
    files = " ".join(f"--predictions {place}.parquet" for place in range(1, len(records) + 1))
    parts: list[Any] = []
    for split in dict.fromkeys(outcome.split for outcome in outcomes(first)):
        base = _of(first, split)
        lines = [_less(record.name, base, other) for record in records[1:] if (other := _of(record, split))]
        if base and lines:
            parts.append(table(f"{split} split: each run less {first.name}", ["run", "AUC", "log loss", "normalised entropy", "calibration"], lines))
    parts.append(
        note(
            "The runs' own intervals do not tell whether a difference is real, because runs that are tested on the same rows err on the same rows. "
            "Paired intervals need the predictions of each run. Write them, then make the report with them:"
        )
    )
    predict = [code(mode_command(record, "predict", "--predictions_path", f"{place}.parquet")) for place, record in enumerate(records, 1)]
    return section("differences", "Differences of metrics", *parts, *predict, code(f"{command} {files}"))


def _less(name: str, base: Outcome, other: Outcome) -> tuple:
    cells = []
    for key, _ in _METRICS:
        one, two = finite(base.figures.get(key)), finite(other.figures.get(key))
        cells.append(number(None if one is None or two is None else two - one))
    return name, *cells


def _configuration(records: Sequence[Record]) -> Markup:
    parts: list[Any] = []
    for caption, found in (("options", [_flags(record) for record in records]), ("data, model and machine", [_about(record) for record in records])):
        keys = sorted({key for one in found for key in one})
        lines = [(key, *(one.get(key, NONE) for one in found)) for key in keys if len({one.get(key, NONE) for one in found}) > 1]
        if lines:
            parts.append(table(f"{caption} that differ", ["name", *(record.name for record in records)], lines))
        else:
            parts.append(note(f"The {caption} are the same in all runs."))
    return section("what-differs", "What differs", *parts)


def _flags(record: Record) -> dict[str, str]:
    return {key: _words(value) for key, value in record.parameters.items() if key not in _PATHS}


def _about(record: Record) -> dict[str, str]:
    """Return what a log says of its data, model and machine, as texts."""
    keys = (
        "program",
        "mode",
        "model",
        "dataset",
        "workers",
        "device",
        "dtype",
        "operations",
        "processor",
        "steps",
        "steps_per_epoch",
        "batch_size",
        "chosen_by",
    )
    found = {key.replace("_", " "): _words(record.about.get(key)) for key in keys if record.about.get(key) is not None}
    for key, title in (("samples", "rows"), ("fingerprints", "fingerprint"), ("parameters", "parameters")):
        inside = record.about.get(key)
        if inside:
            found |= {f"{title}: {name}": _words(value) for name, value in inside.items()}
    found |= {f"table {one['name']}": f"{one['rows']:,} rows, width {one['dim']}" for one in record.about.get("tables") or ()}
    if (names := record.about.get("numerical")) is not None:
        found["numerical features"] = ", ".join(names) or "none"
    return found


def _words(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "not given" if value is None else str(value)


def _next(records: Sequence[Record], rows: Rows) -> Markup:
    parts = []
    for record in records:
        parts += [element("p", f"All about {record.name}:"), code(typed("python", "-m", "report", record.span.path.absolute(), "-o", "report.html"))]
    return section(
        "next",
        "What to type next",
        *parts,
        note(f"With --predictions {PREDICTIONS} --dataset_path DATASET --by FEATURE also what needs rows.") if not rows.by else None,
    )
