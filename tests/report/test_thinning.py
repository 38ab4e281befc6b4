"""Tests of curves of bounded size, against keeping every point."""

import random

import pytest

from report.log.thinning import POINTS, Curve, Point, finite


def points(values: list[float]) -> list[Point]:
    """Return points of steps 1, 2, …"""
    return [Point(step, step / 10, step * 128.0, value) for step, value in enumerate(values, 1)]


def curve_of(values: list[float], most: int = POINTS) -> Curve:
    """Return a curve of values."""
    curve = Curve(most)
    for point in points(values):
        curve.add(point)
    return curve


@pytest.mark.parametrize("count", [0, 1, 2, 1999, 2000])
def test_keeps_every_point_while_there_are_few(count):
    values = [float(place % 7) for place in range(count)]
    curve = curve_of(values)
    assert curve.points() == points(values) and curve.count == count and not curve.thinned


@pytest.mark.parametrize("count", [2001, 4000, 4001, 12_345, 50_000])
def test_keeps_the_lowest_and_highest_of_each_part(count):
    draw = random.Random(count)
    values = [draw.random() for _ in range(count)]
    values[count // 3], values[count // 2] = 99.0, -99.0
    found = curve_of(values).points()
    assert POINTS // 4 <= len(found) <= POINTS + 1
    steps = [point.step for point in found]
    assert steps == sorted(set(steps)) and steps[-1] == count
    assert all(values[point.step - 1] == point.value for point in found)
    part = max(1, count // (POINTS // 8))  # any stretch as long as a few parts: its extremes stand in the curve, or in a neighbouring part
    kept = {point.value for point in found}
    assert {99.0, -99.0} <= kept
    for first in range(0, count - 4 * part, 4 * part):
        inside = [point.value for point in found if first < point.step <= first + 4 * part]
        assert inside and max(inside) >= sorted(values[first : first + 4 * part])[-8] and min(inside) <= sorted(values[first : first + 4 * part])[7]


def test_parts_are_the_slow_ones():
    """Every part of 2, 4, 8, … points has its lowest and highest, as a slow loop finds them."""
    draw = random.Random(1)
    values = [draw.random() for _ in range(64)]
    found = curve_of(values, most=8).points()
    for width in (2, 4, 8, 16, 32):
        slow = set()
        for first in range(0, 64, width):
            part = points(values)[first : first + width]
            slow |= {min(part, key=lambda point: point.value), max(part, key=lambda point: point.value)}
        if slow <= set(found):
            assert set(found) - slow <= {points(values)[-1]} and len(found) <= 9
            return
    raise AssertionError("the curve's points are those of no width")


def test_the_last_figure_of_a_step_counts():
    curve = curve_of([1.0, 5.0])
    curve.add(Point(2, 9.0, None, 3.0))
    assert [point.value for point in curve.points()] == [1.0, 3.0] and curve.count == 2
    wide = curve_of([float(place) for place in range(5000)])
    wide.add(Point(5000, 1.0, None, -1.0))
    assert wide.points()[-1].value == -1.0 and 4999.0 not in {point.value for point in wide.points()}


def test_counts_what_is_not_finite():
    curve = curve_of([1.0])
    curve.add_undefined(7)
    curve.add_undefined(9)
    assert (curve.undefined, curve.undefined_step) == (2, 7)
    assert [finite(value) for value in (1, 0.5, True, "1", None, float("nan"), float("inf"))] == [1, 0.5, None, None, None, None, None]
