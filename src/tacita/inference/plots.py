"""Figures of a fit: its posterior, for whoever may see the draws, and its evidence bound, for the data's owner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tacita._numbers import round_up_text
from tacita.inference.methods import METHODS
from tacita.inference.results import Result, Row, summarise
from tacita.report.charts import styled
from tacita.report.plots import STYLE

_LINE, _FAINT, _INK, _GREY = "#1f6f8b", "#9fc5d1", "#2b2b2b", "#6b6b6b"
_LONGEST, _MOST = 32, 120  # letters of a name, and rows of a figure
_ROWS = STYLE | {"axes.grid.axis": "x", "axes.spines.left": False, "ytick.left": False}


def posterior_plot(result: Result, *, sites: Sequence[str] | None = None) -> Any:
    """Return a matplotlib Figure with every unknown's mean and its 50% and 95% intervals, one a row.

    It shows nothing but the posterior, and costs nothing further. Neighbouring sites of about the same scale share an
    axis. `arviz.plot_forest(result.to_arviz())` is a plainer figure of the released draws, with highest-density
    intervals; here intervals are central, as in the summary, and many more draws are taken where they are free.

    Args:
        result: A fit.
        sites: Which sites to show, in this order; by default all of them.

    Raises:
        ValueError: If there is no such site, or there are too many numbers for one figure.
        ImportError: If matplotlib is missing; the message names the install command.
    """
    draws = result.draws()
    for name in sites or ():
        if name not in draws:
            raise ValueError(f"There is no site {name!r}; there are {', '.join(map(repr, draws))}.")
    shown = [{name: draws[name]} for name in (draws if sites is None else sites)]
    panels = _panels([list(zip(summarise(site, 0.95), summarise(site, 0.5), strict=True)) for site in shown])
    counts = [len(panel) for panel in panels]
    if sum(counts) > _MOST:
        raise ValueError(
            f"The sites hold {sum(counts)} numbers, too many for one figure ({_MOST}): choose some with sites=…."
        )
    with styled(**_ROWS):
        from matplotlib.figure import Figure

        height = 0.22 * sum(counts) + 0.5 * len(panels) + 0.9
        figure = Figure(figsize=(7.5, height), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[n + 0.6 for n in counts])[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            _forest(axis, panel)
        figure.suptitle(f"Posterior of {result.label().title}", x=0.01, ha="left", weight="bold", fontsize=11)
        worst = result.guarantee
        promise = f"any {worst.unit}: epsilon {round_up_text(worst.epsilon)} at delta {round_up_text(worst.delta)}"
        if math.isinf(worst.epsilon):
            promise = "without a privacy guarantee: epsilon is infinite"
        key = "dot: mean, thick line: 50% interval, thin line: 95% interval"
        axes[-1].set_xlabel(f"{key}\n{promise}", fontsize=8.5, color=_GREY)
    return figure


def elbo_plot(result: Result) -> Any:
    """Return a matplotlib Figure of the evidence bound at every step, with its running mean. It is not private.

    Raises:
        ValueError: If the fit kept no evidence bound.
        ImportError: If matplotlib is missing; the message names the install command.
    """
    values = np.array(result.elbo, dtype=float)
    finite = np.isfinite(values)
    if not finite.any():
        raise ValueError("The fit kept no evidence bound to show.")
    last = max(len(values), int(result.settings.get("steps", 0)))  # a resumed fit holds its later steps only
    steps, values = (np.arange(last - len(values), last) + 1)[finite], values[finite]
    window = np.ones(min(len(values), 2 * max(1, len(values) // 40) + 1))  # a twentieth of the steps, less at the ends
    smooth = np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")
    with styled(**STYLE | {"axes.grid.axis": "y"}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.5, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.plot(steps, values, color=_FAINT, lw=0.8, label="each step, at its own draw and sample")
        axis.plot(steps, smooth, color=_LINE, lw=2, label="running mean")
        low, high = np.quantile(values, 0.1), values.max()  # the climb of the first steps would hide all others
        room = 0.08 * (high - low) or 1.0
        axis.set_ylim(low - 3 * room, high + room)
        axis.set_xlim(steps[0] - 0.5, steps[-1] + 0.5)
        axis.locator_params(axis="x", integer=True)
        axis.set_xlabel("step")
        axis.set_ylabel(METHODS[result.method].objective)
        axis.set_title(f"Fit of {result.label().title}", fontsize=11)
        axis.set_title("for the owner: not private", loc="right", color="#b3403a", fontsize=9, weight="normal")
        axis.legend(frameon=False, loc="lower right")
    return figure


def _panels(sites: list[list[tuple[Row, Row]]]) -> list[list[tuple[Row, Row]]]:
    """Return rows in groups that share an axis: neighbours that all take up a twentieth of it, or else everything."""
    panels: list[list[tuple[Row, Row]]] = []
    low = high = least = 0.0
    for rows in sites:
        ends = min(wide.low for wide, _ in rows), max(wide.high for wide, _ in rows)
        span = ends[1] - ends[0]
        low, high, least = min(low, ends[0]), max(high, ends[1]), min(least, span)
        if not panels or high - low > 20.0 * least:
            panels.append([])
            low, high, least = *ends, span
        panels[-1] += rows
    return panels if len(panels) <= 8 else [[row for panel in panels for row in panel]]


def _forest(axis: Any, rows: list[tuple[Row, Row]]) -> None:
    """Draw one row for each number: its 95% interval, its 50% interval and its mean."""
    places = range(len(rows))
    for level, width in enumerate((1.2, 4.0)):
        axis.hlines(places, [row[level].low for row in rows], [row[level].high for row in rows], color=_LINE, lw=width)
    axis.plot([wide.mean for wide, _ in rows], places, "o", color="white", mec=_INK, mew=1.2, ms=4.5, zorder=3)
    names = [wide.name for wide, _ in rows]  # long ones with their middle cut out, so that an element's number stays
    axis.set_yticks(places, [n if len(n) <= _LONGEST else f"{n[: _LONGEST - 11]}…{n[-10:]}" for n in names])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    low, high = axis.get_xlim()
    if low < 0.0 < high:
        axis.axvline(0.0, color=_GREY, lw=0.8, ls=":", zorder=0)
