"""The label's pictures as plain geometry: the page's template draws them as inline SVG.

Sizes are in units of a drawing 420 wide, so that the text stays readable when a phone shows it 340 pixels wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tacita.guarantee import attack_success, percent_text
from tacita.label import Label
from tacita.report.numbers import delta_text, epsilon_text
from tacita.report.units import Unit, headline_unit, inline

WIDTH, HEIGHT = 420, 308
LEFT, RIGHT, TOP, BOTTOM = 46, 402, 34, 242
MOST_POINTS = 160
LONGEST_TITLE = 54  # letters that fit beside an axis

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A dot with a text beside it."""

    x: float
    y: float
    text_x: float
    text_y: float
    anchor: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """A path in one of the label's colours, named in the legend."""

    key: str
    path: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture, and what it shows in words."""

    key: str
    heading: str
    caption: str
    description: str
    lines: tuple[Line, ...]
    x_title: str
    y_title: str
    x_ticks: tuple[tuple[float, str, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    area: str = ""
    marks: tuple[Mark, ...] = field(default=())


def figures(label: Label) -> tuple[Figure, ...]:
    """Return the pictures for which the label has finite points."""
    return tuple(figure for figure in (records_figure(label), steps_figure(label)) if figure is not None)


def steps_figure(label: Label) -> Figure | None:
    """Epsilon over steps: anyone, and on the owner's page a typical person."""
    own, unit, step = label.readings, headline_unit(label), label.steps_word
    curves = [
        ("anyone", unit.anyone, _finite(label.curve)),
        ("typical", unit.typical, _finite(own.curve if own else ())),
    ]
    curves = [curve for curve in curves if len(curve[2]) > 1]
    if not curves:
        return None
    x_high = max(points[-1][0] for _, _, points in curves)
    y_high = 1.06 * max(epsilon for _, _, points in curves for _, epsilon in points)
    if not (x_high > 0.0 and y_high > 0.0):
        return None
    ends = [f"{name.lower()}: epsilon {epsilon_text(points[-1][1])}" for _, name, points in curves]
    return Figure(
        key="steps",
        heading="How it adds up over the run",
        caption=f"Every {step} adds to what an outsider could learn.",
        description=f"Epsilon grows with every {step}. After {x_high:,.0f} {step}s, {'; '.join(ends)}.",
        lines=tuple(
            Line(
                key=key,
                path=svg_path([_place(p, x_high, y_high) for p in _thin(points)]),
                name=_named(name, points[-1][1]),
            )
            for key, name, points in curves
        ),
        x_title=f"{step}s",
        y_title="epsilon",
        x_ticks=tuple((_place((t, 0.0), x_high, 1.0)[0], f"{t:,.0f}", "") for t in ticks(x_high, 4)),
        y_ticks=tuple((_place((0.0, t), 1.0, y_high)[1], f"{t:g}") for t in ticks(y_high, 5)),
    )


def records_figure(label: Label) -> Figure | None:
    """The share of followed records under each epsilon, with the worst case and the typical figure as lines."""
    own, unit = label.readings, headline_unit(label)
    points = _finite([(epsilon, percent) for percent, epsilon in (own.percentiles if own else ())])
    if own is None or len(points) < 2:
        return None
    limits = [("anyone", f"{unit.anyone} (worst case)", label.worst.epsilon)]
    typical = [g for g in own.typical if g.unit == label.worst.unit]
    limits += [("typical", unit.typical, g.epsilon) for g in typical[:1] if g.is_bound]
    limits = [limit for limit in limits if math.isfinite(limit[2])]
    high = 1.06 * max([points[-1][0], *(epsilon for _, _, epsilon in limits)])
    if not high > 0.0:
        return None
    stairs = _stairs(points, high)
    delta = label.worst.delta
    return Figure(
        key="records",
        heading=f"How exposed the followed {unit.many} are",
        caption=_records_caption(points, unit),
        description=_records_words(points, limits, unit),
        lines=(
            Line(key="spread", path=svg_path(stairs), name=f"Share of the {unit.many} under each epsilon"),
            *(Line(key=k, path=_upright(epsilon, high), name=_named(name, epsilon)) for k, name, epsilon in limits),
        ),
        x_title="individual epsilon; below it, attack success",
        y_title=axis_title(f"share of the followed {unit.many}"),
        x_ticks=tuple(_success_tick(t, high, delta) for t in ticks(high, 5)),
        y_ticks=tuple((_place((0.0, t), 1.0, 100.0)[1], f"{t}%") for t in (0, 25, 50, 75, 100)),
        area=f"{svg_path(stairs)}V{BOTTOM}H{stairs[0][0]:g}Z",
        marks=tuple(_mark(epsilon, percent, high) for epsilon, percent in points if percent in (50, 90)),
    )


def ticks(high: float, most: int) -> tuple[float, ...]:
    """Return at most `most` + 1 round numbers from 0 up to `high`.

    Examples:
        >>> ticks(2000.0, 4), ticks(1.08, 5)
        ((0.0, 500.0, 1000.0, 1500.0, 2000.0), (0.0, 0.25, 0.5, 0.75, 1.0))
    """
    step = round_step(high, most)
    return tuple(round(i * step, 12) for i in range(math.floor(high / step + 1e-9) + 1))


def round_step(span: float, most: int) -> float:
    """Return the smallest round number of which `most` cover the span."""
    base = 10.0 ** math.floor(math.log10(span / most))
    return next(s * base for s in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0) if s * base * most >= span * (1 - 1e-9))


def axis_title(text: str) -> str:
    """Return a title that fits beside an axis."""
    clean = inline(text)
    return clean if len(clean) <= LONGEST_TITLE else clean[: LONGEST_TITLE - 1] + "…"


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(float(x), float(y)) for x, y in sorted(points) if math.isfinite(x) and math.isfinite(y)]


def _thin(points: list[Point]) -> list[Point]:
    """Keep every k-th point and the last: more cannot be seen."""
    every = math.ceil(len(points) / MOST_POINTS)
    return points[::every] if (len(points) - 1) % every == 0 else [*points[::every], points[-1]]


def _place(point: Point, x_high: float, y_high: float) -> Point:
    x, y = point
    return round(LEFT + (RIGHT - LEFT) * x / x_high, 1), round(BOTTOM - (BOTTOM - TOP) * y / y_high, 1)


def svg_path(points: Sequence[Point]) -> str:
    """Return the path through the points, as SVG writes it."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _stairs(points: list[Point], high: float) -> list[Point]:
    """Go along first, then up: between two known shares the smaller one is claimed."""
    corners: list[Point] = [(0.0, 0.0)]
    for epsilon, percent in points:
        corners += [(epsilon, corners[-1][1]), (epsilon, percent)]
    corners.append((high, corners[-1][1]))
    return [_place(corner, high, 100.0) for corner in corners]


def _upright(epsilon: float, high: float) -> str:
    x = _place((epsilon, 0.0), high, 1.0)[0]
    return f"M{x:g} {TOP}V{BOTTOM}"


def _named(name: str, epsilon: float) -> str:
    return f"{name}: {epsilon_text(epsilon)}"


def _success_tick(epsilon: float, high: float, delta: float) -> tuple[float, str, str]:
    success = 0.5 if epsilon == 0.0 else math.ceil(100.0 * attack_success(epsilon, delta) - 1e-9) / 100.0
    return _place((epsilon, 0.0), high, 1.0)[0], f"{epsilon:g}", percent_text(success)


def _mark(epsilon: float, percent: float, high: float) -> Mark:
    x, y = _place((epsilon, percent), high, 100.0)
    text = f"{'half' if percent == 50 else '9 in 10'}: {epsilon_text(epsilon)}"
    fits = x + 10 + 7.5 * len(text) < RIGHT - 0.06 * (RIGHT - LEFT)
    if fits:
        return Mark(x=x, y=y, text_x=x + 9, text_y=y + 5, anchor="start", text=text)
    return Mark(x=x, y=y, text_x=x - 9, text_y=y + 24, anchor="end", text=text)


def _records_caption(points: list[Point], unit: Unit) -> str:
    epsilon, percent = next((p for p in points if p[1] == 50), points[0])
    share = "half" if percent == 50 else f"{percent:g}%"
    most = epsilon_text(epsilon)
    return f"How to read it: {share} of the followed {unit.many} have an individual epsilon of at most {most}."


def _records_words(points: list[Point], limits: list[tuple[str, str, float]], unit: Unit) -> str:
    shares = ", ".join(f"{percent:g}% stay under {epsilon_text(epsilon)}" for epsilon, percent in _sparse(points))
    lines = "; ".join(f"{name.lower()}: {epsilon_text(epsilon)}" for _, name, epsilon in limits)
    return f"Of the followed {unit.many}, {shares}." + (f" For comparison, {lines}." if lines else "")


def _sparse(points: list[Point]) -> list[Point]:
    told = (10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0)
    return [point for point in points if point[1] in told] or points[:: math.ceil(len(points) / 8)]


def delta_note(label: Label) -> str:
    """Return at which delta the pictures are drawn."""
    return f"All at delta {delta_text(label.worst.delta)}."
