"""Sections that need rows, not only the log: metrics by value of a feature, the data, and paired differences of two models."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from report.log.record import Record
from report.page.commands import PREDICTIONS, dataset_of, mode_command, report_command
from report.page.history import feature_of
from report.page.html import NONE, WEIGHTED, Markup, code, element, interval, joined, note, number, section, share, table
from report.page.plots import Plot, Series, plotted

if TYPE_CHECKING:
    from report.rows.describe import Description, Drift, FeatureFigures
    from report.rows.predictions import ByValue, Difference, Interval, ValueMetrics

_MOST_DRIFTS, _LARGE_DRIFT = 40, 0.25


@dataclass(frozen=True)
class Rows:
    """The files with rows that the command was given.

    Attributes:
        predictions: predictions files, one for each run.
        dataset: the folder of the dataset; empty for none.
        by: features to show metrics by.
    """

    predictions: Sequence[str] = ()
    dataset: str = ""
    by: Sequence[str] = ()


def row_sections(record: Record, rows: Rows) -> Iterator[tuple[str, tuple[Markup, list[Plot]]]]:
    """Yield the link of each section, the section, and its plots.

    Raises:
        UserError: a file is not what was expected.
    """
    yield "By value", by_value_section(record, rows)
    yield "Data", data_section(record, rows)


def by_value_section(record: Record, rows: Rows) -> tuple[Markup, list[Plot]]:
    """Return the section with metrics by the values of features; without the files, the commands to type."""
    title = "Metrics by value of a feature"
    if not (rows.predictions and rows.dataset and rows.by):
        text = "Metrics by the values of a feature need predictions and the dataset. Write the predictions, then make the report with both:"
        if rows.predictions and rows.dataset:
            text = "Name a feature to show metrics by:"
        by = report_command(
            record,
            "--predictions",
            *(rows.predictions or [PREDICTIONS]),
            "--dataset_path",
            rows.dataset or dataset_of(record),
            "--by",
            feature_of(record),
        )
        write = None if rows.predictions else code(mode_command(record, "predict", "--predictions_path", PREDICTIONS))
        return section("by-value", title, note(text), write, code(by)), []
    from report.rows.predictions import by_value, read_predictions

    predictions = read_predictions(rows.predictions[0])
    parts, plots = [], []
    for place, feature in enumerate(dict.fromkeys(rows.by)):
        found = by_value(predictions, rows.dataset, feature)
        made = _value_plots(found, place)
        plots += made
        weighted = "" if predictions.weights is None else f" {WEIGHTED} The columns rows and positives count rows."
        parts += [element("h3", f"By {feature}"), note(_said(found) + weighted), plotted(made), _value_table(found)]
    return section("by-value", title, *parts), plots


def _said(found: "ByValue") -> str:
    overlap = " A row has several values, and counts for each of them." if found.overlap else ""
    return f"{found.kind} feature, {found.split} split: {found.note}.{overlap}"


def _value_plots(found: "ByValue", place: int) -> list[Plot]:
    """Return plots of AUC and calibration by value, those without an interval left out."""
    plots = []
    for key, title in (("auc", "AUC"), ("calibration", "calibration (predicted / observed)")):
        known = [(one.value, limits) for one in found.values if (limits := getattr(one, key)) and None not in (limits.low, limits.high)]
        if known:
            names, limits = [name for name, _ in known], [one for _, one in known]
            series = Series(title, names, [one.value for one in limits], [one.low for one in limits], [one.high for one in limits], points=True)
            said = f"Of all rows: {getattr(found.whole, key).value:.4g}." if getattr(found.whole, key) else ""
            named = f"{title} by {found.feature}"
            plots.append(Plot(f"by-{place}-{key}", named[:1].upper() + named[1:], title, [series], found.feature, "bars", note=said))
    return plots


def _value_table(found: "ByValue") -> Markup:
    columns = ["value", "rows", "positives", "click rate", "click rate, 95%", "mean prediction", "calibration", "calibration, 95%"]
    columns += ["AUC", "AUC, 95%", "log loss", "log loss, 95%"]
    return table(f"metrics by {found.feature}", columns, [_value_row(one) for one in (found.whole, *found.values)])


def _value_row(one: "ValueMetrics") -> tuple:
    rest = (limits for figure in (one.calibration, one.auc, one.log_loss) for limits in _limits(figure))
    return one.value, number(one.rows), number(one.positives), *_limits(one.click_rate), number(one.mean_prediction), *rest


def _limits(found: "Interval | None") -> tuple[Markup, Markup]:
    """Return the cells of a figure and its interval."""
    return (number(None), number(None)) if found is None else (number(found.value), interval(found.low, found.high))


def data_section(record: Record, rows: Rows) -> tuple[Markup, list[Plot]]:
    """Return the section about the dataset's rows; without the dataset, the command to type."""
    if not rows.dataset:
        text = "Click rates, missing, unknown and out-of-range values, and drift between splits need the dataset:"
        return section("data", "The data", note(text), code(report_command(record, "--dataset_path", dataset_of(record)))), []
    from report.rows.describe import describe

    found = describe(rows.dataset)
    lines = [(one.split, number(one.rows), number(one.read), share(one.click_rate)) for one in found.splits]
    parts: list[Any] = [table("splits", ["split", "rows", "rows read", "click rate"], lines)]
    parts += [note(f"{text}.") for text in found.notes]
    plots, drift = _drift(found)
    parts += [plotted(plots), *drift]
    for kind, make in (("categorical", _categorical), ("numerical", _numerical)):
        if figures := [one for one in found.features if one.kind == kind]:
            parts.append(make(figures))
    return section("data", "The data", *parts), plots


def _drift(found: "Description") -> tuple[list[Plot], list[Markup]]:
    if not found.drift:
        return [], []
    plots = []
    for split in dict.fromkeys(one.split for one in found.drift):
        ranked = [one for one in found.drift if one.split == split][:_MOST_DRIFTS]
        names, values = [one.feature for one in ranked], [one.stability_index for one in ranked]
        title = f"Drift from {ranked[0].reference} to {split}"
        name = f"drift-{len(plots)}"
        plots.append(Plot(name, title, "population stability index", [Series("stability index", names, values)], "feature", "bars", whole=True))
    columns = ["feature", "from", "to", "stability index", "index by chance", "distance", "distance by chance"]
    said = (
        "The population stability index compares the shares of a feature's values in two splits: below 0.1 it is usually taken as none, above "
        f"{_LARGE_DRIFT} as large. The distance of Kolmogorov and Smirnov is the largest difference of two distributions of numbers. Samples of one "
        "distribution differ, too: the index has this mean by chance, and the distance exceeds its value in one case of twenty."
    )
    return plots, [table("drift between splits", columns, map(_drift_row, found.drift)), note(said)]


def _drift_row(one: "Drift") -> tuple:
    figures = (one.stability_index, one.index_by_chance, one.distance, one.distance_by_chance)
    return one.feature, one.reference, one.split, *(number(value, 4) for value in figures)


def _categorical(figures: Sequence["FeatureFigures"]) -> Markup:
    columns = ["feature", "split", "missing", "unknown", "out of range", "values seen", "table rows", "ids a row"]
    rows = [
        (one.feature, one.split, share(one.missing), share(one.unknown), share(one.out_of_range), one.distinct, one.cardinality, one.length)
        for one in figures
    ]
    return table("categorical features", columns, rows)


def _numerical(figures: Sequence["FeatureFigures"]) -> Markup:
    shares = list(dict.fromkeys(part for one in figures for part, _ in one.quantiles))
    columns = ["feature", "split", "missing", "infinite", "zeros", "mean", "deviation", "lowest", *(f"{100 * part:g}%" for part in shares), "highest"]
    rows = []
    for one in figures:
        quantiles = dict(one.quantiles)
        middle = (number(quantiles.get(part)) for part in shares)
        rows.append(
            (one.feature, one.split, *map(share, (one.missing, one.out_of_range, one.zeros)), one.mean, one.deviation, one.low, *middle, one.high)
        )
    return table("numerical features, as they are stored", columns, rows)


def paired_tables(names: Sequence[str], files: Sequence[str]) -> list[Markup]:
    """Return tables of each run's metrics less the first's, with paired intervals on the same rows.

    Raises:
        UserError: a file is not one of predictions, or its rows are not those of the first.
    """
    from report.rows.predictions import paired, read_predictions

    first = read_predictions(files[0])
    lines, rows = [], 0
    for name, file in zip(names[1:], files[1:], strict=True):
        found = paired(first, read_predictions(file))
        rows = found.rows
        for metric, difference in (("AUC", found.auc), ("log loss", found.log_loss), ("normalised entropy", found.normalized_entropy)):
            lines.append((name, metric, *_difference(difference)))
    columns = ["run", "metric", "of the first", "of this run", "difference", "95%", "verdict"]
    text = (
        f"On the same {rows:,} rows. The intervals are paired: what both runs find hard on a row does not count. AUC: DeLong's for correlated areas."
    )
    return [table(f"each run less {names[0]}", columns, lines), note(text if first.weights is None else f"{text} {WEIGHTED}")]


def _difference(found: "Difference | None") -> tuple:
    if found is None:
        return (*(number(None),) * 4, NONE)
    low, high = found.difference.low, found.difference.high
    verdict = NONE if low is None or high is None else "cannot tell" if low <= 0 <= high else "differs"
    return number(found.first, 7), number(found.second, 7), number(found.difference.value, 4), joined([interval(low, high, 4)]), verdict
