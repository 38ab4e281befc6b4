"""Curves of bounded size: of millions of points some two thousand are kept, among them the lowest and the highest of each part."""

import math
from typing import NamedTuple

POINTS = 2000  # the most points that a curve keeps


class Point(NamedTuple):
    """A figure of a step.

    Attributes:
        step: the training step.
        seconds: the time that the run had been running.
        samples: the samples that it had trained on; None where the log does not tell.
        value: the figure.
    """

    step: int
    seconds: float
    samples: float | None
    value: float


class Curve:
    """A figure by step; all points up to `POINTS`, then the lowest and the highest of each part of the steps, and the last.

    Args:
        most: the most points to keep, an even number.

    Attributes:
        count: the number of figures that were added.
        undefined: the number that were null: not finite.
        undefined_step: the first step with such a figure; None without one.
        last: the last point; None before the first.
    """

    def __init__(self, most: int = POINTS):
        self._most, self._width, self._filled = most, 1, 1  # the points of a part, and those that the last part has seen
        self._parts: list[list[Point]] = []
        self.count, self.undefined = 0, 0
        self.undefined_step: int | None = None
        self.last: Point | None = None

    @property
    def thinned(self) -> bool:
        """True where not every figure is kept."""
        return self._width > 2

    def add(self, point: Point) -> None:
        """Add the figure of a later step; one of the same step takes the place of the last."""
        if self.last is not None and point.step == self.last.step:
            self._parts[-1] = [kept for kept in self._parts[-1] if kept.step != point.step]
        else:
            self.count += 1
            if self._filled == self._width:
                self._make_room()
                self._parts.append([])
                self._filled = 0
            self._filled += 1
        self.last = point
        part = self._parts[-1]
        if len(part) == 2:
            one, other = part[0].value, part[1].value
            if one <= point.value <= other or other <= point.value <= one:  # most points of a long run
                return
        part.append(point)
        if len(part) > 2:
            self._parts[-1] = _extremes(part)

    def add_undefined(self, step: int) -> None:
        """Count a figure that is null."""
        self.undefined += 1
        if self.undefined_step is None:
            self.undefined_step = step

    def points(self) -> list[Point]:
        """Return the points that were kept, by step."""
        kept = [point for part in self._parts for point in part]
        if self.last is not None and kept[-1].step != self.last.step:
            kept.append(self.last)
        return kept

    def _make_room(self) -> None:
        """Join parts in pairs until there is room for another."""
        while len(self._parts) >= (self._most if self._width == 1 else self._most // 2):
            pairs = zip(self._parts[::2], self._parts[1::2], strict=True)
            self._parts = [_extremes([*first, *second]) for first, second in pairs]
            self._width *= 2


def _value(point: Point) -> float:
    return point.value


def _extremes(points: list[Point]) -> list[Point]:
    """Return the lowest and the highest of some points, by step."""
    low, high = min(points, key=_value), max(points, key=_value)
    return [low] if low is high else [low, high] if low.step < high.step else [high, low]


def as_number(value: object) -> object:
    """Return a text that is a number as one, as NVIDIA's Wide & Deep writes some figures; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def finite(value: object) -> float | None:
    """Return a number as it is, None for anything else, NaN and infinity."""
    return None if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) else value
