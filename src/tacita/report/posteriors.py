"""The figure of released posteriors: one density a row, with its mean and 95% interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacita.report.curves import figure_metadata, load_matplotlib

_FILL, _LINE, _INK, _GRID = "#9fc5d1", "#1f6f8b", "#2b2b2b", "#d9d9d9"
_LONGEST = 44


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
    """Write the figure; the suffix (.svg, .png, .pdf) decides the format."""
    mpl = load_matplotlib()
    from matplotlib.figure import Figure

    heights = [len(panel.ridges) + 0.9 for panel in panels]
    with mpl.rc_context({"font.size": 10, "axes.edgecolor": "#8a8a8a", "svg.hashsalt": "tacita"}):
        figure = Figure(figsize=(8, 0.5 * sum(heights) + 0.5 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw(axis, panel)
        axes[-1].set_xlabel(
            "line: 95% interval, dot: mean; the noise is taken into account", fontsize=9, color="#6b6b6b"
        )
        figure.savefig(path, metadata=figure_metadata(path))


def _draw(axis: Any, panel: Panel) -> None:
    count = len(panel.ridges)
    for place, ridge in enumerate(panel.ridges):
        base, top = count - 1 - place, max(ridge.density)
        heights = [base + 0.8 * value / top for value in ridge.density]
        axis.fill_between(ridge.x, base, heights, color=_FILL, lw=0)
        axis.plot(ridge.x, heights, color=_LINE, lw=1)
        axis.plot([ridge.low, ridge.high], [base, base], color=_INK, lw=2, solid_capstyle="butt")
        axis.plot([ridge.mean], [base], "o", color=_INK, ms=4)
    names = [_short(ridge.name) if ridge.name != panel.title else "" for ridge in reversed(panel.ridges)]
    axis.set_yticks(range(count), names)
    axis.set_ylim(-0.3, count)
    axis.set_xlim(panel.low, panel.high)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", color=_GRID, lw=0.6)
    axis.set_axisbelow(True)
    axis.set_title(panel.title, loc="left", weight="bold")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
