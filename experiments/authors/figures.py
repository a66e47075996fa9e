"""Figures 5.6 and 5.7."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.authors.tables import FORMS, WORST, clips, load, own, seeds
from experiments.papers.page import DOCS, EXACT, SHARES, THEIR_BDP, THEIR_DP, TYPICAL
from experiments.rows import Row, Rows

SHORT = {"mnist coded": "MNIST, authors' form", "cifar10 coded stretched": "CIFAR-10, authors' form, not clipped"}


def histogram(row: Row) -> tuple[list[float], list[float], list[float]]:
    """Return edges, and the shares of distances inside and outside between them."""
    if "pairs" not in row:
        return row["leak"]["comparisons"][-1]["bars"]
    pairs = row["pairs"]
    return pairs["edges"], *([n / pairs["count"] for n in pairs[side]] for side in ("inside", "outside"))


def over_training(axis: Any, rows: Rows, form: str) -> None:
    """Draw a panel of figure 5.6: the authors' form."""
    row, worst = seeds(rows, form)[0], rows[WORST[form]]
    x = worst["curve_steps"]
    axis.plot(row["curve_steps"], row["bdp_curve"], color=THEIR_BDP, lw=1.8, label="papers' BDP")
    axis.plot(row["curve_steps"], row["bdp_star_curve"], "--", color=THEIR_BDP, lw=1.8, label="papers' BDP*")
    if clips(form):
        axis.plot(x, worst["coded"]["curve"], color=EXACT, lw=3.0, label="worst case, as run")
    axis.plot(x, worst["printed"]["curve"], color=THEIR_DP, lw=1.8, label="worst case, as printed")
    label = "worst case, records clipped too"
    axis.plot(x, list(worst["records"].values())[-1]["curve"], color=SHARES, lw=2.2, label=label)


def of_our_own(axis: Any, rows: Rows, start: str) -> None:
    """Draw a panel of figure 5.6: our own training."""
    row = seeds(rows, start)[0]
    axis.plot(*zip(*row["worst_curve"], strict=True), color=EXACT, lw=3.0, label="worst case, as run")
    axis.plot(*zip(*row["typical_curve"], strict=True), color=TYPICAL, lw=1.8, label="typical, `band`")


def panels(name: str, starts: list[str], height: float, plot: Callable[[Any, str], None], y: str) -> None:
    """Draw panels in two columns, with one legend."""
    from matplotlib.figure import Figure

    from tacita.report.charts import styled
    from tacita.report.plots import STYLE

    with styled(**STYLE):
        lines = (len(starts) + 1) // 2
        figure = Figure(figsize=(9.0, 0.6 + height * lines), layout="constrained")
        axes = figure.subplots(lines, 2, squeeze=False)
        for axis in axes.flat[len(starts) :]:
            axis.axis("off")
        entries: dict[str, Any] = {}
        for axis, start in zip(axes.flat, starts, strict=False):
            plot(axis, start)
            axis.set_title(SHORT.get(start) or own(start), fontsize=10)
            entries |= {text: line for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
        for axis in axes[:, 0]:
            axis.set_ylabel(y)
        figure.legend(entries.values(), entries, frameon=False, fontsize=9, ncols=3, loc="outside lower center")
        figure.savefig(DOCS / "assets" / f"papers-{name}.svg", metadata={"Date": None, "Creator": "tacita"})


def figures() -> None:
    """Draw figures 5.6 and 5.7, of the first seed of each run."""
    rows = load()

    def growth(axis: Any, start: str) -> None:
        if start in FORMS:
            over_training(axis, rows, start)
            axis.set(yscale="log", ylim=(0.02, 30_000))
            axis.yaxis.set_minor_formatter(lambda *_: "")
        else:
            of_our_own(axis, rows, start)
            axis.set_ylim(0, 1)
        axis.set(xlabel="step", xlim=(0, None))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")

    def distances(axis: Any, start: str) -> None:
        edges, *sides = histogram(seeds(rows, start)[0])
        for shares, color, label in zip(sides, (THEIR_BDP, TYPICAL), ("inside", "outside"), strict=True):
            axis.stairs(shares, edges, color=color, fill=True, alpha=0.35)
            axis.stairs(shares, edges, color=color, lw=1.4, label=f"{label} the training set")
        axis.set_xlabel("distance between two gradients")

    shown = ("mnist coded", "cifar10 coded stretched", "mnist private", "cifar10 private")
    starts = [start for start in shown if seeds(rows, start)]
    panels("figure-5.6", starts, 2.7, growth, "epsilon at delta 1e-5")
    panels("figure-5.7", starts, 2.4, distances, "share of pairs")
