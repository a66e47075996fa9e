"""An attack's chart as plain geometry: axes that fit its points, linear or both logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tacita.label import Chart, Series
from tacita.report.figures import BOTTOM, LEFT, RIGHT, TOP, Figure, Line, Point, axis_title, round_step, svg_path

MOST_TICKS = 5
TINY, HUGE = 1e-100, 1e100
APART = 0.7  # points nearer than this to the last one drawn cannot be told from it

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Where an axis begins and ends, its round numbers, and its scale."""

    low: float
    high: float
    ticks: tuple[float, ...]
    scale: Callable[[float], float] = float

    def share(self, value: float) -> float:
        """Return how far along the axis a value lies, from 0 to 1."""
        low, high = self.scale(self.low), self.scale(self.high)
        return (self.scale(value) - low) / (high - low)

    def text(self, tick: float) -> str:
        """Return what stands at a tick."""
        step = abs(tick) if self.scale is math.log10 else self.ticks[1] - self.ticks[0]
        return tick_text(tick, step)


def chart_figure(key: str, chart: Chart | None) -> Figure | None:
    """Return the chart as a picture, or None if there is no line to draw."""
    if chart is None:
        return None
    lines = [(series, drawable(series, log=chart.log)) for series in chart.series]
    lines = [(series, points) for series, points in lines if len(points) > 1]
    if not lines:
        return None
    across = [x for _, points in lines for x, _ in points]
    up = [y for _, points in lines for _, y in points]
    x_axis = log_axis(across) if chart.log else linear_axis(across)
    y_axis = log_axis(up) if chart.log else linear_axis([0.0, *up])
    return Figure(
        key=key,
        heading=chart.heading,
        caption=chart.caption,
        description=chart.description,
        lines=tuple(_line(series, points, x_axis, y_axis) for series, points in lines),
        x_title=axis_title(chart.x_title),
        y_title=axis_title(chart.y_title),
        x_ticks=tuple((_across(x_axis, t), x_axis.text(t), "") for t in x_axis.ticks),
        y_ticks=tuple((_up(y_axis, t), y_axis.text(t)) for t in y_axis.ticks),
    )


def drawable(series: Series, *, log: bool) -> list[Point]:
    """Return the points that have a place on the chart, in their order."""
    low = TINY if log else -HUGE
    return [(x, y) for x, y in series.points if low <= x <= HUGE and low <= y <= HUGE]


def linear_axis(values: list[float]) -> Axis:
    """Return an axis that ends at round numbers. It begins at 0 if 0 is near.

    Examples:
        >>> linear_axis([0.1, 0.97]).ticks
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
        >>> linear_axis([-3.1, 4.2]).ticks
        (-4.0, -2.0, 0.0, 2.0, 4.0, 6.0)
    """
    low, high = min(values), max(values)
    if 0.0 < low <= 0.5 * high:
        low = 0.0
    size = max(abs(low), abs(high), TINY)
    if high - low < 1e-6 * size:
        low, high = low - 0.5 * size, high + 0.5 * size
    step = round_step(high - low, MOST_TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(float(f"{i * step:.12g}") for i in range(first, last + 1))
    return Axis(low=ticks[0], high=ticks[-1], ticks=ticks)


def log_axis(values: list[float]) -> Axis:
    """Return an axis from one power of ten to another.

    Examples:
        >>> log_axis([2e-4, 1.0]).ticks
        (0.0001, 0.001, 0.01, 0.1, 1.0)
        >>> log_axis([0.2, 0.9]).ticks
        (0.1, 0.2, 0.5, 1.0)
    """
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    low = min(low, high - 1)
    every = math.ceil((high - low) / MOST_TICKS)
    ticks = [10.0**power for power in range(high, low - 1, -every)][::-1]
    if high - low == 1:
        ticks = [ticks[0], 2.0 * ticks[0], 5.0 * ticks[0], ticks[1]]
    return Axis(low=10.0**low, high=10.0**high, ticks=tuple(ticks), scale=math.log10)


def tick_text(value: float, step: float) -> str:
    """Format a round number so that it fits beside an axis.

    Examples:
        >>> [tick_text(*pair) for pair in ((0.25, 0.25), (-2.0, 1.0), (15_000.0, 5_000.0), (2e6, 1e6), (1e-4, 1e-4))]
        ['0.25', '−2', '15k', '2M', '10⁻⁴']
    """
    sign, size = "−" if value < 0.0 else "", abs(value)
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if unit <= step < 1e3 * unit and size:
            return f"{sign}{size / unit:g}{letter}"
    if size == 0.0 or 1e-3 <= size < 1e9:
        return f"{sign}{size:.9g}"
    mantissa, power = f"{size:.3e}".split("e")
    tens = "10" + str(int(power)).translate(_SUPERSCRIPT)
    return sign + (tens if float(mantissa) == 1.0 else f"{float(mantissa):g}·{tens}")


def _line(series: Series, points: list[Point], x_axis: Axis, y_axis: Axis) -> Line:
    places = [(_across(x_axis, x), _up(y_axis, y)) for x, y in points]
    return Line(key=series.hue, path=svg_path(_apart(places)), name=series.name)


def _across(axis: Axis, value: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * axis.share(value), 1)


def _up(axis: Axis, value: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * axis.share(value), 1)


def _apart(points: list[Point]) -> list[Point]:
    """Leave out points that cannot be told from the one before, and keep both ends."""
    kept = points[:1]
    for point in points[1:-1]:
        if max(abs(point[0] - kept[-1][0]), abs(point[1] - kept[-1][1])) >= APART:
            kept.append(point)
    return [*kept, points[-1]]
