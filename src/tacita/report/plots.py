"""Figures as files: privacy curves with the spread of records, and released posteriors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacita._numbers import delta_text, epsilon_text, tick_text
from tacita.guarantee import Guarantee
from tacita.report.charts import styled

_WORST, _TYPICAL, _RECORDS, _FILL, _INK, _FAINT = "#b3403a", "#1f6f8b", "#5a8f69", "#9fc5d1", "#2b2b2b", "#6b6b6b"
_LONGEST = 44  # letters of a name
STYLE = {
    "font.size": 10,
    "axes.axisbelow": True,
    "axes.edgecolor": "#8a8a8a",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
}


def draw_curves(
    path: Path,
    *,
    epsilons: Sequence[float],
    worst_deltas: Sequence[float],
    typical_deltas: Sequence[float],
    worst: Guarantee,
    typical: Guarantee,
    percentiles: Mapping[float, float],
) -> None:
    """Write a figure with two panels: delta over epsilon, and the share of records below each epsilon.

    Args:
        path: Where to write; the suffix (.svg, .png, .pdf) decides the format.
        epsilons: Horizontal axis of the curves.
        worst_deltas: The worst case at each epsilon.
        typical_deltas: The Bayesian statement at each epsilon.
        worst: The worst-case guarantee at the delta of interest.
        typical: The Bayesian one at the same delta.
        percentiles: From percentage to the epsilon that this share of followed records stays under.
    """
    with styled(**STYLE):
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        figure = Figure(figsize=(10, 4.2), layout=ConstrainedLayoutEngine(rect=(0, 0.05, 1, 0.95)))
        left, right = figure.subplots(1, 2)
        left.semilogy(epsilons, worst_deltas, color=_WORST, lw=2, label="anyone (worst case)")
        left.semilogy(epsilons, typical_deltas, color=_TYPICAL, lw=2, label=f"a typical record ({typical.estimator})")
        left.axhline(worst.delta, color=_INK, lw=0.8, ls=":")
        left.set(xlim=(0.0, max(epsilons)), ylim=(worst.delta / 100.0, 1.0), xlabel="epsilon", ylabel="delta")
        left.yaxis.set_major_formatter(lambda delta, _: tick_text(delta))
        left.set_title("What an outsider can learn")
        shares, limits = list(percentiles), list(percentiles.values())
        right.step(limits, shares, where="post", color=_RECORDS, lw=2)
        right.fill_between(limits, shares, step="post", color=_RECORDS, alpha=0.15, lw=0)
        right.set(xlim=(0.0, worst.epsilon * 1.08), ylim=(0, 100), ylabel="% of followed records below it")
        right.set(xlabel=f"individual epsilon at delta {delta_text(worst.delta)}")
        right.set_title("Each followed record")
        for guarantee, color, name in ((worst, _WORST, "worst case"), (typical, _TYPICAL, "typical")):
            left.plot([guarantee.epsilon], [guarantee.delta], "o", color=color)
            right.axvline(guarantee.epsilon, color=color, lw=1.5)
            place = {"xytext": (-3, 0), "textcoords": "offset points", "ha": "right", "va": "bottom"}
            text = f"{name} {epsilon_text(guarantee.epsilon)}"
            right.annotate(text, (guarantee.epsilon, 3), rotation=90, color=color, **place)
        left.legend(frameon=False, loc="upper right")
        note = "The typical curve levels off at the estimator's failure probability, and is capped by the worst case. "
        note += "Computed from private data: for the data's owner."
        figure.text(0.01, 0.015, note, fontsize=8, color=_FAINT)
        _save(figure, path)


@dataclass(frozen=True)
class Ridge:
    """One posterior: its density at points, its mean and the ends of its interval."""

    name: str
    x: tuple[float, ...]
    density: tuple[float, ...]
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Panel:
    """Posteriors that share an axis from `low` to `high`."""

    title: str
    ridges: tuple[Ridge, ...]
    low: float
    high: float


def draw_posteriors(path: Path, panels: Sequence[Panel]) -> None:
    """Write one density a row, with its mean and 95% interval; the suffix (.svg, .png, .pdf) decides the format."""
    heights = [len(panel.ridges) + 0.9 for panel in panels]
    with styled(**STYLE | {"axes.grid.axis": "x", "axes.spines.left": False, "ytick.left": False}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 0.5 * sum(heights) + 0.5 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw_panel(axis, panel)
        note = "line: 95% interval, dot: mean; the noise is taken into account"
        axes[-1].set_xlabel(note, fontsize=9, color=_FAINT)
        _save(figure, path)


def _draw_panel(axis: Any, panel: Panel) -> None:
    count = len(panel.ridges)
    for base, ridge in zip(reversed(range(count)), panel.ridges, strict=True):
        top = max(ridge.density)
        heights = [base + 0.8 * value / top for value in ridge.density]
        axis.fill_between(ridge.x, base, heights, color=_FILL, lw=0)
        axis.plot(ridge.x, heights, color=_TYPICAL, lw=1)
        axis.plot([ridge.low, ridge.high], [base, base], color=_INK, lw=2, solid_capstyle="butt")
        axis.plot([ridge.mean], [base], "o", color=_INK, ms=4)
    names = ["" if ridge.name == panel.title else ridge.name for ridge in reversed(panel.ridges)]
    short = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in names]
    axis.set_yticks(range(count), short)
    axis.set(xlim=(panel.low, panel.high), ylim=(-0.3, count))
    axis.set_title(panel.title)


def _save(figure: Any, path: Path) -> None:
    """Write a figure without a date, so that the same run draws the same file."""
    dates = {".svg": {"Date": None, "Creator": "tacita"}, ".pdf": {"CreationDate": None}}
    figure.savefig(path, metadata=dates.get(path.suffix, {}))
