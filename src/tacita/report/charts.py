"""A page's charts, drawn by matplotlib as inline SVG.

A drawing holds numbers only: headings, legends and the titles of axes are HTML around it, so nothing a user writes
reaches it. Its colours are the page's CSS variables, so that it follows the page into the dark and onto paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from io import StringIO
from typing import Any

from tacita import _check
from tacita._numbers import epsilon_text, success_text, tick_text
from tacita.label import Chart, Hue, Label, Points, Series
from tacita.report.cards import success_points
from tacita.report.units import headline_unit

WIDTH, LEFT, RIGHT, TOP = 420, 54, 402, 12  # in units of which a phone shows about 340, so that text stays readable
PLOT = 200  # how high the part between the axes is
_BELOW = 28  # how much is left for the numbers below
TINY, HUGE = 1e-100, 1e100  # between which points have a place on a chart

_LINES: dict[str, tuple[str, float, Any]] = {  # colour, width and dashes of a line, by hue
    "anyone": ("#b0382f", 2.6, "-"),
    "typical": ("#1a6580", 2.6, (0, (7, 4))),
    "spread": ("#39754c", 2.6, "-"),
    "half": ("#39754d", 2.6, (0, (3, 3))),
    "attack": ("#15202c", 2.2, "-"),
    "plain": ("#4a5867", 1.8, (0, (2, 4))),
}
_INK, _SOFT, _RULE, _PAPER = "#15202b", "#4a5866", "#d5dce2", "#fffffe"
_VARIABLES = {
    **{colour: hue for hue, (colour, _, _) in _LINES.items()},
    **{_LINES["plain"][0]: "soft", _LINES["attack"][0]: "ink", _LINES["half"][0]: "spread"},
    **{_INK: "ink", _SOFT: "soft", _RULE: "rule", _PAPER: "paper"},
}
_STYLE = {
    "axes.autolimit_mode": "round_numbers",
    "axes.axisbelow": True,
    "axes.edgecolor": _SOFT,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.xmargin": 0.0,
    "axes.ymargin": 0.0,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 13.5,
    "grid.color": _RULE,
    "grid.linewidth": 1.0,
    "lines.scale_dashes": False,
    "svg.fonttype": "none",
    "text.color": _INK,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "xtick.color": _SOFT,
    "xtick.major.pad": 5.0,
    "ytick.left": False,
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with at least one line, and its drawing: the inside of an `svg` element, made of numbers alone."""

    key: str
    chart: Chart
    drawing: str
    height: int
    width: int = WIDTH


Mark = tuple[float, float, str]


def load_matplotlib() -> Any:
    """Return matplotlib, or say how to install it."""
    try:
        import matplotlib.style
    except ImportError as error:
        raise _check.missing("Figures need matplotlib", "report") from error
    return matplotlib


@contextmanager
def styled(**settings: Any) -> Iterator[None]:
    """Draw with these settings on top of matplotlib's defaults, whatever the user's own are."""
    with load_matplotlib().style.context(["default", {"svg.hashsalt": "tacita", "text.parse_math": False, **settings}]):
        yield


def draw(
    key: str,
    chart: Chart | None,
    *,
    band: Points = (),
    marks: tuple[Mark, ...] = (),
    plot: int = PLOT,
) -> Figure | None:
    """Return a chart with its drawing, or None if there is no line to draw.

    Args:
        key: Tells the charts of a page apart.
        chart: The lines. Points that have no place on the axes are left out, and so are lines with fewer than two.
        band: Corners of an area to fill.
        marks: Dots with a text of numbers beside them, as (x, y, text).
        plot: How high the part between the axes is.

    Returns:
        The figure. Equal arguments give equal figures.

    Raises:
        ImportError: If matplotlib is missing; the message names the install command.
    """
    if chart is None:
        return None
    series = (replace(s, points=_drawable(s.points, chart.log)) for s in chart.series)
    shown = replace(chart, series=tuple(s for s in series if len(s.points) > 1))
    if not shown.series:
        return None
    lines = tuple((s.hue, s.points) for s in shown.series)
    drawing = _drawing(key, lines, chart.log, band, marks, plot)
    return Figure(key=key, chart=shown, height=TOP + plot + _BELOW, drawing=drawing)


def tests_chart(label: Label) -> Chart | None:
    """Return the largest share of members that a test finds, over the share of others that it wrongly accuses.

    For anyone; for certified shares of the population, or a typical person where there are none; and what the
    strongest attack that was tried achieved.
    """
    unit, worst = headline_unit(label), label.worst
    if worst.profile is None:
        return None
    rates = [10 ** (-4 + k / 15) for k in range(61)]
    curves: list[tuple[Hue, str, Points]] = [
        ("anyone", unit.anyone, tuple((a, worst.curve.tpr(a)) for a in rates)),
        *_beside_anyone(label, rates),
    ]
    series = [
        Series(hue=hue, name=name, points=tuple((100 * a, 100 * found) for a, found in points))
        for hue, name, points in curves
    ]
    found = success_text(worst.curve.tpr(0.01))
    measured = (
        " The attack's line was measured, and may cross the others by chance." if series[-1].hue == "attack" else ""
    )
    return Chart(
        heading="What a test for presence can find",
        caption="Every test that an attacker may think of lies on or below the line. The dotted line is guessing."
        + measured,
        description=f"A test that wrongly accuses 1% of those who were not there finds at most {found} of those "
        "who were.",
        series=(*series, Series(hue="plain", name="Guessing", points=((0.01, 0.01), (100.0, 100.0)))),
        x_title=f"% of absent {unit.people} wrongly accused",
        y_title=f"% of present {unit.people} found",
        log=True,
    )


def _beside_anyone(label: Label, rates: list[float]) -> list[tuple[Hue, str, Points]]:
    """Return the further lines of the picture: shares of the population or a typical person, and an attack."""
    own, unit, worst = label.readings, headline_unit(label), label.worst
    if own is None:
        return []
    tests = dict(own.shares.tests) if own.shares else {}
    hues: dict[float, Hue] = {90.0: "typical", 50.0: "half"}
    found: list[tuple[Hue, str, Points]] = [
        (hue, f"{percent:g}% of {unit.people}", tuple((a, min(t, worst.curve.tpr(a))) for a, t in tests[percent]))
        for percent, hue in hues.items()
        if percent in tests
    ]
    typical = [g for g in own.typical if g.unit == worst.unit and g.is_bound and g.notion == "weak" and g.profile]
    if not found:
        found = [
            ("typical", unit.typical, tuple((a, min(g.curve.tpr(a), worst.curve.tpr(a))) for a in rates))
            for g in typical[:1]
        ]
    attacks = [finding.measured for finding in own.audit if finding.tests_claim and len(finding.measured) > 1]
    return [*found, *(("attack", "Strongest attack that was tried", points) for points in attacks[:1])]


def steps_chart(label: Label) -> Chart:
    """Return epsilon over steps: of anyone, and on the owner's page of a typical person."""
    own, unit, step = label.readings, headline_unit(label), label.steps_word
    curves = [
        ("anyone", unit.anyone, _finite(label.curve)),
        ("typical", unit.typical, _finite(own.curve if own else ())),
    ]
    curves = [curve for curve in curves if len(curve[2]) > 1]
    ends = "; ".join(f"{name.lower()}: epsilon {epsilon_text(points[-1][1])}" for _, name, points in curves)
    last = max((points[-1][0] for _, _, points in curves), default=0.0)
    return Chart(
        heading="How it adds up over the run",
        caption=f"Every {step} adds to what an outsider could learn.",
        description=f"Epsilon grows with every {step}. After {last:,.0f} {step}s, {ends}.",
        series=tuple(
            Series(hue=hue, name=f"{name}: {epsilon_text(points[-1][1])}", points=points)  # type: ignore[arg-type]
            for hue, name, points in curves
        ),
        x_title=f"{step}s",
        y_title="epsilon",
    )


def spread_figure(label: Label) -> Figure | None:
    """Return the share of followed records that stay under each attack success: the percentile curve."""
    own, unit = label.readings, headline_unit(label)
    if own is None or len(own.percentiles) < 2:
        return None
    points = [(100.0 * success, percent) for percent, success in success_points(own, label.worst)]
    stairs = _stairs(points, 100.0 * label.worst.curve.attack_success())
    half = next((x for x, percent in points if percent == 50), points[-1][0])
    named = [p for p in points if p[1] in (10, 50, 90, 99, 100)] or points[:: math.ceil(len(points) / 5)]
    shares = ", ".join(f"{percent:g}% stay under {success_text(x / 100)}" for x, percent in named)
    chart = Chart(
        heading=f"How the followed {unit.many} spread",
        caption=f"How to read it: against half of the followed {unit.many}, an attacker is right at most "
        f"{success_text(half / 100)} of the time.",
        description=f"Of the followed {unit.many}, {shares}.",
        series=(Series(hue="spread", name=f"Share of the {unit.many} under each attack success", points=stairs),),
        x_title="right at most so many times in 100",
        y_title=f"% of the followed {unit.many}",
    )
    names = {50.0: "half", 90.0: "9 in 10"}
    marks = tuple((x, p, f"{names[p]}: {success_text(x / 100)[:-1]}") for x, p in points if p in names)
    return draw("spread", chart, band=(*stairs, (stairs[-1][0], 0.0)), marks=marks, plot=110)


@lru_cache(maxsize=64)
def _drawing(
    key: str,
    lines: tuple[tuple[str, Points], ...],
    log: bool,
    band: Points,
    marks: tuple[Mark, ...],
    plot: int,
) -> str:
    height = TOP + plot + _BELOW
    with styled(**_STYLE | {"svg.hashsalt": f"tacita {key}"}):
        from matplotlib.figure import Figure as Canvas

        canvas = Canvas(figsize=(WIDTH / 72, height / 72))
        axes = canvas.add_axes((LEFT / WIDTH, 1 - (TOP + plot) / height, (RIGHT - LEFT) / WIDTH, plot / height))
        _set_axes(axes, log, [point for _, points in lines for point in points])
        if band and not (log and min(map(min, band)) <= 0.0):
            axes.fill(*zip(*band, strict=True), color=_LINES["spread"][0], alpha=0.15, lw=0, clip_on=False)
        for hue, points in lines:
            colour, width, dashes = _LINES[hue]
            axes.plot(*zip(*points, strict=True), color=colour, lw=width, ls=dashes, gid=hue, clip_on=False)
        axes.grid(axis="y", clip_on=False)
        for x, y, text in marks:
            axes.plot([x], [y], "o", color=_LINES["spread"][0], ms=8, mec=_PAPER, clip_on=False)
            low, high = axes.get_xlim()
            place, side = ((-9, 3), "right") if x > low + 0.6 * (high - low) else ((9, -11), "left")
            axes.annotate(text, (x, y), xytext=place, ha=side, textcoords="offset points", gid="mark")
        file = StringIO()
        canvas.savefig(
            file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return _inline(file.getvalue())


def _set_axes(axes: Any, log: bool, points: list[tuple[float, float]]) -> None:
    """Set scales, ticks and where the axes begin: at 0 if it is near, and always with the vertical one."""
    from matplotlib import ticker

    if log:
        axes.set(xscale="log", yscale="log")
        axes.minorticks_off()
    else:
        low, high = min(x for x, _ in points), max(x for x, _ in points)
        axes.update_datalim([(0.0 if 0.0 < low <= 0.5 * high else low, 0.0)])
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: tick_text(value))
    axes.xaxis.set_major_formatter(lambda value, _: tick_text(value))


def _inline(document: str) -> str:
    """Return what stands inside an SVG document's root, in the page's colours and without ids that charts share."""
    inside = document[document.index("<g id=") : document.rindex("</svg>")].replace("<g id=", "<g class=")
    for colour, variable in _VARIABLES.items():
        inside = inside.replace(colour, f"var(--{variable})")
    return inside


def _drawable(points: Points, log: bool) -> Points:
    low = TINY if log else -HUGE
    return tuple((x, y) for x, y in points if low <= x <= HUGE and low <= y <= HUGE)


def _finite(points: Any) -> Points:
    return tuple((float(x), float(y)) for x, y in sorted(points) if math.isfinite(x) and math.isfinite(y))


def _stairs(points: Sequence[tuple[float, float]], high: float) -> Points:
    """Go along first, then up: between two known shares the smaller one is claimed."""
    corners: list[tuple[float, float]] = [(50.0, 0.0)]
    for success, percent in points:
        corners += [(success, corners[-1][1]), (success, percent)]
    return (*corners, (max(high, corners[-1][0]), corners[-1][1]))
