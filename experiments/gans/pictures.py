"""Pictures of samples, curves of losses and of Fréchet distances, from the results of experiments/gans."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

from experiments import rows as measured
from experiments.papers.page import DOCS
from experiments.rows import Row

Group = list[Row]

COLORS = ("#1f6f8b", "#b3403a", "#5a8f69", "#8a8a8a")
PICTURES: dict[str, tuple[str, list[tuple[str, str, str]]]] = {  # figure: what it is, and its panels
    "figure-7.2": (
        "Synthetic clothes",
        [
            ("no noise", "section 7.5.3 fashion-mnist wgan-gp", ""),
            ("as published", "table 7.1 fashion-mnist wgan", ""),
            ("worst case of 1", "table 7.1 fashion-mnist mean-embedding", ""),
        ],
    ),
    "figure-7.3": (
        "Synthetic digits of correct and of altered data",
        [
            ("as published, correct", "table 7.1 mnist wgan", ""),
            ("as published, altered", "figure 7.3 mnist wgan", ""),
            ("worst case of 1, correct", "figure 7.3 mnist mean-embedding", "correct"),
            ("worst case of 1, altered", "figure 7.3 mnist mean-embedding", "altered"),
        ],
    ),
    "table-3.1": (
        "Digits of chapter 3's networks",
        [
            ("labels appended", "table 3.1 mnist", ""),
            ("… DP critic", "table 3.1 mnist dp-critic", ""),
            ("labels as a direction", "table 3.1 mnist direction", ""),
        ],
    ),
}


def group(name: str) -> Group:
    """Return the seeds of a row of ours."""
    return [row for key, row in measured.load("gans").items() if key.startswith(f"{name.strip()} seed ")]


def panels(figure: str) -> list[tuple[str, str]]:
    """Return the titles and the PNGs, in base64, of a figure's panels that were measured."""
    found = [(title, part, group(name)) for title, name, part in PICTURES[figure][1]]
    return [(title, (rows[0][part] if part else rows[0])["picture"]) for title, part, rows in found if rows]


def draw(name: str, count: int, columns: int, size: tuple[float, float], plot: Callable[[int, Any], None]) -> None:
    """Draw panels of a size in inches, so many in a row, and write the figure."""
    from matplotlib.figure import Figure

    from tacita.report.charts import styled
    from tacita.report.plots import STYLE

    lines = -(-count // columns)
    with styled(**STYLE):
        figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
        for i, axis in enumerate(figure.subplots(lines, columns, squeeze=False).flat):
            plot(i, axis) if i < count else axis.set_axis_off()
        plain = {"Date": None, "Creator": "tacita"} if name.endswith("svg") else {"Software": None}
        figure.savefig(DOCS / "assets" / f"papers-{name}", metadata=plain, dpi=110)


def figures(curves: list[tuple[str, Row]], losses: list[tuple[str, Row]]) -> None:
    """Draw what was measured: Fréchet distances and losses, with their titles, and the panels of `PICTURES`."""
    from matplotlib.image import imread

    def distances(_: int, axis: Any) -> None:
        for (name, curve), color in zip(curves, COLORS, strict=False):
            axis.plot(
                curve["steps"], [1000.0 * value for value in curve["frechet"]], "o-", color=color, ms=3.5, label=name
            )
        axis.set(ylim=(0.0, None), xlabel="steps of the critic", ylabel="Fréchet distance, thousandths")
        axis.legend(frameon=False, fontsize=9)

    if curves:
        draw("figure-3.3.svg", 1, 1, (7.0, 3.4), distances)

    def both(i: int, axis: Any) -> None:
        title, found = losses[i]
        for key, style in (("real", "-"), ("synthetic", "--")):
            for j, color in ((0, COLORS[0]), (2, COLORS[1])):
                label = f"{key}, rate {found['learning_rates'][j]:g}"
                axis.plot(found["steps"], found[key][j], style, color=color, lw=1.6, label=label)
        axis.set_title(title, fontsize=9)
        axis.set(ylim=(0.0, 2.5), xlabel="steps of the student", ylabel="cross-entropy")
        if i == 0:
            axis.legend(frameon=False, fontsize=7, loc="upper right")

    if losses:
        draw("figure-7.5.svg", len(losses), min(3, len(losses)), (3.6, 3.1), both)
    for figure in PICTURES:
        found = panels(figure)

        def look(i: int, axis: Any, found: list[tuple[str, str]] = found) -> None:
            axis.imshow(imread(io.BytesIO(base64.b64decode(found[i][1]))), interpolation="nearest")
            axis.set_title(found[i][0], fontsize=9)
            axis.set_axis_off()

        if found:
            draw(f"{figure}.png", len(found), len(found), (2.0, 3.4), look)
