"""The figure of a run: privacy curves, and how the followed records' own epsilons are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
        figure = _draw(epsilons, worst_deltas, typical_deltas, worst, typical, percentiles)
        figure.savefig(path, metadata=_metadata(path))


def _draw(
    epsilons: Sequence[float],
    worst_deltas: Sequence[float],
    typical_deltas: Sequence[float],
    worst: Guarantee,
    typical: Guarantee,
    percentiles: Mapping[float, float],
) -> Any:
    figure, (left, right) = _canvas()
    left.semilogy(epsilons, worst_deltas, color=_WORST, lw=2, label="anyone (worst case)")
    left.semilogy(epsilons, typical_deltas, color=_TYPICAL, lw=2, label=f"a typical record ({typical.estimator})")
    left.axhline(worst.delta, color=_INK, lw=0.8, ls=":")
    left.plot([worst.epsilon], [worst.delta], "o", color=_WORST)
    left.plot([typical.epsilon], [typical.delta], "o", color=_TYPICAL)
    left.set_ylim(worst.delta / 100.0, 1.0)
    left.set_xlim(0.0, max(epsilons))
    left.set_xlabel("epsilon")
    left.set_ylabel("delta")
    left.set_title("What an outsider can learn", loc="left", weight="bold")
    left.legend(frameon=False, loc="upper right")

    shares, own = list(percentiles), list(percentiles.values())
    right.step(own, shares, where="post", color=_RECORDS, lw=2)
    right.fill_between(own, shares, step="post", color=_RECORDS, alpha=0.15, lw=0)
    for guarantee, color, name in ((worst, _WORST, "worst case"), (typical, _TYPICAL, "typical")):
        right.axvline(guarantee.epsilon, color=color, lw=1.5)
        right.annotate(
            f"{name} {guarantee.epsilon:.3g}",
            (guarantee.epsilon, 3),
            xytext=(-3, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            color=color,
        )
    right.set_ylim(0, 100)
    right.set_xlim(0.0, worst.epsilon * 1.08)
    right.set_xlabel(f"a record's own epsilon at delta {worst.delta:g}")
    right.set_ylabel("% of followed records below it")
    right.set_title("Each followed record", loc="left", weight="bold")
    note = "The typical curve levels off at the estimator's failure probability, and is capped by the worst case. "
    note += "Computed from private data: for the data's owner."
    figure.text(0.01, 0.015, note, fontsize=8, color="#6b6b6b")
    return figure


def load_matplotlib() -> Any:
    """Return matplotlib, or say how to install it."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'tacita[report]'") from error
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


def _metadata(path: Path) -> dict[str, Any]:
    """Leave dates out, so that the same run draws the same file."""
    if path.suffix == ".svg":
        return {"Date": None, "Creator": "tacita"}
    return {"CreationDate": None} if path.suffix == ".pdf" else {}
