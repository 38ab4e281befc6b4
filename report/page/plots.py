"""Plots of reports: the numbers that the page's script draws and writes into tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from report.log.thinning import Curve, Point
from report.page.html import Markup, element

_DIGITS = 7  # of each number on the page; the log has more
Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Series:
    """A line, or bars, of a plot.

    Attributes:
        label: its name.
        x: the places of its values; for curves of training steps, rows of (step, seconds, samples).
        values: its values.
        low: lower limits of intervals; empty for none.
        high: upper limits.
        colour: the number of its colour; None for the next.
        dashed: the number of its dash pattern; None for the next.
        points: True to draw points without lines.
    """

    label: str
    x: Sequence[Any]
    values: Numbers
    low: Numbers = ()
    high: Numbers = ()
    colour: int | None = None
    dashed: int | None = None
    points: bool = False


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        name: its name in the page.
        title: its title.
        y: the name and unit of its values.
        series: its lines.
        x: the name of the horizontal axis; empty for training steps, where the reader chooses step, samples or time.
        kind: "curve", "stack" (the series are parts of a whole), "steps" (a histogram) or "bars" (`x` holds names).
        note: a sentence below it.
        columns: further columns of its table, one value for each place of the first series.
        whole: show the values from 0.
    """

    name: str
    title: str
    y: str
    series: Sequence[Series]
    x: str = ""
    kind: str = "curve"
    note: Any = ""
    columns: Mapping[str, Numbers] = field(default_factory=dict)
    whole: bool = False


def of_curve(label: str, curve: Curve, most: int, **options: Any) -> Series:
    """Return the series of a curve."""
    points = thin(curve.points(), most)
    return Series(label, [point[:3] for point in points], [point.value for point in points], **options)


def thin(points: list[Point], most: int) -> list[Point]:
    """Return fewer points, among them the lowest and highest."""
    if len(points) <= most:
        return points
    curve = Curve(most)
    for point in points:
        curve.add(point)
    return curve.points()


def figure(plot: Plot) -> Markup:
    """Return the place of a plot in the page; the script draws it."""
    caption = element("figcaption", element("h3", plot.title, id=f"plot-{plot.name}-title"))
    below = element("p", plot.note, class_="note") if plot.note else None
    return element(
        "figure", caption, element("div", class_="plot", data_plot=plot.name), below, class_="plotted", aria_labelledby=f"plot-{plot.name}-title"
    )


def plotted(plots: Sequence[Plot]) -> Markup | None:
    """Return the places of plots, beside each other where there is room; None without plots."""
    return element("div", *map(figure, plots), class_="plots") if plots else None


def content(plots: Sequence[Plot]) -> dict[str, Any]:
    """Return the plots for the script; equal places stand once."""
    places: dict[tuple, int] = {}

    def described(plot: Plot) -> dict[str, Any]:
        series = []
        for one in plot.series:
            key = (plot.kind == "bars", plot.x == "", *map(_key, one.x))
            series.append(
                {
                    "label": one.label,
                    "x": places.setdefault(key, len(places)),
                    "v": _rounded(one.values),
                    **({"low": _rounded(one.low), "high": _rounded(one.high)} if one.low else {}),
                    **({"colour": one.colour} if one.colour is not None else {}),
                    **({"dashed": one.dashed} if one.dashed is not None else {}),
                    **({"points": True} if one.points else {}),
                }
            )
        columns = {name: _rounded(values) for name, values in plot.columns.items()}
        return {
            "name": plot.name,
            "title": plot.title,
            "y": plot.y,
            "x": plot.x,
            "kind": plot.kind,
            "whole": plot.whole,
            "series": series,
            "columns": columns,
        }

    found = [described(plot) for plot in plots]
    return {"plots": found, "places": [_place(key) for key in places]}


def _key(place: Any) -> Any:
    return tuple(place) if isinstance(place, (list, tuple)) else place


def _place(key: tuple) -> Any:
    names, training, *places = key
    if training and not names:
        columns = list(zip(*places, strict=True)) or [(), (), ()]
        return {"step": list(columns[0]), "seconds": _rounded(columns[1]), "samples": _rounded(columns[2])}
    return list(places) if names else _rounded(places)


def _rounded(values: Numbers) -> list[float | int | None]:
    return [value if value is None or isinstance(value, int) else float(f"{value:.{_DIGITS}g}") for value in values]
