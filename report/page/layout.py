"""Sections about where a run's tables lie, the tables themselves, and the importance of features."""

from collections.abc import Mapping, Sequence
from typing import Any

from report.log.record import Record
from report.log.thinning import POINTS, finite
from report.page.html import Markup, code, element, interval, joined, note, number, section, share, size, table
from report.page.plots import Plot, Series, of_curve, plotted

_MOST_BARS, _MOST_CURVES, _MOST_NAMES = 40, 8, 6
_GIB = 2**30


def placement(record: Record) -> tuple[Markup, list[Plot]] | None:
    """Return the section about workers: their tables, memory and traffic; None where the log does not tell."""
    workers = record.about.get("placement") or []
    if not workers:
        return None
    peaks = record.tables.get("memory_gib") or ()
    rows = []
    for place, worker in enumerate(workers):
        peak = finite(peaks[place]) if place < len(peaks) else None
        rows.append(
            (
                f"worker {worker['worker']}",
                size(worker["bytes"]),
                size(None if peak is None else peak * _GIB),
                number(finite(worker["ids_per_step"])),
                size(finite(worker["sent_bytes_per_step"])),
                _held(worker["tables"]),
            )
        )
    columns = ["worker", "tables' memory", "peak memory", "ids looked up a step", "sent a step", "tables (columns)"]
    parts: list[Markup] = [table("workers", columns, rows)]
    replicated = record.about.get("replicated")
    if replicated:
        parts.append(note(f"On every worker: {', '.join(map(str, replicated))}."))
    plots = []
    if len(workers) > 1:
        names = [f"worker {worker['worker']}" for worker in workers]
        for key, title, unit, scale in (("bytes", "Memory of the tables", "MiB", 2**20), ("sent_bytes_per_step", "Sent in a step", "MiB", 2**20)):
            values = [None if (value := finite(worker[key])) is None else value / scale for worker in workers]
            plots.append(Plot(f"workers-{key}".replace("_", "-"), title, unit, [Series(unit, names, values)], "worker", "bars", whole=True))
    return section("placement", "Workers and placement", *parts, plotted(plots)), plots


def _held(shards: Sequence[Any]) -> Markup:
    """Return the tables of a worker; long lists are folded."""
    names = [f"{name} ({first} to {last})" for name, first, last in shards]
    if len(names) <= _MOST_NAMES:
        return joined([", ".join(names) or "none"])
    return element("details", element("summary", f"{len(names)} tables"), ", ".join(names))


def tables(record: Record, most: int = POINTS) -> tuple[Markup, list[Plot]] | None:
    """Return the section about tables: rows, memory, share touched, norm; None where the log does not tell."""
    described = record.about.get("tables") or []
    if not described:
        return None
    touched, norms = record.tables.get("touched") or {}, record.tables.get("norms") or {}
    readers: dict[str, list[str]] = {}
    for feature in record.about.get("features") or []:
        readers.setdefault(feature["table"], []).append(feature["name"])
    ordered = sorted(described, key=lambda one: -(one["rows"] or 0))
    rows = []
    for one in ordered:
        name = one["name"]
        features = ", ".join(readers.get(name, ()))
        cells = (number(one["rows"]), number(one["dim"]), size(one["bytes"]), share(finite(touched.get(name))))
        rows.append((name, *cells, *((number(finite(norms.get(name))),) if norms else ()), features))
    columns = ["table", "rows", "width", "memory", "rows touched", *(["L2 norm"] if norms else []), "features"]
    parts: list[Any] = [table("tables", columns, rows)]
    if touched:
        said = "Rows touched: the share of a table's rows that a training batch has had. The others still have their initial values: ids that the "
        parts.append(note(f"{said}vocabulary has and these rows did not show."))
    since = finite(record.tables.get("touched_since"))
    if since:
        parts.append(note(f"Counted since step {since:,}, because the checkpoint that the run resumed from did not keep the count."))
    if not norms:
        parts.append(note("Norms are in the log of a run with --log_norms."))
    plots = list(_table_plots(record, ordered, touched, most))
    return section("tables", "Tables", *parts, plotted(plots)), plots


def _table_plots(record: Record, ordered: Sequence[Mapping[str, Any]], touched: Mapping[str, Any], most: int) -> list[Plot]:
    plots = []
    largest = [one["name"] for one in ordered]
    shown = [name for name in largest if finite(touched.get(name)) is not None][:_MOST_BARS]
    if shown:
        values = [100 * touched[name] for name in shown]
        title = "Rows touched, by table" if len(shown) == len(ordered) else f"Rows touched, the {len(shown)} largest tables"
        plots.append(Plot("touched", title, "% of the rows", [Series("% of the rows", shown, values)], "table", "bars", whole=True))
    for name, title, unit, curves in (
        ("touched-steps", "Rows touched, by step", "share of the rows", record.touched),
        ("norms", "Norms of tables", "L2 norm", record.norms),
    ):
        series = [of_curve(table_name, curves[table_name], most) for table_name in largest if table_name in curves and curves[table_name].last][
            :_MOST_CURVES
        ]
        if series and len(series[0].x) > 1:
            plots.append(
                Plot(
                    name,
                    title + (f" ({_MOST_CURVES} largest tables)" if len(ordered) > _MOST_CURVES else ""),
                    unit,
                    series,
                    whole=name == "touched-steps",
                )
            )
    return plots


def importance(record: Record, command: str) -> tuple[Markup, list[Plot]]:
    """Return the section about the importance of features; without one in the log, the command that measures it."""
    features = record.importance.get("features") or []
    if not features:
        text = "The log has no importance of features. This command measures what the model loses when a feature's values are permuted:"
        return section("importance", "Importance of features", note(text), code(command)), []
    ranked = sorted(features, key=lambda one: -(_middle(one, "auc_lost") or 0.0))
    names = [one["name"] for one in ranked]
    plots = [_bars(ranked[:_MOST_BARS], names[:_MOST_BARS], *named) for named in (("auc_lost", "AUC lost"), ("log_loss_lost", "log loss added"))]
    rows = []
    for name, one in zip(names, ranked, strict=True):
        columns = ", ".join(one["columns"])
        rows.append((name, *_three(one, "auc_lost"), *_three(one, "log_loss_lost"), "" if columns == name else columns))
    plots = [plot for plot in plots if plot.series[0].values]
    parts: list[Any] = [plotted(plots)]
    parts.append(table("importance", ["feature", "AUC lost", "AUC lost, 95%", "log loss added", "log loss added, 95%", "moves together"], rows))
    measured = record.importance
    count, repeats = finite(measured.get("samples")), finite(measured.get("repeats"))
    said = f"Measured on {count:,} rows of the {measured.get('split')} split, {repeats} permutations of each feature." if count and repeats else None
    copies = measured.get("copies") or ()
    warned = [
        note(f"{pair[0]} and {pair[1]} are copies of each other (normalised mutual information {pair[2]:.4g}); each hides the other's importance.")
        for pair in copies
    ]
    return section("importance", "Importance of features", note(said) if said else None, *parts, *warned), plots


def _bars(ranked: Sequence[Mapping[str, Any]], names: Sequence[str], key: str, title: str) -> Plot:
    limits = [_limits(one, key) for one in ranked]
    known = all(limit is not None for limit in limits)
    low, high = ([limit[0] for limit in limits], [limit[1] for limit in limits]) if known else ((), ())
    values = [_middle(one, key) for one in ranked]
    series = Series(title, names, values if any(value is not None for value in values) else [], low, high)
    said = "The bars' lines are intervals of 95%; a feature whose interval has 0 in it may be useless to this model."
    return Plot(
        f"importance-{key}".replace("_", "-"),
        f"{title[:1].upper()}{title[1:]} without a feature",
        title,
        [series],
        "feature",
        "bars",
        note=said,
        whole=True,
    )


def _middle(feature: Mapping[str, Any], key: str) -> float | None:
    return finite(feature[key][0])


def _limits(feature: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    low, high = map(finite, feature[key][1:])
    return None if low is None or high is None else (low, high)


def _three(feature: Mapping[str, Any], key: str) -> tuple[Markup, Markup]:
    return number(_middle(feature, key)), interval(*(_limits(feature, key) or (None, None)))
