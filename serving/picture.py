"""A plot of throughput against latency, as SVG."""

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 860, 520, 80, 40, 220, 60
_COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#7d5ba6", "#3d3d3d", "#00798c", "#b56576", "#9c6644")
_DASHES = {"p50_ms": "", "p95_ms": "6 3", "p99_ms": "2 3"}


class Point(Protocol):
    """The fields of `load.Point` that are plotted."""

    experiment: str
    batch_size: int
    samples_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


def picture(points: Sequence[Point]) -> str:
    """Plot samples/s over latency on logarithmic axes: one colour a curve, p50 solid, p95 dashed, p99 dotted."""
    sound = [point for point in points if all(map(_positive, (point.samples_per_s, point.p50_ms, point.p95_ms, point.p99_ms)))]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>')
    if sound:
        across = _Axis([value for point in sound for value in (point.p50_ms, point.p99_ms)], _LEFT, _WIDTH - _RIGHT)
        up = _Axis([point.samples_per_s for point in sound], _HEIGHT - _BOTTOM, _TOP)
        parts += _frame(across, up)
        curves: dict[tuple[str, int], list[Point]] = {}
        for point in sound:
            curves.setdefault((point.experiment, 0 if point.experiment == "static" else point.batch_size), []).append(point)
        for number, ((experiment, size), some) in enumerate(curves.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            for name, dash in _DASHES.items():
                places = [(across.at(getattr(point, name)), up.at(point.samples_per_s)) for point in some]
                parts.append(_line(places, colour, dash))
                parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places]
            label = experiment if size == 0 else f"{experiment}, {size:,} a request"
            parts.append(f'<text x="{_WIDTH - _RIGHT + 15}" y="{_TOP + 18 * number + 12}" fill="{colour}">{label}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 15}">samples/s; p50 solid, p95 dashed, p99 dotted</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT - 80}" y="{_HEIGHT - 15}">latency, ms</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """A logarithmic axis of whole decades around the values, on a range of the picture's coordinates."""

    def __init__(self, values: Iterable[float], first: float, last: float):
        found = list(values)
        self._low, self._high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
        self._high += self._low == self._high
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        """Return the coordinate of a value."""
        return self._first + (self._last - self._first) * (math.log10(value) - self._low) / (self._high - self._low)

    @property
    def decades(self) -> list[float]:
        """The values of the axis's marks."""
        return [10.0**power for power in range(self._low, self._high + 1)]


def _frame(across: _Axis, up: _Axis) -> list[str]:
    parts = []
    for value in across.decades:
        x = across.at(value)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{value:g}</text>')
    for value in up.decades:
        y = up.at(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
    return parts


def _line(places: Sequence[tuple[float, float]], colour: str, dash: str) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>'


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
