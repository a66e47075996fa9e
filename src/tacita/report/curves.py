"""The figure of a run: privacy curves, and how the followed records' own epsilons are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacita import _check
from tacita.guarantee import Guarantee

_WORST, _TYPICAL, _RECORDS, _INK, _GRID = "#b3403a", "#1f6f8b", "#5a8f69", "#2b2b2b", "#d9d9d9"


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
    mpl = load_matplotlib()
    with mpl.rc_context({"font.size": 10, "axes.edgecolor": "#8a8a8a", "svg.hashsalt": "tacita"}):
        figure, (left, right) = _canvas()
        left.semilogy(epsilons, worst_deltas, color=_WORST, lw=2, label="anyone (worst case)")
        left.semilogy(epsilons, typical_deltas, color=_TYPICAL, lw=2, label=f"a typical record ({typical.estimator})")
        left.set_xlim(0.0, max(epsilons))
        _finish_curves(left, worst, typical)
        right.step(list(percentiles.values()), list(percentiles), where="post", color=_RECORDS, lw=2)
        right.fill_between(list(percentiles.values()), list(percentiles), step="post", color=_RECORDS, alpha=0.15, lw=0)
        _finish_records(right, worst, typical)
        note = "The typical curve levels off at the estimator's failure probability, and is capped by the worst case. "
        note += "Computed from private data: for the data's owner."
        figure.text(0.01, 0.015, note, fontsize=8, color="#6b6b6b")
        figure.savefig(path, metadata=figure_metadata(path))


def _finish_curves(axis: Any, worst: Guarantee, typical: Guarantee) -> None:
    axis.axhline(worst.delta, color=_INK, lw=0.8, ls=":")
    axis.plot([worst.epsilon], [worst.delta], "o", color=_WORST)
    axis.plot([typical.epsilon], [typical.delta], "o", color=_TYPICAL)
    axis.set_ylim(worst.delta / 100.0, 1.0)
    axis.set_xlabel("epsilon")
    axis.set_ylabel("delta")
    axis.set_title("What an outsider can learn", loc="left", weight="bold")
    axis.legend(frameon=False, loc="upper right")


def _finish_records(axis: Any, worst: Guarantee, typical: Guarantee) -> None:
    for guarantee, color, name in ((worst, _WORST, "worst case"), (typical, _TYPICAL, "typical")):
        axis.axvline(guarantee.epsilon, color=color, lw=1.5)
        axis.annotate(
            f"{name} {guarantee.epsilon:.3g}",
            (guarantee.epsilon, 3),
            xytext=(-3, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            color=color,
        )
    axis.set_ylim(0, 100)
    axis.set_xlim(0.0, worst.epsilon * 1.08)
    axis.set_xlabel(f"a record's own epsilon at delta {worst.delta:g}")
    axis.set_ylabel("% of followed records below it")
    axis.set_title("Each followed record", loc="left", weight="bold")


def load_matplotlib() -> Any:
    """Return matplotlib, or say how to install it."""
    try:
        import matplotlib
    except ImportError as error:
        raise _check.missing("Figures need matplotlib", "report") from error
    return matplotlib


def _canvas() -> tuple[Any, Any]:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(10, 4.2), layout=ConstrainedLayoutEngine(rect=(0, 0.05, 1, 0.95)))
    axes = figure.subplots(1, 2)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color=_GRID, lw=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def figure_metadata(path: Path) -> dict[str, Any]:
    """Leave dates out, so that the same run draws the same file."""
    if path.suffix == ".svg":
        return {"Date": None, "Creator": "tacita"}
    return {"CreationDate": None} if path.suffix == ".pdf" else {}
